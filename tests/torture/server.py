"""Forks a bitmosaic command for each line of JSON on its standard input; answers with process ids and exit codes.

A fault is ["kill" or an errno, n, places]: the n-th call that writes, opens for writing, truncates, syncs, renames,
creates or removes something in these places kills the process or fails with that error; a write first writes half of
its data.
["count", 0, places] lets nothing fail and reports every such call.
"""

import builtins
import errno
import io
import json
import os
import signal
import sys
import traceback
from pathlib import Path

COUNT = "count"
# Audit events of Python, and the position of the folder descriptor that a relative path belongs to.
CHANGES = {
    "os.rename": slice(2, 3),
    "os.mkdir": slice(2, 3),
    "os.remove": slice(1, 2),
    "os.rmdir": slice(1, 2),
    "os.truncate": slice(0),
}


def main(folder):
    os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])  # one thread: a fork copies no other
    from image_kinds import write_images

    from bitmosaic.estimators import checkpoint
    from bitmosaic.pipeline import extraction
    from torture.commands import edit

    extraction.BATCH = 16  # so that there are several
    checkpoint.EVERY = checkpoint.COST = 0.0  # after every iteration
    images, warm = write_images(Path(folder) / "images", 4), Path(folder) / "run"
    # Compile or load the kernels of all commands once.
    for arguments in (
        ("cluster", images, "--clusters", 3, "--labels", "folder", "--out", warm),
        ("predict", warm, images, "--out", Path(folder) / "predicted"),
        ("add", warm, write_images(Path(folder) / "more", 4, seed=1), "--update"),
        ("refit", warm, "--clusters", 4),
    ):
        if arguments[0] == "refit":
            edit(warm)
        with open(os.devnull, "w") as nowhere:
            assert command(arguments, nowhere) == 0
    print("ready", flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        if "wait" in question:
            answer = os.waitstatus_to_exitcode(os.waitpid(question["wait"], 0)[1])
        else:
            answer = fork(**question)
        print(answer, flush=True)


def fork(arguments, log, fault, user):
    reading, writing = os.pipe()
    if pid := os.fork():
        os.close(writing)
        os.read(reading, 1)  # now it leads its process group
        os.close(reading)
        return pid
    code = 70
    try:
        os.setpgid(0, 0)
        os.close(writing)
        os.close(reading)
        with open(log, "w", buffering=1) as file:
            os.dup2(file.fileno(), 2)
            if user is not None:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            if fault is not None:
                install(*fault)
            try:
                code = command(arguments, file)
            except BaseException:
                traceback.print_exc(file=file)
    finally:
        os._exit(code)


def command(arguments, said):
    """Run a command as from the shell; only its error output is kept."""
    from bitmosaic.cli import main as bitmosaic

    sys.argv = ["bitmosaic", *map(str, arguments)]
    keep = sys.stdout, sys.stderr
    try:
        with open(os.devnull, "w") as nowhere:
            sys.stdout, sys.stderr = nowhere, said
            bitmosaic()
    except SystemExit as end:
        return end.code or 0
    finally:
        sys.stdout, sys.stderr = keep
    return 0


def install(kind, n, places):
    """Let only the n-th change in these places fail."""
    count, places = 0, tuple(places)

    def meet(path, tear=lambda: None):
        nonlocal count
        if not isinstance(path, str | bytes | os.PathLike) or not os.path.abspath(os.fsdecode(path)).startswith(places):
            return
        count += 1
        if count == n or kind == COUNT:
            write(2, b"FAULT\n")
            if kind == COUNT:
                return
            tear()
            if kind == "kill":
                os.kill(0, signal.SIGKILL)
            raise OSError(getattr(errno, kind), os.strerror(getattr(errno, kind)), os.fsdecode(path))

    def audit(event, values):
        if event == "open" and isinstance(values[2], int) and values[2] & (os.O_WRONLY | os.O_RDWR):
            meet(values[0])
        elif event in CHANGES:
            meet(_below(values[0], *values[CHANGES[event]]))

    class Raw(io.FileIO):
        def write(self, data):
            meet(self.name, lambda: super(Raw, self).write(memoryview(data)[: len(data) // 2]))  # a torn write
            return super().write(data)

        def truncate(self, size=None):
            meet(self.name)
            return super().truncate(size)

    opened, fsync, write = io.open, os.fsync, os.write

    def open_(file, mode="r", buffering=-1, *rest, **options):
        if isinstance(file, int) or "b" not in mode or not set(mode) & set("wax+"):
            return opened(file, mode, buffering, *rest, **options)
        raw = Raw(file, mode.replace("b", ""))
        if buffering == 0:
            return raw
        return io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)

    def fsync_(descriptor):
        meet(_path(descriptor))
        fsync(descriptor)

    def write_(descriptor, data):
        meet(_path(descriptor), lambda: write(descriptor, data[: len(data) // 2]))
        return write(descriptor, data)

    builtins.open = io.open = open_
    os.fsync, os.write = fsync_, write_
    sys.addaudithook(audit)


def _below(where, folder=-1):
    """A path, relative to an open folder if one is given."""
    path = _path(where)
    return path if folder == -1 else os.path.join(_path(folder), os.fsdecode(path))


def _path(where):
    return os.readlink(f"/proc/self/fd/{where}") if isinstance(where, int) else where


if __name__ == "__main__":
    main(sys.argv[1])

"""Forks a bitmosaic command for each line of JSON on its standard input; answers with process ids and exit codes.

A fault is ["kill" or an errno, n, places]: at the n-th time that something in these places is to be written, opened for
writing, cut, synced, renamed, made or removed, the process is killed there, or the system call fails with that error;
of what is written there, half comes to the file.
["count", 0, places] lets nothing fail, and tells of every such time. ["stop", n, places] stops it (SIGSTOP) there, or
where anything in these places is opened, listed, locked or looked at: ["count all", 0, places] tells of all that.
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

COUNT, COUNT_ALL, STOP = "count", "count all", "stop"
# Events of Python's audit, and where they tell the folder that a relative path begins in, as shutil.rmtree gives it.
CHANGES = {
    "os.rename": slice(2, 3),
    "os.mkdir": slice(2, 3),
    "os.remove": slice(1, 2),
    "os.rmdir": slice(1, 2),
    "os.truncate": slice(0),
}
LOOKS = ("os.listdir", "os.scandir", "fcntl.flock")


def main(folder):
    os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])  # one thread: a fork has no other
    from bitmosaic import checkpoint, extraction
    from pictures import write_pictures
    from torture.commands import edit

    extraction.BATCH = 16  # so that there are several
    checkpoint.EVERY = checkpoint.COST = 0.0  # after every iteration
    pictures, warm = write_pictures(Path(folder) / "pictures", 4), Path(folder) / "run"
    # Compiles or loads what every command needs, once for all of them.
    for arguments in (
        ("cluster", pictures, "--clusters", 3, "--labels", "folder", "--out", warm),
        ("predict", warm, pictures, "--out", Path(folder) / "predicted"),
        ("add", warm, write_pictures(Path(folder) / "more", 4, seed=1), "--update"),
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
        os.read(reading, 1)  # it leads its group by now
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
    """As from the shell. Only what it says in error matters; the result is in files."""
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
    """Let the n-th change to anything in these places fail, and that alone: a full disk is tried with a full disk."""
    count, stepwise, places = 0, kind in (STOP, COUNT_ALL), tuple(places)

    def meet(path, tear=lambda: None):
        nonlocal count
        if not isinstance(path, str | bytes | os.PathLike) or not os.path.abspath(os.fsdecode(path)).startswith(places):
            return
        count += 1
        if count == n or kind in (COUNT, COUNT_ALL):
            write(2, b"FAULT\n")
            if kind in (COUNT, COUNT_ALL):
                return
            if kind == STOP:
                os.kill(os.getpid(), signal.SIGSTOP)
                return
            tear()
            if kind == "kill":
                os.kill(0, signal.SIGKILL)
            raise OSError(getattr(errno, kind), os.strerror(getattr(errno, kind)), os.fsdecode(path))

    def audit(event, values):
        if event == "open" and (stepwise or (isinstance(values[2], int) and values[2] & (os.O_WRONLY | os.O_RDWR))):
            meet(values[0])
        elif event in CHANGES:
            meet(_below(values[0], *values[CHANGES[event]]))
        elif stepwise and event in LOOKS:
            meet(_path(values[0]))

    class Raw(io.FileIO):
        def write(self, data):
            meet(self.name, lambda: super(Raw, self).write(memoryview(data)[: len(data) // 2]))  # as a disk tears it
            return super().write(data)

        def truncate(self, size=None):
            meet(self.name)
            return super().truncate(size)

    opened, fsync, write, stat = io.open, os.fsync, os.write, os.stat

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

    def stat_(path, **options):
        meet(path)
        return stat(path, **options)

    builtins.open = io.open = open_
    os.fsync, os.write = fsync_, write_
    if stepwise:
        os.stat = stat_
    sys.addaudithook(audit)


def _below(where, folder=-1):
    """A path that is relative to an open folder, where one is given."""
    path = _path(where)
    return path if folder == -1 else os.path.join(_path(folder), os.fsdecode(path))


def _path(where):
    return os.readlink(f"/proc/self/fd/{where}") if isinstance(where, int) else where


if __name__ == "__main__":
    main(sys.argv[1])

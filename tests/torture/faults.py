"""Every write of a command made to fail; a full disk; no permission. The same command then finishes the job."""

import os
import random
import signal
import subprocess
import time

from torture import changes
from torture.commands import COMMANDS, bench, halves, jobs_in
from torture.kills import check_done, check_reader, check_result
from torture.locks import until_stopped
from torture.server import COUNT
from torture.tally import Tally

ERRORS = ("ENOSPC", "EIO", "EACCES")
SHORT_TRIES = 4  # some of the writes are enough for a test suite
NOBODY = 65534
PAGE = 4096
PARTS = (*COMMANDS, "disks", "permission", "changes")

KILLED, FAILED = "`{}` killed at", "`{}` with a full or failing disk or no permission at"
DISKS = "disks of several sizes that fill up during a command, and then grow"
PERMISSION = "write permission taken away during a command, and given back"


def lines(effort):
    at_writes = [f"{what.format(name)} {_which(effort)}" for name in COMMANDS for what in (KILLED, FAILED)]
    return [*at_writes, DISKS, PERMISSION, *changes.LINES]


def _which(effort):
    return f"{'every' if effort.whole else 'some'} write, rename, sync or removal"


def tallies(effort):
    with bench() as (forks, jobs, folder):
        for name in COMMANDS:
            if effort.wants(f"{name} kills"):
                yield at_writes(forks, jobs[name], effort, KILLED.format(name), lambda n: "kill")
            if effort.wants(f"{name} errors"):
                yield at_writes(forks, jobs[name], effort, FAILED.format(name), errno)
        if effort.wants("disks"):
            yield full_disk(forks, jobs, effort, folder)
        if effort.wants("permission"):
            yield no_permission(forks, jobs, effort, folder)
        if effort.wants("changes"):
            yield from changes.tallies(forks, jobs, effort, folder)


def errno(n):
    return ERRORS[n % len(ERRORS)]


def at_writes(forks, job, effort, what, kind):
    tally = Tally(f"{what} {_which(effort)}")
    job.clear()
    n_writes = forks.run(job.arguments, fault=[COUNT, 0, [str(job.out.parent)]]).faults
    step = 1 if effort.whole else max(1, n_writes // SHORT_TRIES)
    n = 1
    while True:
        job.clear()
        ended = forks.run(job.arguments, fault=[kind(n), n, [str(job.out.parent)]])
        if not ended.faults:
            return tally
        tally.tried += 1
        check_stop(job, ended, f"{kind(n)} at write {n}", tally)
        finish(forks, job, f"{kind(n)} at write {n}", tally)
        n += step


def check_stop(job, ended, why, tally):
    """Killed, done in spite of all, or stopped with a sentence that says where; and nothing half passes for whole."""
    told = ended.refused and str(job.out.parent) in ended.said
    if ended.crashed or not (told or ended.code in (0, -signal.SIGKILL)):
        tally.crashes.append(f"{job.name}, {why}: ended with {ended.code}: {ended.said[-600:]}")
    check_done(job, ended, tally, f", {why}")
    check_reader(job, tally, f", {why}")
    tally.losses += [f"{job.name}, {why}: half of {path} passes for whole" for path in halves(job)]


def finish(forks, job, why, tally, user=None):
    ended = forks.run(job.arguments, user=user)
    if ended.code != 0:
        tally.crashes.append(f"{job.name}, after {why}: ended with {ended.code}: {ended.said[-600:]}")
    check_result(job, tally)


def full_disk(forks, jobs, effort, folder):
    """A disk of its own for the results, of several sizes, so that it is full at several stages; then it grows."""
    tally = Tally(DISKS)
    for there in jobs_in(folder / "disk", folder):
        here = jobs[there.name]
        there.states = here.states
        here.clear()
        before = 0 if here.origin is None else room(here.out)
        forks.run(here.arguments)
        most = 3 * (room(here.out) - before if here.name == "add" else room(here.out))
        n_sizes = 24 if effort.whole else 1
        for size in (int(before + most * (i + 0.3) / n_sizes) for i in range(n_sizes)):
            there.out.parent.mkdir(exist_ok=True)
            mounted = _run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(there.out.parent))
            if mounted.returncode:
                tally.what += f" (not tried: a disk cannot be mounted here: {mounted.stderr.strip()})"
                return tally
            try:
                tally.tried += 1
                there.clear()
                check_stop(there, forks.run(there.arguments), f"a disk of {size} bytes", tally)
                _run("mount", "-o", "remount,size=1g", str(there.out.parent))
                finish(forks, there, f"a disk of {size} bytes", tally)
            finally:
                _run("umount", str(there.out.parent))
    return tally


def room(folder):
    """Bytes that a folder takes in memory, where each file has pages of its own."""
    pages = [2 + path.stat().st_size // PAGE for path in folder.rglob("*")]
    return PAGE * sum(pages)


def _run(*command):
    return subprocess.run(command, capture_output=True, text=True)


def no_permission(forks, jobs, effort, folder):
    """Write permission is taken away during a command. Root may always write, so the command runs as somebody else."""
    tally = Tally(PERMISSION)
    dice = random.Random(1)
    user = NOBODY if os.geteuid() == 0 else None
    for there in jobs_in(folder / "theirs", folder):
        there.states = jobs[there.name].states
        for _ in range(10 if effort.whole else 1):
            there.out.parent.mkdir(exist_ok=True)
            there.clear()
            for path in (there.out.parent, *there.out.parent.rglob("*")) if user is not None else ():
                os.chown(path, user, user)
            started = forks.start(there.arguments, user=user)
            time.sleep(dice.uniform(0, jobs[there.name].seconds))
            os.kill(started[0], signal.SIGSTOP)
            until_stopped(started[0])
            folders = [path for place in there.places for path in [place, *place.rglob("*")] if path.is_dir()]
            for path in (there.out.parent, *folders):
                path.chmod(0o555)
            os.kill(started[0], signal.SIGCONT)
            ended = forks.wait(started)
            for path in (there.out.parent, *folders):
                if path.exists():
                    path.chmod(0o755)
            tally.tried += 1
            check_stop(there, ended, "write permission taken away", tally)
            finish(forks, there, "write permission taken away", tally, user)
    return tally

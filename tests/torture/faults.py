"""Failing writes, full disks and missing permission; then the same command finishes the job."""

import os
import random
import signal
import subprocess
import time
from contextlib import nullcontext

from torture.commands import halves, jobs_in, prepared
from torture.kills import check_done, check_reader, check_result
from torture.locks import until_stopped
from torture.server import COUNT
from torture.tally import Tally

ERRORS = ("ENOSPC", "EIO", "EACCES")
NOBODY = 65534
PAGE = 4096
DISKS = "disks of several sizes that fill up during a command, and then grow"
PERMISSION = "write permission taken away during a command, and given back"


def tallies(effort, workshop=None):
    with nullcontext(workshop) if workshop else prepared(effort.commands) as (forks, jobs, folder):
        for name in effort.commands:
            yield at_writes(forks, jobs[name], effort, f"`{name}` killed at a write, rename, sync or removal", kill_it)
            yield at_writes(forks, jobs[name], effort, f"`{name}` with a write, rename, sync or removal failing", errno)
        if effort.times > 1:
            yield full_disk(forks, jobs, effort, folder)
            yield no_permission(forks, jobs, effort, folder)


def kill_it(n):
    return "kill"


def errno(n):
    return ERRORS[n % len(ERRORS)]


def at_writes(forks, job, effort, what, kind):
    tally = Tally(what)
    job.clear()
    n_writes = forks.run(job.arguments, fault=[COUNT, 0, [str(job.out.parent)]]).faults
    step = max(1, -(-n_writes // effort.writes))
    n = (step + 1) // 2
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
    """It was killed, succeeded, or stopped with one sentence that names the place. No half file is read as whole."""
    told = ended.refused and str(job.out.parent) in ended.said
    if ended.crashed or not (told or ended.code in (0, -signal.SIGKILL)):
        tally.crashes.append(f"{job.name}, {why}: ended with {ended.code}: {ended.said[-600:]}")
    check_done(job, ended, tally, f", {why}")
    check_reader(job, tally, f", {why}")
    tally.losses += [f"{job.name}, {why}: half of {path} is read as whole" for path in halves(job)]


def finish(forks, job, why, tally, user=None):
    ended = forks.run(job.arguments, user=user)
    if ended.code != 0:
        tally.crashes.append(f"{job.name}, after {why}: ended with {ended.code}: {ended.said[-600:]}")
    check_result(job, tally)


def full_disk(forks, jobs, effort, folder):
    """Results go to a small disk, of several sizes, so that it is full at several stages; then it is enlarged."""
    tally = Tally(DISKS)
    for there in jobs_in(folder / "disk", folder):
        here = jobs[there.name]
        there.states = here.states
        here.clear()
        before = 0 if here.origin is None else room(here.out)
        forks.run(here.arguments)
        most = 3 * (room(here.out) - before if here.name == "add" else room(here.out))
        n_sizes = effort.times
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
    """Bytes that a folder takes on a tmpfs, where each file has its own pages."""
    pages = [2 + path.stat().st_size // PAGE for path in folder.rglob("*")]
    return PAGE * sum(pages)


def _run(*command):
    return subprocess.run(command, capture_output=True, text=True)


def no_permission(forks, jobs, effort, folder):
    """Write permission is taken away during a command. Root may always write, so the command runs as another user."""
    tally = Tally(PERMISSION)
    dice = random.Random(1)
    user = NOBODY if os.geteuid() == 0 else None
    for there in jobs_in(folder / "theirs", folder):
        there.states = jobs[there.name].states
        for _ in range(effort.times):
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

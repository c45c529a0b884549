"""Two at once: the second says who works there, or finds the work done. The lock of a killed process holds nobody."""

import os
import random
import signal
import socket
import time

import numpy as np

from bitmosaic.edits import EditLog
from bitmosaic.errors import BusyFolderError
from torture.commands import COMMANDS, bench, kill
from torture.kills import check_result
from torture.tally import Tally

AT_ONCE = 4


def tallies(effort):
    dice = random.Random(5)
    times = 25 if effort.whole else 1
    with bench() as (forks, jobs, _):
        yield second_meets_first(forks, jobs, dice, times)
        yield other_command(forks, jobs, dice, times)
        yield all_at_once(forks, jobs, times)
        yield stale(forks, jobs, dice, 2 * times)
        yield edit(forks, jobs, dice, times)


def stopped(forks, job, dice):
    """A command somewhere on its way, standing still."""
    job.clear()
    started = forks.start(job.arguments)
    time.sleep(dice.uniform(0, job.seconds))
    os.kill(started[0], signal.SIGSTOP)
    return started


def gone_on(forks, started):
    os.kill(started[0], signal.SIGCONT)
    return forks.wait(started)


def says_who(said, started):
    return f"process {started[0]} on {socket.gethostname()}, since 20" in said and ": bitmosaic " in said


def second_meets_first(forks, jobs, dice, times):
    tally = Tally("the same command twice at once: the second says who works there, the first finishes")
    for job in (jobs[name] for name in COMMANDS for _ in range(times)):
        first = stopped(forks, job, dice)
        second = forks.run(job.arguments)
        ended = gone_on(forks, first)
        tally.tried += 1
        if ended.code != 0 or not (second.code == 0 or (second.refused and says_who(second.said, first))):
            tally.crashes.append(f"{job.name}: {ended}; the second: {second}")
        check_result(job, tally)
    return tally


def other_command(forks, jobs, dice, times):
    tally = Tally("`fit` into the folder of a running `cluster`, and the other way round: refused")
    for one, other in (("cluster", "fit"), ("fit", "cluster")) * times:
        job = jobs[one]
        first = stopped(forks, job, dice)
        second = forks.run((*jobs[other].arguments[:-1], job.out))
        ended = gone_on(forks, first)
        tally.tried += 1
        winner, loser = (second, ended) if second.code == 0 else (ended, second)
        if winner.code != 0 or not loser.refused:
            tally.crashes.append(f"{one}: {ended}; {other}: {second}")
        if winner is ended:
            check_result(job, tally)
    return tally


def all_at_once(forks, jobs, times):
    tally = Tally(f"the same command {AT_ONCE} times at once: one finishes, the others say who, or find it done")
    for job in (jobs[name] for name in COMMANDS for _ in range(times)):
        job.clear()
        ends = [forks.wait(started) for started in [forks.start(job.arguments) for _ in range(AT_ONCE)]]
        tally.tried += AT_ONCE
        busy = [ended for ended in ends if ended.refused and "another bitmosaic is busy" in ended.said]
        if sum(ended.code == 0 for ended in ends) + len(busy) < AT_ONCE or len(busy) == AT_ONCE:
            tally.crashes.append(f"{job.name}: {ends}")
        check_result(job, tally)
    return tally


def stale(forks, jobs, dice, times):
    tally = Tally("locks left by killed commands: no obstacle")
    for job in (jobs[name] for name in COMMANDS for _ in range(times)):
        job.clear()
        started = forks.start(job.arguments)
        time.sleep(dice.uniform(0, job.seconds))
        kill(started)
        forks.wait(started)
        tally.tried += any(lock for place in job.places for lock in place.glob(".lock"))
        ended = forks.run(job.arguments)
        if ended.code != 0:
            tally.crashes.append(f"{job.name}: {ended}")
        check_result(job, tally)
    return tally


def edit(forks, jobs, dice, times):
    tally = Tally("edits in the explorer while a command works in the run: done, or told who works there")
    for _ in range(times):
        job = jobs["cluster"]
        first = stopped(forks, job, dice)
        if job.out.exists():
            tally.tried += 1
            log = EditLog(job.out, np.zeros(3, np.int32), 1)
            try:
                log.append({"do": "name", "cluster": 0, "name": "all"}, 0)
                log.path.unlink()
            except BusyFolderError as error:
                if not says_who(str(error), first):
                    tally.crashes.append(str(error))
        ended = gone_on(forks, first)
        if ended.code != 0:
            tally.crashes.append(str(ended))
        check_result(job, tally)
    return tally

"""Two at once: the second is refused, or finds the work done. The lock of a killed process is not in force."""

import os
import random
import signal
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np

from bitmosaic.errors import BusyFolderError
from bitmosaic.io.files import LOCK
from bitmosaic.run.edits import EditLog
from bitmosaic.run.folder import ADDITIONS
from torture.commands import kill, prepared
from torture.kills import check_result
from torture.tally import Tally

AT_ONCE = 4


TWICE = "the same command twice at once: the second is refused, the first finishes"
OTHER = "`fit` into the folder of a running `cluster`, and the other way round: refused"
GROWING = "`add` to a run that is being refitted, and the other way round: refused, or one after the other"
CROWD = f"the same command {AT_ONCE} times at once: one finishes, the others are refused or find it done"
STALE = "locks left by killed commands: no obstacle"
EDITS = "edits in the explorer while a command works in the run: done, or refused"


def tallies(effort, workshop=None):
    dice, times = random.Random(5), effort.times
    with nullcontext(workshop) if workshop else prepared(effort.commands) as (forks, jobs, _):
        yield second_meets_first(forks, jobs, dice, times)
        if times > 1:
            yield other_command(forks, jobs, dice, times)
            yield add_and_refit(forks, jobs, dice, times)
            yield all_at_once(forks, jobs, times)
            yield stale(forks, jobs, dice, times)
            yield edit(forks, jobs, dice, times)


def stopped(forks, job, dice):
    """A command stopped (SIGSTOP) at a random moment."""
    job.clear()
    started = forks.start(job.arguments)
    time.sleep(dice.uniform(0, job.seconds))
    os.kill(started[0], signal.SIGSTOP)
    until_stopped(started[0])
    return started


def gone_on(forks, started):
    os.kill(started[0], signal.SIGCONT)
    return forks.wait(started)


def says_busy(said):
    return "another bitmosaic is busy" in said


def second_meets_first(forks, jobs, dice, times):
    tally = Tally(TWICE)
    for job in (job for job in jobs.values() for _ in range(times)):
        first = stopped(forks, job, dice)
        at_work = bool(locks_of(job)) and not all_there(job)
        second = forks.run(job.arguments)
        ended = gone_on(forks, first)
        tally.tried += 1
        if ended.code != 0 or not (second.code == 0 or (second.refused and says_busy(second.said))):
            tally.crashes.append(f"{job.name}: {ended}; the second: {second}")
        if at_work and second.code == 0:
            tally.crashes.append(f"{job.name}: both worked in the folder at once")
        check_result(job, tally)
    return tally


def all_there(job):
    """Whether all results are already there, so that a second command has nothing to do."""
    return job.states[1].items() <= job.left().items()


def locks_of(job):
    """Lock files of the output folder, of its extraction folder and of its additions."""
    return [lock for place in (*job.places, job.out / ADDITIONS) for lock in place.glob(LOCK)]


def until_stopped(pid):
    while state_of(pid) not in "TZ":
        time.sleep(0.001)


def state_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def other_command(forks, jobs, dice, times):
    tally = Tally(OTHER)
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


def add_and_refit(forks, jobs, dice, times):
    """Both change the same run: the second is refused, or runs before or after the first."""
    tally = Tally(GROWING)
    refit = jobs["refit"]
    small = replace(refit, origin=jobs["add"].origin, arguments=(*refit.arguments[:2], "--clusters", 3))
    add = replace(small, arguments=("add", small.out, *jobs["add"].arguments[2:]))
    ends = set()
    for orders in ((add,), (small,), (add, small), (small, add)):
        small.clear()
        assert all(forks.run(job.arguments).code == 0 for job in orders)
        ends.add(frozenset(small.left().items()))
    for one, other in ((add, small), (small, add)) * times:
        first = stopped(forks, one, dice)
        second = forks.run(other.arguments)
        ended = gone_on(forks, first)
        tally.tried += 1
        if not any(end.code == 0 for end in (ended, second)) or not all(
            e.code == 0 or e.refused for e in (ended, second)
        ):
            tally.crashes.append(f"{one.arguments[0]}: {ended}; {other.arguments[0]}: {second}")
        if frozenset(small.left().items()) not in ends:
            tally.wrong.append(f"{one.arguments[0]}, then {other.arguments[0]}: a result that neither order gives")
    return tally


def all_at_once(forks, jobs, times):
    tally = Tally(CROWD)
    for job in (job for job in jobs.values() for _ in range(times)):
        job.clear()
        ends = [forks.wait(started) for started in [forks.start(job.arguments) for _ in range(AT_ONCE)]]
        tally.tried += AT_ONCE
        busy = [ended for ended in ends if ended.refused and says_busy(ended.said)]
        if sum(ended.code == 0 for ended in ends) + len(busy) < AT_ONCE or len(busy) == AT_ONCE:
            tally.crashes.append(f"{job.name}: {ends}")
        check_result(job, tally)
    return tally


def stale(forks, jobs, dice, times):
    tally = Tally(STALE)
    for job in (job for job in jobs.values() for _ in range(times)):
        job.clear()
        started = forks.start(job.arguments)
        time.sleep(dice.uniform(0, job.seconds))
        kill(started)
        forks.wait(started)
        tally.tried += bool(locks_of(job))
        ended = forks.run(job.arguments)
        if ended.code != 0:
            tally.crashes.append(f"{job.name}: {ended}")
        check_result(job, tally)
    return tally


def edit(forks, jobs, dice, times):
    tally = Tally(EDITS)
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
                if not says_busy(str(error)):
                    tally.crashes.append(str(error))
        ended = gone_on(forks, first)
        if ended.code != 0:
            tally.crashes.append(str(ended))
        check_result(job, tally)
    return tally

"""Two at once: the second says who works there, or finds the work done. The lock of a killed process holds nobody."""

import os
import random
import signal
import socket
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from bitmosaic.additions import FOLDER
from bitmosaic.edits import EditLog
from bitmosaic.errors import BusyFolderError
from bitmosaic.files import LOCK
from torture.commands import COMMANDS, bench, kill
from torture.kills import check_result
from torture.server import COUNT_ALL, STOP
from torture.tally import Tally

AT_ONCE = 4
NEAR, SPARSE = 60, 4  # steps at the beginning and the end, and of how many others one
MOST_TRIES = 50  # to see a command hold its lock


TWICE = "the same command twice at once: the second says who works there, the first finishes"
OTHER = "`fit` into the folder of a running `cluster`, and the other way round: refused"
GROWING = "`add` to a run that is being refitted, and the other way round: refused, or one after the other"
STEPS = "`{}` stopped at its steps while the same command runs, then going on: both end well"
CROWD = f"the same command {AT_ONCE} times at once: one finishes, the others say who, or find it done"
STALE = "locks left by killed commands: no obstacle"
EDITS = "edits in the explorer while a command works in the run: done, or told who works there"


def lines(_effort):
    return [TWICE, OTHER, GROWING, *map(STEPS.format, COMMANDS), CROWD, STALE, EDITS]


def tallies(effort):
    dice = random.Random(5)
    times = 25 if effort.whole else 1
    with bench() as (forks, jobs, _):
        if effort.wants("moments"):
            yield second_meets_first(forks, jobs, dice, times)
            yield other_command(forks, jobs, dice, times)
            yield add_and_refit(forks, jobs, dice, times)
        for name in COMMANDS:
            if effort.wants(f"steps of {name}"):
                yield at_steps(forks, jobs[name], effort)
        if effort.wants("crowds"):
            yield all_at_once(forks, jobs, times)
        if effort.wants("stale"):
            yield stale(forks, jobs, dice, 2 * times)
        if effort.wants("edits"):
            yield edit(forks, jobs, dice, times)


def stopped(forks, job, dice):
    """A command somewhere on its way, standing still."""
    job.clear()
    started = forks.start(job.arguments)
    time.sleep(dice.uniform(0, job.seconds))
    os.kill(started[0], signal.SIGSTOP)
    until_stopped(started[0])
    return started


def gone_on(forks, started):
    os.kill(started[0], signal.SIGCONT)
    return forks.wait(started)


def says_who(said, started):
    return f"process {started[0]} on {socket.gethostname()}, since 20" in said and ": bitmosaic " in said


def second_meets_first(forks, jobs, dice, times):
    tally = Tally(TWICE)
    for job in (jobs[name] for name in COMMANDS for _ in range(times)):
        first = stopped(forks, job, dice)
        at_work = names(job, first) and not all_there(job)
        second = forks.run(job.arguments)
        ended = gone_on(forks, first)
        tally.tried += 1
        if ended.code != 0 or not (second.code == 0 or (second.refused and says_who(second.said, first))):
            tally.crashes.append(f"{job.name}: {ended}; the second: {second}")
        if at_work and second.code == 0:
            tally.crashes.append(f"{job.name}: the second was let in beside the first")
        check_result(job, tally)
    return tally


def all_there(job):
    """Whether a second one finds the work done, and need not work."""
    return job.states[1].items() <= job.left().items()


def at_steps(forks, job, effort):
    """The first stands still at one step after the other: whenever it touches or looks at anything of its folder.

    Where that is between the system call that takes the lock and the one that says who has it, no name is expected, and
    least of all that of a process that was killed before.
    """
    tally = Tally(STEPS.format(job.name))
    places = [str(place) for place in job.places]
    job.clear()
    n_steps = forks.run(job.arguments, fault=[COUNT_ALL, 0, places]).faults
    for n in chosen_steps(n_steps, effort):
        for left_lock in (False, True):
            job.clear()
            if left_lock:
                kill_holding(forks, job)
            first = forks.start(job.arguments, fault=[STOP, n, places])
            until_stopped(first[0])
            second = forks.run(job.arguments)
            unnamed = not names(job, first)
            ended = gone_on(forks, first)
            tally.tried += 1
            told = says_who(second.said, first) or (unnamed and ": process " not in second.said)
            if ended.code != 0 or not (second.code == 0 or (second.refused and told)):
                tally.crashes.append(f"{job.name}, step {n}: {ended}; the second: {second}")
            check_result(job, tally)
    return tally


def chosen_steps(n_steps, effort):
    """Around the taking and the giving back of the lock all of them, some between."""
    if not effort.whole:
        return [n_steps // 2]
    return [n for n in range(1, n_steps + 1) if n <= NEAR or n > n_steps - NEAR or n % SPARSE == 0]


def kill_holding(forks, job):
    """A command is killed as soon as it has the lock; what is left says that it holds it."""
    for _ in range(MOST_TRIES):
        started = forks.start(job.arguments)
        while not names(job, started) and not has_ended(started[0]):
            time.sleep(0.001)
        kill(started)
        forks.wait(started)
        if names(job, started):
            return
        job.clear()  # it was too fast for us
    raise TimeoutError(f"{job.name} was never seen to hold its lock")


def names(job, started):
    """Whether a lock says that this process holds it."""
    for lock in locks_of(job):
        with suppress(FileNotFoundError):  # given back since
            if f'"process": {started[0]},' in lock.read_text():
                return True
    return False


def locks_of(job):
    """Of the folder itself, of the one it is extracted in, and of additions."""
    return [lock for place in (*job.places, job.out / FOLDER) for lock in place.glob(LOCK)]


def until_stopped(pid):
    while state_of(pid) not in "TZ":
        time.sleep(0.001)


def has_ended(pid):
    return state_of(pid) == "Z"


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
    """Both change the same run: one waits for nobody, so the other is refused, or comes before or after it."""
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
            tally.wrong.append(f"{one.arguments[0]}, then {other.arguments[0]}: something that neither order gives")
    return tally


def all_at_once(forks, jobs, times):
    tally = Tally(CROWD)
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
    tally = Tally(STALE)
    for job in (jobs[name] for name in COMMANDS for _ in range(times)):
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
                if not says_who(str(error), first):
                    tally.crashes.append(str(error))
        ended = gone_on(forks, first)
        if ended.code != 0:
            tally.crashes.append(str(ended))
        check_result(job, tally)
    return tally

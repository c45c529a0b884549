"""Commands killed at random moments, once or several times in a row; the same command then finishes the job."""

import json
import random
import signal
import time

from torture.commands import COMMANDS, bench, halves, hidden, kill
from torture.tally import Tally

MOST_IN_A_ROW = 4
STAGES = {"fit": ["model.safetensors"], "tables": ["labels.npy", "codes.npy", "clusters.csv", "clusters.parquet"]}


def lines(_effort):
    """What its tallies tell of, in their order, without trying anything; so in each kind."""
    return [f"`bitmosaic {name}` killed at random moments; then the same command finishes" for name in COMMANDS]


def tallies(effort):
    dice = random.Random(0)
    with bench() as (forks, jobs, _):
        for name, what in zip(COMMANDS, lines(effort), strict=True):
            if not effort.wants(name):
                continue
            tally = Tally(what)
            while tally.tried < effort.kills:
                rounds = dice.choice([1, 1, 2, MOST_IN_A_ROW])
                in_a_row(forks, jobs[name], dice, min(rounds, effort.kills - tally.tried), tally)
            yield tally


def in_a_row(forks, job, dice, n_kills, tally):
    job.clear()
    known, counted = {}, 0
    for _ in range(n_kills):
        started = forks.start(job.arguments)
        time.sleep(dice.uniform(0, job.seconds))
        kill(started)
        ended = forks.wait(started)
        tally.tried += ended.code == -signal.SIGKILL
        check_end(job, ended, tally)
        tally.losses += [f"{job.name}: half of {path} passes for whole" for path in halves(job)]
        tally.losses += [f"{job.name}: {path} was made again" for path in remade(job, known)]
        tally.losses += [f"{job.name}: {counted} pictures were extracted, then fewer"] * (extracted(job) < counted)
        known, counted = finished(job), extracted(job)
    check_end(job, forks.run(job.arguments), tally)
    tally.losses += [f"{job.name}: {path} was made again" for path in remade(job, known)]
    check_result(job, tally)


def check_end(job, ended, tally):
    """Killed, or at its end before that; nothing else."""
    if ended.crashed or ended.code not in (0, -signal.SIGKILL):
        tally.crashes.append(f"{job.name} ended with {ended.code}: {ended.said[-600:]}")


def check_result(job, tally):
    left = job.left()
    differ = sorted(path for path in left.keys() | job.expected.keys() if left.get(path) != job.expected.get(path))
    if differ:
        tally.wrong.append(f"{job.name}: {', '.join(differ)} differ from an undisturbed run")
    if hidden(job):
        tally.losses.append(f"{job.name} left {hidden(job)} behind")


def finished(job):
    """The files of what was finished, each with what a second making would change."""
    places = {"cluster": "views/*", "extract": "*", "add": "additions/0*/*"}
    files = [path for path in job.out.glob(places[job.name]) if path.is_file()] if job.name in places else []
    manifest = job.out / "manifest.json"
    if job.name in ("cluster", "fit") and manifest.exists():
        done = json.loads(manifest.read_text())["seconds"]
        files += [job.out / name for stage, names in STAGES.items() if stage in done for name in names]
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def remade(job, known):
    return [path.name for path, facts in known.items() if finished(job).get(path) != facts]


def extracted(job):
    """How many pictures count as extracted."""
    done = {"cluster": "views", "extract": ".", "add": "additions/*/views"}  # also where it is not published yet
    if any(job.out.glob(f"{done.get(job.name, 'nowhere')}/extraction.json")):
        return float("inf")
    places = [path for place in job.places for path in place.rglob("state.json")]
    return json.loads(places[0].read_text())["next"] if places else 0

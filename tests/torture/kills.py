"""Commands killed at random moments, once or several times in a row; the same command then finishes the job."""

import json
import random
import shutil
import signal
import tempfile
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from bitmosaic.errors import BitmosaicError
from bitmosaic.pipeline.refitting import HISTORY
from bitmosaic.run.folder import Run
from torture.commands import halves, hidden, kill, prepared
from torture.tally import Tally

MOST_IN_A_ROW = 4
STAGES = {"fit": ["model.safetensors"], "tables": ["labels.npy", "codes.npy", "clusters.csv", "clusters.parquet"]}


def tallies(effort, workshop=None):
    dice = random.Random(0)
    with nullcontext(workshop) if workshop else prepared(effort.commands) as (forks, jobs, _):
        for name in effort.commands:
            tally = Tally(f"`bitmosaic {name}` killed at random moments, then run to its end")
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
        check_done(job, ended, tally)
        check_reader(job, tally)
        tally.losses += [f"{job.name}: half of {path} is read as whole" for path in halves(job)]
        tally.losses += [f"{job.name}: {path} was written again" for path in remade(job, known)]
        tally.losses += [f"{job.name}: {counted} images were extracted, then fewer"] * (extracted(job) < counted)
        known, counted = finished(job), extracted(job)
    check_end(job, forks.run(job.arguments), tally)
    tally.losses += [f"{job.name}: {path} was written again" for path in remade(job, known)]
    check_result(job, tally)


def check_end(job, ended, tally):
    """It was killed, or ended well before the kill."""
    if ended.crashed or ended.code not in (0, -signal.SIGKILL):
        tally.crashes.append(f"{job.name} ended with {ended.code}: {ended.said[-600:]}")


def check_done(job, ended, tally, why=""):
    """A command with exit code 0 has written all its files; only files that could not be removed may remain."""
    if ended.code == 0:
        left = job.left()
        lacks = sorted(path for path, content in job.expected.items() if left.get(path) != content)
        tally.losses += [f"{job.name}{why}: exit code 0 without {', '.join(lacks)}"] * bool(lacks)


def check_reader(job, tally, why=""):
    """A run opened after the kill is the old one or the new one, never a mixture."""
    if job.origin is None:
        return
    with tempfile.TemporaryDirectory() as elsewhere:  # the disk of the job may be full
        seen = replace(job, out=Path(elsewhere) / job.out.name)
        shutil.copytree(job.out, seen.out)
        try:
            Run(seen.out)
            found = of_the_run(seen)
        except BitmosaicError as error:
            tally.losses.append(f"{job.name}{why}: it cannot be opened: {error}")
            return
    if found not in [of_the_run(job, state) for state in job.states]:
        tally.losses.append(f"{job.name}{why}: half old, half new")


def of_the_run(job, left=None):
    """Files of the run itself, without the history and hidden files."""
    paths = {Path(path).relative_to(job.out.name): content for path, content in (left or job.left()).items()}
    return {
        path: content
        for path, content in paths.items()
        if path.parts[0] != HISTORY and not any(part.startswith(".") for part in path.parts)
    }


def check_result(job, tally):
    left = job.left()
    differ = sorted(path for path in left.keys() | job.expected.keys() if left.get(path) != job.expected.get(path))
    if differ:
        tally.wrong.append(f"{job.name}: {', '.join(differ)} differ from an undisturbed run")
    if hidden(job):
        tally.losses.append(f"{job.name} left {hidden(job)} behind")


def finished(job):
    """Finished files, each with its inode and date, which change if it is written again."""
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
    """Number of images extracted so far."""
    done = {"cluster": "views", "extract": ".", "add": "additions/*/views"}  # also before it is published
    if any(job.out.glob(f"{done.get(job.name, 'nowhere')}/extraction.json")):
        return float("inf")
    places = [path for place in job.places for path in place.rglob("state.json")]
    return json.loads(places[0].read_text())["next"] if places else 0

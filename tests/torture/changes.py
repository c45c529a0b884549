"""What a command works with changes under it, or between a kill and the next try: told, or made anew, never mixed."""

import os
import random
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from bitmosaic.publishing import READY
from bitmosaic.views import read_views
from pictures import write_pictures
from torture.commands import COMMANDS, N_EACH, kill
from torture.kills import check_result
from torture.locks import until_stopped
from torture.tally import Tally

DURING = "pictures removed, broken or replaced by folders during a command"
BETWEEN = "pictures changed between a kill and the next try"
LEFT = "files of a stopped command removed or cut before the next try"
LINES = (DURING, BETWEEN, LEFT)


def tallies(forks, jobs, effort, folder):
    yield pictures_during(forks, jobs, effort, folder)
    yield pictures_between(forks, jobs, effort, folder)
    yield results_between(forks, jobs, effort)


# ---- pictures


def remove_all(files):
    shutil.rmtree(files[0].parents[1])


def remove_some(files):
    for file in files[::3]:
        file.unlink()


def make_folders(files):
    for file in files[::3]:
        file.unlink()
        file.mkdir()


def break_some(files):
    for file in files[::3]:
        file.write_bytes(file.read_bytes()[:60])


HARMS = (remove_all, remove_some, make_folders, break_some)


SEEDS = {"add": 1}  # its pictures are not those that the run has


def with_pictures(job, pictures):
    """The same command on other pictures."""
    arguments = tuple(pictures if argument == job.pictures else argument for argument in job.arguments)
    return replace(job, arguments=arguments, pictures=pictures)


def new_pictures(job, pictures):
    shutil.rmtree(pictures, ignore_errors=True)
    return sorted(write_pictures(pictures, N_EACH, SEEDS.get(job.name, 0)).rglob("*.png"))


def pictures_during(forks, jobs, effort, folder):
    """The command stops with a sentence, or what could still be read is in the result and the rest in skipped.csv."""
    tally = Tally(DURING)
    dice = random.Random(2)
    pictures = folder / "changing"
    for name in (name for name in COMMANDS if jobs[name].pictures is not None):  # a fit only draws pictures
        job = with_pictures(jobs[name], pictures)
        truth = read_views(folder / "large" / "additions" / "0001" / "views" if name == "add" else folder / "views")
        features = {path: [view[i] for view in truth.arrays] for i, path in enumerate(truth.paths)}
        predictions = undisturbed(forks, job, pictures) if name == "predict" else ()
        for harm in HARMS * 4 if effort.whole else [dice.choice(HARMS)]:
            files = new_pictures(job, pictures)
            job.clear()
            started = forks.start(job.arguments)
            time.sleep(dice.uniform(0, job.seconds))
            _stopped(started, harm, files)
            ended = forks.wait(started)
            tally.tried += 1
            why = f"{name}, {harm.__name__}"
            if ended.crashed or not (ended.code == 0 or ended.refused):
                tally.crashes.append(f"{why}: ended with {ended.code}: {ended.said[-600:]}")
            elif ended.code == 0:
                unlike = _unlike(job, features, predictions, len(files), vanished=harm is not break_some)
                tally.wrong += [f"{why}: {what}" for what in unlike]
    return tally


def undisturbed(forks, job, pictures):
    """The lines that a prediction writes."""
    new_pictures(job, pictures)
    job.clear()
    assert forks.run(job.arguments).code == 0
    return set((job.out / "predictions.csv").read_text().splitlines())


def _stopped(started, harm, files):
    os.kill(started[0], signal.SIGSTOP)
    until_stopped(started[0])
    try:
        harm(files)
    finally:
        os.kill(started[0], signal.SIGCONT)


def _unlike(job, features, predictions, n_pictures, vanished):
    """What of a result is not as the pictures were before anything happened to them, or is not told.

    Pictures that have `vanished` before anybody looked for them are nobody's loss.
    """
    out = job.out / "additions" / "0001" if job.name == "add" else job.out
    skipped = (out / "skipped.csv").read_text().splitlines()[1:]
    if job.name == "predict":
        lines = (out / "predictions.csv").read_text().splitlines()
        n_rows = len(lines) - 1
        yield from (f"a prediction of no picture that was there: {line}" for line in set(lines) - predictions)
    else:
        views = read_views(out if job.name == "extract" else out / "views")
        n_rows = views.n_rows
        for i, path in enumerate(views.paths):
            rows = [view[i] for view in views.arrays]
            if not all(np.array_equal(row, true) for row, true in zip(rows, features[path], strict=True)):
                yield f"the features of {path} are those of no picture that was there"
    n_told = n_rows + len(skipped)
    if n_told > n_pictures or (n_told < n_pictures and not vanished):
        yield f"{n_rows} pictures, {len(skipped)} skipped, of {n_pictures}"


def pictures_between(forks, jobs, effort, folder):
    """Killed; then pictures change; then the same command says so, or its result is that of the changed pictures."""
    tally = Tally(BETWEEN)
    dice = random.Random(3)
    pictures = folder / "changing"
    for name in ("cluster", "extract", "add"):
        job = with_pictures(jobs[name], pictures)
        for _ in range(12 if effort.whole else 1):
            files = new_pictures(job, pictures)
            job.clear()
            started = forks.start(job.arguments)
            time.sleep(dice.uniform(0, job.seconds))
            kill(started)
            forks.wait(started)
            done = any(path.name == "0001" for path in job.out.glob("additions/*"))  # then others come beside it
            for file in dice.sample(files, 5):
                file.write_bytes(dice.choice(files).read_bytes())
            ended = forks.run(job.arguments)
            tally.tried += 1
            if ended.refused and "changed" in ended.said:
                continue
            if ended.code != 0:
                tally.crashes.append(f"{name}: ended with {ended.code}: {ended.said[-600:]}")
                continue
            came = _bytes(job.out)
            job.clear()
            assert forks.run(job.arguments).code == 0
            if not done and came != _bytes(job.out):
                tally.wrong.append(f"{name}: old and new pictures are mixed")
    return tally


def _bytes(folder):
    return {
        path.relative_to(folder): path.read_bytes()
        for path in Path(folder).rglob("*")
        if path.is_file() and (path.name != "manifest.json" or path.parent.name == "views")  # that of a run has times
    }


# ---- what the killed command has left


def lose(path):
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def cut(path):
    if path.is_file():
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def results_between(forks, jobs, effort):
    """Killed; then something that it has left is lost or cut. The same command makes it anew, or says what is wrong."""
    tally = Tally(LEFT)
    dice = random.Random(4)
    for name in COMMANDS:
        job = jobs[name]
        left = 25 if effort.whole else 1
        for _ in range(20 * left):
            if not left:
                break
            job.clear()
            started = forks.start(job.arguments)
            time.sleep(dice.uniform(0, job.seconds))
            kill(started)
            forks.wait(started)
            files = sorted(path for place in job.places for path in place.rglob("*"))
            files = [path for path in files if str(path.relative_to(job.out.parent)) not in job.states[0]]
            if job.origin is not None:  # what was there before is nothing that it makes anew
                files = [path for path in files if path.is_file()]
            if not files or job.times_done or any(path.name == READY for path in files):  # not begun, or finished
                continue
            victim, harm = dice.choice(files), dice.choice((lose, cut))
            harm(victim)
            tally.tried += 1
            left -= 1
            ended = forks.run(job.arguments)
            why = f"{name}, {harm.__name__} {victim.relative_to(job.out.parent)}"
            if ended.crashed or not (ended.code == 0 or ended.refused):
                tally.crashes.append(f"{why}: ended with {ended.code}: {ended.said[-600:]}")
            elif ended.code == 0:
                before = len(tally.wrong)
                check_result(job, tally)
                tally.wrong[before:] = [f"{why}: {what}" for what in tally.wrong[before:]]
    return tally

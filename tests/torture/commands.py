"""The commands on small real pictures, each in a process of its own that can be killed, and what it leaves.

A server imports bitmosaic once and forks for each command, before there are threads: a kill then hits the command and
not its start-up, and hundreds of them are cheap. The command itself is the real one, from its arguments to its exit.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bitmosaic.checkpoint import KIND
from bitmosaic.edits import EditLog
from bitmosaic.model_file import read_model
from bitmosaic.run import CHECKPOINT, Run
from pictures import write_pictures

N_EACH = 30  # pictures of each of three kinds: six batches of 16
HIDDEN_WORK = ".extracting"
MOST_REFITS = 6  # that may come of as many tries
COMMANDS = ("cluster", "extract", "fit", "predict", "add", "refit")


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, or minus the signal, and what it said."""

    code: int
    said: str
    faults: int  # that it met

    @property
    def crashed(self):
        return "Traceback" in self.said or (self.code < 0 and self.code != -signal.SIGKILL)

    @property
    def refused(self):
        """It stopped with one sentence, and a next step."""
        lines = self.said.strip().splitlines()
        told = len(lines) == 1 and lines[0].startswith("Error: ") and len(lines[0]) > 40
        return self.code == 1 and told and "[Errno" not in lines[0]


class Forks:
    """Commands as forks of a server."""

    def __init__(self, folder):
        self.folder, self.n_started = Path(folder), 0
        here = Path(__file__).parents[1]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(here), *sys.path]), "OMP_NUM_THREADS": "1"}
        self.server = subprocess.Popen(
            [sys.executable, "-m", "torture.server", self.folder / "warm"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        assert self.server.stdout.readline() == "ready\n"

    def close(self):
        self.server.stdin.close()
        self.server.wait()
        self.server.stdout.close()

    def start(self, arguments, fault=None, user=None):
        """Start a command; returns its process id, which leads a group. `fault`: see server.py."""
        self.n_started += 1
        log = self.folder / f"said-{self.n_started}"
        log.touch()
        log.chmod(0o666)
        pid = self._ask({"arguments": list(map(str, arguments)), "log": str(log), "fault": fault, "user": user})
        return pid, log

    def wait(self, started):
        pid, log = started
        code = self._ask({"wait": pid})
        said = log.read_text()
        log.unlink()
        return Ended(code, said.replace("FAULT\n", ""), said.count("FAULT\n"))

    def run(self, arguments, fault=None, user=None):
        return self.wait(self.start(arguments, fault, user))

    def _ask(self, question):
        self.server.stdin.write(json.dumps(question) + "\n")
        self.server.stdin.flush()
        return json.loads(self.server.stdout.readline())


def kill(started):
    """The command and all it started, wherever it is; nothing if it has ended."""
    os.killpg(started[0], signal.SIGKILL)


@dataclass
class Job:
    """A command, where it writes, and what it leaves undisturbed."""

    name: str
    out: Path
    arguments: tuple
    pictures: Path | None = None  # that it reads
    origin: Path | None = None  # a run that it changes: `out` begins as a copy of it
    seconds: float = 0.0
    states: list[dict] = field(default_factory=list)  # the files before it, after it, and after it was run once more …

    def clear(self):
        for path in self.places:
            shutil.rmtree(path, ignore_errors=True)
        if self.origin is not None:
            shutil.copytree(self.origin, self.out)

    @property
    def places(self):
        return self.out, self.out.with_name(f".{self.out.name}{HIDDEN_WORK}")

    def left(self):
        """Every file of this job by its path, with a hash of what it holds."""
        return {
            str(path.relative_to(self.out.parent)): _content(path)
            for place in self.places
            for path in sorted(place.rglob("*"))
            if path.is_file()
        }

    @property
    def expected(self):
        """What it leaves in the end. A refit that was done already is done again, so that there is one more."""
        return self.states[self.times_done or 1]

    @property
    def times_done(self):
        """How often it has come to its end, as far as that can be told."""
        if self.name == "add":
            return int((self.out / "additions" / "0001").exists())
        if self.name != "refit":
            return int(self.left() == self.states[1])
        return len(json.loads((self.out / "manifest.json").read_text()).get("refits", ()))

    def learn(self, forks, times=1):
        """Run it undisturbed, to know what it leaves."""
        self.clear()
        self.states = [self.left()]
        for _ in range(times):
            start = time.perf_counter()
            ended = forks.run(self.arguments)
            self.seconds = self.seconds or time.perf_counter() - start
            assert ended.code == 0, ended.said
            assert not hidden(self), hidden(self)
            self.states.append(self.left())


@contextmanager
def bench():
    """The forks, each command by its name with what it leaves when nothing disturbs it, and the folder of it all.

    In memory where that is possible: thousands of syncs take their time on a disk, and a kill does not care.
    """
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as place:
        folder = Path(place)
        folder.chmod(0o755)  # some commands run as somebody else
        pictures, more = write_pictures(folder / "pictures", N_EACH), write_more(folder)
        forks = Forks(folder)
        try:
            for arguments in (cluster(pictures, folder / "ready"), extract(pictures, folder / "views")):
                assert forks.run(arguments).code == 0
            shutil.copytree(folder / "ready", folder / "large")
            assert forks.run(("add", folder / "large", more, "--update")).code == 0
            edit(folder / "large")
            jobs = {job.name: job for job in jobs_in(folder, folder)}
            for job in jobs.values():
                job.learn(forks, MOST_REFITS if job.name == "refit" else 1)
            yield forks, jobs, folder
        finally:
            forks.close()


def write_more(folder):
    """New pictures, known ones and a bad one."""
    more = write_pictures(folder / "more", N_EACH, seed=1)
    for number, path in enumerate(sorted((folder / "pictures" / "disc").iterdir())[:5]):
        shutil.copy(path, more / f"known-{number}.png")
    (more / "bad.png").write_bytes(b"no picture")
    return more


def edit(folder):
    """What a refit has to keep: a name, clusters that were merged, and pictures that were moved."""
    run = Run(folder)
    labels = np.asarray(run.column("labels"))
    log = EditLog(folder, labels, 3, np.asarray(run.fitted_column("labels")))
    moved = np.flatnonzero(labels == 0)[:3].tolist()
    edits = {"do": "name", "cluster": 1, "name": "ones"}, {"do": "move", "rows": moved, "to": None}
    for version, made in enumerate((*edits, {"do": "merge", "clusters": [0, 2], "into": 0})):
        log.append(made, version)


def jobs_in(place, folder):
    """The commands, writing to `place`, with what is ready in `folder`."""
    place, pictures, more = Path(place), folder / "pictures", folder / "more"
    views, ready = folder / "views", folder / "ready"
    yield Job("cluster", place / "run", cluster(pictures, place / "run"), pictures)
    yield Job("extract", place / "extracted", extract(pictures, place / "extracted"), pictures)
    yield Job("fit", place / "fitted", ("fit", views, "--clusters", 3, "--out", place / "fitted"))
    yield Job("predict", place / "predicted", ("predict", ready, pictures, "--out", place / "predicted"), pictures)
    yield Job("add", place / "grown", ("add", place / "grown", more, "--update"), more, ready)
    yield Job("refit", place / "refitted", ("refit", place / "refitted", "--clusters", 4), None, folder / "large")


def cluster(pictures, out):
    return "cluster", pictures, "--clusters", 3, "--labels", "folder", "--out", out


def extract(pictures, out):
    return "extract", pictures, "--out", out


def hidden(job):
    """What should not be there in the end: temporary files, locks, work folders."""
    return [path for path in job.left() if any(part.startswith(".") for part in Path(path).parts)]


def halves(job):
    """Files under their final names that are not what they will be: a reader would take half a file for a whole one.

    The results do not depend on chance, so a whole one is known by its content; a manifest grows from stage to stage.
    """
    left = {path: content for path, content in job.left().items() if path not in hidden(job)}
    changed = [path for path, content in left.items() if not any(state.get(path) == content for state in job.states)]
    return [path for path in changed if not _is_stage(path, job) and not _is_checkpoint(job.out.parent / path)]


def _is_stage(path, job):
    """Whether it is the manifest of a run that is not finished yet, and all that it says will stay so."""
    manifest = job.out / "manifest.json"
    if job.out.parent / path != manifest:
        return False
    facts, final = _timeless(json.loads(manifest.read_text())), json.loads(job.states[1][path])
    grown = facts.pop("seconds", []), facts.pop("bytes", {}).items()
    return final | facts == final and set(grown[0]) <= set(final["seconds"]) and grown[1] <= final["bytes"].items()


def _is_checkpoint(path):
    """Whether it is a whole file of a checkpoint; codes grow, and what is too much of them is cut off."""
    if path.parent.name != CHECKPOINT:
        return False
    return path.name == "codes.unfinished" or bool(read_model(path, KIND))


def _content(path):
    if path.name == "manifest.json":
        return json.dumps(_timeless(json.loads(path.read_text())))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _timeless(manifest):
    """Without when and how long: all else is the same, whatever happened on the way."""
    for facts in (manifest, *manifest.get("refits", ())):
        for when in ("begun", "at"):
            facts.pop(when, None)
    return manifest | ({"seconds": sorted(manifest["seconds"])} if "seconds" in manifest else {})

"""The commands on small images, each in a process that can be killed, and the files they leave.

A server imports bitmosaic once and forks for each command, before threads exist: a kill then hits the command and not
its start-up, and hundreds of runs are cheap. The command itself is the real one, from its arguments to its exit code.
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
from image_kinds import write_images

from bitmosaic.estimators.checkpoint import KIND
from bitmosaic.estimators.model_file import read_model
from bitmosaic.run.edits import EditLog
from bitmosaic.run.folder import CHECKPOINT, Run
from torture.tally import COMMANDS

N_EACH = 30  # images of each of three kinds: six batches of 16
HIDDEN_WORK = ".extracting"
MOST_REFITS = 6  # per test


@dataclass(frozen=True)
class Ended:
    """The exit code of a command, or minus the signal, and its error output."""

    code: int
    said: str
    faults: int  # injected

    @property
    def crashed(self):
        return "Traceback" in self.said or (self.code < 0 and self.code != -signal.SIGKILL)

    @property
    def refused(self):
        """It stopped with one sentence of error."""
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
    """Kill the command and everything it started; does nothing if it has ended."""
    os.killpg(started[0], signal.SIGKILL)


@dataclass
class Job:
    """A command, its output folder, and the files it leaves when undisturbed."""

    name: str
    out: Path
    arguments: tuple
    images: Path | None = None  # read by it
    origin: Path | None = None  # the run it changes: `out` starts as a copy
    seconds: float = 0.0
    states: list[dict] = field(default_factory=list)  # the files before it, after it, after a second run …

    def clear(self):
        for path in self.places:
            shutil.rmtree(path, ignore_errors=True)
        if self.origin is not None:
            shutil.copytree(self.origin, self.out)

    @property
    def places(self):
        return self.out, self.out.with_name(f".{self.out.name}{HIDDEN_WORK}")

    def left(self):
        """Every file of this job by its path, with a hash of its content."""
        return {
            str(path.relative_to(self.out.parent)): _content(path)
            for place in self.places
            for path in sorted(place.rglob("*"))
            if path.is_file()
        }

    @property
    def expected(self):
        """The files at the end. A refit that was already complete is repeated, so there is one more."""
        return self.states[self.times_done or 1]

    @property
    def times_done(self):
        """How often it was completed."""
        if self.name == "add":
            return int((self.out / "additions" / "0001").exists())
        if self.name != "refit":
            return int(self.left() == self.states[1])
        return len(json.loads((self.out / "manifest.json").read_text()).get("refits", ()))

    def learn(self, forks, times=1):
        """Run it undisturbed and note the files it leaves."""
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
def prepared(commands=COMMANDS):
    """The forks, these commands by name with the files they leave when undisturbed, and the folder of all this.

    In memory where possible: thousands of syncs are slow on a disk, and a kill does not depend on it.
    """
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as place:
        folder = Path(place)
        folder.chmod(0o755)  # some commands run as another user
        images, more = write_images(folder / "images", N_EACH), write_more(folder)
        forks = Forks(folder)
        try:
            for arguments in (cluster(images, folder / "ready"), extract(images, folder / "views")):
                assert forks.run(arguments).code == 0
            if "refit" in commands:
                shutil.copytree(folder / "ready", folder / "large")
                assert forks.run(("add", folder / "large", more, "--update")).code == 0
                edit(folder / "large")
            jobs = {job.name: job for job in jobs_in(folder, folder) if job.name in commands}
            for job in jobs.values():
                job.learn(forks, MOST_REFITS if job.name == "refit" else 1)
            yield forks, jobs, folder
        finally:
            forks.close()


def write_more(folder):
    """New images, known ones and a bad one."""
    more = write_images(folder / "more", N_EACH, seed=1)
    for number, path in enumerate(sorted((folder / "images" / "disc").iterdir())[:5]):
        shutil.copy(path, more / f"known-{number}.png")
    (more / "bad.png").write_bytes(b"not an image")
    return more


def edit(folder):
    """Edits that a refit has to keep: a name, merged clusters and moved images."""
    run = Run(folder)
    labels = np.asarray(run.column("labels"))
    log = EditLog(folder, labels, 3, np.asarray(run.fitted_column("labels")))
    moved = np.flatnonzero(labels == 0)[:3].tolist()
    edits = {"do": "name", "cluster": 1, "name": "ones"}, {"do": "move", "rows": moved, "to": None}
    for version, made in enumerate((*edits, {"do": "merge", "clusters": [0, 2], "into": 0})):
        log.append(made, version)


def jobs_in(place, folder):
    """The commands, writing to `place`, with what is ready in `folder`."""
    place, images, more = Path(place), folder / "images", folder / "more"
    views, ready = folder / "views", folder / "ready"
    yield Job("cluster", place / "run", cluster(images, place / "run"), images)
    yield Job("extract", place / "extracted", extract(images, place / "extracted"), images)
    yield Job("fit", place / "fitted", ("fit", views, "--clusters", 3, "--out", place / "fitted"))
    yield Job("predict", place / "predicted", ("predict", ready, images, "--out", place / "predicted"), images)
    yield Job("add", place / "grown", ("add", place / "grown", more, "--update"), more, ready)
    yield Job("refit", place / "refitted", ("refit", place / "refitted", "--clusters", 4), None, folder / "large")


def cluster(images, out):
    return "cluster", images, "--clusters", 3, "--labels", "folder", "--out", out


def extract(images, out):
    return "extract", images, "--out", out


def hidden(job):
    """Files that must not remain: temporary files, locks, work folders."""
    return [path for path in job.left() if any(part.startswith(".") for part in Path(path).parts)]


def halves(job):
    """Files under their final names with other content than in an undisturbed run: a reader would read them as whole.

    The results are deterministic, so a whole file is recognized by its content; a manifest grows from stage to stage.
    """
    left = {path: content for path, content in job.left().items() if path not in hidden(job)}
    changed = [path for path, content in left.items() if not any(state.get(path) == content for state in job.states)]
    return [path for path in changed if not _is_stage(path, job) and not _is_checkpoint(job.out.parent / path)]


def _is_stage(path, job):
    """Whether it is the manifest of an unfinished run whose entries are all final."""
    manifest = job.out / "manifest.json"
    if job.out.parent / path != manifest:
        return False
    facts, final = _timeless(json.loads(manifest.read_text())), json.loads(job.states[1][path])
    grown = facts.pop("seconds", []), facts.pop("bytes", {}).items()
    return final | facts == final and set(grown[0]) <= set(final["seconds"]) and grown[1] <= final["bytes"].items()


def _is_checkpoint(path):
    """Whether it is a whole file of a checkpoint; surplus codes are cut off when it resumes."""
    if path.parent.name != CHECKPOINT:
        return False
    return path.name == "codes.unfinished" or bool(read_model(path, KIND))


def _content(path):
    if path.name == "manifest.json":
        return json.dumps(_timeless(json.loads(path.read_text())))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _timeless(manifest):
    """Without dates and durations: all else must be equal."""
    for facts in (manifest, *manifest.get("refits", ())):
        for when in ("begun", "at"):
            facts.pop(when, None)
    return manifest | ({"seconds": sorted(manifest["seconds"])} if "seconds" in manifest else {})

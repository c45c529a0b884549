"""An experiment -> stored runs: each method in a process of its own, under a time and a memory cap, several at once."""

import ast
import copy
import hashlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from bitmosaic.bench import baselines
from bitmosaic.bench.experiment import Experiment, Group
from bitmosaic.bench.memory import resident_bytes
from bitmosaic.bench.runs import Run, RunFile
from bitmosaic.files import locked
from bitmosaic.threads import available_threads

LOOK_SECONDS = 0.05  # between two looks at the memory of a method
START_SECONDS = 120  # for imports, compiling and reading, before the first fit


def run_experiment(
    experiment: Experiment,
    out: Path,
    progress: Callable[[str, int, int], None],
    tell: Callable[[str], None],
) -> list[Run]:
    """Run what `out` does not have yet. Every finished run is stored at once."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with locked(out.parent):
        out.touch()
        stored = RunFile(out)
        for case in experiment.cases.values():
            stored.check(case)
        return _Running(experiment, stored, progress, tell).all()


class _Running:
    """The state that the threads of one experiment share."""

    def __init__(self, experiment, stored, progress, tell):
        self.experiment: Experiment = experiment
        self.stored: RunFile = stored
        self.progress, self.tell = progress, tell
        self.began = datetime.now(UTC).isoformat(timespec="seconds")
        self.lock = threading.Lock()
        self.stop = threading.Event()
        self.cores: queue.Queue[list[int]] = queue.Queue()
        mine = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self.threads = min(experiment.threads, available_threads())
        self.jobs = min(experiment.jobs, available_threads() // self.threads)
        if (self.threads, self.jobs) != (experiment.threads, experiment.jobs):
            tell(f"This machine has {available_threads()} cores: threads = {self.threads}, jobs = {self.jobs}.")
        if not resident_bytes():
            tell("This system does not tell the memory of a process: nothing is cut off by it, and peaks are 0.")
        for job in range(self.jobs):
            self.cores.put(mine[job * self.threads : (job + 1) * self.threads])

    def all(self) -> list[Run]:
        groups = self.experiment.groups
        self._show()
        with ThreadPoolExecutor(self.jobs) as pool:
            waiting = [pool.submit(self.group, group) for group in groups]
            try:
                for done in as_completed(waiting):
                    done.result()
            except BaseException:
                self.stop.set()
                pool.shutdown(cancel_futures=True)
                raise
        return [run for group in groups for run in self.runs_of(group)]

    def runs_of(self, group: Group) -> list[Run]:
        """The stored runs of a group that still hold, by seed."""
        found = []
        for seed in range(self.experiment.seeds):
            run = self.stored.runs.get(_key(group, seed))
            if run is not None and run.made_by == self.maker(group) and run.caps == self.caps(run.cut_off):
                found.append(run)
        return found

    def maker(self, group: Group) -> str:
        """Runs of other code are done again."""
        return f"{made_by(group.method)}, {'1 thread' if self.threads == 1 else f'{self.threads} threads'}"

    def caps(self, cut_off: str) -> str:
        """What was cut off is tried again under other caps; what failed, whenever the command is typed again."""
        if not cut_off or cut_off.startswith("failed"):
            return cut_off and self.began
        return f"{self.experiment.cap_seconds:g} s, {self.experiment.cap_memory}"

    def seeds_left(self, group: Group) -> list[int]:
        runs = self.runs_of(group)
        if any(run.cut_off for run in runs):
            return []
        # Of one thread, processor seconds are what it takes on a machine without other work.
        seconds = [min(run.seconds, run.cpu_seconds or run.seconds) for run in runs if run.seconds is not None]
        slow = bool(seconds) and float(np.mean(seconds)) > self.experiment.slow_seconds
        wanted = min(self.experiment.slow_seeds, self.experiment.seeds) if slow else self.experiment.seeds
        have = {run.seed for run in runs}
        return [seed for seed in range(wanted) if seed not in have]

    def group(self, group: Group) -> None:
        """All seeds of a group that are left, in one process as long as none of them is cut off."""
        with self.lock:
            seeds = self.seeds_left(group)
        if not seeds or self.stop.is_set():
            return
        cores = self.cores.get()
        try:
            for figures in self._watched(group, seeds, cores):
                with self.lock:
                    self._store(group, figures)
                    self._show()
                    if not self.seeds_left(group):
                        break
        finally:
            self.cores.put(cores)
        with self.lock:
            self.tell(_summary(group, self.runs_of(group)))

    def _store(self, group: Group, figures: dict[str, Any]) -> None:
        case = self.experiment.cases[group.data.name]
        cut_off = figures.get("cut_off", "")
        run = Run(
            group.data.name,
            group.method,
            figures["seed"],
            figures.get("seconds"),
            self.maker(group),
            None if cut_off else np.array(figures["labels"]),
            case.truth,
            group.views,
            group.n_clusters,
            group.n_bits,
            figures.get("cpu_seconds"),
            figures.get("peak_bytes"),
            figures.get("sizes", {}),
            cut_off,
            self.caps(cut_off),
        )
        self.stored.add(run, case)

    def _watched(self, group: Group, seeds: list[int], cores: list[int]) -> Iterator[dict[str, Any]]:
        """What the process of a group tells, seed by seed; the last may be that it was cut off."""
        task = {
            "data": group.data.name,
            "path": str(group.data.path),
            "choice": asdict(group.data.choice),
            "views": group.views,
            "method": group.method,
            "n_clusters": group.n_clusters,
            "n_bits": group.n_bits,
            "seeds": seeds,
        }
        threads = str(self.threads)
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
        with subprocess.Popen(
            [sys.executable, "-m", "bitmosaic.bench.worker", json.dumps(task)],
            stdin=subprocess.PIPE,  # never written to: it ends with this process, and the worker with it
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for this process, which ends its workers
            env=os.environ | dict.fromkeys(names, threads),
        ) as process:
            try:
                if cores:
                    os.sched_setaffinity(process.pid, cores)
                yield from self._listen(process, seeds)
            finally:
                process.kill()

    def _listen(self, process: subprocess.Popen, seeds: list[int]) -> Iterator[dict[str, Any]]:
        lines: queue.Queue[str | None] = queue.Queue()
        errors: list[str] = []
        readers = [
            threading.Thread(target=_read, args=(process.stdout, lines.put, lambda: lines.put(None)), daemon=True),
            threading.Thread(target=_read, args=(process.stderr, errors.append, lambda: None), daemon=True),
        ]
        for reader in readers:
            reader.start()
        left, began, allowed = list(seeds), time.monotonic(), float(START_SECONDS)
        while left:
            try:
                line = lines.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                if self.stop.is_set():
                    return
                if time.monotonic() - began > allowed:
                    yield {"seed": left[0], "cut_off": "time"}
                    return
                if resident_bytes(process.pid) > self.experiment.cap_bytes:
                    yield {"seed": left[0], "cut_off": "memory"}
                    return
                continue
            if line is None:
                readers[1].join()
                if not self.stop.is_set():
                    yield {"seed": left[0], "cut_off": _cause(process.wait(), errors)}
                return
            figures = json.loads(line)
            if "cut_off" in figures:
                yield {"seed": left[0]} | figures
                return
            if figures.get("seconds", 0) > self.experiment.cap_seconds:  # done between two looks
                yield {"seed": left[0], "cut_off": "time"}
                return
            if "ready" not in figures:
                left.remove(figures["seed"])
                yield figures
            began, allowed = time.monotonic(), self.experiment.cap_seconds

    def _show(self) -> None:
        """One bar for each data set; a group that is finished counts in full."""
        done: dict[str, int] = {}
        total: dict[str, int] = {}
        for group in self.experiment.groups:
            name, left = group.data.name, len(self.seeds_left(group))
            total[name] = total.get(name, 0) + self.experiment.seeds
            done[name] = done.get(name, 0) + self.experiment.seeds - left
        for name in total:
            self.progress(name, done[name], total[name])


def _read(stream, take: Callable[[str], None], end: Callable[[], None]) -> None:
    with suppress(ValueError):  # closed, because nobody listens any more
        for line in stream:
            take(line)
    end()


def _cause(code: int, errors: list[str]) -> str:
    """Why a process ended before its work was done."""
    if code == -signal.SIGKILL:  # not ours: the system does that where memory runs out
        return "memory"
    said = [line.strip() for line in errors if line.strip()]
    return f"failed: {said[-1] if said else f'the process ended with code {code} and without a word'}"


def _key(group: Group, seed: int):
    return group.data.name, group.method, seed, group.views, group.n_clusters, group.n_bits


def _summary(group: Group, runs: list[Run]) -> str:
    done = [run for run in runs if not run.cut_off]
    parts = [str(group)]
    if done:
        seconds, nmi = (np.mean([f(run) for run in done]) for f in (lambda r: r.seconds, lambda r: r.scores["nmi"]))
        seeds = "1 seed" if len(done) == 1 else f"{len(done)} seeds"
        parts.append(f"{seeds}, {seconds:,.{2 if seconds < 1 else 1}f} s, NMI {nmi:.3f}")
    parts += [f"cut off: {run.cut_off}" for run in runs if run.cut_off]
    return ": ".join([parts[0], ", ".join(parts[1:]) or "stopped"])


@cache
def made_by(method: str) -> str:
    """The libraries and the sources that a method's labels come from."""
    sources: set[str] = set()
    _follow(baselines.method_class(method).__module__, sources)
    digest = hashlib.sha256(b"".join(_code(name) for name in sorted(sources)))
    libraries = ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy", "scikit-learn"))
    return f"bitmosaic {digest.hexdigest()[:12]}, {libraries}"


def _follow(name: str, found: set[str]) -> None:
    """Add a module of bitmosaic, and all of bitmosaic that it imports. The registry, which names all, is left out."""
    if name in found or name == baselines.__name__:
        return
    found.add(name)
    for node in ast.walk(_tree(name)):
        if isinstance(node, ast.Import):
            asked = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            asked = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for other in asked:
            if other.startswith("bitmosaic.") and find_spec(other.rpartition(".")[0]) and _is_module(other):
                _follow(other, found)


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # a name in a module, not a module in a package
        return False


@cache
def _tree(name: str) -> ast.Module:
    spec = find_spec(name)
    assert spec is not None  # of a module that was found
    return ast.parse(Path(str(spec.origin)).read_bytes())


@cache
def _code(name: str) -> bytes:
    """What a module does: without comments and docstrings, which change no label."""
    tree = copy.deepcopy(_tree(name))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(tree).encode()

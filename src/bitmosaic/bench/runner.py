"""Run an experiment and store its runs. Each method runs in a separate process, with time and memory limits.

`python -m bitmosaic.bench.runner TASK` is that process: it prints one line of JSON when ready, then one per seed.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import numpy as np

import bitmosaic
from bitmosaic.bench import baselines
from bitmosaic.bench.datasets import Choice
from bitmosaic.bench.experiment import DataSet, Experiment, Group, Run, RunFile
from bitmosaic.bench.memory import PeakMemory, resident_bytes
from bitmosaic.errors import BitmosaicError
from bitmosaic.io.files import locked
from bitmosaic.io.threads import available_threads
from bitmosaic.views import Views

POLL_SECONDS = 0.05  # between two checks of the memory of a method
KILLED = -9  # exit code after SIGKILL, which the system sends when memory runs out
START_SECONDS = 120  # limit for imports, compilation and reading, before the first fit


def run_experiment(
    experiment: Experiment,
    out: Path,
    progress: Callable[[str, int, int], None],
    report: Callable[[str], None],
) -> list[Run]:
    """Run everything that `out` does not contain yet. Each finished run is stored at once."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with locked(out.parent):
        out.touch()
        stored = RunFile(out)
        for case in experiment.cases.values():
            stored.check(case)
        return _Running(experiment, stored, progress, report).all()


class _Running:
    """The state that the threads of one experiment share."""

    def __init__(self, experiment, stored, progress, report):
        self.experiment: Experiment = experiment
        self.stored: RunFile = stored
        self.progress, self.report = progress, report
        self.began = datetime.now(UTC).isoformat(timespec="seconds")
        self.lock = threading.Lock()
        self.stop = threading.Event()
        self.threads = min(experiment.threads, available_threads())
        self.jobs = min(experiment.jobs, available_threads() // self.threads)
        if (self.threads, self.jobs) != (experiment.threads, experiment.jobs):
            report(f"This machine has {available_threads()} cores: threads = {self.threads}, jobs = {self.jobs}.")
        if not resident_bytes():
            report("The memory of a process is unknown on this system: no memory limit applies, and peaks are 0.")

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
        """The stored runs of a group that are still valid, by seed."""
        found = []
        for seed in range(self.experiment.seeds):
            key = group.data.name, group.method, seed, group.views, group.n_clusters, group.n_bits
            run = self.stored.runs.get(key)
            if run is not None and run.made_by == self.maker(group) and run.caps == self.caps(run.cut_off):
                found.append(run)
        return found

    def maker(self, group: Group) -> str:
        """The code version of a method. Stored runs of another version are repeated."""
        return f"{made_by(group.method)}, {'1 thread' if self.threads == 1 else f'{self.threads} threads'}"

    def caps(self, cut_off: str) -> str:
        """The limits to store with a run. Cut-off runs are repeated under other limits, failed ones by each command."""
        if not cut_off or cut_off.startswith("failed"):
            return cut_off and self.began
        return f"{self.experiment.cap_seconds:g} s, {self.experiment.cap_memory}"

    def seeds_left(self, group: Group) -> list[int]:
        runs = self.runs_of(group)
        if any(run.cut_off for run in runs):
            return []
        # With one thread, CPU seconds equal the time on a machine without other load.
        seconds = [min(run.seconds, run.cpu_seconds or run.seconds) for run in runs if run.seconds is not None]
        slow = bool(seconds) and float(np.mean(seconds)) > self.experiment.slow_seconds
        wanted = min(self.experiment.slow_seeds, self.experiment.seeds) if slow else self.experiment.seeds
        have = {run.seed for run in runs}
        return [seed for seed in range(wanted) if seed not in have]

    def group(self, group: Group) -> None:
        """Run the remaining seeds of a group in one process, until one of them is cut off."""
        with self.lock:
            seeds = self.seeds_left(group)
        if not seeds or self.stop.is_set():
            return
        for figures in self._measured(group, seeds):
            with self.lock:
                self._store(group, figures)
                self._show()
                if not self.seeds_left(group):
                    break
        with self.lock:
            self.report(_summary(group, self.runs_of(group)))

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

    def _measured(self, group: Group, seeds: list[int]) -> Iterator[dict[str, Any]]:
        """The measurements reported by the process of a group, seed by seed. The last one may be a cut-off."""
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
        with (
            tempfile.TemporaryFile("w+") as errors,
            subprocess.Popen(
                [sys.executable, "-m", "bitmosaic.bench.runner", json.dumps(task)],
                stdin=subprocess.PIPE,  # never written to: it closes when this process ends, and then the worker ends
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,  # Ctrl-C goes only to this process, which ends its workers
                env=os.environ | dict.fromkeys(names, threads),
            ) as process,
        ):
            try:
                yield from self._listen(process, seeds, errors)
            finally:
                process.kill()

    def _listen(self, process: subprocess.Popen, seeds: list[int], errors: IO[str]) -> Iterator[dict[str, Any]]:
        """Read the lines of a process. A thread ends it when it exceeds its limits, or when all work stops."""
        left, limit, why = list(seeds), [time.monotonic() + START_SECONDS], [""]

        def watch() -> None:
            while process.poll() is None and not why[0]:
                time.sleep(POLL_SECONDS)
                if self.stop.is_set():
                    why[0] = "stopped"
                elif time.monotonic() > limit[0]:
                    why[0] = "time"
                elif resident_bytes(process.pid) > self.experiment.cap_bytes:
                    why[0] = "memory"
            process.kill()

        threading.Thread(target=watch, daemon=True).start()
        for line in process.stdout or ():
            figures = json.loads(line)
            if "cut_off" in figures or figures.get("seconds", 0) > self.experiment.cap_seconds:
                yield {"seed": left[0], "cut_off": figures.get("cut_off", "time")}
                return
            limit[0] = time.monotonic() + self.experiment.cap_seconds
            if "ready" not in figures:
                left.remove(figures["seed"])
                yield figures
            if not left:
                return
        code = process.wait()
        if not self.stop.is_set():
            errors.seek(0)
            yield {"seed": left[0], "cut_off": why[0] or _cause(code, errors.readlines())}

    def _show(self) -> None:
        """Update one progress bar per data set. A finished group counts with all seeds."""
        done: dict[str, int] = {}
        total: dict[str, int] = {}
        for group in self.experiment.groups:
            name, left = group.data.name, len(self.seeds_left(group))
            total[name] = total.get(name, 0) + self.experiment.seeds
            done[name] = done.get(name, 0) + self.experiment.seeds - left
        for name in total:
            self.progress(name, done[name], total[name])


def _cause(code: int, errors: list[str]) -> str:
    """Why a process ended early."""
    if code == KILLED:
        return "memory"
    messages = [line.strip() for line in errors if line.strip()]
    return f"failed: {messages[-1] if messages else f'the process ended with code {code} without a message'}"


def _summary(group: Group, runs: list[Run]) -> str:
    done = [run for run in runs if not run.cut_off]
    parts = [str(group)]
    if done:
        seconds, nmi = (np.mean([f(run) for run in done]) for f in (lambda r: r.seconds, lambda r: r.scores["nmi"]))
        seeds = "1 seed" if len(done) == 1 else f"{len(done)} seeds"
        parts.append(f"{seeds}, {seconds:,.{2 if seconds < 1 else 1}f} s, NMI {nmi:.3f}")
    parts += [f"cut off: {run.cut_off}" for run in runs if run.cut_off]
    return ": ".join([parts[0], ", ".join(parts[1:]) or "interrupted"])


@cache
def made_by(method: str) -> str:
    """A version of a method: a hash of its module and of the numerics, and the versions of the libraries."""
    own = sys.modules[baselines.method_class(method).__module__].__file__
    root = Path(bitmosaic.__file__).parent
    sources = [Path(str(own)), root / "bench/baselines/base.py"]
    for package in ("estimators", "solver", "hamming"):
        sources += sorted((root / package).rglob("*.py"))
    code = hashlib.sha256(b"".join(path.read_bytes() for path in sources))
    libraries = ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy", "scikit-learn"))
    return f"bitmosaic {code.hexdigest()[:12]}, {libraries}"


# ---- the process of one method

WARM_ROWS = 300


def fit_all(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Fit with each seed and yield the time, the memory above the start, and the labels.

    A first fit of a few rows does everything that happens once per process (imports, compilation, threads) before the
    timed fits.
    """
    warnings.simplefilter("ignore")
    settings = {} if task["n_bits"] is None else {"n_bits": task["n_bits"]}
    views = DataSet(task["data"], Path(task["path"]), tuple(task["views"]), Choice(**task["choice"])).open()
    views = Views(views.names, views.arrays)
    some = Views(views.names, tuple(array[:WARM_ROWS] for array in views.arrays))
    baselines.make(task["method"], min(task["n_clusters"], some.n_rows), random_state=0, **settings).fit_predict(some)
    # The memory of each fit is relative to this: memory freed by earlier fits may still be resident.
    ready = resident_bytes()
    yield {"ready": True}
    for seed in task["seeds"]:
        method = baselines.make(task["method"], task["n_clusters"], random_state=seed, **settings)
        with PeakMemory() as memory:
            start, cpu = time.perf_counter(), time.process_time()
            labels = method.fit_predict(views)
            seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        yield {
            "seed": seed,
            "seconds": seconds,
            "cpu_seconds": cpu,
            "peak_bytes": max(memory.peak - ready, 0),
            "sizes": getattr(method, "sizes_", {}),
            "labels": labels.tolist(),
        }


def end_with_parent() -> None:
    """Wait until the parent process closes our standard input, then end this process."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        for line in fit_all(json.loads(sys.argv[1])):
            print(json.dumps(line), flush=True)
    except MemoryError:
        print(json.dumps({"cut_off": "memory"}), flush=True)
    except Exception as error:
        if not isinstance(error, BitmosaicError):
            traceback.print_exc()
        print(json.dumps({"cut_off": f"failed: {error or type(error).__name__}"}), flush=True)

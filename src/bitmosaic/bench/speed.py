"""HSIC beside k-means of scikit-learn and faiss: time, memory and quality on the same views and cores, in one run."""

import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from bitmosaic.bench.cases import open_data
from bitmosaic.bench.choices import import_faiss
from bitmosaic.errors import BitmosaicError
from bitmosaic.files import write_json
from bitmosaic.metrics import clustering_scores
from bitmosaic.views import Views


@dataclass(frozen=True)
class Result:
    """The best of the turns of one method on so many rows with so many clusters."""

    method: str
    n_rows: int
    n_clusters: int
    seconds: float | None  # None: cut off
    cpu_seconds: float | None = None
    peak_bytes: int | None = None
    nmi: float | None = None  # mean over the turns, each with a seed of its own
    acc: float | None = None
    cut_off: str = ""  # why there is no time


def measure(
    data: str,
    methods: list[str],
    clusters: list[int],
    rows: list[int],
    repeats: int,
    cap: float,
    n_threads: int,
    progress: Callable[[str, int, int], None],
) -> list[Result]:
    """Every method in turn, the order reversed each time; the best time of each counts.

    A method that takes longer than `cap` seconds is cut off, and not tried with more clusters or rows.
    """
    _, views, truth = open_data(data, labels_needed=False)
    folder = data.partition("?views=")[0]
    if "faiss.Kmeans" in methods:
        import_faiss("bench speed")
    rows = sorted({min(n, views.n_rows) for n in rows}) or [views.n_rows]
    results, too_slow = [], {}
    contests = list(product(rows, sorted(clusters)))
    total, done = len(contests) * repeats * len(methods), 0
    for n_rows, n_clusters in contests:
        turns: dict[str, list[dict]] = {name: [] for name in methods}
        for turn in range(repeats):
            for name in methods[:: 1 if turn % 2 == 0 else -1]:
                progress(f"{n_rows:,} rows, {n_clusters:,} clusters", done, total)
                if name not in too_slow:
                    task = {
                        "method": name,
                        "folder": folder,
                        "chosen": list(views.names),
                        "n_clusters": n_clusters,
                        "n_rows": n_rows,
                        "seed": turn,
                        "n_threads": n_threads,
                    }
                    figures = in_own_process(task, cap, n_threads)
                    if figures is None:
                        too_slow[name] = f"over {cap:,.0f} s with {n_rows:,} rows and {n_clusters:,} clusters"
                    else:
                        turns[name].append(figures)
                done += 1
        for name in methods:
            results.append(best_of(name, n_rows, n_clusters, turns[name], truth, too_slow.get(name, "")))
    progress("done", total, total)
    return results


def in_own_process(task: dict, cap: float, n_threads: int) -> dict | None:
    """What `contestants.compete` tells of a task; None if it took longer than `cap` seconds."""
    command = [sys.executable, "-m", "bitmosaic.bench.contestants", json.dumps(task)]
    limits = {name: str(n_threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=cap, env=os.environ | limits)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise BitmosaicError(f"{task['method']} ended with an error: {last}")
    return json.loads(done.stdout.splitlines()[-1])


def best_of(name, n_rows, n_clusters, turns, truth, cut_off) -> Result:
    if not turns:
        return Result(name, n_rows, n_clusters, None, cut_off=cut_off)
    scores = [] if truth is None else [clustering_scores(truth[:n_rows], np.array(t["labels"])) for t in turns]
    return Result(
        name,
        n_rows,
        n_clusters,
        min(t["seconds"] for t in turns),
        min(t["cpu_seconds"] for t in turns),
        max(t["peak_bytes"] for t in turns),
        float(np.mean([s["nmi"] for s in scores])) if scores else None,
        float(np.mean([s["acc"] for s in scores])) if scores else None,
    )


def write_results(path: Path, results: list[Result], machine: dict) -> None:
    write_json(path, {"machine": machine, "results": [asdict(result) for result in results]})


def encoding_speed(data: str, n_rows: int, n_clusters: int, n_threads: int, turns: int = 3) -> dict:
    """How fast a fitted HSIC encodes so many rows: rows a second, and operations a second of its matrix products."""
    from bitmosaic.hsic import HSIC

    _, everything, _ = open_data(data, labels_needed=False)
    views = Views(everything.names, tuple(X[:n_rows] for X in everything.arrays))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is learned does not matter here
        model = HSIC(n_clusters, random_state=0, max_iter=1, n_init=1, n_threads=n_threads).fit(views)
    best = np.inf
    for _ in range(turns):
        start = time.perf_counter()
        model.transform(views)
        best = min(best, time.perf_counter() - start)
    operations = 2 * views.n_rows * model._model.products_per_row
    return {"rows_per_second": views.n_rows / best, "operations_per_second": operations / best}


def matrix_speed(n_threads: int, size: int = 2048, turns: int = 5) -> float:
    """Floating-point operations a second of a float32 matrix product: what this machine can do at best."""
    A = np.random.default_rng(0).random((size, size), np.float32)
    with threadpool_limits(n_threads, user_api="blas"):
        best = np.inf
        for _ in range(turns + 1):
            start = time.perf_counter()
            A @ A
            best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best

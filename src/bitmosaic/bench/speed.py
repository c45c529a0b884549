"""Compare HSIC with k-means of scikit-learn and faiss: time, memory and quality on the same views and cores.

`python -m bitmosaic.bench.speed TASK` fits one method once, in a separate process.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from bitmosaic.bench.datasets import open_data
from bitmosaic.bench.memory import PeakMemory
from bitmosaic.errors import BitmosaicError, import_extra
from bitmosaic.estimators.metrics import clustering_scores
from bitmosaic.views import Views, read_rows, read_views


@dataclass(frozen=True)
class Result:
    """The best of the repeated fits of one method with one number of rows and clusters."""

    method: str
    n_rows: int
    n_clusters: int
    seconds: float | None  # None: cut off
    cpu_seconds: float | None = None
    peak_bytes: int | None = None
    nmi: float | None = None  # mean over the repeats, each with another seed
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
    """Time all methods alternately, in reversed order each time, and keep the best time of each.

    A method that takes longer than `cap` seconds is cut off, and not run with more clusters or rows.
    """
    _, views, truth = open_data(data, labels_needed=False)
    folder = data.partition("?views=")[0]
    if "faiss.Kmeans" in methods:
        import_extra("faiss", "bench", "faiss.Kmeans")
    rows = sorted({min(n, views.n_rows) for n in rows}) or [views.n_rows]
    results, too_slow = [], {}
    settings = list(product(rows, sorted(clusters)))
    total, done = len(settings) * repeats * len(methods), 0
    for n_rows, n_clusters in settings:
        fits: dict[str, list[dict]] = {name: [] for name in methods}
        for repeat in range(repeats):
            for name in methods[:: 1 if repeat % 2 == 0 else -1]:
                progress(f"{n_rows:,} rows, {n_clusters:,} clusters", done, total)
                if name not in too_slow:
                    task = {
                        "method": name,
                        "folder": folder,
                        "chosen": list(views.names),
                        "n_clusters": n_clusters,
                        "n_rows": n_rows,
                        "seed": repeat,
                        "n_threads": n_threads,
                    }
                    figures = in_own_process(task, cap, n_threads)
                    if figures is None:
                        too_slow[name] = f"over {cap:,.0f} s with {n_rows:,} rows and {n_clusters:,} clusters"
                    else:
                        fits[name].append(figures)
                done += 1
        for name in methods:
            results.append(best_of(name, n_rows, n_clusters, fits[name], truth, too_slow.get(name, "")))
    progress("done", total, total)
    return results


def in_own_process(task: dict, cap: float, n_threads: int) -> dict | None:
    """The result of `fit_once`; None if it took longer than `cap` seconds."""
    command = [sys.executable, "-m", "bitmosaic.bench.speed", json.dumps(task)]
    limits = {name: str(n_threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=cap, env=os.environ | limits)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise BitmosaicError(f"{task['method']} failed: {last}")
    return json.loads(done.stdout.splitlines()[-1])


def best_of(name, n_rows, n_clusters, fits, truth, cut_off) -> Result:
    if not fits:
        return Result(name, n_rows, n_clusters, None, cut_off=cut_off)
    scores = [] if truth is None else [clustering_scores(truth[:n_rows], np.array(fit["labels"])) for fit in fits]
    return Result(
        name,
        n_rows,
        n_clusters,
        min(fit["seconds"] for fit in fits),
        min(fit["cpu_seconds"] for fit in fits),
        max(fit["peak_bytes"] for fit in fits),
        float(np.mean([s["nmi"] for s in scores])) if scores else None,
        float(np.mean([s["acc"] for s in scores])) if scores else None,
    )


# ---- table

REFERENCE = "HSIC"


def speed_table(results: list[Result]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in ("rows", "clusters", "method", "seconds", "CPU s", "÷ HSIC", "MB", "NMI", "ACC"):
        table.add_column(name, no_wrap=True, justify="left" if name == "method" else "right")
    ours = {(r.n_rows, r.n_clusters): r.seconds for r in results if r.method == REFERENCE}
    for r in results:
        first = f"{r.n_rows:,}", f"{r.n_clusters:,}"
        if r.seconds is None:
            table.add_row(*first, r.method, "cut off")
            continue
        reference = ours.get((r.n_rows, r.n_clusters))
        table.add_row(
            *first,
            r.method,
            f"{r.seconds:,.2f}",
            f"{r.cpu_seconds:,.2f}",
            f"{r.seconds / reference:,.1f}×" if reference else "",
            f"{(r.peak_bytes or 0) / 1e6:,.0f}",
            "" if r.nmi is None else f"{r.nmi:.3f}",
            "" if r.acc is None else f"{r.acc:.3f}",
        )
    notes = ["best time and mean scores of the repeats; ÷ HSIC: time divided by that of HSIC; MB: peak above the start"]
    notes += dict.fromkeys(f"{r.method}: {r.cut_off}" for r in results if r.cut_off)
    table.caption = "\n".join(notes)
    return table


# ---- the process of one method

FAISS_ITERATIONS = 25


def concatenated(views: Views) -> np.ndarray:
    """All views side by side in memory, the input of the peers."""
    X = np.empty((views.n_rows, sum(views.widths)), np.float32)
    edges = np.cumsum([0, *views.widths])
    for array, start, stop in zip(views.arrays, edges, edges[1:], strict=False):
        X[:, start:stop] = read_rows(array, slice(0, views.n_rows))
    return X


def hsic(views, n_clusters, seed, n_threads, **changes):
    from bitmosaic.estimators.hsic import HSIC

    return HSIC(n_clusters, random_state=seed, n_threads=n_threads, **changes).fit(views).labels_


def kmeans(X, n_clusters, seed, n_threads):
    from sklearn.cluster import KMeans

    return KMeans(n_clusters, n_init=1, random_state=seed).fit(X).labels_


def mini_batch(X, n_clusters, seed, n_threads):
    from sklearn.cluster import MiniBatchKMeans

    return MiniBatchKMeans(n_clusters, n_init=1, random_state=seed).fit(X).labels_


def faiss_kmeans(X, n_clusters, seed, n_threads):
    """Train on at most 256 rows per cluster, the default of faiss, then assign all rows to the nearest centroid."""
    faiss = import_extra("faiss", "bench", "faiss.Kmeans")
    faiss.omp_set_num_threads(n_threads)
    model = faiss.Kmeans(X.shape[1], n_clusters, niter=FAISS_ITERATIONS, seed=seed)
    model.train(X)
    return model.index.search(X, 1)[1][:, 0]


# name -> preparation of the views, fit
METHODS: dict[str, tuple[Callable, Callable]] = {
    "HSIC": (lambda views: views, hsic),
    "HSIC fast": (lambda views: views, partial(hsic, preset="fast")),
    "KMeans": (concatenated, kmeans),
    "MiniBatchKMeans": (concatenated, mini_batch),
    "faiss.Kmeans": (concatenated, faiss_kmeans),
}


def fit_once(method: str, folder: str, chosen: list[str], n_clusters: int, n_rows: int, seed: int, n_threads: int):
    """Fit once and return seconds, CPU seconds, peak bytes and labels.

    A first fit of random rows does everything that happens once per process (imports, compilation, threads) before the
    timed fit. All methods start with the views on disk: for methods that need one matrix in memory, the time to build
    it is included.
    """
    prepare, fit = METHODS[method]
    rng = np.random.default_rng(0)
    arrays = tuple(rng.normal(size=(1500, d)).astype(np.float32) for d in (8, 160))
    for array in arrays:
        array.setflags(write=False)  # like memory maps: kernels are compiled separately for read-only arrays
    warm = Views(("a", "b"), arrays)
    fit(prepare(warm), 4, 0, n_threads)
    with PeakMemory() as memory:  # includes the matrix, which a peer needs in memory
        views = read_views(folder)
        views = Views(tuple(chosen), tuple(views[name][:n_rows] for name in chosen))
        start, cpu = time.perf_counter(), time.process_time()
        labels = fit(prepare(views), n_clusters, seed, n_threads)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    return {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "peak_bytes": memory.peak - memory.start,
        "labels": np.asarray(labels).tolist(),
    }


if __name__ == "__main__":
    print(json.dumps(fit_once(**json.loads(sys.argv[1]))))

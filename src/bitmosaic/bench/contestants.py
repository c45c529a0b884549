"""One contestant of `bench speed`, in a process of its own: fit once, tell the time, the memory and the labels."""

import json
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from bitmosaic.bench.choices import import_faiss
from bitmosaic.bench.memory import PeakMemory, processor_seconds
from bitmosaic.views import Views, read_rows, read_views

FAISS_ITERATIONS = 25


def concatenated(views: Views) -> np.ndarray:
    """All views side by side in memory, as the peers take them."""
    X = np.empty((views.n_rows, sum(views.widths)), np.float32)
    edges = np.cumsum([0, *views.widths])
    for array, start, stop in zip(views.arrays, edges, edges[1:], strict=False):
        X[:, start:stop] = read_rows(array, slice(0, views.n_rows))
    return X


def as_they_are(views: Views) -> Views:
    return views


def hsic(views, n_clusters, seed, n_threads, **changes):
    from bitmosaic.hsic import HSIC

    return HSIC(n_clusters, random_state=seed, n_threads=n_threads, **changes).fit(views).labels_


def kmeans(X, n_clusters, seed, n_threads):
    from sklearn.cluster import KMeans

    return KMeans(n_clusters, n_init=1, random_state=seed).fit(X).labels_


def mini_batch(X, n_clusters, seed, n_threads):
    from sklearn.cluster import MiniBatchKMeans

    return MiniBatchKMeans(n_clusters, n_init=1, random_state=seed).fit(X).labels_


def faiss_kmeans(X, n_clusters, seed, n_threads):
    """Trains on at most 256 rows per cluster, its own default; then all rows go to the nearest centroid."""
    faiss = import_faiss("bench speed")
    faiss.omp_set_num_threads(n_threads)
    model = faiss.Kmeans(X.shape[1], n_clusters, niter=FAISS_ITERATIONS, seed=seed)
    model.train(X)
    return model.index.search(X, 1)[1][:, 0]


# how the views are handed over, and the fit
METHODS: dict[str, tuple[Callable, Callable]] = {
    "HSIC": (as_they_are, hsic),
    "HSIC fast": (as_they_are, partial(hsic, preset="fast")),
    "KMeans": (concatenated, kmeans),
    "MiniBatchKMeans": (concatenated, mini_batch),
    "faiss.Kmeans": (concatenated, faiss_kmeans),
}


def compete(method: str, folder: str, chosen: list[str], n_clusters: int, n_rows: int, seed: int, n_threads: int):
    """Fit once and return seconds, processor seconds, bytes at the peak and the labels.

    What only happens once in a process (imports, compiled kernels, threads) is over before the clock starts. All begin
    with the views as they lie on disk: for those that take one matrix in memory, making it is part of the time.
    """
    prepare, fit = METHODS[method]
    rng = np.random.default_rng(0)
    arrays = tuple(rng.normal(size=(1500, d)).astype(np.float32) for d in (8, 160))
    for array in arrays:
        array.setflags(write=False)  # as memory maps are: kernels are compiled for these on their own
    warm = Views(("a", "b"), arrays)
    fit(prepare(warm), 4, 0, n_threads)
    with PeakMemory() as memory:  # with the matrix: what does not fit into memory cannot be clustered by a peer
        views = read_views(folder)
        views = Views(tuple(chosen), tuple(views[name][:n_rows] for name in chosen))
        start, cpu = time.perf_counter(), processor_seconds()
        labels = fit(prepare(views), n_clusters, seed, n_threads)
        seconds, cpu = time.perf_counter() - start, processor_seconds() - cpu
    return {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "peak_bytes": memory.peak - memory.start,
        "labels": np.asarray(labels).tolist(),
    }


if __name__ == "__main__":
    print(json.dumps(compete(**json.loads(sys.argv[1]))))

"""HSIC beside k-means on data with known classes, over seeds. Scores are computed from stored labels, afterwards."""

import hashlib
import os
import time
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import sklearn
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler, normalize

import bitmosaic
from bitmosaic.bench.cases import Case
from bitmosaic.bench.runs import Run, RunFile
from bitmosaic.errors import InvalidDataError
from bitmosaic.hsic import HSIC
from bitmosaic.views import Views, read_rows

N_INIT = 10

# ---- methods: what is prepared once for all seeds, and a fit


def _floats(views: Views) -> list[np.ndarray]:
    arrays = [read_rows(array, slice(0, views.n_rows)) for array in views.arrays]
    if any(np.isnan(X).any() for X in arrays):
        raise InvalidDataError("KMeans needs all views of all rows; some are NaN. Leave it out: --methods HSIC.")
    return arrays


def standardised(views: Views) -> np.ndarray:
    return np.hstack([StandardScaler().fit_transform(X) for X in _floats(views)])


def balanced(views: Views) -> np.ndarray:
    """Standardised, then every view with the same total variance, however many columns it has."""
    return np.hstack([StandardScaler().fit_transform(X) / np.float32(np.sqrt(X.shape[1])) for X in _floats(views)])


def raw(views: Views) -> np.ndarray:
    return np.hstack(_floats(views))


def unit_rows(views: Views) -> np.ndarray:
    return normalize(raw(views))


def kmeans(X, n_clusters, seed, progress):
    """What KMeans(n_init=10) gives, one start at a time, for the bar: one takes a minute on 60,000 images.

    Elkan's algorithm gives Lloyd's labels. There, one start took it 59 s of a core for all 136 iterations, and Lloyd's
    48 s for the first 30; on small sets it can take twice as long as Lloyd's.
    """
    rng, tried = np.random.RandomState(seed), []
    for start in range(N_INIT):
        progress(start, N_INIT)
        model = KMeans(n_clusters, n_init=1, algorithm="elkan", random_state=rng).fit(X)
        tried.append((model.inertia_, start, model.labels_))
    return min(tried)[-1]


def hsic(views, n_clusters, seed, progress):
    return HSIC(n_clusters, random_state=seed).fit(views, progress=progress).labels_


def paper(views, n_clusters, seed, progress):
    return HSIC.paper(n_clusters, random_state=seed).fit(views, progress=progress).labels_


def _as_it_is(views: Views) -> Views:
    return views


METHODS: dict[str, tuple[Callable, Callable]] = {
    "KMeans": (standardised, kmeans),
    "KMeans-balanced": (balanced, kmeans),
    "KMeans-raw": (raw, kmeans),
    "KMeans-L2": (unit_rows, kmeans),
    "HSIC": (_as_it_is, hsic),
    "HSIC.paper": (_as_it_is, paper),
}


def is_kmeans(method: str) -> bool:
    return method.startswith("KMeans")


def methods_of(case: Case, chosen: list[str]) -> list[str]:
    """Those that make sense: one view has nothing to balance, several have no common length of a row."""
    senseless = "KMeans-balanced" if len(case.views(0)) == 1 else "KMeans-L2"
    return [name for name in chosen if name != senseless and (case.compared or name == "HSIC")]


# ---- runs


def run_all(
    cases: list[Case],
    methods: list[str],
    n_seeds: int,
    progress: Callable[[str, int, int], None],
    out: str | os.PathLike[str] | None = None,
    kmeans_seeds: int | None = None,
) -> list[Run]:
    """Every method on every case with every seed; what the file `out` has already is taken from there.

    `progress(method, done, total)` counts samples: data sets of different sizes share the bar of a method.
    """
    if out is not None:
        Path(out).touch()  # a place that cannot be written is told now, not after the first fit
    stored = RunFile(out)
    for case in cases:
        stored.check(case)
    seeds = {name: kmeans_seeds if kmeans_seeds and is_kmeans(name) else n_seeds for name in methods}
    plan = [(case, name, seed) for case in cases for name in methods_of(case, methods) for seed in range(seeds[name])]
    have = {(run.data, run.method, run.seed): run for run in stored.runs.values() if run.made_by == maker(run.method)}
    done, total = dict.fromkeys(methods, 0), dict.fromkeys(methods, 0)
    for case, name, seed in plan:
        total[name] += len(case.truth)
        done[name] += len(case.truth) * ((case.name, name, seed) in have)
    seen = prepared = None
    for case, name, seed in plan:

        def report(part, parts, name=name, case=case):
            progress(name, done[name] + len(case.truth) * part // parts, total[name])

        report(0, 1)
        if (case.name, name, seed) in have:
            continue
        prepare, fit = METHODS[name]
        views = case.views(seed)
        if seen != (prepare, views):
            prepared = None  # gone before the next one comes
            seen, prepared = (prepare, views), prepare(views)
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            labels = fit(prepared, len(np.unique(case.truth)), seed, report)
        run = Run(case.name, name, seed, time.perf_counter() - start, maker(name), labels, case.truth)
        stored.add(run, case)
        have[case.name, name, seed] = run
        report(1, 1)
        done[name] += len(case.truth)
    return [have[case.name, name, seed] for case, name, seed in plan]


def maker(method: str) -> str:
    """Runs of other code are done again: a stored figure must be what this code gives."""
    if is_kmeans(method):
        return f"scikit-learn {sklearn.__version__}, Elkan, {N_INIT} starts"
    return f"bitmosaic {_source_stamp()}"


@cache
def _source_stamp() -> str:
    root = Path(bitmosaic.__file__).parent
    sources = sorted(path for path in root.rglob("*.py") if "bench" not in path.relative_to(root).parts)
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]


def summarise(runs):
    """(data, method) -> {score: (mean, standard deviation)}, in the order of the runs."""
    groups: dict[tuple[str, str], list[dict[str, float]]] = {}
    for run in runs:
        groups.setdefault((run.data, run.method), []).append(run.scores | {"seconds": run.seconds})
    return {
        key: {score: (np.mean([s[score] for s in group]), np.std([s[score] for s in group])) for score in group[0]}
        for key, group in groups.items()
    }

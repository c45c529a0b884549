"""Compare HSIC with k-means, LSC-K, MVSC and EVoC on labeled data over several seeds. Scores are computed from the
stored labels."""

import hashlib
import itertools
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from scipy.stats import rankdata
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler, normalize

import bitmosaic
from bitmosaic.bench.baselines import make
from bitmosaic.bench.datasets import choose_views, open_data
from bitmosaic.bench.experiment import SCORES, Case, Run, RunFile
from bitmosaic.errors import InvalidDataError, MissingExtraError
from bitmosaic.estimators.hsic import HSIC
from bitmosaic.views import Views, read_rows

N_INIT = 10

# ---- methods: preparation, done once for all seeds, and fit


def _floats(views: Views) -> list[np.ndarray]:
    arrays = [read_rows(array, slice(0, views.n_rows)) for array in views.arrays]
    if any(np.isnan(X).any() for X in arrays):
        raise InvalidDataError(
            "KMeans and EVoC need complete views; some values are NaN. Leave them out: --methods HSIC."
        )
    return arrays


def standardized(views: Views) -> np.ndarray:
    return np.hstack([StandardScaler().fit_transform(X) for X in _floats(views)])


def balanced(views: Views) -> np.ndarray:
    """Standardized, then scaled so that all views have the same total variance."""
    return np.hstack([StandardScaler().fit_transform(X) / np.float32(np.sqrt(X.shape[1])) for X in _floats(views)])


def raw(views: Views) -> np.ndarray:
    return np.hstack(_floats(views))


def unit_rows(views: Views) -> np.ndarray:
    return np.hstack([normalize(X) for X in _floats(views)])


def kmeans(X, n_clusters, seed, progress):
    """The labels of KMeans(n_init=10), computed one start at a time to report progress.

    Elkan's algorithm gives the same labels as Lloyd's. On 60,000 images, one start took 59 s on one core for all 136
    iterations; Lloyd's took 48 s for the first 30. On small sets it can take twice as long as Lloyd's.
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


def evoc(X, n_clusters, seed, progress):
    """The labels of EVoC when asked for `n_clusters`. Rows that it leaves out as noise (-1) are one more cluster.

    Its layers of clusters without that number are worse: on EfficientNet features of ImageNet-10 the layer nearest to
    10 clusters has 15, NMI 0.77 instead of 0.83.
    """
    return import_evoc().EVoC(approx_n_clusters=n_clusters, random_state=seed).fit_predict(X)


def import_evoc():
    try:
        import evoc
    except ImportError:
        raise MissingExtraError(
            "The method EVoC needs evoc: pip install 'bitmosaic[bench]'. Or leave it out with --methods."
        ) from None
    return evoc


def _baseline(name: str) -> Callable:
    return lambda views, n_clusters, seed, progress: make(name, n_clusters, random_state=seed).fit_predict(views)


def _unchanged(views: Views) -> Views:
    return views


METHODS: dict[str, tuple[Callable, Callable]] = {
    "KMeans": (standardized, kmeans),
    "KMeans-balanced": (balanced, kmeans),
    "KMeans-raw": (raw, kmeans),
    "KMeans-L2": (unit_rows, kmeans),
    "LSC-K": (_unchanged, _baseline("LSC-K")),
    "MVSC": (_unchanged, _baseline("MVSC")),
    "EVoC": (unit_rows, evoc),
    "HSIC": (_unchanged, hsic),
    "HSIC.paper": (_unchanged, paper),
}


def is_kmeans(method: str) -> bool:
    return method.startswith("KMeans")


def methods_of(case: Case, chosen: list[str]) -> list[str]:
    """The methods that apply: KMeans-balanced needs several views."""
    single = len(case.views(0)) == 1
    return [name for name in chosen if not (single and name == "KMeans-balanced") and (case.compared or name == "HSIC")]


# ---- runs


def run_all(
    cases: list[Case],
    methods: list[str],
    n_seeds: int,
    progress: Callable[[str, int, int], None],
    out: str | os.PathLike[str] | None = None,
    kmeans_seeds: int | None = None,
) -> list[Run]:
    """Run every method on every case with every seed. Runs stored in the file `out` are not repeated.

    `progress(method, done, total)` counts rows, since the data sets of one method have different sizes.
    """
    if out is not None:
        Path(out).touch()  # fail now if it cannot be written, not after the first fit
    if "EVoC" in methods:
        import_evoc()  # fail now, not after the runs of other methods
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
            prepared = None  # free the memory before preparing the next one
            seen, prepared = (prepare, views), prepare(views)
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.filterwarnings("ignore", r"Views \['\+constant'\] are constant")  # added by --spoil
            labels = fit(prepared, len(np.unique(case.truth)), seed, report)
        run = Run(case.name, name, seed, time.perf_counter() - start, maker(name), labels, case.truth)
        stored.add(run, case)
        have[case.name, name, seed] = run
        report(1, 1)
        done[name] += len(case.truth)
    return [have[case.name, name, seed] for case, name, seed in plan]


def maker(method: str) -> str:
    """The code version of a method. Stored runs of another version are repeated."""
    if is_kmeans(method):
        return f"scikit-learn {sklearn.__version__}, Elkan, {N_INIT} starts"
    if method == "EVoC":
        return f"evoc {version('evoc')}"
    return f"bitmosaic {_source_hash()}"


@cache
def _source_hash() -> str:
    root = Path(bitmosaic.__file__).parent
    sources = sorted(path for path in root.rglob("*.py") if path.parent != root / "bench")
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]


def summarize(runs):
    """(data, method) -> {score: (mean, standard deviation)}, in the order of the runs."""
    groups: dict[tuple[str, str], list[dict[str, float]]] = {}
    for run in runs:
        groups.setdefault((run.data, run.method), []).append(run.scores | {"seconds": run.seconds})
    return {
        key: {score: (np.mean([s[score] for s in group]), np.std([s[score] for s in group])) for score in group[0]}
        for key, group in groups.items()
    }


# ---- data

BLOBS = "blobs"
BLOB_SIZES = ((200, 4, 3), (600, 10, 5), (1500, 8, 12), (3000, 30, 20))  # samples, dimensions, clusters
APART = 10  # minimum distance between two centers, in standard deviations
MAPS: dict[str, Callable] = {
    "x": lambda X: X,
    "tanh(x/5)": lambda X: np.tanh(X / 5),
    "x+0.05x²": lambda X: X + 0.05 * X**2,
    "exp(x/8)": lambda X: np.exp(X / 8),
    "linear": lambda X: X @ np.random.default_rng(0).normal(size=(X.shape[1], X.shape[1] + 3)),
}


def cases_of(data: list[str], each_view: bool = False, spoil: bool = False) -> list[Case]:
    """Cases from data sets given as PATH or PATH?views=NAME,NAME. Large files are opened but not read.

    `each_view` adds a case for each single view. `spoil` adds cases with one useless or weak extra view, and those of
    each single view beside noise of many and of few columns.
    """
    found: dict[str, Case] = {}
    for name, views, truth in map(open_data, data):
        if name in found and found[name].compared:
            raise InvalidDataError(f"Data sets need different names; got {name} twice. Rename a file.")
        found[name] = Case(name, truth, _always(views), compared=True)
        singles = [choose_views(views, [view]) for view in views] if len(views) > 1 else []
        for single in singles if each_view or spoil else []:
            called = f"{name.partition('[')[0]}[{single.names[0]}]"
            found.setdefault(called, Case(called, truth, _always(single)))
            if spoil:
                for addition, n_columns in NOISE.items():
                    noisy = f"{called} + {addition}"
                    found[noisy] = Case(noisy, truth, _with_noise(single, n_columns), spoiled=called)
        for addition, extended in _with_extra_view(views, truth) if spoil else ():
            called = f"{name} + {addition}"
            found[called] = Case(called, truth, extended, spoiled=name)
    return list(found.values())


def _always(views: Views) -> Callable[[int], Views]:
    return lambda seed: views


NOISE = {"noise": 50, "narrow noise": 2}  # columns
WEAK_COLUMNS = 50
WEAK = 0.25  # standard deviation of class means of the weak view; KMeans finds them with an NMI of 0.1 to 0.4


def _with_extra_view(views: Views, truth: np.ndarray) -> Iterator[tuple[str, Callable[[int], Views]]]:
    """(name of the added view, function from a seed to the views with it) pairs."""
    for addition, n_columns in NOISE.items():
        yield addition, _with_noise(views, n_columns)
    yield "constant", _always(_added(views, "+constant", np.ones((views.n_rows, 5), np.float32)))
    for name, array in zip(views.names, views.arrays, strict=True):
        yield f"copy of {name}", _always(_added(views, "+copy", array))
    classes, numbers = np.unique(truth, return_inverse=True)

    def weak(seed):
        rng = np.random.default_rng(seed)
        means = WEAK * rng.normal(size=(len(classes), WEAK_COLUMNS))
        return _added(views, "+weak", (means[numbers] + rng.normal(size=(len(truth), WEAK_COLUMNS))).astype(np.float32))

    yield "weak view", weak


def _with_noise(views: Views, n_columns: int) -> Callable[[int], Views]:
    shape = views.n_rows, n_columns
    return lambda seed: _added(views, "+noise", np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def _added(views: Views, name: str, array: Any) -> Views:
    return replace(views, names=(*views.names, name), arrays=(*views.arrays, array), columns=None)


def blob_cases() -> list[Case]:
    """Gaussian clusters of every size, one case per pair of maps. Centers and rows depend on the seed."""
    return [_blob_case(*size, pair) for pair in itertools.combinations(MAPS, 2) for size in BLOB_SIZES]


def _blob_case(n: int, d: int, c: int, pair: tuple[str, str]) -> Case:
    truth = np.random.default_rng(0).permutation(np.arange(n) % c)

    def views(seed):
        rng = np.random.default_rng(seed)
        X = blob_centers(c, d, rng)[truth] + rng.normal(size=(n, d))
        return Views(pair, tuple(MAPS[name](X).astype(np.float32) for name in pair), truth)

    return Case(f"{BLOBS} {n}×{d}, {c} clusters: {', '.join(pair)}", truth, views, family=", ".join(pair))


def blob_centers(c: int, d: int, rng: np.random.Generator) -> np.ndarray:
    """(c, d) centers between -10 and 10, at least `APART` apart. In this range the maps are not saturated."""
    centers = np.empty((0, d))
    while len(centers) < c:
        center = rng.uniform(-10, 10, d)
        if np.all(np.linalg.norm(centers - center, axis=1) >= APART):
            centers = np.vstack([centers, center])
    return centers


# ---- tables

LEVEL = 0.01  # difference of two scores that does not count
WIDTH = 100  # columns of output to a file or pipe


def print_tables(cases: list[Case], runs: list[Run]) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    for part in _tables(cases, runs):
        console.print(part, soft_wrap=isinstance(part, str))  # one line, also in a file


def _tables(cases: list[Case], runs: list[Run]) -> Iterator[Table | str]:
    summary = summarize(runs)
    plain = [case.name for case in cases if not case.spoiled and not case.family]
    if plain:
        shown = {key: scores for key, scores in summary.items() if key[0] in plain}
        table = quality_table(shown)
        table.caption = f"mean ± standard deviation {_seeds(runs)}\n÷ KMeans: NMI divided by that of the best KMeans"
        yield table
        yield from standing_tables(shown)
    spoiled = {case.name: case.spoiled for case in cases if case.spoiled}
    if spoiled:
        yield spoil_table(spoiled, summary)
    families = {case.name: case.family for case in cases if case.family}
    if families:
        yield blob_table([(families[run.data], run) for run in runs if run.data in families])


def standing_tables(summary: dict) -> Iterator[Table | str]:
    """On how many cases HSIC is ahead of, level with and behind each other method, and the mean rank of each.

    Then the same as one line, against the best KMeans of each case, or the best peer if there is no KMeans.
    """
    cases: dict[str, dict] = {}
    for (data, method), scores in summary.items():
        cases.setdefault(data, {})[method] = scores
    cases = {data: scores for data, scores in cases.items() if "HSIC" in scores and len(scores) > 1}
    peers = [name for name in METHODS if name != "HSIC" and any(name in scores for scores in cases.values())]
    opponents = {
        "best KMeans": [name for name in peers if is_kmeans(name)],
        "best peer": [name for name in peers if name != "HSIC.paper"],
        **{name: [name] for name in peers},
    }
    opponents = {name: methods for name, methods in opponents.items() if methods}
    if not cases:
        return
    ranks = mean_ranks(cases)
    table = empty_table("HSIC against", "NMI ahead", "level", "behind", "ACC ahead", "level", "behind", "mean rank")
    counts = {
        name: [standings(cases, methods, score) for score in ("nmi", "acc")] for name, methods in opponents.items()
    }
    for name, both in counts.items():
        cells = [str(count) for one in both for count in one.values()]
        table.add_row(name, *cells, f"{ranks[name]:.2f}" if name in ranks else "", end_section=name == "best peer")
    table.add_row("HSIC", *[""] * 6, f"{ranks['HSIC']:.2f}")
    table.caption = (
        f"number of cases; level: within {LEVEL} or the joint standard deviation; rank by NMI, the best has 1, among "
        "the methods that ran on a case"
    )
    yield table
    name, both = next(iter(counts.items()))
    texts = (", ".join(f"{count} {where}" for where, count in one.items()) for one in both)
    yield f"HSIC against the {name}, {len(cases)} cases: NMI {next(texts)}; ACC {next(texts)}"


def standings(cases: dict[str, dict], methods: list[str], score: str) -> dict[str, int]:
    """On how many cases HSIC is ahead of, level with and behind the best of these methods in the mean of a score."""
    counts = {"ahead": 0, "level": 0, "behind": 0}
    for scores in cases.values():
        others = [scores[name][score] for name in methods if name in scores]
        if others:
            (mean, spread), (best, its_spread) = scores["HSIC"][score], max(others)
            lead, joint = mean - best, float(np.hypot(spread, its_spread))
            counts["level" if abs(lead) <= max(LEVEL, joint) else "ahead" if lead > 0 else "behind"] += 1
    return counts


def mean_ranks(cases: dict[str, dict]) -> dict[str, float]:
    """The mean rank of each method by NMI over the cases it ran on. Equal ones share the mean of their ranks."""
    ranks: dict[str, list[float]] = {}
    for scores in cases.values():
        for name, rank in zip(scores, rankdata([-s["nmi"][0] for s in scores.values()]), strict=True):
            ranks.setdefault(name, []).append(rank)
    return {name: float(np.mean(some)) for name, some in ranks.items()}


def _seeds(runs: list[Run]) -> str:
    """Text such as: over 10 seeds (KMeans 2)."""
    kmeans = len({run.seed for run in runs if is_kmeans(run.method)})
    others = len({run.seed for run in runs if not is_kmeans(run.method)})
    return f"over {others or kmeans} seeds" + (f" (KMeans {kmeans})" if 0 < kmeans != others > 0 else "")


def quality_table(summary: dict) -> Table:
    table = empty_table("data", "method", *SCORES.values(), "÷ KMeans", "seconds")
    best: dict[str, float] = {}
    for (data, method), scores in summary.items():
        if is_kmeans(method):
            best[data] = max(best.get(data, 0), scores["nmi"][0])
    for data, group in groupby(summary, key=lambda key: key[0]):
        rows = [(method, summary[data, method]) for _, method in group]
        if len(rows) > 1:  # a single view stays in the section of its data set
            table.add_section()
        for i, (method, scores) in enumerate(rows):
            ratio = "" if is_kmeans(method) or not best.get(data) else f"{scores['nmi'][0] / best[data]:.3f}"
            table.add_row("" if i else escape(data), method, *_cells(scores), ratio, _seconds(*scores["seconds"]))
    return table


def spoil_table(spoiled: dict[str, str], summary: dict) -> Table:
    table = empty_table("HSIC on", *SCORES.values(), "loss of NMI", "seconds")
    for before in dict.fromkeys(spoiled.values()):
        table.add_section()
        for name in (before, *(name for name in spoiled if spoiled[name] == before)):
            scores, reference = summary[name, "HSIC"], summary[before, "HSIC"]["nmi"][0]
            loss = "" if name == before else f"{100 * (1 - scores['nmi'][0] / reference):.1f}%"
            table.add_row(escape(name), *_cells(scores), loss, _seconds(*scores["seconds"]))
    return table


def blob_table(runs: list[tuple[str, Run]]) -> Table:
    """A table from (row name, run) pairs."""
    table = empty_table("blobs seen through", "fits", "with mistakes", "samples", "in a wrong cluster")
    rows: dict[str, list[int]] = {}
    for family, run in runs:
        wrong = wrong_samples(run)
        for row in (rows.setdefault(family, [0] * 4), rows.setdefault("all", [0] * 4)):
            row[:] = [a + b for a, b in zip(row, (1, wrong > 0, len(run.truth), wrong), strict=True)]
    rows["all"] = rows.pop("all")  # last
    for family, counts in rows.items():
        table.add_row(family, *(f"{count:,}" for count in counts), end_section=family == list(rows)[-2])
    return table


def wrong_samples(run: Run) -> int:
    return round((1 - run.scores["acc"]) * len(run.truth))


def empty_table(first: str, *others: str) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=0, caption_justify="left")
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    return table


def _cells(scores: dict) -> list[str]:
    return [f"{mean:.3f}±{spread:.3f}".replace("±0.", "±.") for mean, spread in (scores[name] for name in SCORES)]


def _seconds(mean: float, spread: float) -> str:
    digits = 2 if mean < 1 else 1 if mean < 100 else 0
    return f"{mean:,.{digits}f}±{spread:,.{digits}f}"

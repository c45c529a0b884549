"""Precision@20: the share of an image's 20 nearest other images that have its class, by codes and by features."""

from collections.abc import Callable

import numpy as np
from rich.markup import escape
from rich.table import Table

from bitmosaic.bench.baselines.binary import best_rotation
from bitmosaic.bench.experiment import Case
from bitmosaic.bench.quality import balanced, empty_table, unit_rows
from bitmosaic.errors import InvalidDataError, import_extra
from bitmosaic.estimators.hsic import HSIC
from bitmosaic.estimators.neighbor_index import NeighborIndex
from bitmosaic.hamming.codes import pack
from bitmosaic.solver.embedding import principal_basis
from bitmosaic.views import read_rows

K = 20
MANY, SAMPLE = 20_000, 2_000  # of more than this number of images, this number of queries
N_BITS, ROTATIONS = 128, 50  # of PCA-ITQ

Precisions = dict[str, list[float]]  # method -> a value per seed


def check_search(cases: list[Case]) -> None:
    """Raise an error now, not after all runs, if faiss is not installed or a view is incomplete."""
    import_extra("faiss", "bench", "--search")
    for case in cases:
        if any(np.isnan(read_rows(rows, slice(0, rows.shape[0]))).any() for rows in case.views(0).arrays):
            raise InvalidDataError(f"--search needs complete views; {case.name} has NaN. Leave --search out.")


def measure(cases: list[Case], n_seeds: int, progress: Callable[[str, int, int], None]) -> dict[str, Precisions]:
    """Name of the case -> precision@20 of codes of HSIC, of PCA-ITQ, and of features, which have no seed."""
    faiss = import_extra("faiss", "bench", "--search")
    found: dict[str, Precisions] = {}
    for number, case in enumerate(cases):
        views, done = case.views(0), number * n_seeds
        n_clusters = len(np.unique(case.truth))
        progress("precision@20", done, len(cases) * n_seeds)
        here: Precisions = {"unit rows": [precision_of_rows(unit_rows(views), case.truth, faiss)]}
        X = balanced(views)
        here |= {"balanced": [precision_of_rows(X, case.truth, faiss)], "HSIC": [], "PCA-ITQ": []}
        for seed in range(n_seeds):
            codes = HSIC(n_clusters, random_state=seed).fit(views).codes_
            here["HSIC"].append(precision_of_codes(codes, case.truth))
            here["PCA-ITQ"].append(precision_of_codes(itq_codes(X, seed), case.truth))
            progress("precision@20", done + seed + 1, len(cases) * n_seeds)
        found[case.name] = here
    return found


def itq_codes(X: np.ndarray, seed: int) -> np.ndarray:
    """Codes of centered rows: signs of the principal components after ITQ's rotation, (n, 16) uint8."""
    basis = principal_basis(X, N_BITS, seed, damped=False)  # (d, ≤ 128)
    V = X @ basis
    R, _ = best_rotation(V, N_BITS, ROTATIONS, np.random.default_rng(seed))
    return pack(V @ R)


def precision_of_codes(codes: np.ndarray, truth: np.ndarray) -> float:
    """By Hamming distance. Ties are broken at random: the images of a class are often adjacent rows."""
    order = _order(len(truth))
    codes = np.asarray(codes)[order]
    n_queries = len(_queries(len(truth)))
    near = NeighborIndex(codes).kneighbors(codes[:n_queries], _k(truth) + 1, return_distance=False)
    return _share(truth[order], np.arange(n_queries), near)


def precision_of_rows(X: np.ndarray, truth: np.ndarray, faiss) -> float:
    """By Euclidean distance, which orders rows of length 1 as the cosine does."""
    queries = _queries(len(truth))
    _, near = faiss.knn(X[queries], np.ascontiguousarray(X, np.float32), _k(truth) + 1)
    return _share(truth, queries, near)


def _order(n: int) -> np.ndarray:
    return np.random.default_rng(0).permutation(n)


def _queries(n: int) -> np.ndarray:
    return _order(n)[: SAMPLE if n > MANY else n]


def _k(truth: np.ndarray) -> int:
    return min(K, len(truth) - 1)


def _share(truth: np.ndarray, queries: np.ndarray, near: np.ndarray) -> float:
    """`near` (q, k + 1) are the nearest images of the queries, in most cases with the query itself."""
    dropped = near == queries[:, None]
    dropped[~dropped.any(axis=1), -1] = True  # more than k images equal the query
    others = near[~dropped].reshape(len(near), -1)  # (q, k)
    return float((truth[others] == truth[queries][:, None]).mean())


def precision_table(found: dict[str, Precisions]) -> Table:
    table = empty_table(f"precision@{K}", "HSIC", "PCA-ITQ", "unit rows", "balanced", "÷ ITQ", "÷ features")
    for data, here in found.items():
        mean = {method: np.mean(values) for method, values in here.items()}
        cells = [f"{mean[name]:.3f}±{np.std(here[name]):.3f}".replace("±0.", "±.") for name in ("HSIC", "PCA-ITQ")]
        cells += [f"{mean[name]:.3f}" for name in ("unit rows", "balanced")]
        best = max(mean["unit rows"], mean["balanced"])
        table.add_row(escape(data), *cells, *(f"{mean['HSIC'] / other:.3f}" for other in (mean["PCA-ITQ"], best)))
    table.caption = (
        f"share of the {K} nearest other images that have the class of the image, by codes of HSIC and PCA-ITQ "
        f"({N_BITS} bits) and by all features: rows of length 1, or standardized and balanced; ÷: HSIC divided by "
        "PCA-ITQ, and by the better features"
    )
    return table

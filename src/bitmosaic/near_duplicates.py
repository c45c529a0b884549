"""Packed codes and views -> near-duplicates: groups of pictures that are nearly the same.

They are pairs whose codes differ in a few bits and whose features are nearly the same. The codes find such pairs
without comparing all with all; being coarse, they cannot tell alone whether it is true, and the features do.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh, qr

from bitmosaic.codes import ROWS_PER_PIECE
from bitmosaic.near_pairs import MOST_PAIRS, PAIRS_AT_ONCE, cheapest_cut, quiet, scored_pairs, spread
from bitmosaic.threads import in_order, row_ranges, single_threaded_blas
from bitmosaic.views import Rows, Views, exact_dtype, forget_pages, read_rows

Progress = Callable[[str, int, int], None]  # stage, done, total

RADIUS = 12  # bits in which the codes of near-duplicates may differ
SAME_FEATURES = 0.25  # unrelated pictures are at about 1; up to here, nearly all pairs of CIFAR-10 are one scene
MOST_COMPARISONS = 1e9  # of two codes, or of their sketches: a minute or two at most
SAMPLE = 1000  # rows that tell the variance of a view
SKETCH, MAIN = 32, 12  # numbers for each row and view, and how many of them are along main directions
SKETCH_MARGIN = 1.5  # so that few pairs are missed whose sketches are farther apart than their features


# ---- what can be compared


def affordable(codes, radius, most):
    """The largest radius, at most the one asked for, that takes so many comparisons, and the rows to compare.

    Rows are left out only at radius 0: codes that the most share.
    """
    for smaller in range(radius, -1, -1):
        if cheapest_cut(codes, smaller)[1] <= most:
            return smaller, np.arange(len(codes))
    _, owners, counts = np.unique(codes, axis=0, return_inverse=True, return_counts=True)
    smallest = np.argsort(counts, kind="stable")
    kept = np.zeros(len(counts), bool)
    kept[smallest] = np.cumsum(_n_pairs(counts[smallest])) <= most
    return 0, np.flatnonzero(kept[owners])


def _n_pairs(sizes):
    return sizes * (sizes - 1.0) / 2


# ---- how near their features are


def feature_distances(views: Views, pairs) -> np.ndarray:
    """(p,) float64: ‖x - y‖² / (2 · variance of the view), a mean over the views that both rows have.

    Unrelated pictures are at about 1. NaN without such a view; a view whose rows are all equal says nothing.
    """
    total, common = np.zeros(len(pairs)), np.zeros(len(pairs))
    order = np.argsort(pairs[:, 0], kind="stable")
    for array in views.arrays:
        variance = _sample(array).var(0).sum()
        if not variance > 0:
            continue
        for piece in row_ranges(len(pairs), PAIRS_AT_ONCE):
            some = order[piece]
            rows, places = np.unique(pairs[some], return_inverse=True)
            features = read_rows(array, rows, exact_dtype(array))
            forget_pages(array, rows)
            first, second = features[places.reshape(-1, 2).T]
            distances = np.square(first - second, dtype=np.float64).sum(1) / (2 * variance)
            known = ~np.isnan(distances)
            total[some[known]] += distances[known]
            common[some] += known
    return np.divide(total, common, out=np.full(len(pairs), np.nan), where=common > 0)


def _sketches(views: Views, n_threads, report) -> np.ndarray:
    """(n, v, SKETCH) float32: a few numbers for each row and view, NaN first where the view is missing or constant.

    Squared distances of sketches are those of features within some 20 %: what lies along the main directions of the
    view is exact, and random directions estimate the rest.
    """
    sketches = np.zeros((views.n_rows, len(views), SKETCH), np.float32)
    for v, array in enumerate(views.arrays):
        sample = _sample(array)
        mean, variance = sample.mean(0), sample.var(0).sum()
        if not variance > 0:
            sketches[:, v, 0] = np.nan
            continue
        basis = (_directions(sample - mean) / np.sqrt(2 * variance)).astype(np.float32)

        def project(rows, v=v, array=array, mean=mean, basis=basis):
            block = (read_rows(array, rows, exact_dtype(array)) - mean).astype(np.float32)
            forget_pages(array, np.arange(rows.start, rows.stop))
            sketches[rows, v, : basis.shape[1]] = block @ basis
            sketches[rows, v, 0][np.isnan(block).any(1)] = np.nan

        with single_threaded_blas():
            for i, _ in enumerate(in_order(project, row_ranges(views.n_rows, ROWS_PER_PIECE), n_threads)):
                report("reading features", v * views.n_rows + i * ROWS_PER_PIECE, len(views) * views.n_rows)
    return sketches


def _directions(sample):
    """Centred rows (m, d) -> (d, at most SKETCH): their main directions, orthonormal, then random ones across these."""
    m, d = sample.shape
    _, vectors = eigh(sample @ sample.T, subset_by_index=[max(m - MAIN, 0), m - 1])
    main = qr(sample.T @ vectors, mode="economic")[0][:, :d]
    random = np.random.default_rng(0).standard_normal((d, SKETCH - MAIN)) / np.sqrt(SKETCH - MAIN)
    return np.concatenate([main, random - main @ (main.T @ random)], axis=1)


def _sample(array: Rows) -> np.ndarray:
    """Some rows of a view, spread over all, without those that are missing: (m, d) float64."""
    rows = read_rows(array, spread(array.shape[0], SAMPLE), np.float64)
    return rows[~np.isnan(rows).any(1)]


# ---- groups


@dataclass(frozen=True)
class Group:
    """Pictures that are nearly the same as the first of them, the nearest first."""

    rows: np.ndarray  # (m,) int64
    distances: np.ndarray  # (m,) int32, in bits from the first
    feature_distances: np.ndarray | None  # (m,) float64 from the first, if there are features


def find_duplicates(
    codes, views: Views | None = None, radius: int | None = None, n_threads: int = 1, progress: Progress = quiet
) -> tuple[int, list[Group]]:
    """The radius that was used, and groups of near-duplicates, the surest first.

    With views: pairs within the radius whose feature distance is at most SAME_FEATURES, by the distance of the nearest
    two; the radius is reduced where so many codes are alike that it would take too long. Without: rows of equal codes,
    the rarest codes first, for a code that many pictures share says only that they resemble each other.
    """
    codes = np.ascontiguousarray(codes)
    if views is None or len(codes) < 2:
        return 0, _equal_codes(codes)
    radius, pairs, scores = feature_pairs(codes, views, radius, n_threads, progress)
    groups = [Group(rows, _bits_from_first(codes, rows), near) for rows, near in duplicate_groups(pairs, scores)]
    return radius, groups


def feature_pairs(
    codes, views: Views, radius: int | None = None, n_threads: int = 1, progress: Progress = quiet
) -> tuple[int, np.ndarray, np.ndarray]:
    """The radius that was used, the pairs within it whose features agree (p, 2), and their feature distances (p,)."""
    radius, rows = affordable(codes, RADIUS if radius is None else radius, MOST_COMPARISONS)
    sketches = _sketches(views, n_threads, progress)[rows]
    limit = SKETCH_MARGIN * SAME_FEATURES
    pairs, _ = scored_pairs(codes[rows], radius, sketches, limit, MOST_PAIRS, n_threads, progress)
    progress("checking", 0, len(pairs))
    scores = feature_distances(views, rows[pairs])
    return radius, rows[pairs[scores <= SAME_FEATURES]], scores[scores <= SAME_FEATURES]


def duplicate_groups(pairs, scores) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pairs of rows (p, 2), each once, and how far they are apart (p,) -> groups of rows and distances from the first.

    The row with the most partners is the first of a group and takes them all, then the next among those left: so all
    are near the first, and no chain of pairs makes one group. By the distance of the nearest, size and first row.
    """
    partners: dict[int, dict[int, float]] = {}
    for (one, other), score in zip(pairs.tolist(), scores.tolist(), strict=True):
        partners.setdefault(one, {})[other] = score
        partners.setdefault(other, {})[one] = score
    waiting = [(-len(near), row) for row, near in partners.items()]
    heapq.heapify(waiting)
    groups = []
    while waiting:
        count, row = heapq.heappop(waiting)
        near = partners.get(row, {})
        if len(near) < -count:
            heapq.heappush(waiting, (-len(near), row)) if near else None
            continue
        members = sorted(near, key=lambda other: (near[other], other))
        groups.append((np.array([row, *members]), np.array([0.0, *(near[other] for other in members)])))
        for taken in (row, *members):
            for other in partners.pop(taken):
                if other in partners:
                    partners[other].pop(taken, None)
    return sorted(groups, key=lambda group: (group[1][1], -len(group[0]), group[0][0]))


def _equal_codes(codes):
    _, owners, sizes = np.unique(codes, axis=0, return_inverse=True, return_counts=True)
    order = np.argsort(owners, kind="stable")
    sets = np.split(order, np.cumsum(sizes)[:-1])
    groups = [Group(rows, np.zeros(len(rows), np.int32), None) for rows in sets if len(rows) > 1]
    return sorted(groups, key=lambda group: (len(group.rows), group.rows[0]))


def _bits_from_first(codes, rows):
    return np.bitwise_count(codes[rows] ^ codes[rows[0]]).sum(1, dtype=np.int32)

"""k-means of the start: from many seedings at once, so that one matrix product of a block of rows serves them all.

Rows X (n, d) float32 · centers (f, c, d) float32 of f fits with c clusters each · labels (f, n) int32. Blocks of rows
are spread over threads; sums are taken in the order of the rows, so fits do not depend on the number of threads.
"""

from dataclasses import dataclass

import numpy as np

from bitmosaic import kernels
from bitmosaic.embedding import squared_distances, squares
from bitmosaic.threads import in_order, row_ranges

SEEDING_ROWS, SEEDING_ROWS_PER_CLUSTER = 5000, 5
SEEDING_WORK = 2_000_000  # rows × clusters × fits
LLOYD_WORK = 200_000_000  # rows × clusters × rounds of a fit
FITS_TO_ALL, WORK_TO_ALL = 4, 4_000_000  # at most; rows × clusters × fits
ROUGH_ITER = 50  # of a fit that only shows how good its seeding is
ITER, LARGE_ITER = 300, 100  # of one that counts, at most; to all rows, after rough ones
SCORES = 2**18  # of a block, a megabyte
TOLERANCE = 1e-4  # of the variance: a fit whose centers move less than that is done


@dataclass(frozen=True)
class Fits:
    centers: np.ndarray  # (f, c, d) float32
    labels: np.ndarray  # (f, n) int32, of the nearest centers
    inertia: np.ndarray  # (f,) sums of squared distances to them

    def best(self, count):
        """The fits with the lowest inertia, best first."""
        order = np.argsort(self.inertia, kind="stable")[:count]
        return Fits(self.centers[order], self.labels[order], self.inertia[order])


def kmeans(X, n_clusters, n_init, rng, n_threads, max_iter=ITER, known=None, held=None):
    """Labels (n,) by k-means: the best of `n_init` rough fits to some rows, then the best few fitted to all rows.

    With many clusters, where one fit takes long and seedings differ little, there are fewer fits and rounds. Where the
    labels of some rows are `known` (n,), -1 for others, fits begin at their means; those that are `held` (n,) stay.
    """
    few = max(SEEDING_ROWS, SEEDING_ROWS_PER_CLUSTER * n_clusters)
    some = X if len(X) <= few else X[np.sort(rng.choice(len(X), few, replace=False))]

    def rounds(rows, most):
        return max(1, min(max_iter, most, LLOYD_WORK // (len(rows) * n_clusters)))

    if known is not None and (known >= 0).any():
        n_init = 1 if len(np.unique(known[known >= 0])) == n_clusters else n_init
        n_init = max(1, min(n_init, WORK_TO_ALL // (len(X) * n_clusters)))
        seeds = np.stack([known_means(X, known, n_clusters, rng) for _ in range(n_init)])
        return lloyd(X, seeds, rounds(X, max_iter), n_threads, held).best(1).labels[0]
    n_init = max(1, min(n_init, SEEDING_WORK // (len(some) * n_clusters)))
    seeds = seedings(some, n_clusters, n_init, rng)
    fits = lloyd(some, seeds, rounds(some, max_iter if some is X else ROUGH_ITER), n_threads)
    if some is not X:
        to_all = max(1, min(FITS_TO_ALL, WORK_TO_ALL // (len(X) * n_clusters)))
        fits = lloyd(X, fits.best(to_all).centers, rounds(X, LARGE_ITER), n_threads)
    return fits.best(1).labels[0]


def seedings(X, n_clusters, n_fits, rng):
    """Centers (f, c, d) by k-means++, the best of a few draws each time."""
    n, draws = len(X), 2 + int(np.log(n_clusters))
    centers = np.empty((n_fits, n_clusters, X.shape[1]), np.float32)
    centers[:, 0] = X[rng.integers(n, size=n_fits)]
    sizes = squares(X)
    closest = squared_distances(centers[:, 0], X, sizes)  # (f, n)
    for j in range(1, n_clusters):
        reached = np.cumsum(closest, axis=1, dtype=np.float64)
        at = rng.random((n_fits, draws)) * reached[:, -1:]
        drawn = np.stack([np.searchsorted(r, a) for r, a in zip(reached, at, strict=True)]).clip(max=n - 1)
        candidates = X[drawn]  # (f, draws, d)
        distances = squared_distances(candidates.reshape(-1, X.shape[1]), X, sizes).reshape(n_fits, draws, n)
        np.minimum(distances, closest[:, None], out=distances)
        best = distances.sum(2, dtype=np.float64).argmin(1)
        every = np.arange(n_fits)
        centers[:, j], closest = candidates[every, best], distances[every, best]
    return centers


def known_means(X, known, n_clusters, rng):
    """Centers (c, d): means of the rows whose labels are known, and for other clusters k-means++ given these, among the
    rows without a label where there are any."""
    rows = np.flatnonzero(known >= 0)
    sums, sizes = np.zeros((n_clusters, X.shape[1])), np.bincount(known[rows], minlength=n_clusters)
    np.add.at(sums, known[rows], X[rows])
    centers = (sums / np.maximum(sizes, 1)[:, None]).astype(np.float32)
    closest = np.full(len(X), np.inf, np.float32)
    there = np.flatnonzero(sizes)
    for block in row_ranges(len(X), max(64, SCORES // len(there))):
        closest[block] = squared_distances(X[block], centers[there]).min(1)
    draws = 2 + int(np.log(n_clusters))
    for j in np.flatnonzero(sizes == 0):
        mass = np.where(known < 0, closest, 0)
        reached = np.cumsum(mass if mass.any() else closest, dtype=np.float64)
        drawn = np.searchsorted(reached, rng.random(draws) * reached[-1]).clip(max=len(X) - 1)
        nearer = np.minimum(squared_distances(X[drawn], X), closest)  # (draws, n)
        best = nearer.sum(1, dtype=np.float64).argmin()
        centers[j], closest = X[drawn[best]], nearer[best]
    return centers


def lloyd(X, centers, max_iter, n_threads, held=None):
    """Fits from these centers on. A cluster that loses all its rows stays where it is. Rows with a label `held` (n,)
    that is not -1 keep it."""
    n_fits, n_clusters, d = centers.shape
    centers = centers.copy()
    labels = np.full((n_fits, len(X)), -1, np.int32)
    sums, sizes = np.zeros(centers.shape), np.zeros((n_fits, n_clusters), np.int64)
    total = squares(X).sum(dtype=np.float64)
    still = TOLERANCE * max(total / len(X) - (X.mean(0, dtype=np.float64) ** 2).sum(), 0) / d
    active = np.arange(n_fits)
    for _ in range(max_iter):
        found = nearest(X, centers[active], n_threads)[0]
        if held is not None:
            found = np.where(held >= 0, held, found).astype(np.int32)
        kernels.move_rows(X, active, found, labels, sums, sizes)
        kept = np.where((sizes > 0)[..., None], sums / np.maximum(sizes, 1)[..., None], centers)[active]
        moved = ((kept - centers[active]) ** 2).sum((1, 2))
        centers[active] = kept
        active = active[moved > still]
        if not len(active):
            break
    found, nearness = nearest(X, centers, n_threads)
    if held is not None:
        found = np.where(held >= 0, held, found).astype(np.int32)
    return Fits(centers, found, np.maximum(total - 2 * nearness, 0))


def nearest(X, centers, n_threads):
    """Labels (f, n) of the nearest centers, and Σ x·c - ‖c‖²/2 (f,) over the rows x and their centers c."""
    n_fits, flat = len(centers), centers.reshape(-1, centers.shape[2])
    offsets = squares(flat) / 2
    labels = np.empty((n_fits, len(X)), np.int32)

    def one_block(rows):
        total = np.zeros(n_fits)
        kernels.highest_scores(X[rows] @ flat.T, offsets, labels[:, rows], total)
        return total

    blocks = row_ranges(len(X), max(64, SCORES // len(flat)))
    return labels, sum(in_order(one_block, blocks, n_threads), np.zeros(n_fits))

"""Initialization of Algorithm 1: first projections, and first labels if the start provides them.

A start uses a sample of the training rows and returns one matrix (l, K) per view. The first codes are the signs of Σ_v
Z_v P_v over all rows, computed in the same pass as in every iteration.
"""

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh
from scipy.sparse.linalg import ArpackError, eigsh

from bitmosaic.hamming import kernels
from bitmosaic.io.threads import in_order, row_ranges
from bitmosaic.solver.blocks import side_by_side
from bitmosaic.solver.embedding import squared_distances, squares

# ---- k-means for the start: many seedings at once, so that one matrix product per block of rows serves all of them.
#
# Rows X (n, d) float32 · centers (f, c, d) float32 of f fits with c clusters each · labels (f, n) int32. Blocks of
# rows are distributed over threads. Sums are taken in row order, so results do not depend on the number of threads.


SEEDING_ROWS, SEEDING_ROWS_PER_CLUSTER = 5000, 5
SEEDING_WORK = 1_000_000  # rows × clusters × fits
LLOYD_WORK = 200_000_000  # rows × clusters × rounds of a fit
FITS_TO_ALL, WORK_TO_ALL = 4, 2_000_000  # most fits on all rows; rows × clusters × fits
ROUGH_ITER = 50  # iterations of a rough fit
ITER, LARGE_ITER = 300, 100  # most iterations of a full fit; of one on all rows after rough fits
SCORES = 2**18  # of a block: one megabyte
WIDE_SCORES = 64  # clusters from which NumPy finds the highest score of a row faster than a kernel
TOLERANCE = 1e-4  # fraction of the variance: a fit whose centers move less has converged


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
    """Labels (n,) by k-means: `n_init` rough fits to a sample of rows, then the best few are fitted to all rows.

    With many clusters a fit takes long and seedings differ little, so there are fewer fits and rounds. If labels of
    some rows are `known` (n,), -1 for others, fits start from their means. Labels that are `held` (n,), -1 for others,
    do not change.
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
    """Centers (f, c, d) by k-means++ with several candidates per draw."""
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
    """Centers (c, d): means of the rows with known labels. Other clusters are drawn by k-means++ given these, from rows
    without a label if there are any."""
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
    """Fits by Lloyd iterations from these centers. A cluster without rows keeps its center. Rows with a label `held`
    (n,) other than -1 keep it."""
    centers = moved_centers(X, centers, max_iter, n_threads, held)
    found, nearness = nearest(X, centers, n_threads)
    if held is not None:
        found = np.where(held >= 0, held, found).astype(np.int32)
    return Fits(centers, found, np.maximum(squares(X).sum(dtype=np.float64) - 2 * nearness, 0))


def moved_centers(X, centers, max_iter, n_threads, held=None):
    """The centers after Lloyd iterations, see :func:`lloyd`."""
    n_fits, n_clusters, d = centers.shape
    centers = centers.copy()
    labels = np.full((n_fits, len(X)), -1, np.int32)
    sums, sizes = np.zeros(centers.shape), np.zeros((n_fits, n_clusters), np.int64)
    variance = squares(X).mean(dtype=np.float64) - (X.mean(0, dtype=np.float64) ** 2).sum()
    still = TOLERANCE * max(variance, 0) / d
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
    return centers


def nearest(X, centers, n_threads):
    """Labels (f, n) of the nearest centers, and Σ x·c - ‖c‖²/2 (f,) over the rows x and their centers c."""
    n_fits, flat = len(centers), centers.reshape(-1, centers.shape[2])
    offsets = squares(flat) / 2
    labels = np.empty((n_fits, len(X)), np.int32)

    def one_block(rows):
        scores = X[rows] @ flat.T  # (n, f·c)
        if centers.shape[1] < WIDE_SCORES:
            total = np.zeros(n_fits)
            kernels.highest_scores(scores, offsets, labels[:, rows], total)
            return total
        scores -= offsets
        scores = scores.reshape(len(scores), *centers.shape[:2])
        best = scores.argmax(2)
        labels[:, rows] = best.T
        return np.take_along_axis(scores, best[..., None], 2).sum((0, 2), dtype=np.float64)

    blocks = row_ranges(len(X), max(64, SCORES // len(flat)))
    return labels, sum(in_order(one_block, blocks, n_threads), np.zeros(n_fits))


WHITENED = 200  # strongest directions kept per view
RIDGE, RIDGE_ROWS = 0.1, 60  # of their mean eigenvalue: 60 / rows, at most 0.1
DIRECTIONS_PER_CLUSTER, MOST_DIRECTIONS = 5, 128
AGREEMENT_EXPONENT = 0.25  # 0: no weighting; larger values reduce the weight of weak agreement
COPY_EXPONENT = 12  # similarity of 0.95 counts as half a copy, 0.8 as none
USEFUL, LEAST_SHARE = 0.25, 0.01


@dataclass(frozen=True)
class Start:
    projections: list[np.ndarray]  # (l, K) float32 for each view
    labels: np.ndarray | None = None  # (n,) of the sample's rows


@dataclass(frozen=True)
class Guide:
    """Labels of the training rows that are known in advance."""

    known: np.ndarray  # (n,) int32, first labels, -1 where unknown
    held: np.ndarray  # (n,) int32, labels that must not change, -1 where free


def random_rotation(n_from, n_to, rng):
    """The first rows and columns of a random rotation: (n_from, n_to), with orthonormal rows or columns."""
    Q = np.linalg.qr(rng.standard_normal((max(n_from, n_to), min(n_from, n_to))))[0]
    return Q if n_from >= n_to else Q.T


def top_eigenvectors(A, count, rng):
    """The largest eigenvalues of a symmetric matrix and their vectors, ascending; by Lanczos if few are needed."""
    v0 = rng.standard_normal(len(A)).astype(A.dtype)
    if count < len(A) // 8:
        with suppress(ArpackError):  # a matrix of zeros, or no convergence
            return eigsh(A, k=count, v0=v0)
    return eigh(A.astype(np.float64), subset_by_index=[len(A) - count, len(A) - 1])


def rotation_start(grams, K, rng):
    """Signs of the principal components of all views after a random rotation; G_v (l, l) for each view.

    The rotation spreads the variance over all bits. Without it most bits would carry noise.
    """
    components = [top_eigenvectors(G, min(K, len(G)), rng)[1] for G in grams]  # (l, k_v) each
    parts = side_by_side([V.shape[1] for V in components])
    R = random_rotation(parts[-1].stop, K, rng)
    return Start([(V @ R[part]).astype(np.float32) for V, part in zip(components, parts, strict=True)])


@dataclass(frozen=True)
class Consensus:
    """Agreement between the views of some rows."""

    gram: np.ndarray  # (Σp, Σp) of the whitened views
    views: list[slice]  # of each view in it
    whiteners: list[np.ndarray]  # (l, p) for each view
    shares: np.ndarray  # (m,) ω_v


def find_consensus(joint, views, n_rows, n_present, n_threads=1):
    """The consensus from the joint Gram matrix of the embeddings of `n_rows` rows and the slice of each view in it.
    n_present (m,) is the number of rows that have each view."""
    own = [(joint[view, view], n_v) for view, n_v in zip(views, n_present, strict=True)]
    whiteners = list(in_order(lambda pair: whitener(*pair), own, n_threads))
    pairs = list(zip(views, whiteners, strict=True))
    gram = np.block([[V.T @ joint[a, b] @ W for b, W in pairs] for a, V in pairs])
    white = side_by_side([W.shape[1] for W in whiteners])
    return Consensus(gram, white, whiteners, view_shares(gram, white, n_rows))


def kmeans_hints(guide, rows):
    """The guide for some rows, as arguments of `kmeans`."""
    return {} if guide is None else {"known": guide.known[rows], "held": guide.held[rows]}


def whitener(gram, n_rows):
    """W (l, p) with WᵀGW close to I for the directions above the ridge, and close to 0 for those below it.

    With more rows, noise is estimated better, so the ridge decreases with their number.
    """
    w, U = np.linalg.eigh(gram)  # releases the GIL, unlike SciPy's
    w, U = np.maximum(w[-WHITENED:], 0), U[:, -WHITENED:]
    shrunk = w + min(RIDGE, RIDGE_ROWS / n_rows) * w.mean()
    return U / np.sqrt(np.where(shrunk > 0, shrunk, 1))


def view_shares(gram, views, n_rows):
    """Share of each view, ω (m,) in (0, 1]: ½ for each of two copies, close to 0 for a useless view.

    After whitening, s_uv = ‖G_uv‖² / (‖G_uu‖ ‖G_vv‖) is the similarity of two views. For independent views of N rows,
    the expected ‖G_uv‖² is tr(G_uu) tr(G_vv) / N. The excess over that is agreement; for copies, a quarter of it
    counts. A view whose best agreement is below a quarter of that of the best pair gets a smaller share.
    """
    squares = np.array([[(gram[a, b] ** 2).sum() for b in views] for a in views])
    size = np.sqrt(np.maximum(np.diag(squares), np.finfo(float).tiny))
    traces = np.array([np.trace(gram[a, a]) for a in views])
    copies = np.minimum(squares / np.outer(size, size), 1) ** COPY_EXPONENT
    np.fill_diagonal(copies, 1)
    agreement = (1 - 0.75 * copies) * (squares - np.outer(traces, traces) / n_rows) / np.outer(size, size)
    np.fill_diagonal(agreement, 0)
    best = agreement.max(1)  # (m,), not below 0
    useful = np.clip(best / (USEFUL * best.max()), LEAST_SHARE, 1) if best.max() > 0 else np.ones(len(best))
    return useful / copies.sum(1)


def agreed_space(gram, views, shares, count, rng, exponent=AGREEMENT_EXPONENT):
    """The directions (p, k) of each whitened view along which the views agree most, each weighted by its agreement.

    The eigenvalues w of the whitened Gram matrix, each view scaled by √ω_v, lie in [0, Σω]; Σω is full agreement.
    """
    scale = np.repeat(np.sqrt(shares), [view.stop - view.start for view in views])
    w, U = top_eigenvectors(gram * np.outer(scale, scale), min(count, len(gram)), rng)
    U = scale[:, None] * U * (np.maximum(w, 0) ** exponent / shares.sum())
    return [U[view] for view in views]


def on_the_sphere(Y):
    """Rows scaled to length 1, so that only angles matter, as for codes."""
    return Y / np.maximum(np.linalg.norm(Y, axis=1, keepdims=True), np.finfo(np.float32).tiny)

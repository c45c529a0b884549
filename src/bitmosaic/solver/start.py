"""Where Algorithm 1 begins: first projections, and first labels where the start has an opinion on them.

A start looks at a sample of the training rows and returns one matrix (l, K) per view; the first codes are the signs of
Σ_v Z_v P_v, taken over all rows in the same pass as always.
"""

from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.linalg import eigh
from scipy.sparse.linalg import ArpackError, eigsh

from bitmosaic.embedding import squared_distances, squares
from bitmosaic.solver.blocks import Blocks, side_by_side
from bitmosaic.solver.kmeans import ITER, kmeans
from bitmosaic.threads import in_order, row_ranges

WHITENED = 200  # directions of a view that are kept
RIDGE, RIDGE_ROWS = 0.1, 60  # of their mean eigenvalue: 60 / rows, at most 0.1
DIRECTIONS_PER_CLUSTER, MOST_DIRECTIONS = 5, 128
AGREEMENT_EXPONENT = 0.25  # 0 is what the views have in common, as it is; more, and weak agreement counts less
PLAIN_COLUMNS = 64  # to which a wider view is reduced where plain distances are enough
PLAIN_ROWS, PLAIN_ROWS_PER_CLUSTER = 2000, 10
COPY_EXPONENT = 12  # likeness of 0.95 is half a copy, of 0.8 none
USEFUL, LEAST_SHARE = 0.25, 0.01
FEW_SEEDINGS, FEW_ROUNDS = 4, 10
PAIRS = 2**20  # of rows and clusters whose distances are looked at together
APART = 0.4  # mean silhouette from which on clusters stand apart


@dataclass(frozen=True)
class Start:
    projections: list[np.ndarray]  # (l, K) float32 for each view
    labels: np.ndarray | None = None  # (n,) of the sample's rows
    shares: np.ndarray | None = None  # (m,) ω_v, where not all views count the same


@dataclass(frozen=True)
class Guide:
    """What is known of the labels of the training rows beforehand."""

    known: np.ndarray  # (n,) int32, -1 where nothing is: clusters begin there
    held: np.ndarray  # (n,) int32, -1 where they are free: these stay


def random_rotation(n_from, n_to, rng):
    """The first rows and columns of a random rotation: (n_from, n_to), with orthonormal rows or columns."""
    Q = np.linalg.qr(rng.standard_normal((max(n_from, n_to), min(n_from, n_to))))[0]
    return Q if n_from >= n_to else Q.T


def top_eigenvectors(A, count, rng):
    """The largest eigenvalues of a symmetric matrix and their vectors; Lanczos where few are wanted."""
    v0 = rng.standard_normal(len(A))
    if count < len(A) // 4:
        with suppress(ArpackError):  # a matrix of zeros, or no convergence
            return eigsh(A, k=count, v0=v0)
    return eigh(A, subset_by_index=[len(A) - count, len(A) - 1])


def rotation_start(grams, K, rng):
    """Signs of the principal components of all views after a random rotation; G_v (l, l) for each view.

    The rotation spreads the variance over all the bits; without it most bits carry noise.
    """
    components = [top_eigenvectors(G, min(K, len(G)), rng)[1] for G in grams]  # (l, k_v) each
    parts = side_by_side([V.shape[1] for V in components])
    R = random_rotation(parts[-1].stop, K, rng)
    return Start([(V @ R[part]).astype(np.float32) for V, part in zip(components, parts, strict=True)])


@dataclass(frozen=True)
class Consensus:
    """How far the views of some rows agree."""

    gram: np.ndarray  # (Σp, Σp) of the whitened views
    views: list[slice]  # of each view in it
    whiteners: list[np.ndarray]  # (l, p) for each view
    shares: np.ndarray  # (m,) ω_v


def find_consensus(joint, views, n_rows, n_present, n_threads=1):
    """From the joint Gram matrix of the embeddings of `n_rows` rows, of which n_present (m,) have each view, and the
    slice of each view in it."""
    own = [(joint[view, view], n_v) for view, n_v in zip(views, n_present, strict=True)]
    whiteners = list(in_order(lambda pair: whitener(*pair), own, n_threads))
    pairs = list(zip(views, whiteners, strict=True))
    gram = np.block([[V.T @ joint[a, b] @ W for b, W in pairs] for a, V in pairs])
    white = side_by_side([W.shape[1] for W in whiteners])
    return Consensus(gram, white, whiteners, view_shares(gram, white, n_rows))


def consensus_start(blocks, rows, consensus, K, n_clusters, n_init, rng, guide=None):
    """What the views agree on (MAXVAR generalised canonical correlation), and k-means on the angles in that space.

    `rows` (n,) are the positions of those in `blocks` that are looked at. Where the plain views already fall into
    clusters that stand apart, those are the labels, and the directions are the ones that tell them apart: views of such
    data agree on everything, so agreement says nothing. A `guide` for all rows of `blocks` says where clusters begin.
    """
    whiteners, shares = consensus.whiteners, consensus.shares
    labels = separate_clusters(PlainViews(blocks, rng), rows, shares, n_clusters, n_init, rng, guide)
    if labels is None:
        count = min(DIRECTIONS_PER_CLUSTER * n_clusters, MOST_DIRECTIONS)
        directions = agreed_directions(consensus.gram, consensus.views, whiteners, shares, count, rng)
        Y = place(blocks, rows, directions)
        labels = kmeans(on_the_sphere(Y), n_clusters, n_init, rng, blocks.n_threads, **guided(guide, rows))
    else:
        directions = telling_directions(blocks, rows, whiteners, labels, n_clusters)
    rotation = random_rotation(directions[0].shape[1], K, rng)
    return Start([(T @ rotation).astype(np.float32) for T in directions], labels, shares)


def guided(guide, rows):
    """What k-means takes of a guide, for some rows."""
    return {} if guide is None else {"known": guide.known[rows], "held": guide.held[rows]}


def whitener(gram, n_rows):
    """W (l, p) with WᵀGW close to I for the directions above the ridge, and close to 0 for those below it.

    What is noise in a view is told better by more rows: the ridge falls with their number.
    """
    w, U = np.linalg.eigh(gram)  # unlike SciPy's, it lets other threads work
    w, U = np.maximum(w[-WHITENED:], 0), U[:, -WHITENED:]
    shrunk = w + min(RIDGE, RIDGE_ROWS / n_rows) * w.mean()
    return U / np.sqrt(np.where(shrunk > 0, shrunk, 1))


def view_shares(gram, views, n_rows):
    """How much each view may say, ω (m,) in (0, 1]: ½ for each of two copies, next to nothing for a useless view.

    After whitening, s_uv = ‖G_uv‖² / (‖G_uu‖ ‖G_vv‖) is the likeness of two views. Independent views of N rows have
    tr(G_uu) tr(G_vv) / N instead of ‖G_uv‖² by chance; what is above that is agreement, of copies a quarter of it.
    A view that agrees with none as much as a quarter of what the best pair does is heard less.
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


def agreed_directions(gram, views, whiteners, shares, count, rng, exponent=AGREEMENT_EXPONENT):
    """The directions T_v (l, k) along which the whitened views agree most, each weighted by its agreement.

    The eigenvalues w of the whitened Gram matrix, each view scaled by √ω_v, lie in [0, Σω]; Σω is full agreement.
    """
    scale = np.repeat(np.sqrt(shares), [view.stop - view.start for view in views])
    w, U = top_eigenvectors(gram * np.outer(scale, scale), min(count, len(gram)), rng)
    U = scale[:, None] * U * (np.maximum(w, 0) ** exponent / shares.sum())
    return [W @ U[view] for W, view in zip(whiteners, views, strict=True)]


def telling_directions(blocks, rows, whiteners, labels, n_clusters):
    """The directions T_v (l, c) that predict the labels: ridge regression of the clusters' indicators on what is
    whitened of each view."""
    shares = np.bincount(labels, minlength=n_clusters) / len(labels)
    _, totals = blocks.run_some(partial(products_with_clusters, shares), rows, labels)
    return [W @ (W.T @ total) / len(whiteners) for W, total in zip(whiteners, totals, strict=True)]


def products_with_clusters(shares, Zs, labels):
    """Z_vᵀ times the indicators of the clusters, centred: (l, c) for each view."""
    indicators = np.tile(-shares, (len(labels), 1))
    indicators[np.arange(len(labels)), labels] += 1
    return None, [Z.T @ indicators for Z in Zs]


def place(blocks, rows, directions):
    """Y = Σ_v Z_v T_v (n, k) float32 of some rows."""
    return blocks.run_some(partial(placed, [T.astype(np.float32) for T in directions]), rows)[0]


def placed(directions, Zs):
    return sum(Z @ T for Z, T in zip(Zs, directions, strict=True)), []


def on_the_sphere(Y):
    """Rows of length 1, so that only angles count, as they do for codes."""
    return Y / np.maximum(np.linalg.norm(Y, axis=1, keepdims=True), np.finfo(np.float32).tiny)


# ---- clusters that stand apart


class PlainViews:
    """The normalised rows of every view, wide ones randomly projected to 64 columns."""

    def __init__(self, blocks: Blocks, rng):
        self.blocks, self.n_threads = blocks, blocks.n_threads
        self.maps = [random_projection(e.width, rng) for e in blocks.embeddings]

    def __call__(self, rows):
        """Of the rows at some sorted positions: a list of (n, ≤ 64) float32, NaN where missing."""
        self.blocks.at_hand(rows)
        return list(in_order(lambda v: self.view(v, rows), range(len(self.maps)), self.n_threads))

    def view(self, v, rows):
        embedding, R, parts = self.blocks.embeddings[v], self.maps[v], []
        for some in row_ranges(len(rows), self.blocks.step):
            X, missing = embedding.normalise(*self.blocks.raw(v, rows[some]))
            parts.append(X if R is None else X @ R)
            parts[-1][missing] = np.nan
            self.blocks.forget_pages(rows[some], [v])
        return np.concatenate(parts)


def random_projection(width, rng):
    """(width, 64) float32, or None for a view that is narrow enough."""
    return rng.standard_normal((width, PLAIN_COLUMNS)).astype(np.float32) if width > PLAIN_COLUMNS else None


def balanced(plain, shares):
    """Views scaled to the same mean square, times their share."""
    there = [X[~np.isnan(X[:, 0])] for X in plain]
    sizes = [squares(X).mean(dtype=np.float64) if len(X) else 0.0 for X in there]
    return [
        np.float32(np.sqrt(share / size)) if size > 0 else np.float32(1)
        for share, size in zip(shares, sizes, strict=True)
    ]


def plain_sample(n_clusters, n_rows):
    """How many of so many rows decide whether clusters stand apart."""
    return min(n_rows, max(PLAIN_ROWS, PLAIN_ROWS_PER_CLUSTER * n_clusters))


def separate_clusters(plain_views, rows, shares, n_clusters, n_init, rng, guide=None):
    """Labels (n,) of the rows by k-means on the plain views, if the clusters stand apart; else None.

    They do where the mean of (b - a)/max(a, b), a and b the distances to the own and to the second nearest mean (the
    simplified silhouette), is at least `APART` on average over the views. Rows without some view have no say in it.
    Few rough fits are tried first: where these are far from it, more would not help.
    """
    wanted = plain_sample(n_clusters, len(rows))
    some = rows if len(rows) == wanted else np.sort(rng.choice(rows, wanted, replace=False))
    plain = plain_views(some)
    complete = np.all([~np.isnan(X[:, 0]) for X in plain], axis=0)
    if not 1 < n_clusters < complete.sum():
        return None
    scales = balanced(plain, shares)
    plain = [scale * X[complete] for scale, X in zip(scales, plain, strict=True)]
    for fits, rounds, enough in ((min(n_init, FEW_SEEDINGS), FEW_ROUNDS, 0.5 * APART), (n_init, ITER, APART)):
        hints = guided(guide, some[complete])
        found = kmeans(np.hstack(plain), n_clusters, fits, rng, plain_views.n_threads, rounds, **hints)
        if len(np.unique(found)) < n_clusters:
            return None
        means = [np.stack([X[found == j].mean(0) for j in range(n_clusters)]) for X in plain]
        apart = [silhouette(X, C, found) for X, C in zip(plain, means, strict=True)]
        if np.average(apart, weights=shares) < enough:
            return None
    labels = np.empty(len(rows), np.int64)
    plain_views.blocks.at_hand(rows)
    for block in row_ranges(len(rows), max(64, PAIRS // n_clusters)):
        distances = np.zeros((block.stop - block.start, n_clusters), np.float32)
        for v, (scale, C) in enumerate(zip(scales, means, strict=True)):
            distances += np.nan_to_num(squared_distances(scale * plain_views.view(v, rows[block]), C))
        labels[block] = distances.argmin(1)
    return labels if guide is None else np.where(guide.held[rows] >= 0, guide.held[rows], labels)


def silhouette(X, means, labels):
    """The simplified silhouette of each row, averaged."""
    total = 0.0
    for block in row_ranges(len(X), max(64, PAIRS // len(means))):
        distances = squared_distances(X[block], means)
        own_place = np.arange(len(distances)), labels[block]
        own = np.sqrt(distances[own_place])
        distances[own_place] = np.inf
        second = np.sqrt(distances.min(1))
        larger = np.maximum(own, second)
        total += ((second - own) / np.where(larger > 0, larger, 1)).sum(dtype=np.float64)
    return total / len(X)

"""MLAN: views -> one graph with adaptive neighbours that falls into c parts -> the parts are the clusters."""

from dataclasses import dataclass

import numpy as np
from scipy.sparse.csgraph import connected_components

from bitmosaic.bench.baselines.base import Baseline
from bitmosaic.bench.baselines.bipartite import embedded_clusters
from bitmosaic.bench.baselines.graphs import (
    adaptive_weights,
    checked_neighbors,
    distance_blocks,
    laplacian,
    nearest,
    smallest_eigenvectors,
    symmetric_graph,
)
from bitmosaic.bench.baselines.simplex import onto_simplex

MAX_ITER = 30
SMALLEST = 1e-10  # Σ s d of a view: its weight stays finite
LEAST_ALPHA = 1e-6  # of the mean: rows with many copies have no α of their own


@dataclass(kw_only=True)
class MLAN(Baseline):
    """F. Nie, G. Cai, X. Li: Multi-View Clustering and Semi-Supervised Classification with Adaptive Neighbours.
    AAAI 2017. (And F. Nie, G. Cai, J. Li, X. Li: Auto-Weighted Multi-View Learning for Image Clustering and
    Semi-Supervised Classification. IEEE Transactions on Image Processing, 2018.)

    min Σ_v √(Σ_ij s_ij d_ij^v) + α‖S‖² + 2λ tr(FᵀL_SF) over rows s_i of the simplex and FᵀF = I, by turns: weights
    w_v = 1/(2√(Σ s d^v)); rows s_i with the distances Σ_v w_v d^v + λ‖f_i - f_j‖²; F, the c smallest eigenvectors of
    L_S. λ is doubled while the graph has fewer than c connected parts and halved where it has more; with exactly c,
    they are the labels. `objective_` is taken with the λ of its iteration: it falls only while λ stays.

    k = 9 and 30 iterations are those of the authors' code.

    Deviations: columns are standardised, where the authors' code standardises rows; s_i is sought among candidates
    only: the `n_candidates` nearest rows in each view and by the sum of all (exact from n - 1 candidates on; the
    authors' code keeps to the k nearest of the first graph); each row has its own α_i, the largest with which it starts
    with at most k neighbours, instead of their mean, with which rows that have a close twin know no one else; α_i is
    taken with the weights w_v that the first graph gives, not with equal ones; λ starts at the mean of α_i, not at
    random between 1 and 30; parts are counted, not told by eigenvalues below 1e-10; where the first graph has more than
    c parts, with which the authors' code stops, k is doubled as far as there are candidates; without exactly c parts
    after all iterations, labels are from k-means on F.
    """

    n_neighbors: int = 9
    n_candidates: int = 100

    def cluster(self, views: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
        k, c = checked_neighbors(self.n_neighbors, len(views[0])), self.n_clusters
        near = candidates(views, max(self.n_candidates, k + 1))
        S, alpha = first_rows(near, k)
        while near.parts(S)[0] > c and 2 * k < near.least:
            k *= 2
            S, alpha = first_rows(near, k)
        F, lam = near.embedding(S, c, rng), float(alpha.mean())
        self.objective_ = []
        for _ in range(MAX_ITER):
            S, value = update_rows(near, S, F, alpha, lam)
            self.objective_.append(value)
            n_parts, labels = near.parts(S)
            if n_parts == c:
                return labels
            if n_parts > c:
                lam /= 2
            else:
                lam, F = 2 * lam, near.embedding(S, c, rng)
        return embedded_clusters(F, c, rng)


@dataclass(frozen=True)
class Candidates:
    """Rows that may become neighbours. The same one may be named twice: the second time it is `repeated`."""

    rows: np.ndarray  # (n, m) int32
    repeated: np.ndarray  # (n, m) bool
    distances: np.ndarray  # (V, n, m) float32, squared
    least: int  # different ones of each row, at least

    def combined(self, w: np.ndarray) -> np.ndarray:
        """Σ_v w_v d^v (n, m), infinite where repeated."""
        d = sum(np.float32(w_v) * d_v for w_v, d_v in zip(w, self.distances, strict=True))
        return np.where(self.repeated, np.float32(np.inf), d)

    def spread(self, S: np.ndarray) -> np.ndarray:
        """Σ_ij s_ij d_ij^v of each view (V,)."""
        return np.array([max(np.sum(S * d_v, dtype=np.float64), SMALLEST) for d_v in self.distances])

    def embedded(self, F: np.ndarray) -> np.ndarray:
        """‖f_i - f_j‖² (n, m)."""
        d = np.zeros(self.rows.shape, np.float32)
        for f in F.T.astype(np.float32):
            d += (f[:, None] - f[self.rows]) ** 2
        return d

    def parts(self, S: np.ndarray) -> tuple[int, np.ndarray]:
        """The number of connected parts of the graph, and the part of each row."""
        return connected_components(symmetric_graph(self.rows, S), directed=False)

    def embedding(self, S: np.ndarray, c: int, rng: np.random.Generator) -> np.ndarray:
        """F (n, c)"""
        return smallest_eigenvectors(laplacian(symmetric_graph(self.rows, S)), c, rng)


def candidates(views: list[np.ndarray], count: int) -> Candidates:
    """The `count` nearest rows of each row in each view, and by the sum of their squared distances."""
    n, count = len(views[0]), min(count, len(views[0]) - 1)
    m = count * (len(views) + 1)
    found = np.empty((n, m), np.int32)
    distances = np.empty((len(views), n, m), np.float32)
    for blocks in zip(*map(distance_blocks, views), strict=True):
        rows, each = blocks[0][0], [D for _, D in blocks]  # (b, n) of each view
        columns = np.sort(np.hstack([nearest(D, count)[0] for D in [*each, sum(each)]]), axis=1)
        found[rows] = columns
        for v, D in enumerate(each):
            distances[v, rows] = np.take_along_axis(D, columns, axis=1)
    repeated = np.zeros((n, m), bool)
    repeated[:, 1:] = found[:, 1:] == found[:, :-1]
    return Candidates(found, repeated, distances, count)


def first_rows(near: Candidates, k: int) -> tuple[np.ndarray, np.ndarray]:
    """S (n, m) with at most k neighbours, first of equal weights of the views and then of those it gives; α (n, 1)."""
    w = np.full(len(near.distances), 1 / len(near.distances))
    for _ in range(2):
        at, d = nearest(near.combined(w), k + 1)
        s, alpha = adaptive_weights(d)
        S = np.zeros(near.rows.shape, np.float32)
        np.put_along_axis(S, at[:, :k], s.astype(np.float32), axis=1)
        w = 1 / (2 * np.sqrt(near.spread(S)))
    return S, np.maximum(alpha, LEAST_ALPHA * alpha.mean() or 1.0).astype(np.float32)[:, None]


def update_rows(
    near: Candidates, S: np.ndarray, F: np.ndarray, alpha: np.ndarray, lam: float
) -> tuple[np.ndarray, float]:
    """s_i = argmin Σ_j (Σ_v w_v d_ij^v + λ‖f_i - f_j‖²) s_ij + α_i s_ij², w_v from the S before; and the objective."""
    w = 1 / (2 * np.sqrt(near.spread(S)))
    from_F = near.embedded(F)
    d = near.combined(w) + np.float32(lam) * from_F
    y = (d.min(axis=1, keepdims=True) - d) / (2 * alpha)
    S = onto_simplex(np.maximum(y, -1))  # what is 1 below the largest is zero anyway, and infinity is no number
    penalty = lam * np.sum(S * from_F, dtype=np.float64) + np.sum(alpha * S**2, dtype=np.float64)
    return S, float(np.sqrt(near.spread(S)).sum() + penalty)

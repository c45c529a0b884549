"""Sparse graphs of nearest neighbors, their Laplacians and smallest eigenvectors; AMGL and MLAN, which use them.

Distances (n, n) are computed one block of rows at a time. Graphs and Laplacians are sparse float64.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh
from scipy.sparse import csr_array, diags_array, eye_array
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import eigsh

from bitmosaic.bench.baselines.base import Baseline, onto_simplex
from bitmosaic.bench.baselines.bipartite import embedded_clusters
from bitmosaic.io.threads import row_ranges
from bitmosaic.solver.embedding import squared_distances, squares

BLOCK = 512  # rows whose distances to all others are in memory at a time
DENSE, DENSE_SHARE = 200, 4  # a dense solver for fewer rows than this, or fewer rows per eigenvector; else Lanczos
BASIS, TOLERANCE = 40, 1e-8  # of Lanczos: least number of vectors; residual relative to the largest eigenvalue


def distance_blocks(X: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Blocks of rows with their squared distances (b, n) float32 to all rows, infinite to themselves."""
    X_squares = squares(X)
    for rows in row_ranges(len(X), BLOCK):
        D = squared_distances(X[rows], X, X_squares)
        D[np.arange(len(D)), np.arange(rows.start, rows.stop)] = np.inf
        yield rows, D


def nearest(D: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Columns and values of the k smallest distances of each row of D (b, n): (b, k) each, nearest first."""
    columns = np.argpartition(D, k - 1, axis=1)[:, :k]
    distances = np.take_along_axis(D, columns, axis=1)
    order = np.argsort(distances, axis=1, kind="stable")
    return np.take_along_axis(columns, order, axis=1), np.take_along_axis(distances, order, axis=1)


def nearest_rows(X: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest other rows of each row, and their squared distances: (n, k) int32 and float32, nearest first."""
    neighbors, distances = np.empty((len(X), k), np.int32), np.empty((len(X), k), np.float32)
    for rows, D in distance_blocks(X):
        neighbors[rows], distances[rows] = nearest(D, k)
    return neighbors, distances


def adaptive_weights(d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """s_j = (d_{k+1} - d_j) / Σ_{h≤k} (d_{k+1} - d_h) from the k + 1 smallest distances d (n, k + 1), nearest first.

    It is argmin Σ_j d_j s_j + α s_j² over the simplex for the largest α with at most k neighbors, α = Σ (…) / 2.
    Returns s (n, k) and α (n,). If all k + 1 distances are equal, the k weights are equal.
    """
    gaps = (d[:, -1:] - d[:, :-1]).astype(np.float64)
    totals = gaps.sum(axis=1, keepdims=True)
    s = np.divide(gaps, totals, out=np.full(gaps.shape, 1 / gaps.shape[1]), where=totals > 0)
    return s, totals[:, 0] / 2


def symmetric_graph(neighbors: np.ndarray, weights: np.ndarray) -> csr_array:
    """(S + Sᵀ)/2, s_ij the weight of a neighbor j of row i; both (n, k). A weight of zero gives no edge."""
    n = len(neighbors)
    row, at = np.nonzero(weights)
    S = csr_array((weights[row, at].astype(np.float64), (row, neighbors[row, at])), shape=(n, n))
    return csr_array((S + S.T) / 2)


def neighbor_graph(X: np.ndarray, k: int) -> csr_array:
    """The graph (n, n) of k nearest neighbors with adaptive weights (no kernel width)."""
    neighbors, distances = nearest_rows(X, k + 1)
    return symmetric_graph(neighbors[:, :k], adaptive_weights(distances)[0])


def laplacian(S: csr_array) -> csr_array:
    """L = D - S, D the degrees."""
    return csr_array(diags_array(S.sum(axis=1)) - S)


def normalized_laplacian(S: csr_array) -> csr_array:
    """L = I - D^{-1/2} S D^{-1/2}."""
    half = diags_array(1 / np.sqrt(S.sum(axis=1)))
    return csr_array(eye_array(S.shape[0]) - half @ S @ half)


def smallest_eigenvectors(L: csr_array, count: int, rng: np.random.Generator) -> np.ndarray:
    """F (n, count): eigenvectors of the smallest eigenvalues of a sparse, symmetric, positive semidefinite L.

    Connected components are solved one by one: if they share an eigenvalue, such as 0 of a Laplacian, Lanczos on the
    whole matrix may miss some of its eigenvectors.
    """
    n_parts, part = connected_components(L, directed=False)
    members = np.split(np.argsort(part, kind="stable"), np.cumsum(np.bincount(part))[:-1])
    found = []
    for rows in members:
        own = L if n_parts == 1 else csr_array(L[rows][:, rows])
        values, vectors = _of_connected(own, min(count, len(rows)), rng)
        found += [(value, rows, vector) for value, vector in zip(values, vectors.T, strict=True)]
    found.sort(key=lambda triple: triple[0])
    F = np.zeros((L.shape[0], count))
    for column, (_, rows, vector) in zip(F.T, found, strict=False):
        column[rows] = vector
    return F


def _of_connected(L: csr_array, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    n = L.shape[0]
    if n < max(DENSE, DENSE_SHARE * count):
        return eigh(L.toarray(), subset_by_index=(0, count - 1))
    # Lanczos finds the largest eigenvalues fast. On graphs of images this takes half the time of LOBPCG, and the
    # factorization of L for shift-invert would not be sparse.
    bound = abs(L).sum(axis=1).max()  # Gershgorin
    flipped = csr_array(bound * eye_array(n) - L)
    v0, basis = rng.standard_normal(n), min(n, max(BASIS, 2 * count + 1))
    values, vectors = eigsh(flipped, count, which="LA", v0=v0, ncv=basis, tol=TOLERANCE)
    return bound - values[::-1], vectors[:, ::-1]


# ---- AMGL: a graph of each view -> a common embedding of all graphs, weighted by their fit -> k-means.


AMGL_MAX_ITER, AMGL_TOLERANCE = 100, 1e-8  # relative change of the objective
SMALLEST_TRACE = 1e-10  # keeps the weight finite for a view that the embedding fits exactly


@dataclass(kw_only=True)
class AMGL(Baseline):
    """F. Nie, J. Li, X. Li: Parameter-Free Auto-Weighted Multiple Graph Learning: A Framework for Multiview Clustering
    and Semi-Supervised Classification. IJCAI 2016.

    min Σ_v √tr(FᵀL_vF) over FᵀF = I: F is made of the c smallest eigenvectors of Σ α_v L_v, α_v = 1/(2√tr(FᵀL_vF)),
    alternately; k-means on the rows of F. L_v is the normalized Laplacian of the graph of k nearest neighbors with
    adaptive weights.

    Deviations: k = 20, but at most half the mean size of a cluster; the authors' code seems to use 5, with which
    near-duplicates of noisy images became clusters (chosen with labels, in favor of the method); columns are
    standardized; eigenvectors by Lanczos on the sparse graphs, not from a dense matrix; weights are divided by their
    sum, which changes no eigenvector; the best of 10 starts of k-means at the end.
    """

    n_neighbors: int = 20

    def cluster(self, views: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
        n = len(views[0])
        k = min(self.n_neighbors, max(n // (2 * self.n_clusters), 1), n - 2)
        L = [normalized_laplacian(neighbor_graph(X, k)) for X in views]
        F, self.objective_ = common_embedding(L, self.n_clusters, rng)
        return embedded_clusters(F, self.n_clusters, rng)


def common_embedding(L: list[csr_array], c: int, rng: np.random.Generator) -> tuple[np.ndarray, list[float]]:
    """F (n, c), and Σ_v √tr(FᵀL_vF) after each iteration."""
    alpha = np.full(len(L), 1 / len(L))
    objective: list[float] = []
    for _ in range(AMGL_MAX_ITER):
        F = smallest_eigenvectors(csr_array(sum(a * L_v for a, L_v in zip(alpha, L, strict=True))), c, rng)
        roots = np.sqrt([max(float(np.vdot(F, L_v @ F)), SMALLEST_TRACE) for L_v in L])  # (V,)
        objective.append(float(roots.sum()))
        if len(objective) > 1 and objective[-2] - objective[-1] <= AMGL_TOLERANCE * objective[-2]:
            break
        alpha = 1 / (2 * roots)
        alpha /= alpha.sum()
    return F, objective


# ---- MLAN: views -> one graph with adaptive neighbors and c connected components, which are the clusters.


MLAN_MAX_ITER = 30
SMALLEST = 1e-10  # least Σ s d of a view: its weight stays finite
LEAST_ALPHA = 1e-6  # relative to the mean: α of a row with many copies would be 0


@dataclass(kw_only=True)
class MLAN(Baseline):
    """F. Nie, G. Cai, X. Li: Multi-View Clustering and Semi-Supervised Classification with Adaptive Neighbours.
    AAAI 2017. (And F. Nie, G. Cai, J. Li, X. Li: Auto-Weighted Multi-View Learning for Image Clustering and
    Semi-Supervised Classification. IEEE Transactions on Image Processing, 2018.)

    min Σ_v √(Σ_ij s_ij d_ij^v) + α‖S‖² + 2λ tr(FᵀL_SF) over rows s_i of the simplex and FᵀF = I, alternately: weights
    w_v = 1/(2√(Σ s d^v)); rows s_i with the distances Σ_v w_v d^v + λ‖f_i - f_j‖²; F, the c smallest eigenvectors of
    L_S. λ is doubled if the graph has fewer than c connected components and halved if it has more; with exactly c, they
    are the labels. `objective_` uses the λ of its iteration: it falls only while λ is constant.

    k = 9 and 30 iterations are those of the authors' code.

    Deviations: columns are standardized; the authors' code standardizes rows; s_i is restricted to candidates: the
    `n_candidates` nearest rows in each view and by the sum of all views (exact with n - 1 candidates; the authors' code
    uses the k nearest of the first graph); each row has its own α_i, the largest with which it starts with at most k
    neighbors, instead of their mean, with which a row with a near-duplicate would have no other neighbor; α_i uses the
    weights w_v of the first graph, not equal ones; λ starts at the mean of α_i, not at random between 1 and 30;
    components are counted, not derived from eigenvalues below 1e-10; if the first graph has more than c components,
    where the authors' code stops, k is doubled as long as there are candidates; without exactly c components after all
    iterations, labels come from k-means on F.
    """

    n_neighbors: int = 9
    n_candidates: int = 100

    def cluster(self, views: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
        k, c = min(self.n_neighbors, len(views[0]) - 2), self.n_clusters
        near = candidates(views, max(self.n_candidates, k + 1))
        S, alpha = first_rows(near, k)
        while near.parts(S)[0] > c and 2 * k < near.least:
            k *= 2
            S, alpha = first_rows(near, k)
        F, lam = near.embedding(S, c, rng), float(alpha.mean())
        self.objective_ = []
        for _ in range(MLAN_MAX_ITER):
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
    """Rows that may become neighbors. A row may occur twice; the second one is marked in `repeated`."""

    rows: np.ndarray  # (n, m) int32
    repeated: np.ndarray  # (n, m) bool
    distances: np.ndarray  # (V, n, m) float32, squared
    least: int  # least number of different candidates of a row

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
        """The number of connected components of the graph, and the component of each row."""
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
    """S (n, m) with at most k neighbors, first with equal view weights, then with those of the first S; α (n, 1)."""
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
    """s_i = argmin Σ_j (Σ_v w_v d_ij^v + λ‖f_i - f_j‖²) s_ij + α_i s_ij², w_v from the previous S; and the objective"""
    w = 1 / (2 * np.sqrt(near.spread(S)))
    from_F = near.embedded(F)
    d = near.combined(w) + np.float32(lam) * from_F
    y = (d.min(axis=1, keepdims=True) - d) / (2 * alpha)
    S = onto_simplex(np.maximum(y, -1))  # entries 1 below the largest become 0 anyway
    penalty = lam * np.sum(S * from_F, dtype=np.float64) + np.sum(alpha * S**2, dtype=np.float64)
    return S, float(np.sqrt(near.spread(S)).sum() + penalty)

"""Spectral clustering on graphs of rows and landmarks: LSC-K, MVSC, LMVSC, and functions that Nyström also uses.

A graph of n rows and p landmarks, p ≪ n, is a matrix Z (n, p); its spectral embedding needs eigenvectors of a p×p
matrix only.
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh, eigvalsh
from scipy.sparse import csr_array, hstack, vstack
from scipy.sparse.csgraph import connected_components

from bitmosaic.bench.baselines.base import Baseline, concatenated, onto_simplex
from bitmosaic.io.threads import row_ranges
from bitmosaic.solver.embedding import squared_distances, squares
from bitmosaic.solver.start import kmeans, lloyd

LANDMARK_ROWS = 10_000  # rows from which landmarks are computed
STARTS = 10  # of k-means on an embedding
BLOCK = 4096  # rows at a time


def landmark_count(asked: int, n_rows: int, n_clusters: int) -> int:
    """The requested number, at most half the rows: a landmark near only one row is useless for the others."""
    return max(min(asked, n_rows // 2), n_clusters)


def landmarks(X: np.ndarray, count: int, rng: np.random.Generator, max_iter: int) -> np.ndarray:
    """Centers (p, d) of `max_iter` rounds of k-means from random rows, on at most `LANDMARK_ROWS` rows."""
    some = X if len(X) <= LANDMARK_ROWS else X[np.sort(rng.choice(len(X), LANDMARK_ROWS, replace=False))]
    start = some[rng.choice(len(some), count, replace=False)]
    return lloyd(np.ascontiguousarray(some), start[None], max_iter, n_threads=1).centers[0]


def similarities(X: np.ndarray, U: np.ndarray, n_nearest: int) -> csr_array:
    """Z (n, p): z_ij ∝ exp(-‖x_i - u_j‖²/2h²) for the nearest landmarks u_j of a row, 0 elsewhere; rows sum to 1.

    h is the mean distance between rows and landmarks.
    """
    n, p = len(X), len(U)
    r = min(n_nearest, p)
    nearest, D = np.empty((n, r), np.int32), np.empty((n, r))  # D: squared distances to them
    total, U_squares = 0.0, squares(U)
    for rows in row_ranges(n, BLOCK):
        to_all = squared_distances(X[rows], U, U_squares)  # (block, p)
        nearest[rows] = np.argpartition(to_all, r - 1, axis=1)[:, :r]
        D[rows] = np.take_along_axis(to_all, nearest[rows], axis=1)
        total += np.sqrt(to_all, out=to_all).sum(dtype=np.float64)
    h = total / (n * p) or 1.0
    weights = np.exp((D.min(axis=1, keepdims=True) - D) / (2 * h**2))  # 1 for the nearest, so they never all underflow
    weights /= weights.sum(axis=1, keepdims=True)
    return csr_array((weights.ravel(), nearest.ravel(), np.arange(0, n * r + 1, r)), shape=(n, p))


def by_degree(Z: csr_array) -> csr_array:
    """Ẑ = Z Λ^{-1/2}, Λ the degrees of the landmarks. A landmark without edges stays without edges."""
    degrees = Z.sum(axis=0)  # (p,)
    factors = np.divide(1, np.sqrt(degrees), out=np.zeros_like(degrees), where=degrees > 0)
    return csr_array(Z.multiply(factors))


def singular_vectors(Z: np.ndarray | csr_array, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Left (n, k) and right (p, k) vectors of the largest singular values of Z (n, p), largest first: Z ≈ U diag(σ) Vᵀ.

    From the eigenvectors V of ZᵀZ (p, p): U = Z V diag(σ)⁻¹, with zero columns where σ = 0.
    """
    gram = np.asarray(Z.T @ Z if isinstance(Z, np.ndarray) else (Z.T @ Z).toarray(), np.float64)  # (p, p)
    p = len(gram)
    eigenvalues, V = eigh(gram, subset_by_index=(max(p - k, 0), p - 1))
    eigenvalues, V = eigenvalues[::-1], V[:, ::-1]
    present = eigenvalues > p * np.finfo(np.float64).eps * eigenvalues[0]
    inverse = np.divide(1, np.sqrt(np.abs(eigenvalues)), out=np.zeros_like(eigenvalues), where=present)
    return Z @ (V * inverse).astype(Z.dtype), V


def without_constant(U: np.ndarray, Z: csr_array) -> np.ndarray:
    """k of the k + 1 left singular vectors U of a graph Z. In a connected graph, the first one is constant and is left
    out. Otherwise the first vectors separate the connected components, and the last one is left out.
    """
    n_parts, _ = connected_components(Z.T @ Z, directed=False)  # of landmarks: every row is connected to one
    without_edges = np.count_nonzero(Z.sum(axis=0) == 0)
    return U[:, 1:] if n_parts - without_edges == 1 else U[:, :-1]


def unit_rows(U: np.ndarray) -> np.ndarray:
    """Rows of length 1; rows of zeros stay."""
    return U / np.maximum(np.linalg.norm(U, axis=1, keepdims=True), np.finfo(np.float32).tiny)


def embedded_clusters(U: np.ndarray, n_clusters: int, rng: np.random.Generator) -> np.ndarray:
    """Labels (n,) by k-means on the rows of an embedding, the best of several starts."""
    return kmeans(np.ascontiguousarray(U, np.float32), n_clusters, STARTS, rng, n_threads=1)


# ---- LSC-K: all views side by side -> k-means landmarks -> bipartite graph -> spectral embedding -> k-means.


LSCK_LANDMARK_ITER = 5


@dataclass(kw_only=True)
class LSCK(Baseline):
    """X. Chen, D. Cai: Large Scale Spectral Clustering with Landmark-Based Representation. AAAI 2011.

    W = ẐẐᵀ with Ẑ = Z Λ^{-1/2}; Z contains the Gaussian similarities of each row to its nearest landmarks, with sum 1.
    The first eigenvectors of W are the left singular vectors of Ẑ. As in the authors' code, the first one, which is
    constant in a connected graph, is left out, the next k are used, and rows are scaled to length 1; k-means on these.

    Deviations: columns are standardized; if the graph is not connected, its first vector is kept; the landmarks are
    the centers of 5 rounds of k-means on at most 10,000 random rows, not on all rows, so that 60,000 × 3,626 is
    feasible; 1,000 landmarks, at most half the rows; the bandwidth is the mean distance between rows and landmarks; the
    best of 10 starts of k-means at the end.
    """

    n_landmarks: int = 1000
    n_nearest: int = 5

    def cluster(self, views: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
        X = concatenated(views)
        p = landmark_count(self.n_landmarks, len(X), self.n_clusters)
        Z = similarities(X, landmarks(X, p, rng, LSCK_LANDMARK_ITER), self.n_nearest)  # (n, p)
        U, _ = singular_vectors(by_degree(Z), self.n_clusters + 1)  # (n, k + 1)
        return embedded_clusters(unit_rows(without_constant(U, Z)), self.n_clusters, rng)


# ---- MVSC: common salient points -> one bipartite graph per view -> weights and embedding alternately -> k-means.


MVSC_LANDMARK_ITER = 30
MVSC_MAX_ITER, MVSC_TOLERANCE = 50, 1e-6


@dataclass(kw_only=True)
class MVSC(Baseline):
    """Y. Li, F. Nie, H. Huang, J. Huang: Large-Scale Multi-View Spectral Clustering via Bipartite Graph. AAAI 2015.

    min Σ_v α_v^r tr(Gᵀ L_v G) with GᵀG = I, Σ α_v = 1, α_v ≥ 0, G and α alternately. L_v is the normalized Laplacian of
    the bipartite graph of view v between all rows and p salient points: the parts that belong to v of the centers of
    k-means on all views side by side. Hence G = [U; V]/√2 with the singular vectors of Σ_v α_v^r Ẑ_v. As in the
    authors' code, there are k + 1 of these; the first one, constant in a connected graph, is left out at the end, and
    rows are scaled to length 1; k-means on these.

    Deviations: columns are standardized; if the graph is not connected, its first vector is kept; salient points from
    k-means on at most 10,000 rows, at most half as many as rows; r is 10^0.5 and not tuned with the true labels of each
    data set; the bandwidth is the mean distance between rows and salient points (in the authors' code, the mean squared
    one, and α comes from Ẑ_v alone); k-means at the end, the best of 10 starts, uses the rows' part U of G without the
    salient points.

    A view that agrees with the embedding gains weight and then dominates the embedding: if each view separates other
    clusters, one view can take over, even for large r.
    """

    n_landmarks: int = 400
    n_nearest: int = 5
    r: float = 10**0.5

    def cluster(self, views: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
        X = concatenated(views)
        salient = landmarks(
            X, landmark_count(self.n_landmarks, len(X), self.n_clusters), rng, MVSC_LANDMARK_ITER
        )  # (p, d)
        parts = np.split(salient, np.cumsum([view.shape[1] for view in views])[:-1], axis=1)
        graphs = [
            by_degree(similarities(view, np.ascontiguousarray(part), self.n_nearest))
            for view, part in zip(views, parts, strict=True)
        ]
        together = csr_array(sum(graphs, start=csr_array(graphs[0].shape)))
        U, self.weights_, self.objective_ = weighted_embedding(graphs, self.n_clusters + 1, self.r)
        return embedded_clusters(unit_rows(without_constant(U, together)), self.n_clusters, rng)


def weighted_embedding(graphs: list[csr_array], k: int, r: float) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """The rows' part of G (n, k), the weights α (V,), and the objective after each iteration."""
    alpha = np.full(len(graphs), 1 / len(graphs))
    objective: list[float] = []
    for _ in range(MVSC_MAX_ITER):
        shares = (alpha / alpha.max()) ** r  # α^r up to a factor: α^r itself would underflow for large r
        U, V = singular_vectors(sum(share * Z for share, Z in zip(shares, graphs, strict=True)), k)
        costs = np.array([k - np.einsum("ij,ij->", U, Z @ V) for Z in graphs])  # tr(GᵀL_vG)
        costs = np.maximum(costs, np.finfo(np.float32).eps)  # 0 if no edge of a view connects two clusters
        alpha = costs ** (1 / (1 - r))
        alpha /= alpha.sum()
        objective.append(float(alpha**r @ costs))
        if len(objective) > 1 and objective[-2] - objective[-1] <= MVSC_TOLERANCE * objective[-2]:
            break
    return U, alpha, objective


# ---- LMVSC: anchors of each view -> rows as mixtures of anchors -> all graphs side by side -> embedding -> k-means.


LMVSC_LANDMARK_ITER = 30
LMVSC_TOLERANCE, LMVSC_MAX_ITER, CHECK_EVERY = 1e-5, 2000, 10
LMVSC_BLOCK = 1024  # rows at a time, small enough for the CPU cache


@dataclass(kw_only=True)
class LMVSC(Baseline):
    """Z. Kang, W. Zhou, Z. Zhao, J. Shao, M. Han, Z. Xu: Large-Scale Multi-View Subspace Clustering in Linear Time.
    AAAI 2020.

    min Σ_v ‖X_v - Z_v A_v‖² + α ‖Z_v‖² with Z_v ≥ 0 and rows of sum 1, A_v the k-means centers of view v;
    k-means on the k first left singular vectors of [Ẑ_1 … Ẑ_V]/√V, Ẑ_v = Z_v Λ_v^{-1/2}.

    Deviations: columns are standardized; anchors from one start of k-means on at most 10,000 rows, at most half as many
    as rows; 100 anchors and α = 1, which the publication tunes for each data set; the quadratic programs of all rows
    are solved together by an accelerated projected gradient, to a duality gap of 10⁻⁵ of the mean ‖x‖², instead of one
    by one; the best of 10 starts of k-means at the end. (The authors' code leaves Λ_v out, which was worse on most data
    sets.)
    """

    n_landmarks: int = 100
    alpha: float = 1.0

    def cluster(self, views: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
        m = landmark_count(self.n_landmarks, len(views[0]), self.n_clusters)
        graphs = [by_degree(mixtures(X, landmarks(X, m, rng, LMVSC_LANDMARK_ITER), self.alpha)) for X in views]
        Z = csr_array(hstack(graphs)) / np.sqrt(len(views))  # (n, V m)
        U, _ = singular_vectors(Z, self.n_clusters)  # (n, k)
        return embedded_clusters(U, self.n_clusters, rng)


def mixtures(X: np.ndarray, A: np.ndarray, alpha: float) -> csr_array:
    """Z (n, m): argmin ‖x - zA‖² + α ‖z‖² for each row x, over z ≥ 0 with Σz = 1."""
    H = A @ A.T + np.float32(alpha) * np.eye(len(A), dtype=np.float32)  # (m, m)
    gap = LMVSC_TOLERANCE * float(squares(X).mean(dtype=np.float64))
    blocks = [csr_array(simplex_least_squares(H, X[rows] @ A.T, gap)) for rows in row_ranges(len(X), LMVSC_BLOCK)]
    return csr_array(vstack(blocks)).astype(np.float64)


def simplex_least_squares(H: np.ndarray, B: np.ndarray, gap: float) -> np.ndarray:
    """Z (b, m): argmin ½ zHzᵀ - zbᵀ for each row b of B (b, m), over the simplex.

    Accelerated projected gradient. The momentum of a row restarts when it points uphill. A row is finished when its
    duality gap, max over the simplex of (z - s)·gradient, is small: the gap bounds the distance to the minimum.
    """
    step = 1 / eigvalsh(H)[-1]
    found = np.full(B.shape, 1 / len(H), B.dtype)
    left, Z, Y, t = np.arange(len(B)), found, found, np.ones(len(B), B.dtype)
    for iteration in range(1, LMVSC_MAX_ITER + 1):
        new = onto_simplex(Y - step * (Y @ H - B))
        uphill = np.einsum("ij,ij->i", Y - new, new - Z) > 0
        t_new = np.where(uphill, 1, (1 + np.sqrt(1 + 4 * t**2)) / 2)
        Y = new + np.where(uphill, 0, (t - 1) / t_new)[:, None] * (new - Z)
        Z, t = new, t_new
        if iteration % CHECK_EVERY == 0:
            gradient = Z @ H - B
            open_ = np.einsum("ij,ij->i", Z, gradient) - gradient.min(axis=1) > gap
            found[left] = Z
            left, Z, Y, t, B = left[open_], Z[open_], Y[open_], t[open_], B[open_]
            if not len(left):
                break
    return found

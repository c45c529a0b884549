"""Rows -> landmarks -> sparse graph of rows and landmarks -> spectral embedding -> labels: what LSC-K, MVSC, LMVSC and
Nyström share.

A graph of n rows and p landmarks, p ≪ n, is a matrix Z (n, p); its spectral embedding needs eigenvectors of a p×p
matrix only.
"""

import numpy as np
from scipy.linalg import eigh
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from bitmosaic.embedding import squared_distances, squares
from bitmosaic.errors import ParameterError
from bitmosaic.solver.kmeans import kmeans, lloyd
from bitmosaic.threads import row_ranges

LANDMARK_ROWS = 10_000  # among which landmarks are sought
STARTS = 10  # of k-means on an embedding
BLOCK = 4096  # rows at a time


def landmark_count(asked: int, n_rows: int, n_clusters: int) -> int:
    """As many as asked for, but at most half the rows: a landmark that is one row's own says nothing of the others."""
    if asked < n_clusters:
        raise ParameterError(
            f"There must be at least as many landmarks as clusters; got {asked} for {n_clusters} clusters. "
            "Ask for more landmarks."
        )
    return min(asked, max(n_rows // 2, n_clusters))


def landmarks(X: np.ndarray, count: int, rng: np.random.Generator, max_iter: int) -> np.ndarray:
    """Centers (p, d) of some rounds of k-means, which starts from random rows, on at most `LANDMARK_ROWS` rows."""
    some = X if len(X) <= LANDMARK_ROWS else X[np.sort(rng.choice(len(X), LANDMARK_ROWS, replace=False))]
    start = some[rng.choice(len(some), count, replace=False)]
    return lloyd(np.ascontiguousarray(some), start[None], max_iter, n_threads=1).centers[0]


def similarities(X: np.ndarray, U: np.ndarray, n_nearest: int) -> csr_array:
    """Z (n, p): z_ij ∝ exp(-‖x_i - u_j‖²/2h²) for the nearest landmarks u_j of a row, 0 elsewhere; rows add up to 1.

    h is the mean distance between rows and landmarks.
    """
    if n_nearest < 1:
        raise ParameterError(f"n_nearest must be at least 1; got {n_nearest}. Landmarks near a row are its edges.")
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
    weights = np.exp((D.min(axis=1, keepdims=True) - D) / (2 * h**2))  # 1 for the nearest, so that never all vanish
    weights /= weights.sum(axis=1, keepdims=True)
    return csr_array((weights.ravel(), nearest.ravel(), np.arange(0, n * r + 1, r)), shape=(n, p))


def by_degree(Z: csr_array) -> csr_array:
    """Ẑ = Z Λ^{-1/2}, Λ the degrees of the landmarks; a landmark without edges stays without."""
    degrees = Z.sum(axis=0)  # (p,)
    factors = np.divide(1, np.sqrt(degrees), out=np.zeros_like(degrees), where=degrees > 0)
    return csr_array(Z.multiply(factors))


def singular_vectors(Z: np.ndarray | csr_array, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Left (n, k) and right (p, k) vectors of the largest singular values of Z (n, p), largest first: Z ≈ U diag(σ) Vᵀ.

    From the eigenvectors V of ZᵀZ (p, p): U = Z V diag(σ)⁻¹, zero where σ is.
    """
    gram = np.asarray(Z.T @ Z if isinstance(Z, np.ndarray) else (Z.T @ Z).toarray(), np.float64)  # (p, p)
    p = len(gram)
    eigenvalues, V = eigh(gram, subset_by_index=(max(p - k, 0), p - 1))
    eigenvalues, V = eigenvalues[::-1], V[:, ::-1]
    present = eigenvalues > p * np.finfo(np.float64).eps * eigenvalues[0]
    inverse = np.divide(1, np.sqrt(np.abs(eigenvalues)), out=np.zeros_like(eigenvalues), where=present)
    return Z @ (V * inverse).astype(Z.dtype), V


def without_constant(U: np.ndarray, Z: csr_array) -> np.ndarray:
    """k of the k + 1 left singular vectors U of a graph Z: all but the first, which tells nothing where the graph hangs
    together; where it falls into parts, which the first vectors tell apart, all but the last.
    """
    n_parts, _ = connected_components(Z.T @ Z, directed=False)  # of landmarks: every row hangs on one
    without_edges = np.count_nonzero(Z.sum(axis=0) == 0)
    return U[:, 1:] if n_parts - without_edges == 1 else U[:, :-1]


def unit_rows(U: np.ndarray) -> np.ndarray:
    """Rows of length 1; rows of zeros stay."""
    return U / np.maximum(np.linalg.norm(U, axis=1, keepdims=True), np.finfo(np.float32).tiny)


def embedded_clusters(U: np.ndarray, n_clusters: int, rng: np.random.Generator) -> np.ndarray:
    """Labels (n,) by k-means on the rows of an embedding, the best of several starts."""
    return kmeans(np.ascontiguousarray(U, np.float32), n_clusters, STARTS, rng, n_threads=1)

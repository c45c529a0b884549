"""Rows -> sparse graph of nearest neighbours -> Laplacian -> its smallest eigenvectors: what AMGL and MLAN share.

Distances (n, n) exist only one block of rows at a time. Graphs and Laplacians are sparse float64.
"""

from collections.abc import Iterator

import numpy as np
from scipy.linalg import eigh
from scipy.sparse import csr_array, diags_array, eye_array
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import eigsh

from bitmosaic.embedding import squared_distances, squares
from bitmosaic.errors import ParameterError
from bitmosaic.threads import row_ranges

BLOCK = 512  # rows whose distances to all others are in memory
DENSE, DENSE_SHARE = 200, 4  # Lanczos from so many rows on, and from so many rows per eigenvector
BASIS, TOLERANCE = 40, 1e-8  # of Lanczos: vectors at least; residual relative to the largest eigenvalue


def checked_neighbors(n_neighbors: int, n_rows: int) -> int:
    """The number of neighbours, if each row has one more than that."""
    if not 1 <= n_neighbors <= n_rows - 2:
        raise ParameterError(
            f"n_neighbors must be between 1 and the number of rows - 2; got {n_neighbors} for {n_rows} rows. "
            "Ask for fewer neighbours, or give more rows."
        )
    return n_neighbors


def distance_blocks(X: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Some rows at a time, and their squared distances (b, n) float32 to all rows: infinite to themselves."""
    X_squares = squares(X)
    for rows in row_ranges(len(X), BLOCK):
        D = squared_distances(X[rows], X, X_squares)
        D[np.arange(len(D)), np.arange(rows.start, rows.stop)] = np.inf
        yield rows, D


def nearest(D: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the k smallest distances of each row of D (b, n) are, and what they are: (b, k) each, nearest first."""
    columns = np.argpartition(D, k - 1, axis=1)[:, :k]
    distances = np.take_along_axis(D, columns, axis=1)
    order = np.argsort(distances, axis=1, kind="stable")
    return np.take_along_axis(columns, order, axis=1), np.take_along_axis(distances, order, axis=1)


def nearest_rows(X: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest other rows of each row, and their squared distances: (n, k) int32 and float32, nearest first."""
    neighbours, distances = np.empty((len(X), k), np.int32), np.empty((len(X), k), np.float32)
    for rows, D in distance_blocks(X):
        neighbours[rows], distances[rows] = nearest(D, k)
    return neighbours, distances


def adaptive_weights(d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """s_j = (d_{k+1} - d_j) / Σ_{h≤k} (d_{k+1} - d_h) from the k + 1 smallest distances d (n, k + 1), nearest first.

    It is argmin Σ_j d_j s_j + α s_j² over the simplex for the largest α with at most k neighbours, α = Σ (…) / 2.
    Returns s (n, k) and α (n,). Where all k + 1 are as far away, the k first share alike.
    """
    gaps = (d[:, -1:] - d[:, :-1]).astype(np.float64)
    totals = gaps.sum(axis=1, keepdims=True)
    s = np.divide(gaps, totals, out=np.full(gaps.shape, 1 / gaps.shape[1]), where=totals > 0)
    return s, totals[:, 0] / 2


def symmetric_graph(neighbours: np.ndarray, weights: np.ndarray) -> csr_array:
    """(S + Sᵀ)/2, s_ij the weight of a neighbour j of row i; both (n, k). Weights of zero are no edges."""
    n = len(neighbours)
    row, at = np.nonzero(weights)
    S = csr_array((weights[row, at].astype(np.float64), (row, neighbours[row, at])), shape=(n, n))
    return csr_array((S + S.T) / 2)


def neighbour_graph(X: np.ndarray, k: int) -> csr_array:
    """The graph (n, n) of k nearest neighbours with adaptive weights, which needs no kernel width."""
    neighbours, distances = nearest_rows(X, k + 1)
    return symmetric_graph(neighbours[:, :k], adaptive_weights(distances)[0])


def laplacian(S: csr_array) -> csr_array:
    """L = D - S, D the degrees."""
    return csr_array(diags_array(S.sum(axis=1)) - S)


def normalised_laplacian(S: csr_array) -> csr_array:
    """L = I - D^{-1/2} S D^{-1/2}."""
    half = diags_array(1 / np.sqrt(S.sum(axis=1)))
    return csr_array(eye_array(S.shape[0]) - half @ S @ half)


def smallest_eigenvectors(L: csr_array, count: int, rng: np.random.Generator) -> np.ndarray:
    """F (n, count): eigenvectors of the smallest eigenvalues of a sparse, symmetric, positive semidefinite L.

    Connected parts are solved one by one: where they share an eigenvalue, as 0 of a Laplacian, Lanczos on all of them
    together may miss some of its vectors.
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
    # Lanczos finds the largest ones fast. On graphs of pictures this takes half the time of LOBPCG, and a factorisation
    # of L, which shift-invert needs, would hardly be sparse.
    bound = abs(L).sum(axis=1).max()  # Gershgorin
    flipped = csr_array(bound * eye_array(n) - L)
    v0, basis = rng.standard_normal(n), min(n, max(BASIS, 2 * count + 1))
    values, vectors = eigsh(flipped, count, which="LA", v0=v0, ncv=basis, tol=TOLERANCE)
    return bound - values[::-1], vectors[:, ::-1]

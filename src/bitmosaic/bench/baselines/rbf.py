"""Rows -> a sample of them, and similarities exp(-γ d²): what the baselines that work on samples share."""

import numpy as np

from bitmosaic.embedding import squared_distances, squares
from bitmosaic.errors import ParameterError
from bitmosaic.threads import row_ranges

BLOCK = 4096  # rows at a time


def rbf_kernel(X: np.ndarray, Y: np.ndarray, gamma: float) -> np.ndarray:
    """exp(-γ ‖x - y‖²) of all pairs of rows, float32; the distances come from matrix products of blocks."""
    shift = Y.mean(axis=0)  # far from the origin, the differences of large squares would be lost
    Y = Y - shift
    Y_squares = squares(Y)  # (m,)
    K = np.empty((len(X), len(Y)), np.float32)
    for rows in row_ranges(len(X), BLOCK):
        D = squared_distances(X[rows] - shift, Y, Y_squares)
        D *= -gamma
        np.exp(D, out=K[rows])
    return K  # (n, m)


def mean_width(X: np.ndarray, rng: np.random.Generator, n_sample: int = 1000) -> float:
    """γ = 1 / the mean squared distance between sampled rows; 1 where all of them are alike."""
    sample = X[rng.choice(len(X), min(n_sample, len(X)), replace=False)].astype(np.float64)
    if len(sample) == 1:
        return 1.0
    mean_squared = 2 * sample.var(axis=0, ddof=1).sum()  # over all pairs of two rows, by expanding ‖x - y‖²
    return 1 / float(mean_squared) if mean_squared > 0 else 1.0


def chosen_width(gamma: float | None, X: np.ndarray, rng: np.random.Generator) -> float:
    """γ as it was given, or else `mean_width`."""
    if gamma is None:
        return mean_width(X, rng)
    if not 0 < gamma < np.inf:
        raise ParameterError(f"gamma must be positive; got {gamma}. None takes it from the rows.")
    return gamma


def sample_size(n_rows: int, n_sample: int, n_clusters: int) -> int:
    """How many rows are sampled: n_sample, or all where there are fewer."""
    if n_sample < n_clusters:
        raise ParameterError(f"n_sample must be at least n_clusters={n_clusters}; got {n_sample}. Raise it.")
    return min(n_sample, n_rows)


def draw_rows(n_rows: int, n_sample: int, n_clusters: int, rng: np.random.Generator) -> np.ndarray:
    """Which rows are sampled, in order."""
    return np.sort(rng.choice(n_rows, sample_size(n_rows, n_sample, n_clusters), replace=False))

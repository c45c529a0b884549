"""Rows of numbers -> the nearest rows of shares, for LMVSC and MLAN."""

import numpy as np


def onto_simplex(Y: np.ndarray) -> np.ndarray:
    """The nearest rows that are nonnegative and add up to 1: max(y - θ, 0), θ from the sorted values."""
    descending = np.sort(Y, axis=1)[:, ::-1]
    excess = np.cumsum(descending, axis=1) - 1
    counts = np.count_nonzero(descending * np.arange(1, Y.shape[1] + 1, dtype=Y.dtype) > excess, axis=1)
    theta = excess[np.arange(len(Y)), counts - 1] / counts.astype(Y.dtype)
    return np.maximum(Y - theta[:, None], 0)

"""Which rows of a file a slice or an index array means, as NumPy would take it."""

from collections.abc import Iterator
from typing import Any

import numpy as np


def positions(rows: Any, n_rows: int) -> np.ndarray:
    """Row numbers, from 0 to n_rows - 1."""
    if isinstance(rows, slice):
        return np.arange(*rows.indices(n_rows))
    index = np.asarray(rows)
    if index.size and not -n_rows <= index.min() <= index.max() < n_rows:
        raise IndexError(f"rows {index.min()} to {index.max()} are asked of a view of {n_rows} rows")
    return np.where(index < 0, index + n_rows, index)


def runs(keys: np.ndarray) -> Iterator[slice]:
    """The stretches of equal keys, in order."""
    if len(keys):
        edges = [0, *(np.flatnonzero(np.diff(keys)) + 1).tolist(), len(keys)]
        yield from map(slice, edges[:-1], edges[1:])

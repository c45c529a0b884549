"""Views of several folders, one after the other: a collection that grew, as if it were one."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bitmosaic.errors import ViewMismatchError
from bitmosaic.views.core import Rows, Views, forget_pages, read_rows
from bitmosaic.views.indexing import positions, runs


class ChainedRows:
    """Matrices of the same width below each other, none of them read or copied. Taken by slices or sorted indices."""

    def __init__(self, parts: Sequence[Rows]):
        self.parts = tuple(parts)
        self._ends = np.cumsum([part.shape[0] for part in self.parts])
        self.shape = (int(self._ends[-1]), self.parts[0].shape[1])
        self.dtype = np.result_type(*(part.dtype for part in self.parts))

    def __getitem__(self, rows: Any) -> np.ndarray:
        pieces = [read_rows(part, wanted, self.dtype) for part, wanted in self._split(rows)]
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.empty((0, self.shape[1]), self.dtype)

    def forget_pages(self, rows: np.ndarray) -> None:
        for part, wanted in self._split(rows):
            forget_pages(part, wanted)

    def _split(self, rows: Any):
        """The parts that some rows are in, each with its own of them, in the order of the rows."""
        wanted = positions(rows, self.shape[0])
        owners = np.searchsorted(self._ends, wanted, side="right")
        for same in runs(owners):
            owner = int(owners[same.start])
            part = self.parts[owner]
            yield part, wanted[same] - (self._ends[owner] - part.shape[0])


class PickedRows:
    """Some sorted rows of a matrix, none of them read or copied."""

    def __init__(self, array: Rows, picked: np.ndarray):
        self._array, self._picked = array, picked
        self.shape, self.dtype = (len(picked), array.shape[1]), array.dtype

    def __getitem__(self, rows: Any) -> np.ndarray:
        return read_rows(self._array, self._picked[rows], self.dtype)


def picked(views: Views, rows: np.ndarray) -> Views:
    """Some sorted rows of views."""
    arrays = tuple(PickedRows(array, rows) for array in views.arrays)
    labels = None if views.labels is None else views.labels[rows]
    return Views(views.names, arrays, labels, None if views.paths is None else tuple(views.paths[i] for i in rows))


def chained(tables: Sequence[Views]) -> Views:
    """Views of the same names and widths, one after the other. Labels are there if all of them have some."""
    first = tables[0]
    if len(tables) == 1:
        return first
    for table in tables[1:]:
        if table.names != first.names or table.widths != first.widths:
            raise ViewMismatchError(
                f"Views that follow each other must be the same; the first are {_in_words(first)}, then came "
                f"{_in_words(table)}."
            )
    arrays = tuple(ChainedRows(parts) for parts in zip(*(table.arrays for table in tables), strict=True))
    return Views(first.names, arrays, _labels(tables), _paths(tables))


def _labels(tables: Sequence[Views]) -> np.ndarray | None:
    labels = [table.labels for table in tables if table.labels is not None]
    if len(labels) < len(tables):
        return None
    if np.result_type(*labels).kind not in "iu":  # text and numbers, or whole numbers that only a float would hold
        labels = [values.astype(str, copy=False) for values in labels]
    return np.concatenate(labels)


def _paths(tables: Sequence[Views]) -> tuple[str, ...] | None:
    """Where some have none, their number takes the place; None where nobody has any."""
    if all(table.paths is None for table in tables):
        return None
    found: list[str] = []
    for table in tables:
        found += table.paths or map(str, range(len(found), len(found) + table.n_rows))
    return tuple(found)


def _in_words(views: Views) -> str:
    return ", ".join(f"{name} ({width})" for name, width in zip(views.names, views.widths, strict=True))

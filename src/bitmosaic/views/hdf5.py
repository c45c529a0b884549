"""A matrix in an HDF5 file, read by rows and never whole."""

import math
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from bitmosaic.errors import FileFormatError
from bitmosaic.npy import refuse_larger_than_memory
from bitmosaic.views.hdf5_texts import read_texts
from bitmosaic.views.indexing import positions, runs

_WINDOW_BYTES = 32 * 2**20  # at most so much is read at once to pick scattered rows from
_ROW_COST_BYTES = 8 * 2**10  # selecting one scattered row costs as much as reading this much in a run


class H5Rows:
    """An h5py Dataset as rows. The file stays open as long as this lives.

    With `transposed`, the rows of the view are the columns of the dataset: MATLAB stores them so.
    """

    def __init__(self, dataset: Any, *, transposed: bool = False) -> None:
        self.dataset = dataset
        self.transposed = transposed
        self.shape: tuple[int, ...] = tuple(dataset.shape[::-1] if transposed else dataset.shape)
        self.dtype: np.dtype = dataset.dtype

    @property
    def T(self) -> "H5Rows":
        return H5Rows(self.dataset, transposed=not self.transposed)

    def __getitem__(self, rows: Any) -> np.ndarray:
        try:
            return self._read(rows) if isinstance(rows, slice) else self._pick(positions(rows, self.shape[0]))
        except (OSError, RuntimeError, MemoryError, ValueError) as error:
            raise FileFormatError(
                f"{self.dataset.file.filename}: rows of {self.dataset.name} cannot be read ({error}). "
                "The file may be damaged or cut: copy or write it again."
            ) from error

    def _read(self, rows: Any) -> np.ndarray:
        return self.dataset[:, rows].T if self.transposed else self.dataset[rows]

    def _pick(self, index: np.ndarray) -> np.ndarray:
        wanted, back = np.unique(index, return_inverse=True)  # HDF5 takes strictly increasing rows only
        picked = np.empty((len(wanted), self.shape[1]), dtype=self.dtype)
        row_bytes = self.shape[1] * self.dtype.itemsize
        window = max(1, _WINDOW_BYTES // row_bytes)
        for run in runs(wanted // window):
            part = wanted[run]
            low, high = int(part[0]), int(part[-1]) + 1
            if (high - low) * row_bytes <= _ROW_COST_BYTES * len(part):
                picked[run] = self._read(slice(low, high))[part - low]
            else:
                picked[run] = self._read(part)
        return picked[back]


def is_dataset(array: Any) -> bool:
    """Whether it is an h5py Dataset, asked without importing h5py."""
    h5py = sys.modules.get("h5py")
    return h5py is not None and isinstance(array, h5py.Dataset)


def items_inside(group: Any) -> Iterator[tuple[str, Any]]:
    """What a group holds by name. A link to another file is refused: nothing but the file itself is to be read."""
    for name in group:
        link = group.get(name, getlink=True)
        if not _stays_inside(group, link):
            raise FileFormatError(
                f"{group.file.filename}: {name!r} is a link that leads to another file, and these are not followed. "
                "Copy what it leads to into the file."
            )
        item = group.get(name)
        if item is not None:  # a link that leads nowhere
            yield name, checked(item)


def checked(item: Any) -> Any:
    """A group or dataset whose values lie in the file itself, in pieces that fit into memory."""
    if is_dataset(item):
        if item.is_virtual or item.external:
            raise FileFormatError(
                f"{item.file.filename}: the values of {item.name} lie in other files, and these are not read. "
                "Copy them into the file."
            )
        if item.chunks:  # each is read whole
            refuse_larger_than_memory(item.file.filename, math.prod(item.chunks) * item.dtype.itemsize)
    return item


def read_whole(dataset: Any) -> Any:
    """All values of a dataset: labels, say."""
    import h5py

    refuse_larger_than_memory(dataset.file.filename, math.prod(dataset.shape) * dataset.dtype.itemsize)
    if h5py.check_string_dtype(dataset.dtype) is not None and dataset.dtype.kind == "O":
        return read_texts(dataset) if dataset.ndim and dataset.size else np.empty(dataset.shape, object)
    if dataset.dtype.hasobject and h5py.check_ref_dtype(dataset.dtype) is None:
        raise FileFormatError(
            f"{dataset.file.filename}: {dataset.name} must hold a number or a text for each row; it holds lists of "
            "any length. Save plain numbers or texts."
        )
    return dataset[()]


def attribute(item: Any, name: str) -> Any:
    """An attribute of a group or dataset; None if there is none, or one that lies in a heap and might not end."""
    if name not in item.attrs or item.attrs.get_id(name).dtype.hasobject:
        return None
    return item.attrs[name]


def _stays_inside(group: Any, link: Any) -> bool:
    """Whether a link leads to no other file. One within the file may pass others on its way."""
    import h5py

    if isinstance(link, h5py.SoftLink):
        start, *names = link.path.split("/")
        place = group.file if not start else group
        for name in (start, *names):
            if name in ("", "."):
                continue
            step = place.get(name, getlink=True) if name in place else None
            if step is None:
                return True  # it leads nowhere
            if not isinstance(step, h5py.HardLink):
                return False
            place = place[name]
            if is_dataset(place):
                return True
        return True
    return isinstance(link, h5py.HardLink)


def open_h5(path: Any) -> Any:
    """The file, open for reading."""
    import h5py

    try:
        return h5py.File(path, "r")
    except (OSError, RuntimeError) as error:
        raise FileFormatError(
            f"{path} is not a whole HDF5 file ({error}). It may be cut or of another format: copy or write it again."
        ) from error

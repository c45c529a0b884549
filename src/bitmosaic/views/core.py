"""What a set of views is, and how a block of its rows becomes float32."""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from bitmosaic.errors import DataTypeError, InvalidDataError, ViewMismatchError
from bitmosaic.npy import array_of
from bitmosaic.views.hdf5 import H5Rows, is_dataset


class Rows(Protocol):
    """A matrix that can be read by rows: an array, a memory map, or a part of a file."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> Any: ...
    def __getitem__(self, rows: Any, /) -> Any: ...


@dataclass(frozen=True, eq=False, repr=False)
class Views:
    """Several kinds of features of the same samples: row i of every array is sample i.

    Checked when made, by shape and type only: no array is read or copied.
    """

    names: tuple[str, ...]
    arrays: tuple[Rows, ...]  # each (n, d_v)
    labels: np.ndarray | None = None  # (n,) true classes, integers or strings, where known
    paths: tuple[str, ...] | None = None  # what each row is, where known
    columns: tuple[tuple[str, ...] | None, ...] | None = None  # names of the columns of each view, where known

    def __post_init__(self) -> None:
        names, arrays = _listed(self.names, "names"), _listed(self.arrays, "arrays")
        _check_names(names, len(arrays))
        arrays = tuple(_checked(array, name) for name, array in zip(names, arrays, strict=True))
        sizes = [array.shape[0] for array in arrays]
        if len(set(sizes)) > 1:
            raise ViewMismatchError(
                f"All views must have the same number of rows; got {sizes} for {', '.join(names)}. "
                "Did one extractor skip unreadable images? See skipped.csv in the views folder."
            )
        labels = None if self.labels is None else as_labels(self.labels)
        paths = None if self.paths is None else _listed(self.paths, "paths")
        for what, values in (("label", labels), ("path", paths)):
            if values is not None and len(values) != sizes[0]:
                raise ViewMismatchError(
                    f"There must be one {what} for each row of the views; got {len(values)} {what}s "
                    f"for {sizes[0]} rows. Leave out the {what}s of rows that the views do not have."
                )
        for field, value in (("names", names), ("arrays", arrays), ("labels", labels), ("paths", paths)):
            object.__setattr__(self, field, value)

    @property
    def n_rows(self) -> int:
        return self.arrays[0].shape[0]

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(array.shape[1] for array in self.arrays)

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __getitem__(self, name: str) -> Rows:
        if name not in self.names:
            raise ViewMismatchError(f"There is no view {name!r}; the views are {', '.join(self.names)}.")
        return self.arrays[self.names.index(name)]

    def __repr__(self) -> str:
        parts = (f"{name}: {a.shape[1]} {a.dtype}" for name, a in zip(self.names, self.arrays, strict=True))
        return f"<Views of {self.n_rows} rows; {', '.join(parts)}>"


def read_rows(array: Rows, rows: slice | np.ndarray, dtype: Any = np.float32) -> np.ndarray:
    """Rows of a view as native float32 (or `dtype`), C-contiguous. Do not write into it: it may be the user's own data.

    `rows` is a slice or a sorted index array. What the type cannot hold becomes inf, in silence: the check
    for finite values, which follows block by block, reports it.
    """
    source = H5Rows(array) if is_dataset(array) else array
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(source[rows], dtype=dtype)


def exact_dtype(array: Rows) -> Any:
    """The type in which to read a view before it is centred: float64 where float32 would round its values."""
    return np.float32 if np.can_cast(np.dtype(array.dtype), np.float32) else np.float64


def forget_pages(array: Rows, rows: np.ndarray) -> None:
    """Let go of the pages of a memory map between the first and the last of some sorted rows that have been read.

    They stay in the system's cache, not in this process. Not for copy-on-write maps, where that would undo the user's
    changes.
    """
    if hasattr(array, "forget_pages"):
        array.forget_pages(rows)
        return
    if not (isinstance(array, np.memmap) and array.mode in ("r", "r+") and hasattr(mmap, "MADV_DONTNEED")):
        return
    mapped = getattr(array, "_mmap", None)
    if mapped is None or not len(rows):
        return
    first, last = np.lib.array_utils.byte_bounds(array[rows[0] : rows[-1] + 1])
    start = np.frombuffer(mapped, np.uint8).ctypes.data
    begin = (first - start) // mmap.PAGESIZE * mmap.PAGESIZE
    mapped.madvise(mmap.MADV_DONTNEED, begin, last - start - begin)


def is_numeric(dtype: np.dtype) -> bool:
    return dtype.kind in "biuf"


def as_labels(values: Any) -> np.ndarray:
    """True classes as an (n,) array of integers or strings; (n, 1), (1, n) and whole floats are taken."""
    labels = array_of(values, "Labels must be one value for each row, a vector")
    if labels.size != max(labels.shape, default=0):
        raise InvalidDataError(f"Labels must be one value for each row, a vector; got shape {labels.shape}.")
    labels = labels.reshape(-1)
    if labels.dtype.kind == "f" and np.all(np.abs(labels) < np.float64(2**62)) and np.all(labels == np.rint(labels)):
        return labels.astype(np.int64)
    if labels.dtype.kind == "b":
        return labels.astype(np.int64)
    if labels.dtype.kind == "S":
        try:
            return np.char.decode(labels, "utf-8")
        except UnicodeDecodeError as error:
            raise InvalidDataError(f"Labels must be whole numbers or text in UTF-8; got others ({error}).") from error
    if labels.dtype.kind == "O" and all(isinstance(label, str) for label in labels):
        return labels.astype(str)
    if labels.dtype.kind == "O" and all(isinstance(label, int | np.integer) for label in labels):
        if not all(-(2**63) <= label < 2**63 for label in labels):
            raise InvalidDataError("Labels that are numbers must fit into 64 bits; got larger ones. Pass them as text.")
        return labels.astype(np.int64)
    if labels.dtype.kind not in "iuU":
        raise InvalidDataError(
            f"Labels must be whole numbers or strings, with none missing; got {labels.dtype} values such as "
            f"{labels[:3].tolist()}. Number the classes, or leave the labels out."
        )
    return labels.astype(labels.dtype.newbyteorder("="), copy=False)  # others are read no further than NumPy


def _listed(values: Any, what: str) -> tuple[Any, ...]:
    try:
        return tuple(values)
    except TypeError as error:
        raise DataTypeError(f"The {what} of views must be a list or tuple; got a {type(values).__name__}.") from error


def _check_names(names: tuple[str, ...], n_arrays: int) -> None:
    if not names and not n_arrays:
        raise InvalidDataError("There must be at least one view; got none. Pass one or more (n, d) matrices.")
    if len(names) != n_arrays:
        raise InvalidDataError(f"Each view must have one name; got {len(names)} names for {n_arrays} views.")
    for name in names:
        if not isinstance(name, str) or not name:
            raise InvalidDataError(
                f"The name of a view must be a non-empty string; got {name!r}. "
                "Name it after its features, such as 'hog'."
            )
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise InvalidDataError(
            f"Each view must have a name of its own; {', '.join(doubled)} came more than once. Rename the others."
        )


def _checked(array: Any, name: str) -> Rows:
    if is_dataset(array):
        array = H5Rows(array)
    shape, dtype = getattr(array, "shape", None), getattr(array, "dtype", None)
    if not isinstance(shape, tuple) or not isinstance(dtype, np.dtype):
        raise InvalidDataError(
            f"A view must be a matrix; view {name!r} is a {type(array).__name__}. Convert it with numpy.asarray."
        )
    if len(shape) != 2 or 0 in shape:
        raise InvalidDataError(
            f"A view must be a matrix of at least one row and one column; view {name!r} has shape {shape}. "
            "Flatten what belongs to one sample into one row."
        )
    if not is_numeric(dtype):
        raise InvalidDataError(
            f"A view must hold real numbers; view {name!r} holds {dtype}. Turn its values into numbers first."
        )
    return array

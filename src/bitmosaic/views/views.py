"""The class Views, and matrices that are read by rows: HDF5, sparse and concatenated matrices, selected rows."""

import mmap
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from bitmosaic.errors import FileFormatError, InvalidDataError, ViewMismatchError

# Names of labels and paths in files. Upper and lower case are equal.
LABEL_NAMES = ("labels", "label", "truelabel", "truth", "gt", "gnd", "y")
PATH_NAMES = ("path", "paths", "file", "files", "filename", "filenames")
_WINDOW_BYTES = 32 * 2**20  # read at most this much at once to select scattered rows
_ROW_COST_BYTES = 8 * 2**10  # selecting one scattered row takes as long as reading this much in sequence


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

    The constructor checks shapes and types. It reads and copies no values.
    """

    names: tuple[str, ...]
    arrays: tuple[Rows, ...]  # each (n, d_v)
    labels: np.ndarray | None = None  # (n,) true classes, integers or strings, where known
    paths: tuple[str, ...] | None = None  # (n,) the file of each row, where known
    columns: tuple[tuple[str, ...] | None, ...] | None = None  # column names of each view, where known

    def __post_init__(self) -> None:
        names, arrays = tuple(self.names), tuple(self.arrays)
        _check_names(names, len(arrays))
        arrays = tuple(_checked(array, name) for name, array in zip(names, arrays, strict=True))
        sizes = [array.shape[0] for array in arrays]
        if len(set(sizes)) > 1:
            raise ViewMismatchError(
                f"All views must have the same number of rows; got {sizes} for {', '.join(names)}. "
                "Did one extractor skip unreadable images? See skipped.csv in the views folder."
            )
        labels = None if self.labels is None else as_labels(self.labels)
        paths = None if self.paths is None else tuple(self.paths)
        for what, values in (("label", labels), ("path", paths)):
            if values is not None and len(values) != sizes[0]:
                raise ViewMismatchError(
                    f"There must be one {what} for each row of the views; got {len(values)} {what}s "
                    f"for {sizes[0]} rows. Remove the {what}s of rows that are not in the views."
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
    """Rows of a view as native float32 (or `dtype`), C-contiguous. Do not modify the result: it may be the user's data.

    `rows` is a slice or a sorted index array. Values out of range become inf without a warning: the caller checks
    each block for finite values.
    """
    source = H5Rows(array) if is_dataset(array) else array
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(source[rows], dtype=dtype)


def exact_dtype(array: Rows) -> Any:
    """The type in which to read a view before it is centered: float64 if float32 would round its values."""
    return np.float32 if np.can_cast(np.dtype(array.dtype), np.float32) else np.float64


def forget_pages(array: Rows, rows: np.ndarray) -> None:
    """Release the pages of a memory map between the first and the last of some sorted rows.

    The pages stay in the system's cache, but no longer count as memory of this process. Copy-on-write maps are left
    alone, because releasing their pages would discard the user's changes.
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
    """True classes as an (n,) array of integers or strings. Accepts shapes (n, 1) and (1, n), and integral floats."""
    labels = np.asarray(values)
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
            raise InvalidDataError(f"Labels must be whole numbers or UTF-8 text; got other bytes ({error}).") from error
    if labels.dtype.kind == "O" and all(isinstance(label, str) for label in labels):
        return labels.astype(str)
    if labels.dtype.kind == "O" and all(isinstance(label, int | np.integer) for label in labels):
        return labels.astype(np.int64)
    if labels.dtype.kind not in "iuU":
        raise InvalidDataError(
            f"Labels must be whole numbers or strings, with none missing; got {labels.dtype} values such as "
            f"{labels[:3].tolist()}. Number the classes, or leave the labels out."
        )
    return labels.astype(labels.dtype.newbyteorder("="), copy=False)  # pyarrow reads native byte order only


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
            f"View names must be unique; {', '.join(doubled)} came more than once. Rename the others."
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
            "Flatten the values of one sample into one row."
        )
    if not is_numeric(dtype):
        raise InvalidDataError(
            f"A view must hold real numbers; view {name!r} holds {dtype}. Convert its values to numbers first."
        )
    return SparseRows(array) if is_sparse(array) else array


def is_label_name(name: str) -> bool:
    return name.lower() in LABEL_NAMES


def is_path_name(name: str) -> bool:
    return name.lower() in PATH_NAMES


def positions(rows: Any, n_rows: int) -> np.ndarray:
    """Non-negative row numbers of a slice or an index array."""
    if isinstance(rows, slice):
        return np.arange(*rows.indices(n_rows))
    index = np.asarray(rows)
    if index.size and not -n_rows <= index.min() <= index.max() < n_rows:
        raise IndexError(f"rows {index.min()} to {index.max()} requested from a view of {n_rows} rows")
    return np.where(index < 0, index + n_rows, index)


def runs(keys: np.ndarray) -> Iterator[slice]:
    """Slices of consecutive equal keys, in order."""
    if len(keys):
        edges = [0, *(np.flatnonzero(np.diff(keys)) + 1).tolist(), len(keys)]
        yield from map(slice, edges[:-1], edges[1:])


class H5Rows:
    """An h5py Dataset as rows. The file stays open as long as this object exists.

    With `transposed`, the rows of the view are the columns of the dataset, as MATLAB stores them.
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
                "The file may be damaged or truncated. Copy or write it again."
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
    """Whether it is an h5py Dataset. Does not import h5py."""
    h5py = sys.modules.get("h5py")
    return h5py is not None and isinstance(array, h5py.Dataset)


class SparseRows:
    """A sparse matrix as rows. Rows are made dense when they are read, so results are those of the dense matrix.

    A row whose stored values are all NaN is missing: it is read as a row of NaN.
    """

    def __init__(self, matrix: Any) -> None:
        try:
            if hasattr(matrix, "check_format"):
                matrix.check_format()  # SciPy writes to any address for a row or column number out of range
        except ValueError as error:
            raise InvalidDataError(f"A sparse matrix must be consistent; {error}. Build it again.") from error
        self.matrix = matrix.tocsr()
        self.shape: tuple[int, ...] = tuple(matrix.shape)
        self.dtype: np.dtype = matrix.dtype

    @property
    def T(self) -> "SparseRows":
        return SparseRows(self.matrix.T)

    def most_values(self, n_rows: int) -> int:
        """Upper bound on the stored values of any `n_rows` rows."""
        return int(np.sort(np.diff(self.matrix.indptr))[-n_rows:].sum())

    def __getitem__(self, rows: Any) -> np.ndarray:
        some = self.matrix[rows]
        dense = some.toarray()
        if self.dtype.kind == "f" and (empty := np.isnan(some.data)).any():
            numbers = np.repeat(np.arange(len(dense)), np.diff(some.indptr))
            dense[np.setdiff1d(numbers[empty], numbers[~empty])] = np.nan
        return dense


def is_sparse(array: Any) -> bool:
    """Whether it is a sparse matrix of SciPy, or can be turned into one."""
    return hasattr(array, "tocsr")


class ChainedRows:
    """Matrices of the same width, concatenated by rows without a copy. Indexed by slices or sorted indices."""

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
        """Pairs of a part and the row numbers inside that part, in the order of `rows`."""
        wanted = positions(rows, self.shape[0])
        owners = np.searchsorted(self._ends, wanted, side="right")
        for same in runs(owners):
            owner = int(owners[same.start])
            part = self.parts[owner]
            yield part, wanted[same] - (self._ends[owner] - part.shape[0])


class PickedRows:
    """Some sorted rows of a matrix, selected without a copy."""

    def __init__(self, array: Rows, picked: np.ndarray):
        self._array, self._picked = array, picked
        self.shape, self.dtype = (len(picked), array.shape[1]), array.dtype

    def __getitem__(self, rows: Any) -> np.ndarray:
        return read_rows(self._array, self._picked[rows], self.dtype)


def picked(views: Views, rows: np.ndarray) -> Views:
    """Views with some sorted rows only."""
    arrays = tuple(PickedRows(array, rows) for array in views.arrays)
    labels = None if views.labels is None else views.labels[rows]
    return Views(views.names, arrays, labels, None if views.paths is None else tuple(views.paths[i] for i in rows))


def chained(tables: Sequence[Views]) -> Views:
    """Views of the same names and widths, concatenated by rows. Labels are kept if all of them have labels."""
    first = tables[0]
    if len(tables) == 1:
        return first
    for table in tables[1:]:
        if table.names != first.names or table.widths != first.widths:
            raise ViewMismatchError(
                f"Views to concatenate must have the same names and widths; got {_in_words(first)} and then "
                f"{_in_words(table)}. Extract them with the same options."
            )
    arrays = tuple(ChainedRows(parts) for parts in zip(*(table.arrays for table in tables), strict=True))
    return Views(first.names, arrays, _chained_labels(tables), _chained_paths(tables))


def _chained_labels(tables: Sequence[Views]) -> np.ndarray | None:
    labels = [table.labels for table in tables if table.labels is not None]
    if len(labels) < len(tables):
        return None
    if np.result_type(*labels).kind not in "iu":  # text mixed with numbers, or int64 with uint64
        labels = [values.astype(str, copy=False) for values in labels]
    return np.concatenate(labels)


def _chained_paths(tables: Sequence[Views]) -> tuple[str, ...] | None:
    """Row numbers take the place of missing paths. None if all paths are missing."""
    if all(table.paths is None for table in tables):
        return None
    found: list[str] = []
    for table in tables:
        found += table.paths or map(str, range(len(found), len(found) + table.n_rows))
    return tuple(found)


def _in_words(views: Views) -> str:
    return ", ".join(f"{name} ({width})" for name, width in zip(views.names, views.widths, strict=True))

"""Read views from a path: choose the reader by the format, and read .npy, .npz and HDF5."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bitmosaic.errors import (
    BitmosaicError,
    DataTypeError,
    FileFormatError,
    InvalidDataError,
    MissingFileError,
    ViewMismatchError,
)
from bitmosaic.io.read import load_npz
from bitmosaic.views.folder import open_matrix, read_folder
from bitmosaic.views.hdf5 import items_inside, open_h5, read_whole
from bitmosaic.views.mat import read_mat
from bitmosaic.views.parquet import ParquetRows, read_parquet
from bitmosaic.views.views import (
    H5Rows,
    Rows,
    SparseRows,
    Views,
    is_dataset,
    is_label_name,
    is_numeric,
    is_path_name,
    is_sparse,
)

# ---- Convert user input to Views. All input of `fit` and `predict` is validated here, once.


def as_views(data: Any) -> Views:
    """Views from the input of `fit` and `predict`.

    Accepted: Views · a dict of names and (n, d) matrices · a list of (n, d) matrices, named view0, view1, … ·
    one (n, d) matrix, named view0 · a path for `read_views`. Arrays, memory maps and Dask arrays are not copied, and
    their values are not read. Matrices of scipy.sparse stay sparse, in CSR format.
    """
    if isinstance(data, Views):
        return data
    if isinstance(data, str | os.PathLike):
        return read_views(data)
    if isinstance(data, Mapping) and not hasattr(data, "shape"):  # a SciPy dok matrix is a dict with a shape
        names = tuple(data)
        arrays = tuple(_as_rows(data[name], f"View {name!r}: ") for name in names)
        return Views(names, arrays, columns=tuple(_columns(data[name]) for name in names))
    if isinstance(data, list | tuple) and _is_list_of_views(data):
        names = tuple(f"view{i}" for i in range(len(data)))
        named = zip(names, data, strict=True)
        arrays = tuple(_as_rows(array, f"View {name!r}: ") for name, array in named)
        return Views(names, arrays, columns=tuple(map(_columns, data)))
    return Views(("view0",), (_as_rows(data, ""),))


def _columns(table: Any) -> tuple[str, ...] | None:
    """The column names of a data frame, else None."""
    names = getattr(table, "columns", None)
    return None if names is None else tuple(map(str, names))


def _is_list_of_views(data: list | tuple) -> bool:
    """Whether the items are views (all are matrices) or the rows of one view (none is). A mix is an error."""
    if not data:
        return True  # Views raises the error for an empty list
    matrices = [_is_matrix(item) for item in data]
    if any(matrices) and not all(matrices):
        i = matrices.index(False)
        raise InvalidDataError(
            "Every view in a list must be a matrix of shape (n, d); item "
            f"{i} is a {type(data[i]).__name__} of shape {getattr(data[i], 'shape', 'unknown')}. "
            "If it is one feature, reshape it to (n, 1)."
        )
    return all(matrices)


def _is_matrix(item: Any) -> bool:
    shape = getattr(item, "shape", None)
    if shape is not None:
        return len(shape) == 2
    if hasattr(item, "ndim"):
        return item.ndim == 2
    return isinstance(item, list | tuple) and bool(item) and all(_is_row(row) for row in item)


def _is_row(item: Any) -> bool:
    return isinstance(item, list | tuple) or getattr(item, "ndim", 0) == 1


def _as_rows(array: Any, prefix: str) -> Rows:
    """The array unchanged if it can be read by rows, else the result of scikit-learn's check_array."""
    if is_dataset(array) or isinstance(array, H5Rows | ParquetRows | SparseRows):
        return array
    if hasattr(array, "__dask_graph__"):
        return dask_rows(array, prefix)
    if isinstance(array, np.ma.MaskedArray):
        raise DataTypeError(f"{prefix}Masked arrays are not supported. Fill the masked values, or drop their rows.")
    dtype = getattr(array, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind == "c":
        raise InvalidDataError(
            f"{prefix}Complex data not supported: got {dtype}. Pass the real and imaginary parts as separate columns."
        )
    if is_sparse(array):  # Views checks the type of its values
        return array
    checked = _check_array(array, prefix)
    # check_array turns a memory map into a plain array. Keep the memory map: its pages can be released.
    return array if isinstance(array, np.ndarray) and array.dtype == checked.dtype else checked


def dask_rows(array: Any, prefix: str) -> Rows:
    """The Dask array unchanged. It must be an array with known chunk sizes."""
    if not hasattr(array, "chunks"):
        raise DataTypeError(
            f"{prefix}With Dask, a view is an array; got a {type(array).__name__}. "
            "Turn a data frame into one with .to_dask_array(lengths=True)."
        )
    if is_sparse(getattr(array, "_meta", None)):
        raise DataTypeError(
            f"{prefix}The chunks of a Dask array must be dense; these are sparse. Pass the sparse matrix without Dask."
        )
    if any(size != size for size in array.shape):
        raise InvalidDataError(
            f"{prefix}The rows of each chunk of a Dask array must be known; these are not. "
            "Call its compute_chunk_sizes() first."
        )
    return array


def _check_array(array: Any, prefix: str) -> np.ndarray:
    from sklearn.utils import check_array

    try:
        return check_array(array, dtype="numeric", ensure_all_finite=False, accept_sparse=False)
    except BitmosaicError:
        raise
    except ValueError as error:
        # scikit-learn prints the array between its two sentences; remove it
        reason = re.sub(r":?\s*\n\s*array=.*\.\n", ". ", str(error), flags=re.DOTALL)
        if reason.startswith("could not convert"):
            reason = f"A view must hold numbers only; {reason}. Leave out text columns, or encode them as numbers."
        raise InvalidDataError(prefix + reason) from error
    except TypeError as error:
        raise DataTypeError(prefix + str(error)) from error


def read_views(path: str | os.PathLike[str], *, bare: bool = False) -> Views:
    """Views from a views folder, or a .npy, .npz, .mat, .h5, .hdf5 or .parquet file. Large matrices stay on disk.

    `bare` leaves out labels and paths, which take memory for every row.
    """
    try:
        path = Path(path)
        there, is_folder = path.exists(), path.is_dir()
    except (TypeError, ValueError, OSError) as error:
        raise FileFormatError(f"The path of the views is invalid: {error}.") from error
    if not there:
        raise MissingFileError(f"There is no file or folder {path}. Check the path, or extract the views first.")
    reader = partial(read_folder, bare=bare) if is_folder else READERS.get(path.suffix.lower())
    if reader is None:
        raise FileFormatError(
            f"Views are read from a views folder or a file of type {', '.join(READERS)}; got {path.name!r}. "
            "Save them with numpy.save, or with bitmosaic's write_views."
        )
    try:
        views = reader(path)
        return replace(views, labels=None, paths=None) if bare else views
    except ViewMismatchError:
        raise
    except MemoryError as error:
        raise FileFormatError(
            f"{path} does not fit into memory ({str(error) or 'out of memory'}). "
            "Save its matrices as .npy files in a folder: these stay on disk."
        ) from error
    except InvalidDataError as error:
        raise FileFormatError(f"{path}: {error}") from error


def read_npy(path: Path) -> Views:
    return Views(("view0",), (open_matrix(path),))


def read_npz(path: Path) -> Views:
    """Every matrix is a view. Vectors named labels (or y, truth, gt, …) and paths are the labels and paths. A file
    written by scipy.sparse.save_npz is one view."""
    found = load_npz(path)
    if {"format", "shape", "data"} <= found.keys():
        return Views(("view0",), (_read_sparse(path),))
    return _as_views(path, found)


def _read_sparse(path: Path) -> SparseRows:
    from scipy.sparse import load_npz as load_sparse

    try:
        return SparseRows(load_sparse(path))
    except MemoryError:
        raise
    except Exception as error:  # inconsistent arrays raise anything, from KeyError to TypeError
        raise FileFormatError(
            f"{path} is not a whole sparse matrix ({error}). Write it again with scipy.sparse.save_npz."
        ) from error


def read_hdf5(path: Path) -> Views:
    """Every matrix at the top level or in the group `views` is a view. Views stay on disk."""
    file = open_h5(path)
    found: dict[str, Any] = {}
    try:
        top = dict(items_inside(file))
        for group in (top, dict(items_inside(top["views"])) if hasattr(top.get("views"), "items") else {}):
            for name, item in group.items():
                if not is_dataset(item):
                    continue
                if name in found:
                    raise FileFormatError(f"{path} holds {name!r} twice, at the top and in 'views'. Rename one.")
                is_matrix = item.ndim == 2 and is_numeric(item.dtype)
                found[name] = H5Rows(item) if is_matrix else _small(name, item)
    except FileFormatError:
        raise
    except Exception as error:  # a damaged file makes h5py raise anything, from KeyError to UnicodeDecodeError
        raise FileFormatError(f"{path} cannot be read ({error}). It may be damaged. Write it again.") from error
    return _as_views(path, found)


READERS: dict[str, Callable[[Path], Views]] = {
    ".npy": read_npy,
    ".npz": read_npz,
    ".mat": read_mat,
    ".h5": read_hdf5,
    ".hdf5": read_hdf5,
    ".parquet": read_parquet,
}


def _small(name: str, dataset: Any) -> Any:
    """A dataset that is not a view. Labels and paths are read; others are only listed in error messages."""
    if not (is_label_name(name) or is_path_name(name)):
        return dataset
    return read_whole(dataset)


def _as_views(path: Path, found: dict[str, Any]) -> Views:
    """Views, labels and paths from the named arrays of one file."""
    views: dict[str, Rows] = {}
    labels, paths = None, None
    for name, array in found.items():
        is_vector = len(array.shape) == 1 or (len(array.shape) == 2 and 1 in array.shape)
        if is_label_name(name) and is_vector and labels is None:
            labels = array[:]
        elif is_path_name(name) and is_vector and array.dtype.kind in "USO":
            paths = tuple(os.fsdecode(p) if isinstance(p, bytes) else str(p) for p in np.ravel(array))
        elif len(array.shape) == 2 and is_numeric(array.dtype):
            views[name] = array
    if not views:
        held = ", ".join(f"{name} {tuple(array.shape)} {array.dtype}" for name, array in found.items())
        raise FileFormatError(f"A view is a matrix of numbers; {path} holds {held or 'nothing'}. Save (n, d) matrices.")
    return Views(tuple(views), tuple(views.values()), labels, paths)

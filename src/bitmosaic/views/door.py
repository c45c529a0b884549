"""Whatever a user passes -> Views. Validation happens here, once."""

import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from bitmosaic.errors import BitmosaicError, DataTypeError, InvalidDataError
from bitmosaic.views.core import Rows, Views
from bitmosaic.views.hdf5 import H5Rows, is_dataset
from bitmosaic.views.parquet import ParquetRows
from bitmosaic.views.readers import read_views


def as_views(data: Any) -> Views:
    """Views from what `fit` and `predict` take.

    Views: as they are · a dict name -> (n, d) · a list of (n, d): view0, view1, … · one (n, d): view0 ·
    a path: what `read_views` reads. Arrays, memory maps and Dask arrays are neither copied nor read through.
    """
    if isinstance(data, Views):
        return data
    if isinstance(data, str | os.PathLike):
        return read_views(data)
    if isinstance(data, Mapping) and not hasattr(data, "shape"):  # SciPy's dok matrices are dicts with a shape
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
    """The names of a data frame's columns."""
    names = getattr(table, "columns", None)
    return None if names is None else tuple(map(str, names))


def _is_list_of_views(data: list | tuple) -> bool:
    """All matrices: a list of views. None of them: the rows of one view. Some: a mistake."""
    if not data:
        return True  # of no views, which Views refuses
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


def _as_rows(array: Any, whose: str) -> Rows:
    """The array itself if it can be read as it is; otherwise what scikit-learn makes of it."""
    if is_dataset(array) or isinstance(array, H5Rows | ParquetRows):
        return array
    if hasattr(array, "__dask_graph__"):
        return dask_rows(array, whose)
    if isinstance(array, np.ma.MaskedArray):
        raise DataTypeError(f"{whose}Masked arrays are not supported. Fill the masked values, or drop their rows.")
    dtype = getattr(array, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind == "c":
        raise InvalidDataError(
            f"{whose}Complex data not supported: got {dtype}. Pass real and imaginary parts as columns of their own."
        )
    checked = _check_array(array, whose)
    # check_array gives a plain array of the same memory: the memory map itself is worth keeping.
    return array if isinstance(array, np.ndarray) and array.dtype == checked.dtype else checked


def dask_rows(array: Any, whose: str) -> Rows:
    """The array itself, if it is one whose rows are counted."""
    if not hasattr(array, "chunks"):
        raise DataTypeError(
            f"{whose}Of what Dask has, a view is an array; got a {type(array).__name__}. "
            "Turn a data frame into one with .to_dask_array(lengths=True)."
        )
    if any(size != size for size in array.shape):
        raise InvalidDataError(
            f"{whose}The rows of each chunk of a Dask array must be known; these are not. "
            "Call its compute_chunk_sizes() first."
        )
    return array


def _check_array(array: Any, whose: str) -> np.ndarray:
    from sklearn.utils import check_array

    try:
        return check_array(array, dtype="numeric", ensure_all_finite=False, accept_sparse=False)
    except BitmosaicError:
        raise
    except ValueError as error:
        # scikit-learn prints the whole array between its two sentences
        reason = re.sub(r":?\s*\n\s*array=.*\.\n", ". ", str(error), flags=re.DOTALL)
        if reason.startswith("could not convert"):
            reason = f"A view must hold numbers only; {reason}. Leave out columns of text, or encode them."
        raise InvalidDataError(whose + reason) from error
    except TypeError as error:
        raise DataTypeError(whose + str(error)) from error

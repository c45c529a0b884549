"""Views from MATLAB files: v7 and earlier, and v7.3 (HDF5)."""

import re
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from bitmosaic.errors import FileFormatError, ViewMismatchError
from bitmosaic.io.read import refuse_larger_than_memory
from bitmosaic.views.hdf5 import checked, items_inside, open_h5, read_whole
from bitmosaic.views.views import (
    LABEL_NAMES,
    H5Rows,
    Rows,
    SparseRows,
    Views,
    as_labels,
    is_dataset,
    is_numeric,
    is_sparse,
)

_VIEW_NAMES = ("x", "data", "fea", "features", "views")
_NUMBERED = re.compile(r"(x|view|v|fea|data)_?(\d+)", re.IGNORECASE)
_NUMERIC_CLASSES = (
    *("double", "single", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
)

# A variable is converted to a matrix (Rows), text (an array of strings), or a cell (a list of variables, column by
# column). Anything else becomes a str that describes it, for error messages.
Variable = Any


def read_mat(path: Path) -> Views:
    """Views from `X`, `data`, `fea`, `features`, `views` (a cell or one matrix) or `X1`, `X2`, …; labels
    from `Y`, `truth`, `gt`, …. Matrices may be N×d or d×N: the side as long as the labels is N.
    """
    import h5py

    variables = _load_hdf5(path) if h5py.is_hdf5(path) else _load_plain(path)
    labels = _find_labels(variables)
    names, cells = _find_views(path, variables)
    arrays = _upright(path, cells, None if labels is None else len(labels))
    return Views(names, tuple(arrays), labels)


def _find_views(path: Path, variables: dict[str, Variable]) -> tuple[tuple[str, ...], list[Rows]]:
    by_lower = {name.lower(): name for name in reversed(variables)}
    for lower in _VIEW_NAMES:
        if lower in by_lower:
            name = by_lower[lower]
            cells = variables[name] if isinstance(variables[name], list) else [variables[name]]
            if not cells or not all(_is_matrix(cell) for cell in cells):
                raise FileFormatError(
                    f"{path}: variable {name!r} must be a matrix of numbers or a cell array of matrices; "
                    f"it is {_describe(variables[name])}. Save each view as a numeric matrix."
                )
            return tuple(f"view{i}" for i in range(len(cells))), cells
    matches = [(name, match) for name in variables if (match := _NUMBERED.fullmatch(name))]
    numbered = sorted((match[1].lower(), int(match[2]), name) for name, match in matches)
    for prefix in ("x", "view", "v", "fea", "data"):
        ours = (name for found, _, name in numbered if found == prefix)
        names = tuple(name for name in ours if _is_matrix(variables[name]))
        if names:
            return names, [variables[name] for name in names]
    held = ", ".join(f"{name} ({_describe(value)})" for name, value in variables.items()) or "nothing"
    raise FileFormatError(
        f"{path}: views must be in variables named X, data, fea, features, views or X1, X2, …; "
        f"the file holds {held}. Rename the variable that holds the views."
    )


def _find_labels(variables: dict[str, Variable]) -> np.ndarray | None:
    for lower in LABEL_NAMES:
        for name, value in variables.items():
            if name.lower() != lower:
                continue
            if isinstance(value, list) and len(value) > 1 and all(_is_text(cell) for cell in value):
                return np.array(["".join(cell) for cell in value])
            if isinstance(value, list) and value:
                value = value[0]  # the cell repeats the labels for each view
            if _is_matrix(value) and 1 in value.shape:
                return as_labels(value[:])
            if _is_text(value) and len(value) > 1:
                return as_labels(value)
    return None


def _upright(path: Path, cells: list[Rows], n_labels: int | None) -> list[Rows]:
    """Every matrix as N×d."""
    if n_labels is not None:
        for i, cell in enumerate(cells):
            if n_labels not in cell.shape:
                raise ViewMismatchError(
                    f"{path}: one side of each view must equal the number of labels, {n_labels}; view {i} is "
                    f"{cell.shape[0]}×{cell.shape[1]}. Check that views and labels belong together."
                )
        n_rows = n_labels
    else:
        shared = set(cells[0].shape).intersection(*(cell.shape for cell in cells))
        side_by_side = len({cell.shape[0] for cell in cells}) > 1
        if side_by_side and len({cell.shape[1] for cell in cells}) == 1:
            n_rows = cells[0].shape[1]
        else:
            n_rows = cells[0].shape[0] if cells[0].shape[0] in shared or not shared else shared.pop()
    return [cell.T if cell.shape[0] != n_rows and cell.shape[1] == n_rows else cell for cell in cells]  # type: ignore[attr-defined]


def _is_matrix(value: Variable) -> bool:
    return isinstance(value, np.ndarray | H5Rows | SparseRows) and len(value.shape) == 2 and is_numeric(value.dtype)


def _is_text(value: Variable) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "U"


def _describe(value: Variable) -> str:
    if isinstance(value, list):
        kinds = sorted({_describe(cell) for cell in value})
        return f"a cell array of {len(value)}: {', '.join(kinds[:4])}"
    if _is_text(value):
        return "text"
    return value if isinstance(value, str) else f"{'×'.join(map(str, value.shape))} {value.dtype}"


def _load_plain(path: Path) -> dict[str, Variable]:
    """Versions 4 to 7.2."""
    from scipy.io import loadmat, whosmat

    try:
        numeric = [(shape, kind) for _, shape, kind in whosmat(path) if kind in _NUMERIC_CLASSES]
        refuse_larger_than_memory(path, sum(prod(shape) * np.dtype(kind).itemsize for shape, kind in numeric))
        loaded = loadmat(path)
        return {name: _from_scipy(value) for name, value in loaded.items() if not name.startswith("__")}
    except FileFormatError:
        raise
    except Exception as error:  # a damaged file raises anything, from KeyError to zlib.error
        raise FileFormatError(
            f"{path} is not a whole .mat file ({str(error) or type(error).__name__}). "
            "It may be truncated. Copy it, or save it again."
        ) from error


def _from_scipy(value: Any) -> Variable:
    if is_sparse(value):
        return SparseRows(value)
    if not isinstance(value, np.ndarray) or value.dtype.names:
        return "a struct or object"
    if value.dtype == object:
        return [_from_scipy(cell) for cell in value.ravel(order="F")]
    return np.char.rstrip(value) if _is_text(value) else value


def _load_hdf5(path: Path) -> dict[str, Variable]:
    file = open_h5(path)
    try:
        return {name: _from_hdf5(item) for name, item in items_inside(file) if not name.startswith("#")}
    except FileFormatError:
        raise
    except Exception as error:  # a damaged file makes h5py raise anything, from KeyError to UnicodeDecodeError
        raise FileFormatError(f"{path} cannot be read ({error}). It may be damaged. Save it again.") from error


def _from_hdf5(item: Any, in_cell: bool = False) -> Variable:
    """MATLAB 7.3 stores matrices transposed, cells as references, sparse matrices as groups."""
    import h5py

    kind = item.attrs.get("MATLAB_class", b"")
    kind = kind.decode() if isinstance(kind, bytes) else str(kind)
    if "MATLAB_sparse" in item.attrs:
        return _sparse(item)
    if not is_dataset(item):
        return f"a {kind or 'struct'}"
    if item.attrs.get("MATLAB_empty"):
        return f"an empty {kind}"
    if h5py.check_ref_dtype(item.dtype) is not None:
        if in_cell:
            return "a nested cell"
        # C order of the transposed array is MATLAB's column-by-column order.
        return [_from_hdf5(checked(item.file[ref]), in_cell=True) for ref in np.ravel(read_whole(item))]
    if kind == "char" and item.ndim == 2:
        return np.array([row.astype("<u2").tobytes().decode("utf-16-le") for row in read_whole(item).T])
    if item.ndim == 2 and is_numeric(item.dtype):
        return H5Rows(item, transposed=True)
    return f"a {item.dtype} array"


def _sparse(group: Any) -> SparseRows:
    """A sparse matrix from its column ends `jc`, row numbers `ir` and `data`. A zero matrix has no `ir` and `data`."""
    from scipy.sparse import csc_array

    parts = {name: read_whole(part) for name, part in items_inside(group)}
    ends, rows, data = parts["jc"], parts.get("ir", np.zeros(0, np.int64)), parts.get("data", np.zeros(0))
    shape = (int(group.attrs["MATLAB_sparse"]), len(ends) - 1)
    return SparseRows(csc_array((data, rows.astype(np.int64), ends.astype(np.int64)), shape))

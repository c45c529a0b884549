"""Multi-view .mat files as researchers share them -> Views: v7 and earlier, and v7.3 (HDF5)."""

import re
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from bitmosaic.errors import FileFormatError, ViewMismatchError
from bitmosaic.npy import refuse_larger_than_memory, text_array
from bitmosaic.views.core import Rows, Views, as_labels, is_numeric
from bitmosaic.views.hdf5 import H5Rows, attribute, checked, is_dataset, items_inside, open_h5, read_whole
from bitmosaic.views.mat5 import ARRAY_BYTES, CHARACTER_BYTES, MOST_CELLS, ROW_BYTES, Memory, decoded, dense, read_mat5
from bitmosaic.views.naming import LABEL_NAMES

_VIEW_NAMES = ("x", "data", "fea", "features", "views")
_NUMBERED = re.compile(r"(x|view|v|fea|data)_?(\d+)", re.IGNORECASE)

# A variable becomes: a matrix (Rows) · text (an array of strings) · a cell (a list of variables, column by
# column) · or, for anything else, a str that says what it is.
Variable = Any


def read_mat(path: Path) -> Views:
    """Views from `X`, `data`, `fea`, `features`, `views` (a cell or one matrix) or `X1`, `X2`, …; labels
    from `Y`, `truth`, `gt`, …. Cells may be N×d or d×N: the number of labels decides."""
    import h5py

    variables = _load_hdf5(path) if h5py.is_hdf5(path) else _load_plain(path)
    labels = _find_labels(path, variables)
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
                    f"{path}: variable {name!r} must be a matrix of numbers or a cell array of such; "
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
        f"{path}: views are looked for in the variables X, data, fea, features, views or X1, X2, …; "
        f"the file holds {held}. Rename the variable that holds the views."
    )


def _find_labels(path: Path, variables: dict[str, Variable]) -> np.ndarray | None:
    for lower in LABEL_NAMES:
        for name, value in variables.items():
            if name.lower() != lower:
                continue
            if isinstance(value, list) and len(value) > 1 and all(_is_text(cell) for cell in value):
                return text_array(path, ["".join(cell) for cell in value])
            if isinstance(value, list) and value:
                value = value[0]  # one copy of the labels for each view
            if _is_matrix(value) and 1 in value.shape:
                return as_labels(value[:])
            if _is_text(value) and len(value) > 1:
                return as_labels(value)
    return None


def _upright(path: Path, cells: list[Rows], n_labels: int | None) -> list[Rows]:
    """Every cell as N×d."""
    if n_labels is not None:
        for i, cell in enumerate(cells):
            if n_labels not in cell.shape:
                raise ViewMismatchError(
                    f"{path}: one side of each view must be the number of labels, {n_labels}; view {i} is "
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
    return isinstance(value, np.ndarray | H5Rows) and len(value.shape) == 2 and is_numeric(value.dtype)


def _is_text(value: Variable) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "U"


def _describe(value: Variable) -> str:
    if isinstance(value, list):
        kinds = sorted({_describe(cell) for cell in value})
        return f"a cell array of {len(value)}: {', '.join(kinds[:4])}"
    if _is_text(value):
        return "text"
    return value if isinstance(value, str) else f"{'×'.join(map(str, value.shape))} {value.dtype}"


def _in_memory(path: Path) -> BytesIO:
    """A file of version 4: SciPy asks for as many bytes as it claims, of which memory has those that are there."""
    refuse_larger_than_memory(path, 2 * path.stat().st_size)
    return BytesIO(path.read_bytes())


def _load_plain(path: Path) -> dict[str, Variable]:
    """Version 5, or 4, which has zeros in its first four bytes."""
    from scipy.io import loadmat

    try:
        with path.open("rb") as file:
            old = 0 in file.read(4)
        with np.errstate(all="ignore"):  # the sparse ones of version 4, which are not used, may have any place
            loaded = loadmat(_in_memory(path)) if old else read_mat5(path)  # type: ignore[arg-type] # any file will do
        for name, value in loaded.items() if old else ():  # SciPy believes what a sparse one says of itself
            loaded[name] = value if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
        return {name: value for name, value in loaded.items() if not name.startswith("__")}
    except FileFormatError:
        raise
    except Exception as error:  # a damaged file raises anything, from KeyError to zlib.error
        raise FileFormatError(
            f"{path} is not a whole .mat file ({str(error) or type(error).__name__}). "
            "It may be cut: copy it, or save it again."
        ) from error


def _load_hdf5(path: Path) -> dict[str, Variable]:
    file, memory = open_h5(path), Memory(path)
    try:
        return {name: _from_hdf5(item, memory) for name, item in items_inside(file) if not name.startswith("#")}
    except FileFormatError:
        raise
    except Exception as error:  # a damaged file makes h5py raise anything, from KeyError to UnicodeDecodeError
        raise FileFormatError(f"{path} cannot be read ({error}). It may be damaged: save it again.") from error


def _from_hdf5(item: Any, memory: Memory, depth: int = 0) -> Variable:
    """MATLAB 7.3 stores matrices transposed, cells as references, sparse matrices as groups.

    What is read whole counts each time: many cells may refer to the same few bytes.
    """
    import h5py

    kind = attribute(item, "MATLAB_class") or b""
    kind = kind.decode() if isinstance(kind, bytes) else str(kind)
    if (n_rows := attribute(item, "MATLAB_sparse")) is not None:
        return _sparse(item, int(n_rows), memory)
    if not is_dataset(item):
        return f"a {kind or 'struct'}"
    if attribute(item, "MATLAB_empty"):
        return f"an empty {kind}"
    if h5py.check_ref_dtype(item.dtype) is not None:
        # C order of the transposed array is MATLAB's column-by-column order.
        if depth:  # cells in cells in cells could go on for ever
            return "a nested cell"
        if item.size > MOST_CELLS:
            return "a cell array of too many cells"
        memory.take(ARRAY_BYTES * item.size)
        return [_from_hdf5(checked(item.file[ref]), memory, depth + 1) for ref in np.ravel(read_whole(item))]
    if kind == "char" and item.ndim == 2:
        memory.take(CHARACTER_BYTES * item.size + ROW_BYTES * item.shape[1])
        return np.array([decoded(row) for row in read_whole(item).T])
    if item.ndim == 2 and is_numeric(item.dtype):
        return H5Rows(item, transposed=True)
    return f"a {item.dtype} array"


def _sparse(group: Any, n_rows: int, memory: Memory) -> np.ndarray:
    parts = {name: read_whole(part) for name, part in items_inside(group) if is_dataset(part)}
    ends = parts["jc"]
    data, rows = parts.get("data", np.zeros(0)), parts.get("ir", np.zeros(0, dtype=np.int64))
    memory.take(n_rows * (len(ends) - 1) * data.dtype.itemsize)
    return dense(group.file.filename, (n_rows, len(ends) - 1), rows, ends, data)

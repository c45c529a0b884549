"""A path -> Views: which format it is, and the plain ones (.npy, .npz, HDF5)."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bitmosaic.errors import FileFormatError, InvalidDataError, MissingFileError, ViewMismatchError
from bitmosaic.npy import load_npz, refuse_larger_than_memory, text_array
from bitmosaic.reading import refuse_irregular
from bitmosaic.views.core import Rows, Views, is_numeric
from bitmosaic.views.folder import open_matrix, read_folder
from bitmosaic.views.hdf5 import H5Rows, is_dataset, items_inside, open_h5, read_whole
from bitmosaic.views.matlab import read_mat
from bitmosaic.views.naming import is_label_name, is_path_name
from bitmosaic.views.parquet import read_parquet


def read_views(path: str | os.PathLike[str], *, bare: bool = False) -> Views:
    """Views from a views folder, .npy, .npz, .mat, .h5/.hdf5 or .parquet. Large ones stay on disk.

    `bare` leaves out labels and paths, which take memory for every row.
    """
    try:
        path = Path(path)
        there, is_folder = path.exists(), path.is_dir()
    except (TypeError, ValueError, OSError) as error:
        raise FileFormatError(f"Views are read from a path; this is none: {error}.") from error
    if not there:
        raise MissingFileError(f"There is no file or folder {path}. Check the path, or extract the views first.")
    reader = partial(read_folder, bare=bare) if is_folder else READERS.get(path.suffix.lower())
    if reader is None:
        raise FileFormatError(
            f"Views are read from a views folder or a file of type {', '.join(READERS)}; got {path.name!r}. "
            "Save them with numpy.save, or with bitmosaic's write_views."
        )
    try:
        if not is_folder:
            refuse_irregular(path)
        views = reader(path)
        return replace(views, labels=None, paths=None) if bare else views
    except ViewMismatchError:
        raise
    except MemoryError as error:
        raise FileFormatError(
            f"{path} takes more memory than there is ({str(error) or 'no more is given'}). "
            "Save its matrices as .npy files in a folder: these stay on disk."
        ) from error
    except InvalidDataError as error:
        raise FileFormatError(f"{path}: {error}") from error


def read_npy(path: Path) -> Views:
    return Views(("view0",), (open_matrix(path),))


def read_npz(path: Path) -> Views:
    """Every matrix is a view; vectors called labels (or y, truth, gt, …) and paths are what they say."""
    return _sort_out(path, load_npz(path))


def read_hdf5(path: Path) -> Views:
    """Matrices at the top level or in the group `views` are views, and stay in the file."""
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
        raise FileFormatError(f"{path} cannot be read ({error}). It may be damaged: write it again.") from error
    return _sort_out(path, found)


READERS: dict[str, Callable[[Path], Views]] = {
    ".npy": read_npy,
    ".npz": read_npz,
    ".mat": read_mat,
    ".h5": read_hdf5,
    ".hdf5": read_hdf5,
    ".parquet": read_parquet,
}


def _small(name: str, dataset: Any) -> Any:
    """A dataset that is no view: labels and paths are read, anything else is only described."""
    if not (is_label_name(name) or is_path_name(name)):
        return dataset
    return read_whole(dataset)


def _labels(path: Path, values: np.ndarray) -> np.ndarray:
    """Text of any length, or in bytes, takes more memory as an array of strings."""
    if values.dtype.kind == "S":
        refuse_larger_than_memory(path, 5 * values.nbytes)
    if values.dtype.kind == "O" and all(isinstance(value, str) for value in values.flat):
        return text_array(path, list(values.flat))
    return values


def _sort_out(path: Path, found: dict[str, Any]) -> Views:
    """Named arrays of one file -> views, labels, paths."""
    views: dict[str, Rows] = {}
    labels, paths = None, None
    for name, array in found.items():
        is_vector = len(array.shape) == 1 or (len(array.shape) == 2 and 1 in array.shape)
        if is_label_name(name) and is_vector and labels is None:
            labels = _labels(path, array[:])
        elif is_path_name(name) and is_vector and array.dtype.kind in "USO":
            paths = tuple(os.fsdecode(p) if isinstance(p, bytes) else str(p) for p in np.ravel(array))
        elif len(array.shape) == 2 and is_numeric(array.dtype):
            views[name] = array
    if not views:
        held = ", ".join(f"{name} {tuple(array.shape)} {array.dtype}" for name, array in found.items())
        raise FileFormatError(f"A view is a matrix of numbers; {path} holds {held or 'nothing'}. Save (n, d) matrices.")
    return Views(tuple(views), tuple(views.values()), labels, paths)

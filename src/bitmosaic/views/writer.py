"""Views -> a views folder, streamed in blocks; each file appears whole or not at all."""

import json
import os
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bitmosaic.errors import FileFormatError, InvalidDataError, ViewMismatchError
from bitmosaic.files import make_folder, whole_files
from bitmosaic.views.core import Rows, Views
from bitmosaic.views.door import as_views
from bitmosaic.views.folder import DIGEST_BYTES, DIGESTS, FORMAT, LABELS, MANIFEST, PATHS, VERSION, is_plain_name

TAKEN = ("labels", "digests")  # names of other files
_BLOCK_BYTES = 16 * 2**20


def write_views(
    folder: str | os.PathLike[str],
    views: Any,
    *,
    labels: Any = None,
    paths: Sequence[str] | None = None,
    digests: np.ndarray | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Write what `as_views` takes as a views folder. `labels` and `paths` stand in for those of the views.

    `digests`, (n, 16) uint8, know the pictures again that the rows were made of.

    `progress(done, total)` is told how many bytes of the matrices are written.

    Every file is first written beside its place; then all are renamed, the manifest last. Files of other
    names stay as they are.
    """
    views, folder = as_views(views), Path(folder)
    if labels is not None:
        views = replace(views, labels=labels)
    if paths is not None:
        views = replace(views, paths=tuple(paths))
    _check_file_names(views.names)
    if digests is not None and (digests.dtype != np.uint8 or digests.shape != (views.n_rows, DIGEST_BYTES)):
        raise ViewMismatchError(
            f"Digests must be uint8 of shape {(views.n_rows, DIGEST_BYTES)}, one for each row of the views; "
            f"got {digests.dtype} of {digests.shape}. Leave out those of rows that the views do not have."
        )
    done, total = 0, sum(prod(array.shape) * array.dtype.itemsize for array in views.arrays)

    def wrote(n_bytes: int) -> None:
        nonlocal done
        done += n_bytes
        progress(done, total)

    contents: dict[str, Callable[[BinaryIO], None]] = {}
    for name, array in zip(views.names, views.arrays, strict=True):
        contents[f"{name}.npy"] = lambda file, array=array: _write_matrix(file, array, wrote)  # type: ignore[misc]
    for name, values in ((LABELS, views.labels), (DIGESTS, digests)):
        if values is not None:
            contents[name] = partial(np.lib.format.write_array, array=values, allow_pickle=False)
    if views.paths is not None:
        contents[PATHS] = lambda file: file.writelines(_json(path) + b"\n" for path in views.paths)
    contents[MANIFEST] = lambda file: file.writelines([_json(_manifest(views, digests is not None), indent=1)])
    try:
        make_folder(folder)
        with whole_files(folder) as begin:
            for name, write in contents.items():  # the manifest last: what it lists is there
                with begin(name) as file:
                    write(file)
    except OSError as error:
        raise FileFormatError(
            f"The views cannot be written to {folder} ({error.strerror or error}). "
            "Make room, or see that the place may be written to, and try again."
        ) from error


def _write_matrix(file: BinaryIO, array: Rows, wrote: Callable[[int], None]) -> None:
    """As .npy, block by block. Not through a memory map: there, a full disk kills the process."""
    n_rows, width = array.shape
    descr = np.lib.format.dtype_to_descr(array.dtype)
    header = {"descr": descr, "fortran_order": False, "shape": (n_rows, width)}
    np.lib.format.write_array_header_1_0(file, header)
    step = max(1, _BLOCK_BYTES // (width * array.dtype.itemsize))
    for start in range(0, n_rows, step):
        block = np.ascontiguousarray(array[start : start + step], dtype=array.dtype)
        file.write(block.tobytes())
        wrote(block.nbytes)


def _manifest(views: Views, digests: bool) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "n_rows": views.n_rows,
        "labels": views.labels is not None,
        "paths": views.paths is not None,
        "digests": digests,
        "views": [
            {"name": name, "file": f"{name}.npy", "shape": list(array.shape), "dtype": array.dtype.str}
            for name, array in zip(views.names, views.arrays, strict=True)
        ],
    }


def _json(value: Any, **options: Any) -> bytes:
    return json.dumps(value, **options).encode("ascii")  # escaped: file names that are not UTF-8 survive


def _check_file_names(names: tuple[str, ...]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        key = unicodedata.normalize("NFC", name).casefold()  # what some file systems take as the same
        if not is_plain_name(name) or key in TAKEN:
            raise InvalidDataError(
                "The name of a view becomes a file name: letters, digits, _ . - and spaces, not beginning "
                f"with a dot, and not 'labels' or 'digests'; got {name!r}. Rename the view."
            )
        if key in seen:
            raise InvalidDataError(
                f"View names must differ by more than the case of letters; got {seen[key]!r} and {name!r}. Rename one."
            )
        seen[key] = name

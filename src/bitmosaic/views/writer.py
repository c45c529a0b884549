"""Write a views folder, block by block. Each file is written atomically."""

import json
import os
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bitmosaic.errors import FileFormatError, InvalidDataError
from bitmosaic.io.files import make_folder, whole_files
from bitmosaic.views.folder import DIGESTS, FORMAT, LABELS, MANIFEST, PATHS, VERSION, is_plain_name
from bitmosaic.views.open import as_views
from bitmosaic.views.views import Rows, Views

TAKEN = ("labels", "digests")  # file names with another meaning
_BLOCK_BYTES = 16 * 2**20

Contents = dict[str, Callable[[BinaryIO], Any]]
"""File names, in order, and the function that writes each."""


def write_views(
    folder: str | os.PathLike[str],
    views: Any,
    *,
    labels: Any = None,
    paths: Sequence[str] | None = None,
    digests: np.ndarray | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Write a views folder. `views` is any input of `as_views`; `labels` and `paths` replace those of the views.

    `digests`, (n, 16) uint8, are the content hashes of the images of the rows. `progress(done, total)` counts the bytes
    of the matrices.

    All files are written under temporary names and then renamed, the manifest last. Files of other names are kept.
    """
    views, folder = as_views(views), Path(folder)
    if labels is not None:
        views = replace(views, labels=labels)
    if paths is not None:
        views = replace(views, paths=tuple(paths))
    _check_file_names(views.names)
    done, total = 0, sum(prod(array.shape) * array.dtype.itemsize for array in views.arrays)

    def wrote(n_bytes: int) -> None:
        nonlocal done
        done += n_bytes
        progress(done, total)

    contents: Contents = {}
    for name, array in zip(views.names, views.arrays, strict=True):
        contents[f"{name}.npy"] = lambda file, array=array: _write_matrix(file, array, wrote)  # type: ignore[misc]
    if digests is not None:
        contents[DIGESTS] = partial(np.lib.format.write_array, array=digests, allow_pickle=False)
    _write_files(folder, contents | _notes(views, digests is not None))


def write_notes(folder: Path, views: Views, digests: bool) -> None:
    """Write the labels, the paths and, last, the manifest of a folder that already holds the matrices."""
    _write_files(folder, _notes(views, digests))


def _notes(views: Views, digests: bool) -> Contents:
    notes: Contents = {}
    if views.labels is not None:
        notes[LABELS] = partial(np.lib.format.write_array, array=views.labels, allow_pickle=False)
    if (paths := views.paths) is not None:
        notes[PATHS] = lambda file: file.writelines(_json(path) + b"\n" for path in paths)
    notes[MANIFEST] = lambda file: file.writelines([_json(_manifest(views, digests), indent=1)])
    return notes


def _write_files(folder: Path, contents: Contents) -> None:
    """Write all files together. The manifest is renamed last, after the files it lists."""
    try:
        make_folder(folder)
        with whole_files(folder) as begin:
            for name, write in contents.items():
                with begin(name) as file:
                    write(file)
    except OSError as error:
        raise FileFormatError(
            f"The views cannot be written to {folder} ({error.strerror or error}). "
            "Free some disk space or check the permissions, then try again."
        ) from error


def _header(n_rows: int, width: int, dtype: np.dtype) -> bytes:
    """The header of a .npy file. NumPy pads it, so its size does not depend on the number of rows."""
    file = BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    header = {"descr": descr, "fortran_order": False, "shape": (n_rows, width)}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


def _write_matrix(file: BinaryIO, array: Rows, wrote: Callable[[int], None]) -> None:
    """Write a .npy file block by block. A memory map is no alternative: a full disk would kill the process."""
    n_rows, width = array.shape
    file.write(_header(n_rows, width, array.dtype))
    step = max(1, _BLOCK_BYTES // (width * array.dtype.itemsize))
    for start in range(0, n_rows, step):
        block = np.ascontiguousarray(array[start : start + step], dtype=array.dtype)
        file.write(block.tobytes())
        wrote(block.nbytes)


class GrowingMatrix:
    """A .npy file to which rows are appended. Its header says 0 rows until `finish`."""

    def __init__(self, path: Path, width: int, dtype: Any = np.float32):
        self.path, self.width, self.dtype, self.n_rows = path, width, np.dtype(dtype).newbyteorder("<"), 0
        self._start = len(_header(0, width, self.dtype))

    def _size(self, n_rows: int) -> int:
        return self._start + n_rows * self.width * self.dtype.itemsize

    def holds(self, n_rows: int) -> bool:
        """Whether the file holds at least `n_rows` rows."""
        return self.path.is_file() and self.path.stat().st_size >= self._size(n_rows)

    def open(self, n_rows: int) -> None:
        """Open the file to append after the first `n_rows` rows. Later rows are discarded."""
        self.n_rows = n_rows
        self.path.touch()
        self._write_header(0)
        self._file = self.path.open("ab")
        self._file.truncate(self._size(n_rows))

    def append(self, rows: np.ndarray) -> None:
        """Append rows and sync them to disk."""
        self._file.write(rows.astype(self.dtype, copy=False).tobytes())
        self.n_rows += len(rows)
        self._sync()

    def rows(self) -> np.ndarray:
        """All rows so far, in memory."""
        n_values = self.n_rows * self.width
        return np.fromfile(self.path, self.dtype, n_values, offset=self._start).reshape(-1, self.width)

    def finish(self) -> None:
        self._file.close()
        self._write_header(self.n_rows)

    def close(self) -> None:
        self._file.close()

    def _write_header(self, n_rows: int) -> None:
        # Without a buffer: after an error, closing the file would write the rest of the buffer over the first row.
        with self.path.open("r+b", buffering=0) as file:
            file.write(_header(n_rows, self.width, self.dtype))
            os.fsync(file.fileno())

    def _sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())


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
    return json.dumps(value, **options).encode("ascii")  # escapes preserve file names that are not UTF-8


def _check_file_names(names: tuple[str, ...]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        key = unicodedata.normalize("NFC", name).casefold()  # some file systems treat these names as equal
        if not is_plain_name(name) or key in TAKEN:
            raise InvalidDataError(
                "The name of a view becomes a file name. It may have letters, digits, _ . - and spaces, must not begin "
                f"with a dot, and must not be 'labels' or 'digests'; got {name!r}. Rename the view."
            )
        if key in seen:
            raise InvalidDataError(
                f"View names must differ by more than upper and lower case; got {seen[key]!r} and {name!r}. Rename one."
            )
        seen[key] = name

"""The estimators on Dask arrays: the steps of the solver run as tasks on a Dask cluster.

`dask_views` gives the Dask arrays of a views folder or file; the workers read the blocks by path.
"""

import os
import socket
import threading
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bitmosaic.errors import BitmosaicError, FileFormatError, ParameterError
from bitmosaic.views import Views, read_rows, read_views

if TYPE_CHECKING:
    from dask.array import Array

UNIT_ROWS = 1024
BLOCK_BYTES = 128 * 2**20  # of all views together
FEWEST_ROWS, MOST_ROWS = 8192, 262_144  # smaller chunks would be merged, see `rows.aligned`
OPEN_VIEWS = 4  # cached paths; few, because some formats are loaded into memory


def dask_views(path: str | os.PathLike[str], block_rows: int | None = None) -> dict[str, "Array"]:
    """Return the views at `path` as lazy Dask arrays with the same chunks of rows; a task reads a block of one view.

    `block_rows` is a multiple of 1024; None gives blocks of about 128 MB over all views.
    """
    import dask.array as da

    views = read_views(path, bare=True)
    place = Path(path).absolute()
    rows = default_block_rows(views) if block_rows is None else block_rows
    if rows < 1 or rows % UNIT_ROWS:
        raise ParameterError(f"block_rows must be a multiple of {UNIT_ROWS}; got {block_rows}.")
    cut = tuple(min(rows, views.n_rows - start) for start in range(0, views.n_rows, rows))
    return {
        name: da.map_blocks(
            read_block,
            path=str(place),
            view=name,
            block_rows=rows,
            stamp=_stamp(place),
            chunks=(cut, (array.shape[1],)),
            meta=np.empty((0, 0), array.dtype),
        )
        for name, array in zip(views.names, views.arrays, strict=True)
    }


def default_block_rows(views: Views) -> int:
    """Return the rows of a block, a multiple of 1024."""
    row_bytes = sum(array.shape[1] * array.dtype.itemsize for array in views.arrays)
    return min(max(BLOCK_BYTES // row_bytes // UNIT_ROWS * UNIT_ROWS, FEWEST_ROWS), MOST_ROWS)


def read_block(path: str, view: str, block_rows: int, stamp: str, block_id: tuple[int, int]) -> np.ndarray:
    """Read one block of one view, on a worker. `stamp` makes Dask's key change with the content."""
    start = block_id[0] * block_rows
    try:
        array, rows = _views_at(path)[view], slice(start, start + block_rows)
        if isinstance(array, np.memmap):  # read lazily: a sample needs only some of the rows
            return array[rows]
        return read_rows(array, rows, array.dtype)
    except (BitmosaicError, OSError) as error:
        raise FileFormatError(
            f"Every worker must be able to read the views by their path; {socket.gethostname()} cannot read rows "
            f"{start} to {start + block_rows - 1} of {view!r}: {error}"
        ) from error


_opening = threading.Lock()


def _views_at(path: str) -> Views:
    """Return the views, opened once for all threads of a worker."""
    with _opening:
        return _opened(path, _stamp(Path(path)))


@lru_cache(OPEN_VIEWS)
def _opened(path: str, stamp: str) -> Views:
    return read_views(path, bare=True)


def _stamp(path: Path) -> str:
    """Return a text that changes with the content: time and size of the manifest, or else of all files."""
    manifest = path / "manifest.json"
    files = [manifest] if manifest.exists() else sorted(path.iterdir()) if path.is_dir() else [path]
    stats = [file.stat() for file in files if file.exists()]
    return " ".join(f"{stat.st_mtime_ns}-{stat.st_size}" for stat in stats)

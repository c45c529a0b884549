"""A path of views -> Dask arrays whose blocks the workers read, by that path."""

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
FEWEST_ROWS, MOST_ROWS = 8192, 262_144  # fewer would be put together, see `rows.aligned`
OPEN_VIEWS = 64  # paths × threads


def dask_views(path: str | os.PathLike[str], block_rows: int | None = None) -> dict[str, "Array"]:
    """What `read_views` reads as lazy Dask arrays, all cut at the same rows; one task reads a block of one view.

    `block_rows` is a multiple of 1024. Otherwise a block has about 128 MB over all views.
    """
    import dask.array as da

    views = read_views(path, bare=True)
    place = Path(path).absolute()
    rows = usual_rows(views) if block_rows is None else block_rows
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


def usual_rows(views: Views) -> int:
    """Rows of a block: a multiple of 1024, from the widths."""
    row_bytes = sum(array.shape[1] * array.dtype.itemsize for array in views.arrays)
    return min(max(BLOCK_BYTES // row_bytes // UNIT_ROWS * UNIT_ROWS, FEWEST_ROWS), MOST_ROWS)


def read_block(path: str, view: str, block_rows: int, stamp: str, block_id: tuple[int, int]) -> np.ndarray:
    """One block of one view, on a worker. `stamp` is in the call for Dask's sake: other content, another task."""
    start = block_id[0] * block_rows
    try:
        array, rows = _views_at(path)[view], slice(start, start + block_rows)
        if isinstance(array, np.memmap):  # is read where it is used: a sample of its rows does not take them all
            return array[rows]
        return read_rows(array, rows, array.dtype)
    except (BitmosaicError, OSError) as error:
        raise FileFormatError(
            f"Every worker must be able to read the views by their path; {socket.gethostname()} cannot read rows "
            f"{start} to {start + block_rows - 1} of {view!r}: {error}"
        ) from error


_opening = threading.Lock()


def _views_at(path: str) -> Views:
    """The views, opened once. Each thread has a folder to itself, so that they do not wait for each other's reading;
    a file may be one that is held in memory, and is shared."""
    reader = threading.get_ident() if os.path.isdir(path) else 0
    with _opening:
        return _opened(path, _stamp(Path(path)), reader)


@lru_cache(OPEN_VIEWS)
def _opened(path: str, stamp: str, reader: int) -> Views:
    return read_views(path, bare=True)


def _stamp(path: Path) -> str:
    """Words that change with the content: of the manifest, which is written last; without one, of every file."""
    manifest = path / "manifest.json"
    files = [manifest] if manifest.exists() else sorted(path.iterdir()) if path.is_dir() else [path]
    stats = [file.stat() for file in files if file.exists()]
    return " ".join(f"{stat.st_mtime_ns}-{stat.st_size}" for stat in stats)

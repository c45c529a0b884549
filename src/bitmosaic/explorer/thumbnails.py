"""Images of a run -> small JPEGs, cached in one SQLite file in the run folder.

An image of a folder, a list, a plain archive or an array is read on first request. A compressed archive can only be
read from its start, so `prepare` makes all thumbnails of it in one pass. The database is only a cache: one that cannot
be opened or has another schema is deleted and created again.
"""

import io
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bitmosaic.images import Progress, quiet
from bitmosaic.images.decode import shrink
from bitmosaic.run.folder import Run
from bitmosaic.run.images import RunImages

FILE = "thumbnails.sqlite"
SIDE, LARGE_SIDE = 128, 1600  # pixels
BATCH = 1024  # rows per query and per transaction
LOCK_TIMEOUT = 0.1  # seconds, while another explorer writes
SCHEMA = (
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT)",
    "CREATE TABLE thumbnails (row INTEGER PRIMARY KEY, width INTEGER, height INTEGER, jpeg BLOB)",
)


class Thumbnails:
    """Thumbnails of one run. Thread-safe."""

    def __init__(self, run: Run, source: Any = None):
        """`source`: the current place of the images, if they were moved since the run."""
        self.run, self.images = run, RunImages(run, source)
        self._lock = threading.Lock()
        self._file = self._open()

    def get(self, row: int) -> bytes | None:
        """A JPEG of at most 128 pixels per side; None if the image cannot be read."""
        return self.many([row]).get(row)

    def made(self, row: int) -> bytes | None:
        """The thumbnail, if it is in the cache."""
        found = self._query("SELECT jpeg FROM thumbnails WHERE row = ?", (row,))
        return found[0][0] if found else None

    def size(self, row: int) -> tuple[int, int] | None:
        """Width and height of the original image, if its thumbnail is in the cache."""
        found = self._query("SELECT width, height FROM thumbnails WHERE row = ?", (row,))
        return found[0] if found else None

    def many(self, rows: Iterable[int], progress: Progress = quiet) -> dict[int, bytes]:
        """Thumbnails by row. Missing ones are made in one pass; unreadable images are left out."""
        wanted = [int(row) for row in rows]
        found: dict[int, bytes] = {}
        for start in range(0, len(wanted), BATCH):
            part = wanted[start : start + BATCH]
            found |= self._query(f"SELECT row, jpeg FROM thumbnails WHERE row IN ({','.join('?' * len(part))})", part)
        for row, _, _, jpeg in self._make([row for row in wanted if row not in found], progress):
            found[row] = jpeg
        return found

    def large(self, row: int) -> bytes | None:
        """A JPEG of at most 1,600 pixels per side; the thumbnail if the image is no larger than one."""
        size = self.size(row)
        if size and max(size) <= SIDE:
            return self.get(row)
        found = self.images.each([row], lambda image: _jpeg(image, LARGE_SIDE))
        return next((jpeg for _, (_, _, jpeg) in found), None)

    def prepare(self, progress: Progress = quiet) -> None:
        """Make all thumbnails of compressed archives, whose images cannot be read one by one."""
        if self._query("SELECT 1 FROM facts WHERE name = 'complete' AND value = ?", [str(self.run.n_images)]):
            return
        if rows := self.images.read_only_in_order(progress):
            known = {row for (row,) in self._query("SELECT row FROM thumbnails")}
            for _ in self._make([row for row in rows if row not in known], progress):
                pass
            self._write([], complete=True)

    @property
    def available(self) -> bool:
        """Whether images can be shown: the source exists, or some thumbnails are cached."""
        return bool(self._query("SELECT 1 FROM thumbnails LIMIT 1")) or self.images.available

    def _make(self, rows: list[int], progress: Progress) -> Iterator[tuple[int, int, int, bytes]]:
        made = []
        for row, (width, height, jpeg) in self.images.each(rows, lambda image: _jpeg(image, SIDE), progress):
            made.append((row, width, height, jpeg))
            yield made[-1]
            if len(made) == BATCH:
                self._write(made)
                made = []
        self._write(made)

    # ---- the database

    def _open(self) -> sqlite3.Connection:
        """The database in the run folder, or one in memory if the folder is read-only or locked."""
        try:
            return _connect(self.run.folder / FILE)
        except sqlite3.OperationalError:
            return _connect(":memory:")
        except sqlite3.DatabaseError:
            return self._rebuild()

    def _rebuild(self) -> sqlite3.Connection:
        """Delete the database and create it again."""
        try:
            for suffix in ("", "-journal", "-wal", "-shm"):
                (self.run.folder / f"{FILE}{suffix}").unlink(missing_ok=True)
            return _connect(self.run.folder / FILE)
        except (OSError, sqlite3.DatabaseError):
            return _connect(":memory:")

    def _query(self, sql: str, values: Iterable[object] = ()) -> list:
        with self._lock:
            try:
                return self._file.execute(sql, tuple(values)).fetchall()
            except sqlite3.OperationalError:  # another explorer is writing
                return []
            except sqlite3.DatabaseError:
                self._file.close()
                self._file = self._rebuild()
                return []

    def _write(self, made: list[tuple[int, int, int, bytes]], complete: bool = False) -> None:
        # Without the cache (full disk, read-only folder) thumbnails are made again on each request.
        with suppress(sqlite3.DatabaseError), self._lock, self._file:
            self._file.executemany("INSERT OR REPLACE INTO thumbnails VALUES (?, ?, ?, ?)", made)
            if complete:
                self._file.execute("INSERT OR REPLACE INTO facts VALUES ('complete', ?)", [str(self.run.n_images)])


def _connect(path: Path | str) -> sqlite3.Connection:
    """Open the database; raises DatabaseError for another schema, which may hold views or triggers."""
    file = sqlite3.connect(path, LOCK_TIMEOUT, check_same_thread=False)
    try:
        found = {sql for (sql,) in file.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
        if found - {*SCHEMA}:
            raise sqlite3.DatabaseError("another schema")
        with file:
            for table in SCHEMA:
                file.execute(table.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS"))
    except BaseException:  # Windows cannot replace an open file
        file.close()
        raise
    return file


def _jpeg(image: np.ndarray, side: int) -> tuple[int, int, bytes]:
    """Width and height of an image, and a JPEG of it with at most `side` pixels per side."""
    file = io.BytesIO()
    Image.fromarray(shrink(image, side)).save(file, "JPEG", quality=85, subsampling=0)
    return image.shape[1], image.shape[0], file.getvalue()

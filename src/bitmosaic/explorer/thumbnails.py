"""Pictures of a run -> small JPEGs, made once and kept in the run folder as one SQLite file.

A picture of a folder, a list, a plain archive or an array is read when it is first asked for. A compressed archive can
only be read from its beginning, so `prepare` makes all thumbnails of it in one pass.
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
from bitmosaic.run import Run
from bitmosaic.run_pictures import RunPictures

FILE = "thumbnails.sqlite"
SIDE, LARGE_SIDE = 128, 1600  # pixels
AT_ONCE = 1024
PATIENCE = 0.1  # seconds to wait for another explorer that writes; what cannot be read is made anew
JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")  # ends a journal that names a superior, which ours never do
LONGEST = 2**24  # bytes of anything in the file; a thumbnail has some thousand
SCHEMA = (
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT)",
    "CREATE TABLE thumbnails (row INTEGER PRIMARY KEY, width INTEGER, height INTEGER, jpeg BLOB)",
)


class Thumbnails:
    """The pictures of one run. Any thread may ask."""

    def __init__(self, run: Run, source: Any = None):
        """`source`: where the pictures are now, if not where the run has read them."""
        self.run, self.pictures = run, RunPictures(run, source)
        self._lock = threading.Lock()
        self._file = self._open()

    def get(self, row: int) -> bytes | None:
        """A JPEG of at most 128 pixels a side; None if the picture cannot be had."""
        return self.many([row]).get(row)

    def made(self, row: int) -> bytes | None:
        """The same, if it was made before."""
        found = self._query("SELECT jpeg FROM thumbnails WHERE row = ? AND typeof(jpeg) = 'blob'", (row,))
        return found[0][0] if found and _is_small(found[0][0]) else None

    def size(self, row: int) -> tuple[int, int] | None:
        """Width and height of the picture itself, if its thumbnail was made."""
        whole = "typeof(width) = 'integer' AND typeof(height) = 'integer'"
        found = self._query(f"SELECT width, height FROM thumbnails WHERE row = ? AND {whole}", (row,))
        return found[0] if found else None

    def many(self, rows: Iterable[int], progress: Progress = quiet) -> dict[int, bytes]:
        """Thumbnails of some rows, those missing made in one pass; rows whose pictures cannot be had are absent."""
        wanted = [int(row) for row in rows]
        found: dict[int, bytes] = {}
        for start in range(0, len(wanted), AT_ONCE):
            part = wanted[start : start + AT_ONCE]
            these = f"row IN ({','.join('?' * len(part))}) AND typeof(jpeg) = 'blob'"
            kept = self._query(f"SELECT row, jpeg FROM thumbnails WHERE {these}", part)
            found |= {row: jpeg for row, jpeg in kept if _is_small(jpeg)}
        for row, _, _, jpeg in self._make([row for row in wanted if row not in found], progress):
            found[row] = jpeg
        return found

    def large(self, row: int) -> bytes | None:
        """A JPEG of at most 1,600 pixels a side; the thumbnail where the picture is no larger than that."""
        size = self.size(row)
        if size and max(size) <= SIDE:
            return self.get(row)
        found = self.pictures.each([row], lambda image: _jpeg(image, LARGE_SIDE))
        return next((jpeg for _, (_, _, jpeg) in found), None)

    def prepare(self, progress: Progress = quiet) -> None:
        """Make all thumbnails at once where pictures cannot be read one by one: in a compressed archive."""
        if self._query("SELECT 1 FROM facts WHERE name = 'complete' AND value = ?", [str(self.run.n_images)]):
            return
        if rows := self.pictures.read_only_in_order(progress):
            known = {row for (row,) in self._query("SELECT row FROM thumbnails")}
            for _ in self._make([row for row in rows if row not in known], progress):
                pass
            self._write([], complete=True)

    @property
    def available(self) -> bool:
        """Whether there are pictures to show: the source is there, or thumbnails of it."""
        return bool(self._query("SELECT 1 FROM thumbnails LIMIT 1")) or self.pictures.available

    def _make(self, rows: list[int], progress: Progress) -> Iterator[tuple[int, int, int, bytes]]:
        made = []
        for row, (width, height, jpeg) in self.pictures.each(rows, lambda image: _jpeg(image, SIDE), progress):
            made.append((row, width, height, jpeg))
            yield made[-1]
            if len(made) == AT_ONCE:
                self._write(made)
                made = []
        self._write(made)

    # ---- the file

    def _open(self) -> sqlite3.Connection:
        """The cache in the run folder; one in memory where that cannot be written."""
        try:
            return _connect(self.run.folder / FILE)
        except sqlite3.OperationalError:
            return _connect(":memory:")
        except sqlite3.DatabaseError:
            return self._anew()

    def _anew(self) -> sqlite3.Connection:
        """A new cache instead of a damaged one."""
        try:
            for place in _places(self.run.folder / FILE):
                place.unlink(missing_ok=True)
            return _connect(self.run.folder / FILE)
        except (OSError, sqlite3.DatabaseError):
            return _connect(":memory:")

    def _query(self, question: str, values: Iterable[object] = ()) -> list:
        with self._lock:
            try:
                return self._file.execute(question, tuple(values)).fetchall()
            except sqlite3.OperationalError:  # another explorer is writing
                return []
            except sqlite3.DatabaseError:
                self._file.close()
                self._file = self._anew()
                return []

    def _write(self, made: list[tuple[int, int, int, bytes]], complete: bool = False) -> None:
        # A full disk or a folder that cannot be written costs time, and nothing else.
        with suppress(sqlite3.DatabaseError), self._lock, self._file:
            self._file.executemany("INSERT OR REPLACE INTO thumbnails VALUES (?, ?, ?, ?)", made)
            if complete:
                self._file.execute("INSERT OR REPLACE INTO facts VALUES ('complete', ?)", [str(self.run.n_images)])


def _connect(path: Path | str) -> sqlite3.Connection:
    """Opens a file of ours or a new one. Another's may hold views, triggers and whatever else runs when it is asked."""
    if isinstance(path, Path):
        _refuse_strange(path)
    file = sqlite3.connect(path, PATIENCE, check_same_thread=False)
    try:
        _make_ours(file)
    except BaseException:  # a file that stays open cannot be replaced on every system
        file.close()
        raise
    return file


def _make_ours(file: sqlite3.Connection) -> None:
    file.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
    found = {sql for (sql,) in file.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
    if found - {*SCHEMA}:
        raise sqlite3.DatabaseError("a file of another kind")
    with file:
        for table in SCHEMA:
            file.execute(table.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS"))


def _places(path: Path) -> list[Path]:
    """The file, and what SQLite reads and writes beside it."""
    return [path, *(path.with_name(f"{path.name}-{kind}") for kind in ("journal", "wal", "shm"))]


def _refuse_strange(path: Path) -> None:
    """SQLite waits for pipes, writes through links, and deletes whatever file a journal names as its superior."""
    for place in _places(path):
        if place.is_symlink() or (place.exists() and not place.is_file()):
            raise sqlite3.DatabaseError("no regular file")
    journal = _places(path)[1]
    if journal.is_file():
        with open(journal, "rb") as file:
            file.seek(max(0, journal.stat().st_size - len(JOURNAL_MAGIC)))
            if file.read() == JOURNAL_MAGIC:
                raise sqlite3.DatabaseError("a journal that has a superior")


def _is_small(jpeg: bytes) -> bool:
    """Whether it is a thumbnail: whoever made the run may have put anything into its cache."""
    try:
        with Image.open(io.BytesIO(jpeg), formats=["JPEG"]) as picture:
            return max(picture.size) <= SIDE
    except Exception:  # whatever Pillow says to what is none
        return False


def _jpeg(image: np.ndarray, side: int) -> tuple[int, int, bytes]:
    """Width and height of a picture, and a JPEG of it of at most `side` pixels a side."""
    file = io.BytesIO()
    Image.fromarray(shrink(image, side)).save(file, "JPEG", quality=85, subsampling=0)
    return image.shape[1], image.shape[0], file.getvalue()

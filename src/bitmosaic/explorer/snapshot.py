"""A run folder -> its clusters at one moment, whoever else is writing to it."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bitmosaic.errors import BusyFolderError, InvalidDataError, UnwritableFileError
from bitmosaic.explorer.clusters import Clusters, Pictures
from bitmosaic.files import locked
from bitmosaic.run import Run, settle

TRIES, PAUSE = 40, 0.05  # seconds between tries to lock the run folder: an edit takes a moment only
FILES = ("manifest.json", "labels.npy", "codes.npy", "distances.npy", "edits.jsonl")


def finished_run(folder: Path) -> Run:
    """A run that has its tables."""
    run = Run(folder)
    if not run.done("tables"):
        raise InvalidDataError(f"The run in {folder} was stopped before its clusters were written; finish it first.")
    return run


def clusters_now(folder: Path) -> Clusters:
    """Everything that is read of the run, read together; what others write later is not seen.

    The run folder is locked for that moment. Where it cannot be, since nothing can be written there, it is read again
    until its files did not change meanwhile.
    """
    with _locked(folder) as is_locked:
        if is_locked:
            settle(folder)
        for _ in range(TRIES):
            before = _stamps(folder)
            clusters = Clusters(Pictures.of(finished_run(folder)))
            if is_locked or _stamps(folder) == before:
                return clusters
            time.sleep(PAUSE)
    raise BusyFolderError(f"A run is read while nobody changes it; others keep writing in {folder}. Try again.")


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """The run folder to ourselves, if it can be locked."""
    with ExitStack() as stack:
        yield _lock(folder, stack)


def _lock(folder: Path, stack: ExitStack) -> bool:
    if not (folder / "manifest.json").is_file() or not os.access(folder, os.W_OK):
        return False  # no run, which is said elsewhere, or one that is kept read-only
    for left in reversed(range(TRIES)):
        try:
            stack.enter_context(locked(folder))
            return True
        except UnwritableFileError:  # a full disk, say
            return False
        except BusyFolderError:
            if not left:
                raise
            time.sleep(PAUSE)
    return False


def _stamps(folder: Path) -> list[tuple[int, int, int] | None]:
    """Numbers that change with the files of the run."""
    stamps: list[tuple[int, int, int] | None] = []
    for name in FILES:
        try:
            status = os.stat(folder / name)
            stamps.append((status.st_ino, status.st_size, status.st_mtime_ns))
        except OSError:
            stamps.append(None)
    return stamps

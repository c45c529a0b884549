"""Paths that users pass, atomic files, folder locks, and files that are replaced together."""

import errno
import io
import json
import os
import secrets
import shutil
import time
from collections.abc import Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from bitmosaic.errors import (
    BitmosaicError,
    BusyFolderError,
    InvalidDataError,
    UnwritableFileError,
)

# ---- Checks of paths that users pass


def refuse_special(path: Any) -> None:
    """Refuse to replace a folder, a pipe, or a device such as /dev/null by a file."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise UnwritableFileError(
            f"A file cannot be written to {path}: it is a folder or a device. Choose another name."
        )


def check_output(path: Any, run_folder: Any = None, is_folder: bool = False) -> None:
    """Check the path of an output before any work is done. Outputs go outside the run folder."""
    path = Path(path)
    if not is_folder:
        refuse_special(path)
    if run_folder is not None and _is_inside(path, run_folder):
        raise InvalidDataError(
            f"Outputs go outside the run folder, so that they do not overwrite its files; got {path}. "
            "Choose another path."
        )


def _is_inside(path: Path, folder: Any) -> bool:
    real = Path(os.path.realpath(path))
    return any(place.exists() and place.samefile(folder) for place in (real, *real.parents))


# ---- Atomic writes: a file is written under a temporary name, synced, and renamed when it is complete.


ABANDONED = 24 * 3600  # seconds after which a temporary file outside a locked folder counts as abandoned
_UNFINISHED = ".bitmosaic-*.tmp"
_DISK_ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT)


def megabytes(n_bytes: int) -> int:
    """Megabytes, rounded up, for progress bars."""
    return -(-n_bytes // 10**6)


def beside(path) -> Path:
    """A temporary name in the same folder as `path`."""
    return Path(path).with_name(f".bitmosaic-{secrets.token_hex(8)}.tmp")


def is_unfinished(path) -> bool:
    return Path(path).match(_UNFINISHED)


def remove_unfinished(folder, below: bool = True, older_than: float = 0) -> None:
    """Remove temporary files of killed processes from a folder and, with `below`, from its subfolders.

    Caller must hold the folder lock. Without it, pass ``older_than=ABANDONED``: another process may be writing there.
    """
    for path in Path(folder).glob(f"**/{_UNFINISHED}" if below else _UNFINISHED):
        with suppress(OSError):
            if not older_than or time.time() - path.lstat().st_mtime > older_than:
                remove(path)


def remove(path, ignore_errors: bool = False) -> None:
    """Remove a file, a link or a folder with all its content."""
    path = Path(path)
    with suppress(OSError) if ignore_errors else nullcontext():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=ignore_errors)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def writing(path):
    """Convert an OSError inside the block into an UnwritableFileError that names `path`."""
    try:
        yield
    except BitmosaicError:
        raise
    except OSError as error:
        problem = UnwritableFileError(
            f"{path} cannot be written ({error.strerror or error}). "
            "Free some disk space or check the permissions, then run the same command again to resume."
        )
        problem.errno, problem.strerror = error.errno, error.strerror
        raise problem from error


class _File(io.BufferedWriter):
    """A file without fileno(): Pillow and NumPy would write to the descriptor and miss a full disk."""

    def fileno(self) -> int:
        raise io.UnsupportedOperation("fileno")


@contextmanager
def new_file(path):
    """Create a binary file for writing, and sync it when the block ends. The file must not exist yet."""
    with open(path, "xb", buffering=0) as raw, _File(raw) as file:
        yield file
        file.flush()
        os.fsync(raw.fileno())


@contextmanager
def whole_file(path):
    """Open a binary file for writing. It replaces `path` when the block ends without an error."""
    path = Path(path)
    refuse_special(path)
    with writing(path), whole_files(path.parent) as begin, begin(path.name) as file:
        yield file


@contextmanager
def result_file(path):
    """Like `whole_file`, for a path from the user: symlinks are followed, and abandoned temporary files removed."""
    path = Path(os.path.realpath(path))
    remove_unfinished(path.parent, below=False, older_than=ABANDONED)
    with whole_file(path) as file:
        yield file


@contextmanager
def result_path(path):
    """Like `result_file`, for a library that opens the file itself: yields a path in a temporary folder."""
    path = Path(os.path.realpath(path))
    refuse_special(path)
    remove_unfinished(path.parent, below=False, older_than=ABANDONED)
    folder = beside(path)
    with writing(path):
        try:
            folder.mkdir()
            yield folder / path.name
            with open(folder / path.name, "rb+") as file:
                os.fsync(file.fileno())
            os.chmod(folder / path.name, folder.stat().st_mode & 0o666)  # the library may have ignored the umask
            os.replace(folder / path.name, path)
        finally:
            remove(folder, ignore_errors=True)
        sync_folder(path.parent)


@contextmanager
def whole_files(folder):
    """Write several files of `folder` together. Yields a function that opens a binary file by its name.

    All files are renamed when the block ends without an error, in the order in which they were opened. The last one,
    usually a manifest, is renamed after the others are on disk.
    """
    folder, temporary = Path(folder), dict[str, Path]()
    try:
        yield partial(_begin, folder, temporary)
        for number, (name, path) in enumerate(temporary.items(), 1):
            if number == len(temporary) > 1:
                sync_folder(folder)
            os.replace(path, folder / name)
    finally:
        for path in temporary.values():
            remove(path, ignore_errors=True)
    sync_folder(folder)


@contextmanager
def _begin(folder: Path, temporary: dict[str, Path], name: str):
    temporary[name] = beside(folder / name)
    with new_file(temporary[name]) as file:
        yield file


def write_whole(path, content: bytes) -> None:
    with whole_file(path) as file:
        file.write(content)


def copy_whole(source, path) -> None:
    with open(source, "rb") as old, whole_file(path) as new:
        shutil.copyfileobj(old, new)


def write_json(path, value: Any) -> None:
    """Write indented ASCII JSON. Escapes preserve file names that are not UTF-8."""
    write_whole(path, json.dumps(value, indent=1, allow_nan=False).encode("ascii") + b"\n")


def make_folder(folder) -> None:
    """Create a folder and its missing parents, and sync the folders that contain the new entries."""
    folder = Path(folder)
    above = {folder.parent, *(place.parent for place in (folder, *folder.parents) if not place.exists())}
    folder.mkdir(parents=True, exist_ok=True)
    for place in above:
        sync_folder(place)


def sync_folder(folder) -> None:
    """Make renames in a folder durable. Does nothing where the system cannot sync a folder, as on Windows."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno in _DISK_ERRORS:
            raise


# ---- A lock per folder: one process at a time works in it.


LOCK = ".lock"
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # from some network file systems


@contextmanager
def locked(folder, wait: float = 0):
    """Hold the lock of `folder`, which is created if needed. Raise BusyFolderError if another process holds it.

    `wait`: seconds to wait for the other process first.

    The operating system releases the lock when the process ends, even by a kill. On file systems without locks, nothing
    is locked. A folder created for the lock is removed again if it stays empty.
    """
    folder = Path(folder)
    lock, is_new = FileLock(folder / LOCK, timeout=wait), not folder.exists()
    with writing(folder):
        if is_new:
            make_folder(folder)
        try:
            lock.acquire()
        except Timeout as error:
            raise BusyFolderError(
                f"One process at a time can work in a folder, and another bitmosaic is busy in {folder}. "
                "Wait for it to finish, or stop it."
            ) from error
        except NotImplementedError:
            pass
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
    try:
        yield
    finally:
        with suppress(OSError):  # Windows cannot remove an open file; filelock removes it there
            (folder / LOCK).unlink()
        lock.release()
        if is_new:
            with suppress(OSError):  # usually not empty
                folder.rmdir()


# ---- Replace several files of a folder together.
#
# The new files are written to a hidden subfolder. When they are complete, an empty file `.ready` marks them. From then
# on, the files are moved to their names: by the process that wrote them or, if it was killed, by the next process that
# opens the folder, before it reads.


READY, GONE, REPLACED = ".ready", ".gone", ".replaced"  # in the hidden folder


def announce(work: Path, names: Sequence[str]) -> None:
    """Mark the files in `work` as complete. `publish` will remove names that are missing in `work` from the folder.

    All files are on disk before the mark is.
    """
    with writing(work):
        (work / GONE).mkdir(exist_ok=True)
        for name in names:
            if not (work / name).exists():
                (work / GONE / name).touch()
        for folder in (work / GONE, work, work.parent):
            sync_folder(folder)
    write_whole(work / READY, b"")


def is_announced(work: Path) -> bool:
    """Whether `work` holds complete files that are not all moved yet."""
    return (work / READY).is_file()


def publish(folder: Path, work: Path, names: Sequence[str]) -> None:
    """Move announced files to their names in `folder`, in this order. Caller must hold the folder lock."""
    if not is_announced(work):
        return
    with writing(folder):
        for name in names:
            new, place, gone = work / name, folder / name, work / GONE / name
            if new.exists():
                if place.is_dir():  # a folder cannot be replaced in one step
                    place.rename(work / REPLACED)
                new.replace(place)
                remove(work / REPLACED, ignore_errors=True)
            elif gone.exists():
                remove(place)
                gone.unlink()
        sync_folder(folder)
        (work / READY).unlink()
    remove(work, ignore_errors=True)


def finish_publishing(folder: Path, work: Path, names: Sequence[str]) -> None:
    """Publish the files that a killed process announced. Call it before reading the folder."""
    if not is_announced(work):
        return
    try:
        with locked(folder):
            publish(folder, work, names)
    except UnwritableFileError as error:
        raise UnwritableFileError(
            f"New files wait in {folder} and cannot be moved to their names ({error.strerror}). "
            "Open the folder once where it is writable."
        ) from error

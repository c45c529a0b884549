"""A file appears whole or not at all: written beside its place, synced, renamed."""

import errno
import io
import json
import os
import secrets
import shlex
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from bitmosaic.errors import BitmosaicError, BusyFolderError, FileFormatError, UnwritableFileError
from bitmosaic.places import led_to, refuse_special
from bitmosaic.reading import refuse_irregular

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
_UNFINISHED = ".bitmosaic-*.tmp"
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # what file systems without locks say
_LOST = (errno.EIO, errno.ENOSPC, errno.EDQUOT)  # a folder that could not be synced, not one that need not be
_NAME_BYTES = 4096  # of a lock file
_LEFT_FOR_GOOD = 24 * 3600  # seconds after which nobody writes to a file any more, where no lock tells
_TRIES, _PAUSE = 100, 0.01  # seconds between tries to open a lock file that others remove meanwhile


def megabytes(n_bytes: int) -> int:
    """Begun ones, for people who wait."""
    return -(-n_bytes // 10**6)


def beside(path) -> Path:
    """A name for what is to become `path`, in the same folder."""
    return Path(path).with_name(f".bitmosaic-{secrets.token_hex(8)}.tmp")


def is_unfinished(path) -> bool:
    return Path(path).match(_UNFINISHED)


def remove_unfinished(folder, below: bool = True) -> None:
    """Remove what a killed process left half-written in a folder, and in those below. What is being written stays."""
    for path in Path(folder).glob(f"**/{_UNFINISHED}" if below else _UNFINISHED):
        with suppress(OSError):
            if path.is_symlink():
                remove(path)
                continue
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
            try:
                taken = _take(descriptor)
                if taken or (taken is None and time.time() - os.fstat(descriptor).st_mtime > _LEFT_FOR_GOOD):
                    remove(path)
            finally:
                os.close(descriptor)


def remove(path, gently: bool = False) -> None:
    """Whatever stands at a path goes, with all below it; of a link, the link alone. `gently`: what cannot go stays.

    shutil.rmtree would wait for a pipe.
    """
    path = Path(path)
    with suppress(OSError) if gently else nullcontext():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=gently)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def writing(path):
    """Inside, what the system refuses becomes one sentence about `path`."""
    try:
        yield
    except BitmosaicError:
        raise
    except OSError as error:
        problem = UnwritableFileError(
            f"{path} cannot be written ({error.strerror or error}). "
            "Make room, or see that the place may be written to; then the same command goes on."
        )
        problem.errno, problem.strerror = error.errno, error.strerror
        raise problem from error


@contextmanager
def locked(folder):
    """Nobody else works in `folder` meanwhile; it is made if need be. Its file .lock says who does.

    The lock is one of the system (flock) and goes with the process, however it ends: a file that a killed one left is
    held by nobody. Where there are no such locks, on Windows and some network disks, nobody is kept out.
    """
    folder = Path(folder)
    above = _above_new(folder)
    with writing(folder):
        descriptor = _hold(folder)
    try:
        with writing(folder):
            for place in above:
                sync_folder(place)
        yield
    finally:
        with suppress(OSError):
            (folder / LOCK).unlink()
        if above:
            with suppress(OSError):  # it is not empty, as a rule
                folder.rmdir()
        os.close(descriptor)


def _hold(folder: Path) -> int:
    """The lock file of a folder, opened, held and with our name in it. Others may remove it, even with the folder."""
    path, me = folder / LOCK, _me()
    for left in reversed(range(_TRIES)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        except (FileNotFoundError, FileExistsError):  # the folder went between two looks at it
            if not left or (folder.exists() and not folder.is_dir()):
                raise
            time.sleep(_PAUSE)
            continue
        try:
            if _take(descriptor) is False:
                raise BusyFolderError(
                    f"One process at a time works in a folder; another bitmosaic is busy in {folder}"
                    f"{_in_words(descriptor)}. Wait for it, or stop it."
                )
            if _is_at(path, descriptor):  # then it stays there: who holds it is the only one to remove it
                _say_who(path, descriptor, me)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise BusyFolderError(f"One process at a time works in a folder; others come and go in {folder}. Try again.")


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether an open file is what a path leads to."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _say_who(path: Path, descriptor: int, me: bytes) -> None:
    """Write our name at once, over that of one who died. Where that fails, nothing is left."""
    try:
        os.write(descriptor, me)
    except OSError:
        with suppress(OSError):
            path.unlink()
        raise


def _take(descriptor: int) -> bool | None:
    """Lock an open file; False if another process has. None where files cannot be locked: everybody may have them."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
    return True


def _me() -> bytes:
    """Who works here; always as long, so that one name replaces another in one write."""
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]) if sys.argv else ""
    since = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
    me = {"process": os.getpid(), "host": socket.gethostname(), "since": since, "command": command[:200]}
    return json.dumps(me).encode("ascii").ljust(_NAME_BYTES)[:_NAME_BYTES]


def _in_words(descriptor: int) -> str:
    """Who holds a lock file; nothing if it does not say so. Who has just taken it may be about to."""
    for _ in range(_TRIES):
        if who := _named(descriptor):
            return who
        time.sleep(_PAUSE)
    return ""


def _named(descriptor: int) -> str:
    """Whose name is in a lock file; nothing if none is, or that of a process of this machine that has ended."""
    try:
        holder = json.loads(os.pread(descriptor, 2 * _NAME_BYTES, 0))
        facts = [str(holder[key])[:200] for key in ("process", "host", "since", "command")]
        if holder["host"] == socket.gethostname() and not _runs(holder["process"]):
            return ""
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""
    process, host, since, command = ("".join(filter(str.isprintable, fact)) for fact in facts)
    return f": process {process} on {host}, since {since}: {command}"


def _runs(process: Any) -> bool:
    """Whether there is such a process on this machine."""
    if type(process) is not int or not 0 < process < 2**31:
        return False
    try:
        os.kill(process, 0)
    except OSError as error:
        return error.errno == errno.EPERM
    return True


class _File(io.BufferedWriter):
    """Keeps its descriptor to itself: Pillow and NumPy would write to it directly, and miss that a disk is full."""

    def fileno(self) -> int:
        raise io.UnsupportedOperation("fileno")


@contextmanager
def new_file(path):
    """A binary file to write to, which is not there yet and is on the disk when the block ends."""
    with open(path, "xb", buffering=0) as raw, _filling(raw) as file:
        yield file


@contextmanager
def _filling(raw):
    with _File(raw) as file:
        yield file
        file.flush()
        os.fsync(raw.fileno())


@contextmanager
def new_folder(path):
    """A folder that is not there yet, to fill; meanwhile nobody takes it for one that was left unfinished."""
    make_folder(path.parent)
    path.mkdir()
    descriptor = os.open(path, os.O_RDONLY) if fcntl is not None else None
    try:
        if descriptor is not None:
            _take(descriptor)
        yield path
    finally:
        if descriptor is not None:
            os.close(descriptor)


@contextmanager
def result_file(path):
    """As `whole_file`, at a place that a user has named: what killed processes have left beside it goes first."""
    path = led_to(path)
    remove_unfinished(Path(path).parent, below=False)
    with whole_file(path) as file:
        yield file


@contextmanager
def whole_file(path):
    """A binary file to write to; it takes the place of `path` when the block ends without an error."""
    path = Path(path)
    refuse_special(path)
    with writing(path), whole_files(path.parent) as begin, begin(path.name) as file:
        yield file


@contextmanager
def whole_files(folder):
    """Begins binary files to write to, by their names in `folder`; all take their places together when the block ends
    without an error, in the order in which they were begun. Until then each is locked, however long the others take.

    The last may speak of the others: it comes when they are on the disk.
    """
    folder, temporary = Path(folder), dict[str, Path]()
    with ExitStack() as held:
        try:
            yield partial(_begin, folder, temporary, held)
            for number, (name, path) in enumerate(temporary.items(), 1):
                if number == len(temporary) > 1:
                    sync_folder(folder)
                os.replace(path, folder / name)
        finally:
            for path in temporary.values():
                with suppress(OSError):  # what went wrong before is what counts
                    path.unlink(missing_ok=True)
    sync_folder(folder)


@contextmanager
def _begin(folder: Path, temporary: dict[str, Path], held: ExitStack, name: str):
    """A file beside its place, locked as long as `held` lasts: also when it is written out and closed."""
    for _ in range(_TRIES):
        temporary[name] = path = beside(folder / name)
        with open(path, "xb", buffering=0) as raw:
            if _take(raw.fileno()) is False or not _is_at(path, raw.fileno()):
                continue  # before it was locked, somebody took it for one that was left, and removes it
            if fcntl is not None:  # elsewhere there is no lock, and an open file cannot be renamed
                held.callback(os.close, os.dup(raw.fileno()))  # a lock lasts until its last descriptor is closed
            with _filling(raw) as file:
                yield file
            return
    raise BusyFolderError(f"One process at a time works in a folder; others clear {folder} over and over. Try again.")


def write_whole(path, content: bytes) -> None:
    with whole_file(path) as file:
        file.write(content)


def copy_whole(source, path) -> None:
    """A copy of a regular file takes the place of `path`."""
    refuse_irregular(source)
    with open(source, "rb") as old, whole_file(path) as new:
        shutil.copyfileobj(old, new)


def write_json(path, value: Any) -> None:
    """Indented, and in ASCII: file names that are not UTF-8 survive."""
    write_whole(path, json.dumps(value, indent=1, allow_nan=False).encode("ascii") + b"\n")


def refuse_links(path, below: bool = True) -> None:
    """Whoever writes to a place that others have filled must not be led elsewhere: by it, nor by what is below."""
    for place in chain([path], _all_below(path) if below else ()):
        if os.path.islink(place):
            raise FileFormatError(
                f"What is written to must lie in its own folder; {place} is a link. Put a file or folder in its place."
            )


def _all_below(folder) -> Iterator[str]:
    """Every file and folder, through no link. What another process removes meanwhile leads nowhere."""
    for place, folders, files in os.walk(folder):
        yield from (os.path.join(place, name) for name in (*folders, *files))


def make_folder(folder) -> None:
    """A folder is there, and those above it: made if need be, and even then they last from now on."""
    folder = Path(folder)
    above = {folder.parent, *_above_new(folder)}  # a process that was killed may have made it just now
    folder.mkdir(parents=True, exist_ok=True)
    for place in above:
        sync_folder(place)


def _above_new(folder: Path) -> list[Path]:
    """The folders that have one more in them once `folder` is made; none if it is there."""
    return [place.parent for place in (folder, *folder.parents) if not place.exists()]


def sync_folder(folder) -> None:
    """Renames in it last from now on. Some systems cannot sync a folder, which is no reason to call it a failure."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno in _LOST:
            raise

"""A file appears whole or not at all: written beside its place, synced, renamed."""

import json
import os
import secrets
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bitmosaic.errors import BusyFolderError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]


def megabytes(n_bytes: int) -> int:
    """Begun ones, for people who wait."""
    return -(-n_bytes // 10**6)


def beside(path) -> Path:
    """A name for what is to become `path`, in the same folder."""
    return Path(path).with_name(f".bitmosaic-{secrets.token_hex(8)}.tmp")


def remove_unfinished(folder) -> None:
    """Remove what a killed process left half-written in a folder and below."""
    for file in Path(folder).rglob(".bitmosaic-*.tmp"):
        file.unlink(missing_ok=True)


@contextmanager
def locked(folder):
    """Nobody else works in `folder` meanwhile. The lock goes with the process, however it ends."""
    with open(Path(folder) / ".lock", "ab") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BusyFolderError(
                    f"One process at a time works in a folder; another bitmosaic is busy in {folder}. Wait for it."
                ) from None
        yield


@contextmanager
def whole_file(path):
    """A binary file to write to; it takes the place of `path` when the block ends without an error."""
    path = Path(path)
    temporary = beside(path)
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_whole(path, content: bytes) -> None:
    with whole_file(path) as file:
        file.write(content)


def write_json(path, value: Any) -> None:
    """Indented, and in ASCII: file names that are not UTF-8 survive."""
    write_whole(path, json.dumps(value, indent=1, allow_nan=False).encode("ascii") + b"\n")


def read_json(path) -> Any:
    """The value in a JSON file; a ValueError whatever is wrong with its text, so that NaN, say, gets no further."""
    try:
        return json.loads(Path(path).read_bytes(), parse_constant=_no_number)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def sync_folder(folder) -> None:
    # The file is in place by now. Some systems cannot sync a folder, which is no reason to call it a failure.
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

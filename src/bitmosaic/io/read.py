"""Readers of small text files: JSON, lines of limited length, and the format of a manifest."""

import json
import os
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bitmosaic.errors import BitmosaicError, FileFormatError, InvalidDataError
from bitmosaic.io.threads import machine_memory

_MANIFEST_HEAD = 200  # bytes; the format is the first key of a manifest


def refuse_irregular(path) -> None:
    """Refuse folders, and also pipes and devices, which may block forever. Symlinks are followed."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        raise FileFormatError(
            f"Only regular files are read; {shown} is a folder, a pipe or a device. Replace it by a file."
        )


def read_json(path) -> Any:
    """The value in a JSON file. Raises ValueError if the file is not JSON or nested too deeply to be read."""
    refuse_irregular(path)
    try:
        return json.loads(Path(path).read_bytes())
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def read_lines(path, longest: int) -> Iterator[bytes]:
    """The lines of a file with their newlines. Raises ValueError if one has more than `longest` bytes."""
    refuse_irregular(path)
    with open(path, "rb") as file:
        while line := file.readline(longest + 1):
            if len(line) > longest:
                raise ValueError(f"a line has more than {longest:,} bytes")
            yield line


def is_manifest(path, of: str = "bitmosaic-") -> bool:
    """Whether the file is a manifest of bitmosaic. `of` is the format, such as "bitmosaic-views"."""
    try:
        refuse_irregular(path)
        with open(path, "rb") as file:
            return f'"format": "{of}'.encode() in file.read(_MANIFEST_HEAD)
    except (OSError, FileFormatError):
        return False


# ---- Readers of .npy and .npz files. Pickles are refused, and every failure is a FileFormatError.


def open_npy(path: Any) -> np.memmap:
    """The array in a .npy file as a read-only memory map."""
    try:
        refuse_irregular(path)
        # np.load(path, mmap_mode="r") calls this, but treats a file of any other format as a pickle.
        return np.lib.format.open_memmap(path, mode="r")
    except FileFormatError:
        raise
    except Exception as error:  # a damaged header raises anything, from EOFError to TokenError
        raise _not_whole(path, error, ".npy") from error


def load_npy(path: Any) -> np.ndarray:
    """The array in a .npy file, in memory."""
    return np.array(open_npy(path))


def load_npz(path: Any) -> dict[str, np.ndarray]:
    """The arrays in a .npz file by name, in memory."""
    try:
        refuse_irregular(path)
        with zipfile.ZipFile(path) as archive:
            refuse_larger_than_memory(path, sum(member.file_size for member in archive.infolist()))
        with np.load(path, allow_pickle=False) as arrays:
            return {name: array for name, array in arrays.items() if isinstance(array, np.ndarray)}
    except FileFormatError:
        raise
    except Exception as error:  # a damaged archive raises anything, from BadZipFile to RuntimeError
        raise _not_whole(path, error, ".npz") from error


def refuse_larger_than_memory(path: Any, n_bytes: int) -> None:
    """Refuse data that must be in memory as a whole and takes more than half of it: the computation needs the rest."""
    if n_bytes > machine_memory() // 2:
        raise FileFormatError(
            f"{path} needs {n_bytes / 1e9:,.1f} GB at once, which is more than half of the memory of this machine. "
            "Save its matrices as .npy files in a folder: these stay on disk."
        )


def text_array(path: Any, texts: list[str] | list[bytes]) -> np.ndarray:
    """Strings from a file as an array. Each item takes as much memory as the longest string."""
    refuse_larger_than_memory(path, 4 * max(map(len, texts), default=0) * len(texts))
    return np.array(texts)


def _not_whole(path: Any, error: Exception, kind: str) -> FileFormatError:
    path = os.fsencode(path).decode("utf-8", "backslashreplace")
    if "object" in str(error).lower():  # "Python objects in dtype", "Object arrays cannot be loaded"
        return FileFormatError(
            f"{path} holds pickled objects, and these are refused because they can run code. "
            "Save plain arrays of numbers or strings."
        )
    return FileFormatError(
        f"{path} is not a whole {kind} file ({str(error) or type(error).__name__}). It may be "
        "missing, truncated or of another format: write it again."
    )


def array_of(values: Any, rule: str, error: type[BitmosaicError] = InvalidDataError) -> Any:
    """Convert user input to an array. `rule` is the first part of the error message."""
    try:
        return np.asarray(values)
    except (ValueError, TypeError, OverflowError) as problem:
        raise error(
            f"{rule}; got a {type(values).__name__} whose items differ in length or type. "
            "Pass items of equal length and type."
        ) from problem

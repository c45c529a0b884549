"""Checked readers: JSON, the format of a manifest, .npy and .npz files."""

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from bitmosaic.errors import FileFormatError
from bitmosaic.io.threads import machine_memory

_MANIFEST_HEAD = 200  # bytes; the format is the first key of a manifest


def read_json(path) -> Any:
    """The value in a JSON file. Raises ValueError if the file is not JSON."""
    return json.loads(Path(path).read_bytes())


def is_manifest(path, of: str = "bitmosaic-") -> bool:
    """Whether the file is a manifest of bitmosaic. `of` is the format, such as "bitmosaic-views"."""
    try:
        if not os.path.isfile(path):  # a pipe in a folder of images would block forever
            return False
        with open(path, "rb") as file:
            return f'"format": "{of}'.encode() in file.read(_MANIFEST_HEAD)
    except OSError:
        return False


# ---- Readers of .npy and .npz files. Pickles are refused, and every failure is a FileFormatError.


def open_npy(path: Any) -> np.memmap:
    """The array in a .npy file as a read-only memory map."""
    try:
        # np.load(path, mmap_mode="r") calls this, but treats a file of any other format as a pickle.
        return np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # a damaged header raises anything, from EOFError to TokenError
        raise _not_whole(path, error, ".npy") from error


def load_npy(path: Any) -> np.ndarray:
    """The array in a .npy file, in memory."""
    return np.array(open_npy(path))


def load_npz(path: Any) -> dict[str, np.ndarray]:
    """The arrays in a .npz file by name, in memory."""
    try:
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

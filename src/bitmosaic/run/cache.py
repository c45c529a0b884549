"""A cache in the run folder of arrays computed from the codes. An entry is valid as long as the codes are the same."""

import hashlib
from contextlib import suppress
from typing import Any

import numpy as np

from bitmosaic.errors import FileFormatError
from bitmosaic.io.files import whole_file
from bitmosaic.io.read import load_npz
from bitmosaic.io.threads import row_ranges
from bitmosaic.run.folder import Run

VERSION = 1  # raise it when an array is computed in another way: older entries are then ignored


def store(run: Run, name: str, **arrays: Any) -> None:
    """Write NAME.npz into the run folder. Does nothing if the folder is not writable."""
    signature = np.frombuffer(_signature(run.column("codes")), np.uint8)
    with suppress(OSError), whole_file(run.folder / f"{name}.npz") as file:
        np.savez_compressed(file, codes=signature, **arrays)


def load(run: Run, name: str, arrays: tuple[str, ...]) -> list[np.ndarray] | None:
    """These arrays of NAME.npz. None if the file is missing, damaged or of other codes."""
    try:
        stored = load_npz(run.folder / f"{name}.npz")
        is_current = stored["codes"].tobytes() == _signature(run.column("codes"))
        return [stored[array] for array in arrays] if is_current else None
    except (FileFormatError, KeyError, OSError):  # its content can be computed again
        return None


def _signature(codes: np.ndarray) -> bytes:
    signature = hashlib.blake2b(repr((VERSION, codes.shape)).encode(), digest_size=16)
    for rows in row_ranges(len(codes), 65_536):
        signature.update(np.ascontiguousarray(codes[rows]))
    return signature.digest()

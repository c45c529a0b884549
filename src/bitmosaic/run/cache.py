"""A cache in the run folder of arrays computed from the codes. An entry is valid as long as the codes are the same."""

import hashlib
from contextlib import suppress
from typing import Any

import numpy as np

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
    """These arrays of NAME.npz, `rows` among them. None if the file is missing, damaged or of other codes.

    All arrays must hold integers, and `rows` row numbers of the run.
    """
    codes = run.column("codes")
    try:
        stored = load_npz(run.folder / f"{name}.npz")
        found = {array: stored[array] for array in arrays}
        is_current = stored["codes"].tobytes() == _signature(codes)
    except Exception:  # a damaged file raises anything; its content can be computed again
        return None
    are_integers = all(array.dtype.kind in "iu" for array in found.values())
    rows = found["rows"]
    if not (is_current and are_integers and rows.ndim == 1 and (rows >= 0).all() and (rows < len(codes)).all()):
        return None
    return list(found.values())


def _signature(codes: np.ndarray) -> bytes:
    signature = hashlib.blake2b(repr((VERSION, codes.shape)).encode(), digest_size=16)
    for rows in row_ranges(len(codes), 65_536):
        signature.update(np.ascontiguousarray(codes[rows]))
    return signature.digest()

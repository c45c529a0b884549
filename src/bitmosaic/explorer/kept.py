"""What was computed once from the codes of a run and is kept in its folder, for as long as the codes are the same."""

import hashlib
from contextlib import suppress
from typing import Any

import numpy as np

from bitmosaic.errors import FileFormatError
from bitmosaic.files import whole_file
from bitmosaic.npy import load_npz
from bitmosaic.run import Run
from bitmosaic.threads import row_ranges

VERSION = 1  # of how these things are computed: what another version has kept is not used


def keep(run: Run, name: str, **arrays: Any) -> None:
    """Write NAME.npz into the run folder, if that can be written."""
    codes = np.frombuffer(_fingerprint(run.column("codes")), np.uint8)
    with suppress(OSError), whole_file(run.folder / f"{name}.npz") as file:
        np.savez_compressed(file, codes=codes, **arrays)


def kept(run: Run, name: str, arrays: tuple[str, ...]) -> list[np.ndarray] | None:
    """Some arrays of NAME.npz, if it is whole and of the codes that the run has."""
    try:
        stored = load_npz(run.folder / f"{name}.npz")
        found = [stored[array] for array in arrays]
    except (FileFormatError, KeyError):
        return None
    return found if stored.get("codes", np.empty(0)).tobytes() == _fingerprint(run.column("codes")) else None


def are_rows(values: np.ndarray, run: Run) -> bool:
    """Whether all of them are pictures of the run."""
    return bool(((values >= 0) & (values < len(run.column("codes")))).all())


def _fingerprint(codes: np.ndarray) -> bytes:
    digest = hashlib.blake2b(repr((VERSION, codes.shape)).encode(), digest_size=16)
    for rows in row_ranges(len(codes), 65_536):
        digest.update(np.ascontiguousarray(codes[rows]))
    return digest.digest()

"""What was computed once from the codes of a run and is kept in its folder, for as long as the codes are the same."""

import hashlib
import zipfile
import zlib
from contextlib import suppress
from typing import Any

import numpy as np

from bitmosaic.files import whole_file
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
        with np.load(run.folder / f"{name}.npz", allow_pickle=False) as stored:
            found = [stored[array] for array in arrays]
            of_these = bytes(stored["codes"]) == _fingerprint(run.column("codes"))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return None
    return found if of_these else None


def _fingerprint(codes: np.ndarray) -> bytes:
    digest = hashlib.blake2b(repr((VERSION, codes.shape)).encode(), digest_size=16)
    for rows in row_ranges(len(codes), 65_536):
        digest.update(np.ascontiguousarray(codes[rows]))
    return digest.digest()

"""What was computed once from the codes of a run and is kept in its folder, for as long as the codes are the same."""

import hashlib
import zipfile
from contextlib import suppress
from typing import Any

import numpy as np

from bitmosaic.files import whole_file
from bitmosaic.npy import load_npz
from bitmosaic.reading import refuse_irregular
from bitmosaic.run import Run
from bitmosaic.threads import row_ranges

MOST_BYTES, MOST_A_PICTURE = 2**20, 100  # in a file
VERSION = 1  # of how these things are computed: what another version has kept is not used


def keep(run: Run, name: str, **arrays: Any) -> None:
    """Write NAME.npz into the run folder, if that can be written."""
    codes = np.frombuffer(_fingerprint(run.column("codes")), np.uint8)
    with suppress(OSError), whole_file(run.folder / f"{name}.npz") as file:
        np.savez_compressed(file, codes=codes, **arrays)


def kept(run: Run, name: str, arrays: tuple[str, ...]) -> list[np.ndarray] | None:
    """Arrays of NAME.npz, if it is whole and of the codes of the run: whole numbers all, with `rows` that there are."""
    codes, path = run.column("codes"), run.folder / f"{name}.npz"
    try:
        refuse_irregular(path)
        with zipfile.ZipFile(path) as file:
            if sum(entry.file_size for entry in file.infolist()) > MOST_BYTES + MOST_A_PICTURE * len(codes):
                return None
        stored = load_npz(path)
        found = {array: stored[array] for array in arrays}
        of_these = stored["codes"].tobytes() == _fingerprint(codes)
    except Exception:  # in however many ways a file can be damaged, what it held can be computed anew
        return None
    whole = all(array.dtype.kind in "iu" for array in found.values())
    rows = found["rows"]
    if not (of_these and whole and rows.ndim == 1 and (rows >= 0).all() and (rows < len(codes)).all()):
        return None
    return list(found.values())


def _fingerprint(codes: np.ndarray) -> bytes:
    digest = hashlib.blake2b(repr((VERSION, codes.shape)).encode(), digest_size=16)
    for rows in row_ranges(len(codes), 65_536):
        digest.update(np.ascontiguousarray(codes[rows]))
    return digest.digest()

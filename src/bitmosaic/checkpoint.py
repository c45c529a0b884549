"""A fit that may be stopped at any moment and goes on to the same result: a folder with what there is so far.

loop.safetensors   where the iterations are, and an imprint of all that came before
codes.bin          packed codes of the first rows, as they come
codes.safetensors  how many of these were safe on the disk, and their checksum
"""

import hashlib
import os
import time
import zlib
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bitmosaic.errors import InvalidDataError, ModelFileError, ParameterError
from bitmosaic.files import locked, remove_unfinished, writing
from bitmosaic.model_file import complete, read_model, write_model
from bitmosaic.parameters import as_json, drawn_seed
from bitmosaic.scale.data import on_cluster
from bitmosaic.solver.keeping import NOTHING_KEPT, LoopState
from bitmosaic.views import exact_dtype, read_rows

KIND = "HSIC in the making"
EVERY = 5.0  # seconds
COST = 20  # seconds of work for each second of writing, at least
LOOKED_AT = 64  # rows of each view, to know the data again
NO_MATTER = ("memory_limit", "chunk_size", "n_threads", "verbose")  # for what comes out


@contextmanager
def kept_in(folder, estimator, views):
    """What keeps a fit in `folder`, or nothing where that is None; and the seed of the fit."""
    if folder is None:
        yield NOTHING_KEPT, drawn_seed(estimator.random_state)
        return
    if on_cluster(views):
        raise ParameterError(
            "A checkpoint is for views on this machine; got Dask arrays. Workers that die are replaced: leave it out."
        )
    folder = Path(folder)
    with locked(folder):
        remove_unfinished(folder)
        checkpoint = Checkpoint(folder, as_json(estimator.get_params()), looks_of(views))
        yield checkpoint, checkpoint.seed_for(estimator.random_state)


class Checkpoint:
    """Keeps one fit. What is there is taken up if it is of the same data and parameters, and refused if it is not."""

    wanted = True

    def __init__(self, folder, parameters, data):
        self.folder, self.codes_path = folder, folder / "codes.bin"
        self.facts = {
            "parameters": {name: value for name, value in parameters.items() if name not in NO_MATTER},
            "data": data,
        }
        self.loop, self.counts = self._read("loop"), self._read("codes")
        self.n_bytes, self.checksum = 0, 0  # of codes.bin, so far
        self.last, self.pause = time.monotonic(), EVERY

    def seed_for(self, random_state):
        """A fit without a seed of its own goes on with the one it was begun with."""
        begun = self.loop or self.counts
        self.facts["seed"] = begun[1]["seed"] if begun and random_state is None else drawn_seed(random_state)
        return self.facts["seed"]

    # ---- what the solver asks for

    def begin(self, imprint, rng):
        self.facts["imprint"] = imprint()
        for kept in (self.loop, self.counts):
            if kept and kept[1]["imprint"] != self.facts["imprint"]:
                raise self._other("other rows, another seed, or other versions of its libraries")
        if self.loop is None:
            return None
        with complete(self._path("loop")):
            return LoopState.from_kept(self.loop[0], self.loop[1]["state"], rng)

    def keep(self, state):
        if self._is_due():
            arrays, facts = state()
            self._write("loop", arrays, state=facts)

    def codes(self, n_bytes):
        if self.counts is None:
            self.codes_path.unlink(missing_ok=True)
            return np.empty((0, n_bytes), np.uint8)
        self.n_bytes, self.checksum = self.counts[1]["n_bytes"], self.counts[1]["checksum"]
        codes = np.empty(0, np.uint8)
        if self.codes_path.is_file():
            os.truncate(self.codes_path, self.n_bytes)  # what came after was not safe
            codes = np.fromfile(self.codes_path, np.uint8)
        if zlib.crc32(codes) != self.checksum or self.n_bytes % n_bytes:
            raise ModelFileError(f"{self.codes_path} was changed. Delete {self.folder}, and the fit begins anew.")
        return codes.reshape(-1, n_bytes)

    def keep_codes(self, codes):
        with writing(self.codes_path), self.codes_path.open("ab") as file:
            file.write(codes)
            self.n_bytes, self.checksum = self.n_bytes + codes.nbytes, zlib.crc32(codes, self.checksum)
            if self._is_due():
                file.flush()
                os.fsync(file.fileno())
                self._write("codes", {}, n_bytes=self.n_bytes, checksum=self.checksum)

    # ---- files

    def _is_due(self):
        return time.monotonic() - self.last >= self.pause

    def _write(self, name, arrays, **facts):
        start = time.monotonic()
        write_model(self._path(name), KIND, arrays, self.facts | facts)
        self.last = time.monotonic()
        self.pause = max(EVERY, COST * (self.last - start))

    def _read(self, name):
        if not self._path(name).exists():
            return None
        arrays, facts = read_model(self._path(name), KIND)
        with complete(self._path(name)):
            old, new = facts["parameters"], self.facts["parameters"]
            changed = [f"{key}={old.get(key)!r}" for key in sorted(new) if old.get(key) != new[key]]
            same = not changed and facts["data"] == self.facts["data"]
        if not same:
            raise self._other(", ".join(changed) or "other data")
        return arrays, facts

    def _path(self, name):
        return self.folder / f"{name}.safetensors"

    def _other(self, what):
        return InvalidDataError(
            f"A checkpoint goes on only with the data and parameters it was begun with; {self.folder} has {what}. "
            "Delete it to begin anew, or name another."
        )


def looks_of(views):
    """Enough of the data to see that they are others: shapes, names, and some rows of each view."""
    digest = hashlib.sha256(repr([views.n_rows, views.names, views.widths]).encode())
    rows = np.unique(np.linspace(0, views.n_rows - 1, LOOKED_AT).astype(np.int64))
    for array in views.arrays:
        digest.update(read_rows(array, rows, exact_dtype(array)).data)
    return digest.hexdigest()

"""The checkpoint of a fit: a folder from which an interrupted fit resumes to the same result.

loop.safetensors   state of the iterations, and a signature of everything before them
codes.unfinished   packed codes of the first rows, appended as they are computed
codes.safetensors  how many bytes of these codes are on disk, and their checksum
"""

import hashlib
import os
import time
import zlib
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from bitmosaic import __version__
from bitmosaic.errors import InvalidDataError, ModelFileError, ParameterError, StaleCheckpointError
from bitmosaic.estimators.model_file import complete, read_model, write_model
from bitmosaic.estimators.parameters import as_json, drawn_seed, on_cluster
from bitmosaic.io.files import LOCK, locked, remove_unfinished, writing
from bitmosaic.solver.loop import NO_CHECKPOINT, LoopState
from bitmosaic.views import exact_dtype, read_rows

KIND = "HSIC in the making"
EVERY = 5.0  # seconds between writes, at least
COST = 20  # at least this many seconds of work per second of writing
LOOKED_AT = 32  # first and last rows of each view that are hashed to identify the data
FILES = (LOCK, "loop.safetensors", "codes.safetensors", "codes.unfinished")
NO_EFFECT = ("memory_limit", "chunk_size", "n_threads", "verbose")  # on the result


@contextmanager
def open_checkpoint(folder, estimator, views, prior=""):
    """Yield the checkpoint in `folder` and the seed of the fit; without a folder, a checkpoint that saves nothing.

    `prior` is the signature of constraints and initial labels.
    """
    if folder is None:
        yield NO_CHECKPOINT, drawn_seed(estimator.random_state)
        return
    if on_cluster(views):
        raise ParameterError(
            "A checkpoint is for views on this machine; got Dask arrays. Leave it out: Dask itself repeats the work of "
            "lost workers."
        )
    folder = Path(folder)
    if folder.is_file():
        raise ParameterError(
            f"A checkpoint is a folder; got the file {str(folder)!r}. Choose an empty or a new folder."
        )
    with locked(folder):
        remove_unfinished(folder, below=False)
        if others := [path.name for path in folder.iterdir() if path.name not in FILES]:
            raise InvalidDataError(
                f"A checkpoint needs its own folder; {folder} contains {others[0]!r}. Choose an empty or a new folder."
            )
        checkpoint = Checkpoint(folder, as_json(estimator.get_params()), data_signature(views), prior)
        yield checkpoint, checkpoint.seed_for(estimator.random_state)


class Checkpoint:
    """The saved state of one fit. A checkpoint of other data or parameters raises StaleCheckpointError."""

    enabled = True

    def __init__(self, folder, parameters, data, prior=""):
        self.folder, self.codes_path = folder, folder / "codes.unfinished"
        self.facts = {
            "parameters": {name: value for name, value in parameters.items() if name not in NO_EFFECT},
            "data": data,
            "constraints or init_labels": prior,
            "versions": {"bitmosaic": __version__} | {name: version(name) for name in ("numpy", "scipy", "numba")},
        }
        self.loop, self.counts = self._read("loop"), self._read("codes")
        self.n_bytes, self.checksum = 0, 0  # of codes.unfinished
        self.last, self.pause = time.monotonic(), EVERY

    def seed_for(self, random_state):
        """Return the seed of the fit. An interrupted fit without a random_state keeps the seed it started with."""
        saved = self.loop or self.counts
        self.facts["seed"] = saved[1]["seed"] if saved and random_state is None else drawn_seed(random_state)
        return self.facts["seed"]

    # ---- called by the solver, see `bitmosaic.solver.loop`

    def resume(self, signature, rng):
        self.facts["signature"] = signature()
        if any(saved and saved[1].get("signature") != self.facts["signature"] for saved in (self.loop, self.counts)):
            raise self.error("other rows, another seed, or comes from another processor")
        if self.loop is None:
            return None
        with self._usable("loop"):
            return LoopState.from_arrays(self.loop[0], self.loop[1]["state"], rng)

    def save(self, state):
        if self._is_due():
            arrays, facts = state()
            self._write("loop", arrays, state=facts)

    def read_codes(self, codes):
        with writing(self.codes_path):
            if self.counts is None:
                self.codes_path.unlink(missing_ok=True)
                return 0
            self.n_bytes, self.checksum = (self.counts[1][name] for name in ("n_bytes", "checksum"))
            there = self.codes_path.stat().st_size if self.codes_path.is_file() else 0
            if self.n_bytes > min(there, codes.nbytes):
                raise self.error("codes that were truncated or changed")
            os.truncate(self.codes_path, self.n_bytes)  # later codes may not have reached the disk
            n_rows = self.n_bytes // codes.shape[1]
            with self.codes_path.open("rb") as file:
                file.readinto(codes[:n_rows].data)
            if zlib.crc32(codes[:n_rows]) != self.checksum:
                raise self.error("codes that were truncated or changed")
            return n_rows

    def save_codes(self, codes):
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
        with self._usable(name):
            arrays, facts = read_model(self._path(name), KIND)
            old, new = facts["parameters"], self.facts["parameters"]
            changed = [f"{key}={old.get(key)!r}" for key in sorted(new) if old.get(key) != new[key]]
            other = [
                name
                for name in ("data", "versions", "constraints or init_labels")
                if facts.get(name, "") != self.facts[name]
            ]
        if changed or other:
            raise self.error(", ".join(changed) or f"other {other[0]}")
        return arrays, facts

    @contextmanager
    def _usable(self, name):
        """Inside the block, a damaged file raises StaleCheckpointError."""
        try:
            with complete(self._path(name)):
                yield
        except ModelFileError as error:
            raise self.error(f"a file that cannot be used: {error}") from error

    def _path(self, name):
        return self.folder / f"{name}.safetensors"

    def error(self, what):
        return StaleCheckpointError(
            f"A fit resumes only with the data and parameters it started with; {self.folder} has {what}. "
            "Delete the folder to start again, or choose another one."
        )


def data_signature(views):
    """Return a hash of the shapes, the names, and the first and last rows of each view."""
    signature = hashlib.sha256(repr([views.n_rows, views.names, views.widths]).encode())
    for array in views.arrays:
        for rows in (slice(0, LOOKED_AT), slice(max(0, views.n_rows - LOOKED_AT), views.n_rows)):
            signature.update(read_rows(array, rows, exact_dtype(array)).data)
    return signature.hexdigest()

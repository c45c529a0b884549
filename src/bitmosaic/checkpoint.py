"""A fit that may be stopped at any moment and goes on to the same result: a folder with what there is so far.

loop.safetensors   where the iterations are, and an imprint of all that came before
codes.unfinished   packed codes of the first rows, as they come
codes.safetensors  how many of these were safe on the disk, and their checksum
"""

import hashlib
import os
import time
import zlib
from contextlib import contextmanager
from importlib.metadata import version

from bitmosaic import __version__
from bitmosaic.errors import InvalidDataError, ModelFileError, ParameterError, StaleCheckpointError
from bitmosaic.files import LOCK, locked, refuse_links, remove_unfinished, writing
from bitmosaic.model_file import complete, read_model, write_model
from bitmosaic.parameters import as_json, drawn_seed
from bitmosaic.places import as_path
from bitmosaic.scale.data import on_cluster
from bitmosaic.solver.keeping import NOTHING_KEPT, LoopState
from bitmosaic.views import exact_dtype, read_rows

KIND = "HSIC in the making"
EVERY = 5.0  # seconds
COST = 20  # seconds of work for each second of writing, at least
LOOKED_AT = 32  # rows at the beginning and the end of each view, to know the data again
OWN = (LOCK, "loop.safetensors", "codes.safetensors", "codes.unfinished")
NO_MATTER = ("memory_limit", "chunk_size", "n_threads", "verbose")  # for what comes out


@contextmanager
def kept_in(folder, estimator, views, guidance=""):
    """What keeps a fit in `folder`, or nothing where that is None; and the seed of the fit. `guidance` tells
    constraints and first labels from others."""
    if folder is None:
        yield NOTHING_KEPT, drawn_seed(estimator.random_state)
        return
    if on_cluster(views):
        raise ParameterError(
            "A checkpoint is for views on this machine; got Dask arrays. Workers that die are replaced: leave it out."
        )
    folder = as_path(folder, "A checkpoint")
    if folder.is_file():
        raise ParameterError(f"A checkpoint is a folder; got {str(folder)!r}. Name an empty or a new one.")
    with locked(folder):
        remove_unfinished(folder, below=False)
        if others := [path.name for path in folder.iterdir() if path.name not in OWN]:
            raise InvalidDataError(
                f"A checkpoint has a folder of its own; {folder} holds {others[0]!r}. Name an empty or a new one."
            )
        for name in OWN:
            refuse_links(folder / name)
        checkpoint = Checkpoint(folder, as_json(estimator.get_params()), looks_of(views), guidance)
        yield checkpoint, checkpoint.seed_for(estimator.random_state)


class Checkpoint:
    """Keeps one fit. What is there is taken up if it is of the same data and parameters, and refused if it is not."""

    wanted = True

    def __init__(self, folder, parameters, data, guidance=""):
        self.folder, self.codes_path = folder, folder / "codes.unfinished"
        self.facts = {
            "parameters": {name: value for name, value in parameters.items() if name not in NO_MATTER},
            "data": data,
            "constraints or init_labels": guidance,
            "versions": {"bitmosaic": __version__} | {name: version(name) for name in ("numpy", "scipy", "numba")},
        }
        self.loop, self.counts = self._read("loop"), self._read("codes")
        self.n_bytes, self.checksum = 0, 0  # of codes.unfinished
        self.last, self.pause = time.monotonic(), EVERY

    def seed_for(self, random_state):
        """A fit without a seed of its own goes on with the one it was begun with."""
        begun = self.loop or self.counts
        self.facts["seed"] = begun[1]["seed"] if begun and random_state is None else drawn_seed(random_state)
        return self.facts["seed"]

    # ---- what the solver asks for

    def begin(self, imprint, rng):
        self.facts["imprint"] = imprint()
        if any(kept and kept[1].get("imprint") != self.facts["imprint"] for kept in (self.loop, self.counts)):
            raise self.refuse("other rows, another seed, or comes from another processor")
        if self.loop is None:
            return None
        with self._usable("loop"):
            return LoopState.from_kept(self.loop[0], self.loop[1]["state"], rng)

    def keep(self, state):
        if self._is_due():
            arrays, facts = state()
            self._write("loop", arrays, state=facts)

    def read_codes(self, codes):
        with writing(self.codes_path):
            if self.counts is None:
                self.codes_path.unlink(missing_ok=True)
                return 0
            self.n_bytes, self.checksum = (self.counts[1].get(name) for name in ("n_bytes", "checksum"))
            there = self.codes_path.stat().st_size if self.codes_path.is_file() else 0
            if type(self.n_bytes) is not int or not 0 <= self.n_bytes <= min(there, codes.nbytes):
                raise self.refuse("codes that were cut or changed")
            os.truncate(self.codes_path, self.n_bytes)  # what came after was not safe
            n_rows, rest = divmod(self.n_bytes, codes.shape[1])
            with self.codes_path.open("rb") as file:
                file.readinto(codes[:n_rows].data)
            if rest or zlib.crc32(codes[:n_rows]) != self.checksum:
                raise self.refuse("codes that were cut or changed")
            return n_rows

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
            raise self.refuse(", ".join(changed) or f"other {other[0]}")
        return arrays, facts

    @contextmanager
    def _usable(self, name):
        """Inside, whatever is wrong with a file refuses the checkpoint."""
        try:
            with complete(self._path(name)):
                yield
        except ModelFileError as error:
            raise self.refuse(f"a file that cannot be used: {error}") from error

    def _path(self, name):
        return self.folder / f"{name}.safetensors"

    def refuse(self, what):
        return StaleCheckpointError(
            f"A checkpoint goes on only with the data and parameters it was begun with; {self.folder} has {what}. "
            "Delete it to begin anew, or name another."
        )


def looks_of(views):
    """Enough of the data to see that they are others: shapes, names, and the first and last rows of each view."""
    digest = hashlib.sha256(repr([views.n_rows, views.names, views.widths]).encode())
    for array in views.arrays:
        for rows in (slice(0, LOOKED_AT), slice(max(0, views.n_rows - LOOKED_AT), views.n_rows)):
            digest.update(read_rows(array, rows, exact_dtype(array)).data)
    return digest.hexdigest()

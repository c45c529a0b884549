"""A run folder: written by `cluster` and `fit`, read by all other commands.

manifest.json      versions, arguments, counts, scores; seconds and file sizes of each finished stage (see manifest.py)
views/             the views folder; a run of `fit` names another folder in the manifest instead
skipped.csv        images that could not be read, and why
model.safetensors  the fitted HSIC
how-many.png       with `auto`: the cluster counts that were tried, and the choice
codes.npy, labels.npy, distances.npy   for each image: code, cluster number, distance to the center
clusters.csv, clusters.parquet         for each image: path, cluster, distance, margin, and the true label if known
overview.png, clusters/*.jpg           contact sheets of the clusters
edits.jsonl        names, merges and moves made by hand (see edits.py)
additions/         one folder for each `add`: 0001, 0002 … (below)
lineage.csv        after a refit: how the clusters before and after it correspond
pinned.npy         after a refit: the images that were moved by hand, which later refits keep in their clusters
history/           after a refit: one folder for each, with its lineage.csv and the edits.jsonl before it
map.npz, perceptual_hashes.npz, thumbnails.sqlite   caches: the map, perceptual hashes, and thumbnails

Files of an addition (those of the first fit are not changed):

manifest.json      source, time, and the numbers of images that were added, known already, or skipped
views/             the views folder of the new images
codes.npy, labels.npy, distances.npy, clusters.csv, clusters.parquet   as in a run, of the new images
skipped.csv        images that could not be read, and why
known.csv          images that the run already had, and their paths in the run
centers.npy, bit_sums.npy, counts.npy   with `--update`: the new centers, and the bit sums and counts of their codes

An unfinished addition is in additions/.adding. It is renamed to its number when it is complete.

Present only while a process works, or after it was killed: .lock, .bitmosaic-*.tmp (temporary files),
.views.extracting/, checkpoint/ and .refit/ (an interrupted extraction, fit or refit resumes from these).

Stages are done in the order extract, fit, tables, sheets. The manifest is written after each.

Codes and labels are stored twice. All readers use codes.npy and labels.npy, through :meth:`Run.column`. The model file
has the same codes and, for each image, the index of its center. These are read only to write the tables, to update
centers, and by a refit. After a refit, cluster numbers differ from center indices (:attr:`Run.ids`).
"""

import hashlib
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from bitmosaic import __version__
from bitmosaic.errors import FileFormatError, InvalidDataError
from bitmosaic.estimators.hsic import HSIC
from bitmosaic.io.files import (
    LOCK,
    finish_publishing,
    is_announced,
    is_unfinished,
    locked,
    publish,
    remove,
    remove_unfinished,
    whole_file,
)
from bitmosaic.io.read import load_npy, load_npz, open_npy
from bitmosaic.io.threads import available_threads, row_ranges
from bitmosaic.run.manifest import MANIFEST, STAGES, AdditionManifest, Manifest
from bitmosaic.run.tables import table_names, write_column
from bitmosaic.solver.clustering import Majority
from bitmosaic.solver.model import nearest_two
from bitmosaic.views import Views, read_views
from bitmosaic.views.views import chained

REFIT = ".refit"  # work folder of a refit
CHECKPOINT = "checkpoint"  # work folder of the fit
MODEL = "model.safetensors"
ADDITIONS = "additions"
COLUMNS = {"codes": (np.uint8, 2), "labels": (np.int32, 1), "distances": (np.float32, 1)}  # type, dimensions
CACHE_VERSION = 1  # raise it when a cached array is computed in another way: older caches are then ignored
_AGAIN = "Copy the run again from where it was made."
_TABLES = (*(f"{name}.npy" for name in COLUMNS), *table_names("clusters"))
_WORK = {"extract": ".views.extracting", "fit": CHECKPOINT}  # work folders, removed when the stage is done
RENEWED = (  # files that a refit replaces, the manifest last
    "clusters",
    "overview.png",
    "how-many.png",
    MODEL,
    *_TABLES,
    "lineage.csv",
    "pinned.npy",
    "edits.jsonl",
    MANIFEST,
)
_FILES = {  # of each stage, as patterns
    "extract": ("skipped.csv",),
    "fit": (MODEL,),
    "tables": _TABLES,
    "sheets": ("overview.png", "clusters/*.jpg"),
}


@dataclass(frozen=True)
class Addition:
    """One addition: the images of one `add`."""

    folder: Path
    manifest: AdditionManifest

    @property
    def n_rows(self) -> int:
        return self.manifest.images

    @property
    def views_folder(self) -> Path:
        return self.folder / "views"

    @property
    def views(self) -> Views:
        return read_views(self.views_folder)

    def moved(self) -> Majority | None:
        """The centers after this addition, None if it did not update them."""
        if not self.manifest.updated:
            return None
        return Majority(**{name: load_npy(self.folder / f"{name}.npy") for name in Majority._fields})


class Run:
    """An existing run folder. :meth:`at_work` creates one, or resumes an interrupted one.

    `of`: during a refit, the run that is refitted. The new run has its own folder with new tables, and shares the
    images, views and additions of the old one.
    """

    def __init__(self, folder: Any, of: "Run | None" = None):
        self.folder = Path(folder)
        finish_publishing(self.folder, self.folder / REFIT, RENEWED)
        self.manifest = Manifest.read(self.folder)
        self.of = of
        self._data_folder = self.folder if of is None else of.folder

    @classmethod
    @contextmanager
    def at_work(cls, folder: Any, arguments: dict[str, Any]) -> "Iterator[Run]":
        """Create a run with these arguments, or resume the existing one if its arguments are the same.

        The folder is locked inside the block. Temporary files of killed processes are removed.
        """
        folder = Path(folder)
        if folder.exists() and not folder.is_dir():
            raise InvalidDataError(f"A run is a folder; {folder} is a file. Choose another name.")
        with locked(folder):
            publish_refit(folder)
            run = cls._begin(folder, arguments)
            for place in (folder, folder / "clusters"):  # additions have their own lock
                remove_unfinished(place, below=False)
            run.forget_lost_stages()
            if (run.additions or run.manifest.refits) and not run.complete:
                raise InvalidDataError(
                    f"The run in {folder} has additions or was refitted, and has lost files. It cannot be resumed from "
                    "its first images. Copy it again, or create a new run from all images."
                )
            for stage, work in _WORK.items():
                if run.done(stage):
                    remove(folder / work, ignore_errors=True)
            yield run

    @classmethod
    def _begin(cls, folder: Path, arguments: dict[str, Any]) -> "Run":
        if not (folder / MANIFEST).exists():
            if any(entry.name != LOCK and not is_unfinished(entry) for entry in folder.iterdir()):
                raise InvalidDataError(
                    f"A new run needs an empty folder; {folder} holds other things. Choose another folder."
                )
            Manifest(
                bitmosaic=__version__,
                begun=datetime.now(UTC).isoformat(timespec="seconds"),
                arguments=arguments,
                seconds={},
                python=platform.python_version(),
                packages={name: version(name) for name in ("numpy", "scipy", "scikit-learn", "numba", "pillow")},
            ).write(folder)
        run = cls(folder)
        if run.manifest.seconds:
            run._check(arguments)
        elif run._changed(arguments):  # no stage has used the old arguments yet
            run.manifest.arguments = arguments
            run.manifest.write(folder)
        return run

    def _changed(self, arguments: dict[str, Any]) -> list[str]:
        old = self.manifest.arguments
        return [key for key in old | arguments if old.get(key) != arguments.get(key)]

    def _check(self, arguments: dict[str, Any]) -> None:
        if changed := self._changed(arguments):
            was, now = (
                ", ".join(dict.fromkeys(_in_words(key, values.get(key)) for key in changed))
                for values in (self.manifest.arguments, arguments)
            )
            raise InvalidDataError(
                f"A run is resumed only with the arguments it was begun with; {self.folder} has {was}, now asked for: "
                f"{now}. Choose another folder, or reuse the features of this run: bitmosaic fit {self.folder} "
                "--clusters K --out OTHER."
            )

    # ---- stages

    def done(self, stage: str) -> bool:
        return stage in self.manifest.seconds

    @property
    def complete(self) -> bool:
        return all(self.done(stage) for stage in STAGES)

    def require(self, stage: str) -> None:
        """Raise an error if the run was interrupted before the end of this stage."""
        if not self.done(stage):
            raise InvalidDataError(
                f"The run in {self.folder} was interrupted before the end of its stage {stage!r}. "
                "Run the command that began it again to finish it."
            )

    def forget_lost_stages(self) -> None:
        """Mark a stage as not done if its files are missing or changed in size, and with it all later stages.

        The file of the extraction, skipped.csv, is not used by later stages: if it is lost, these stay done.
        """
        done = [stage for stage in STAGES if self.done(stage)]
        for i, stage in enumerate(done):
            found = self._bytes(stage)
            if found != self.manifest.bytes.get(stage, found):
                lost = [stage] if stage == "extract" else done[i:]
                for name in lost:
                    self.manifest.seconds.pop(name, None)

    def _bytes(self, stage: str) -> dict[str, int]:
        """The sizes of the existing files of a stage."""
        folder = self._data_folder if stage == "extract" else self.folder
        paths = [path for pattern in _FILES[stage] for path in sorted(folder.glob(pattern))]
        return {path.name: path.stat().st_size for path in paths if path.is_file()}

    @contextmanager
    def stage(self, name: str, start: float | None = None) -> Iterator[dict[str, Any]]:
        """Time the stage inside the block, then write it to the manifest, with the fields set in the yielded dict."""
        facts: dict[str, Any] = {}
        start = time.perf_counter() if start is None else start
        yield facts
        for key, value in facts.items():
            setattr(self.manifest, key, value)
        self.manifest.seconds[name] = round(time.perf_counter() - start, 3)
        self.manifest.bytes[name] = self._bytes(name)
        self.manifest.write(self.folder)

    # ---- content. Rows are the images of the first fit, then those of each addition

    @property
    def views_folder(self) -> Path:
        """The views folder of the images of the first fit."""
        return Path(self.manifest.views_folder or self._data_folder / "views")

    @cached_property
    def additions(self) -> list[Addition]:
        return read_additions(self._data_folder)

    @property
    def unlearned(self) -> list[Addition]:
        """The additions since the last fit. The tables of the run do not include them."""
        return self.additions[self.manifest.absorbed :]

    @property
    def n_fitted(self) -> int:
        """The number of images of the last fit. These are the first rows."""
        learned = self.additions[: len(self.additions) - len(self.unlearned)]
        return self.manifest.images + sum(addition.n_rows for addition in learned)

    @property
    def n_images(self) -> int:
        return self.n_fitted + sum(addition.n_rows for addition in self.unlearned)

    @cached_property
    def views(self) -> Views:
        return chained([read_views(self.views_folder), *(addition.views for addition in self.additions)])

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """The path of each image inside its source. Images of different sources may have the same path."""
        return self.views.paths or tuple(map(str, range(self.views.n_rows)))

    def column(self, name: str) -> np.ndarray:
        """codes, labels or distances of all images."""
        added = [open_column(addition.folder, name, addition.n_rows) for addition in self.unlearned]
        return np.concatenate([self.fitted_column(name), *added]) if added else self.fitted_column(name)

    def fitted_column(self, name: str) -> np.ndarray:
        """codes, labels or distances of the images of the last fit, as a memory map."""
        try:
            return open_column(self.folder, name, self.n_fitted)
        finally:
            self._require_current()

    @cached_property
    def model(self) -> HSIC:
        """The model of the last fit. To assign new images use `centers`, which additions may have updated."""
        try:
            return HSIC.load(self.folder / MODEL)
        finally:
            self._require_current()

    @property
    def centers(self) -> np.ndarray:
        """Packed centers (n_clusters, n_bits/8), as updated by additions."""
        return self.model.cluster_centers_ if self.moved is None else self.moved.centers

    @cached_property
    def moved(self) -> Majority | None:
        """The centers after the last addition with an update, None if there was none."""
        found = (addition.moved() for addition in reversed(self.unlearned))
        return next((moved for moved in found if moved is not None), None)

    @cached_property
    def ids(self) -> np.ndarray:
        """The cluster number of each center of the model, (n_clusters,) int64.

        0, 1, 2 … before the first refit. After it there may be gaps, and several centers may have the same number.
        """
        return np.arange(self.model.n_clusters_) if self.manifest.ids is None else np.array(self.manifest.ids, np.int64)

    @property
    def n_refits(self) -> int:
        return len(self.manifest.refits)

    def _require_current(self) -> None:
        """Raise an error if a refit has replaced the files since this object read the manifest."""
        if self.of is not None:  # only this process uses the folder
            return
        if is_announced(self.folder / REFIT) or Manifest.read(self.folder).refits != self.manifest.refits:
            raise InvalidDataError(f"The run in {self.folder} was refitted since it was opened. Open it again.")

    @property
    def next_number(self) -> int:
        """The lowest cluster number that was never used in this run."""
        return max(int(self.ids.max()) + 1, self.manifest.next_number or 0)

    def nearest_of_codes(self, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For each code: number of the nearest cluster, distance to its center, and margin to the next cluster."""
        n_threads = available_threads(self.model.n_threads)
        nearest, distance, margin = nearest_two(codes, self.centers, self.model.bit_weights_, n_threads, self.ids)
        return self.ids[nearest].astype(np.int32), distance, margin

    def write_columns(self, **columns: np.ndarray) -> None:
        for name, values in columns.items():
            write_column(self.folder / f"{name}.npy", values)

    # ---- caches of arrays that are computed from the codes

    def store_cached(self, name: str, **arrays: Any) -> None:
        """Write NAME.npz into the run folder. Does nothing if the folder is not writable."""
        signature = np.frombuffer(_signature(self.column("codes")), np.uint8)
        with suppress(OSError), whole_file(self.folder / f"{name}.npz") as file:
            np.savez_compressed(file, codes=signature, **arrays)

    def load_cached(self, name: str, arrays: tuple[str, ...]) -> list[np.ndarray] | None:
        """These arrays of NAME.npz. None if the file is missing, damaged or of other codes."""
        try:
            stored = load_npz(self.folder / f"{name}.npz")
            is_current = stored["codes"].tobytes() == _signature(self.column("codes"))
            return [stored[array] for array in arrays] if is_current else None
        except (FileFormatError, KeyError, OSError):  # its content can be computed again
            return None


AnyRun = Run | str | os.PathLike[str]  # a run, or its folder


def as_run(run: AnyRun) -> Run:
    return run if isinstance(run, Run) else Run(run)


def read_additions(run_folder: Path) -> list[Addition]:
    """The additions of a run in order. An empty list if there are none."""
    folder = run_folder / ADDITIONS
    if not folder.is_dir():
        return []
    found = (entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    names = sorted(found, key=lambda name: (len(name), name))
    if names != [addition_name(number) for number in range(1, len(names) + 1)]:
        raise FileFormatError(f"{folder} holds additions numbered from {addition_name(1)} on, without gaps. {_AGAIN}")
    return [Addition(folder / name, AdditionManifest.read(folder / name)) for name in names]


def addition_name(number: int) -> str:
    return f"{number:04d}"


def open_column(folder: Path, name: str, n_rows: int) -> np.ndarray:
    """codes, labels or distances of a run or an addition, as a memory map."""
    path = folder / f"{name}.npy"
    column = open_npy(path)
    dtype, ndim = COLUMNS[name]
    if column.dtype != dtype or column.ndim != ndim or len(column) != n_rows:
        raise FileFormatError(
            f"{path} must hold {np.dtype(dtype)} in {ndim} dimensions, a row for each of {n_rows} images; it holds "
            f"{column.dtype} of shape {column.shape}. {_AGAIN}"
        )
    return column


def publish_refit(folder: Path) -> None:
    """Move the complete files of a refit into the run folder, if there are any. Caller must hold the folder lock."""
    publish(folder, folder / REFIT, RENEWED)


def _signature(codes: np.ndarray) -> bytes:
    """A hash of the codes, by which a cache is recognized as current."""
    signature = hashlib.blake2b(repr((CACHE_VERSION, codes.shape)).encode(), digest_size=16)
    for rows in row_ranges(len(codes), 65_536):
        signature.update(np.ascontiguousarray(codes[rows]))
    return signature.digest()


def _in_words(key: str, value: Any) -> str:
    """An argument of a run, for an error message."""
    if key in ("pictures", "fingerprint", "shape"):  # number of images, and signature, of the source
        return "other data (changed since the run began)"
    if key == "views" and isinstance(value, list):
        return f"views {', '.join(view['name'] for view in value)}" if value else "no views"
    return f"{key.replace('_', ' ')} {value if value is not None else 'not given'}"

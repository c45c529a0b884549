"""A run folder: what `cluster` and `fit` write, and everything else reads.

manifest.json      versions, arguments, counts, scores, and for each stage its seconds (of the attempt that finished it)
                   and the bytes of its files; written after every stage
views/             the views folder
model.safetensors  the fitted HSIC, with codes and labels
clusters.csv, clusters.parquet   path, cluster, distance, margin
codes.npy, labels.npy, distances.npy
skipped.csv        pictures that could not be read, and why
overview.png, clusters/*.jpg     pictures of the clusters
how-many.png       with `auto`: the numbers of clusters that were tried, the choice and its doubt
checkpoint/        while the fit runs: what a process that takes it up goes on from
additions/         what `add` has added since, a folder each (see additions.py)
lineage.csv        after a refit: what became of each cluster; history/ has every one, and the edits before it
pinned.npy         after a refit: pictures that stay where people have put them
edits.jsonl        what people changed by hand, and thumbnails.sqlite, map.npz: what the explorer keeps
"""

import csv
import io
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bitmosaic import __version__
from bitmosaic.additions import Addition, open_column, read_additions, require_fitting
from bitmosaic.errors import FileFormatError, InvalidDataError
from bitmosaic.files import (
    LOCK,
    is_unfinished,
    locked,
    refuse_links,
    remove,
    remove_unfinished,
    whole_file,
    write_json,
)
from bitmosaic.hsic import HSIC
from bitmosaic.places import as_path
from bitmosaic.publishing import finish_publishing, is_announced, publish
from bitmosaic.run_manifest import FORMAT, STAGES, VERSION, read_manifest
from bitmosaic.solver.online import Majority
from bitmosaic.views import Views, read_views
from bitmosaic.views.chain import chained

REFIT = ".refit"  # where a refit works, in the run folder
CHECKPOINT = "checkpoint"  # of the fit
_OVER = {"extract": ".views.extracting", "fit": CHECKPOINT}  # what a stage works with, and nobody needs after it
RENEWED = (  # what it replaces, the manifest last
    "clusters",
    "overview.png",
    "how-many.png",
    "model.safetensors",
    "codes.npy",
    "labels.npy",
    "distances.npy",
    "clusters.csv",
    "clusters.parquet",
    "lineage.csv",
    "pinned.npy",
    "edits.jsonl",
    "manifest.json",
)
# What is written to where it stands; all else is replaced.
_WRITTEN = (REFIT, "additions", "history", "clusters", CHECKPOINT, "edits.jsonl", "thumbnails.sqlite")
_MADE = {
    "extract": ("skipped.csv",),
    "fit": ("model.safetensors",),
    "tables": ("codes.npy", "labels.npy", "distances.npy", "clusters.csv", "clusters.parquet"),
    "pictures": ("overview.png", "clusters/*.jpg"),
}


class Run:
    """A run folder that exists; :meth:`at_work` makes one, or takes up one that was stopped."""

    def __init__(self, folder):
        self.folder = as_path(folder, "A run folder")
        for name in _WRITTEN:
            refuse_links(self.folder / name, below=False)
        finish_publishing(self.folder, self.folder / REFIT, RENEWED)
        self._stamp = self._manifest_stamp()
        self.manifest = read_manifest(self.folder)

    @classmethod
    @contextmanager
    def at_work(cls, folder, arguments: dict[str, Any]) -> "Iterator[Run]":
        """A new run with these arguments, or the one that is there if its arguments are the same.

        Meanwhile no other process works on it, and what a killed one left unfinished is gone.
        """
        folder = as_path(folder, "A run folder")
        if folder.exists() and not folder.is_dir():
            raise InvalidDataError(f"A run is a folder; {folder} is a file. Choose another name.")
        if (kept := cls._kept(folder)) is not None:
            kept._check(arguments)
            yield kept
            return
        with locked(folder):
            settle(folder)
            run = cls._begin(folder, arguments)
            remove_unfinished(folder)
            run._forget_what_is_gone()
            run._refuse_to_shrink()
            for stage, work in _OVER.items():
                if run.done(stage):
                    remove(folder / work, gently=True)
            yield run

    def _refuse_to_shrink(self) -> None:
        """What additions have joined, or a refit has learned, cannot be made anew from what the run began with."""
        if (self.additions or self.manifest.get("refits")) and not self.complete:
            raise InvalidDataError(
                f"A run that has grown or was refitted is not made again from its first pictures; {self.folder} has "
                "lost files. Copy it again, or make a new run of all pictures."
            )

    @classmethod
    def _kept(cls, folder: Path) -> "Run | None":
        """A finished run where nothing can be written, None elsewhere: there, nothing is to be done, nor locked."""
        if os.access(folder, os.W_OK) or not (folder / "manifest.json").exists():
            return None
        run = cls(folder)
        run._forget_what_is_gone()
        return run if run.complete else None

    @classmethod
    def _begin(cls, folder: Path, arguments: dict[str, Any]) -> "Run":
        if not (folder / "manifest.json").exists():
            if any(entry.name != LOCK and not is_unfinished(entry) for entry in folder.iterdir()):
                raise InvalidDataError(f"A run has a folder of its own; {folder} holds other things. Choose another.")
            manifest = {
                "format": FORMAT,
                "version": VERSION,
                "bitmosaic": __version__,
                "python": platform.python_version(),
                "packages": {name: version(name) for name in ("numpy", "scipy", "scikit-learn", "numba", "pillow")},
                "begun": datetime.now(UTC).isoformat(timespec="seconds"),
                "arguments": arguments,
                "seconds": {},
            }
            write_json(folder / "manifest.json", manifest)
        run = cls(folder)
        if run.manifest["seconds"]:
            run._check(arguments)
        elif run._changed(arguments):  # nothing is there yet that the old arguments have made
            run.manifest["arguments"] = arguments
            write_json(folder / "manifest.json", run.manifest)
        return run

    def _changed(self, arguments: dict[str, Any]) -> list[str]:
        return [key for key in arguments if self.manifest["arguments"].get(key) != arguments[key]]

    def _check(self, arguments: dict[str, Any]) -> None:
        if changed := self._changed(arguments):
            old = self.manifest["arguments"]
            was = ", ".join(dict.fromkeys(_in_words(key, old.get(key)) for key in changed))
            raise InvalidDataError(
                f"A run goes on only with the arguments it was begun with; {self.folder} has {was}. "
                f"Choose another folder, or use its features: bitmosaic fit {self.folder} --clusters K --out OTHER."
            )

    # ---- stages

    def done(self, stage: str) -> bool:
        return stage in self.manifest["seconds"]

    @property
    def complete(self) -> bool:
        return all(self.done(stage) for stage in STAGES)

    def _forget_what_is_gone(self) -> None:
        """A stage whose files are gone or cut is done again, and those after it, if they are made from its files."""
        done = [stage for stage in STAGES if self.done(stage)]
        for i, stage in enumerate(done):
            found = self._bytes(stage)
            if found != self.manifest.get("bytes", {}).get(stage, found):  # a run of long ago does not tell
                if stage == "extract":  # its file is for people
                    del self.manifest["seconds"][stage]
                    continue
                for later in done[i:]:
                    del self.manifest["seconds"][later]
                return

    def _bytes(self, stage: str) -> dict[str, int]:
        """How long the files of a stage are, of those that are there."""
        paths = [path for pattern in _MADE.get(stage, ()) for path in sorted(self.folder.glob(pattern))]
        return {path.name: path.stat().st_size for path in paths if path.is_file()}

    def finish(self, stage: str, seconds: float, **facts: Any) -> None:
        """Note that a stage is done, how long the attempt that finished it took, and what is to be known of it."""
        self.manifest["seconds"][stage] = round(seconds, 3)
        self.manifest |= facts
        if stage in _MADE:
            self.manifest.setdefault("bytes", {})[stage] = self._bytes(stage)
        write_json(self.folder / "manifest.json", self.manifest)

    # ---- what it holds: the pictures it was made of, then those of each addition

    @property
    def views_folder(self) -> Path:
        """Of the pictures it was made of."""
        return Path(self.manifest["views_folder"]) if "views_folder" in self.manifest else self.folder / "views"

    @cached_property
    def additions(self) -> list[Addition]:
        return read_additions(self.folder)

    @property
    def unlearned(self) -> list[Addition]:
        """The additions that came after the last fit: its tables do not cover them."""
        absorbed = self.manifest.get("absorbed", 0)
        if absorbed > len(self.additions):
            raise FileFormatError(
                f"{self.folder} must have the {absorbed} additions that its fit has learned from; it has "
                f"{len(self.additions)}. Copy the run again from where it was made."
            )
        return self.additions[absorbed:]

    @property
    def n_fitted(self) -> int:
        """The pictures that the last fit has learned from. They come first."""
        learned = self.additions[: len(self.additions) - len(self.unlearned)]
        return self.manifest.get("images", 0) + sum(addition.n_rows for addition in learned)

    @property
    def n_images(self) -> int:
        return self.n_fitted + sum(addition.n_rows for addition in self.unlearned)

    @cached_property
    def views(self) -> Views:
        return chained([read_views(self.views_folder), *(addition.views for addition in self.additions)])

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """As each source names its pictures; those of different sources may be the same."""
        return self.views.paths or tuple(map(str, range(self.views.n_rows)))

    def column(self, name: str) -> np.ndarray:
        """codes, labels or distances of all pictures."""
        added = [self._opened(addition.folder, name, addition.n_rows) for addition in self.unlearned]
        return np.concatenate([self.fitted_column(name), *added]) if added else self.fitted_column(name)

    def fitted_column(self, name: str) -> np.ndarray:
        """codes, labels or distances of the pictures that the last fit has learned from, as a memory map."""
        try:
            return self._opened(self.folder, name, self.n_fitted)
        finally:
            self._require_current()

    @cached_property
    def _fitting(self) -> set[tuple[Path, str]]:
        """The columns that were found to belong to the run."""
        return set()

    def _opened(self, folder: Path, name: str, n_rows: int) -> np.ndarray:
        """A column of a folder, which is looked through when it is opened first."""
        column = open_column(folder, name, n_rows)
        if (folder, name) not in self._fitting:
            require_fitting(folder, name, column, self.fitted_model.cluster_centers_.shape[1], self.ids)
            self._fitting.add((folder, name))
        return column

    @cached_property
    def fitted_model(self) -> HSIC:
        """As the last fit has left it."""
        try:
            return HSIC.load(self.folder / "model.safetensors")
        finally:
            self._require_current()

    @cached_property
    def model(self) -> HSIC:
        """The model that new pictures meet: its centers are where additions have moved them."""
        moved = self.moved
        return self.fitted_model if moved is None else self.fitted_model.with_centers(*moved)

    @cached_property
    def moved(self) -> Majority | None:
        """The centers as additions have moved them last."""
        shape = self.fitted_model.cluster_centers_.shape
        found = (addition.moved(*shape) for addition in reversed(self.unlearned))
        return next((moved for moved in found if moved is not None), None)

    @cached_property
    def ids(self) -> np.ndarray:
        """The number of the cluster of each center of the model, (n_clusters,) int64.

        As a rule 0, 1, 2 …; after a refit there may be gaps, and several centers may have the same number.
        """
        n_centers = self.fitted_model.n_clusters_
        ids = np.array(self.manifest.get("ids", range(n_centers)), np.int64)
        if len(ids) != n_centers:
            raise FileFormatError(
                f"{self.folder / 'manifest.json'} must have a number for each of {n_centers} centers; it has "
                f"{len(ids)}. Was it changed by hand?"
            )
        return ids

    @property
    def n_refits(self) -> int:
        return len(self.manifest.get("refits", ()))

    def _manifest_stamp(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self.folder / "manifest.json")
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def _require_current(self) -> None:
        """What is read later than the manifest must be of the same fit: a refit replaces the manifest last."""
        replacing = is_announced(self.folder / REFIT)
        if not replacing and ((stamp := self._manifest_stamp()) == self._stamp or stamp is None):
            return
        if replacing or len(read_manifest(self.folder).get("refits", ())) != self.n_refits:
            raise InvalidDataError(f"The run in {self.folder} was refitted since it was opened. Open it again.")
        self._stamp = stamp

    @property
    def next_number(self) -> int:
        """The lowest number that no cluster of this run ever had."""
        return max(int(self.ids.max()) + 1, self.manifest.get("next_number", 0))

    def nearest_of_codes(self, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The number of the nearest cluster of each code, the distance to its center, and the margin to the next."""
        nearest, distance, margin = self.model.nearest_of_codes(codes, self.ids)
        return self.ids[nearest].astype(np.int32), distance, margin

    def write_columns(self, **columns: np.ndarray) -> None:
        for name, values in columns.items():
            write_column(self.folder / f"{name}.npy", values)


AnyRun = Run | str | os.PathLike[str]  # a run, or its folder


def as_run(run: AnyRun) -> Run:
    return run if isinstance(run, Run) else Run(run)


def write_column(path: Path, values: np.ndarray) -> None:
    with whole_file(path) as file:
        np.lib.format.write_array(file, np.ascontiguousarray(values), allow_pickle=False)


def settle(folder: Path) -> None:
    """Let the files of a refit that was killed at its end take their places. For who holds the lock of the folder."""
    publish(folder, folder / REFIT, RENEWED)


def _in_words(key: str, value: Any) -> str:
    """An argument of a run, for a person."""
    if key in ("pictures", "fingerprint", "shape"):
        return "other data: they have changed since"
    if key == "views" and isinstance(value, list):
        return f"views {', '.join(view['name'] for view in value)}" if value else "no views"
    return f"{key.replace('_', ' ')} {value if value is not None else 'not given'}"


def write_tables(folder, columns: dict[str, Any], stem: str = "clusters") -> None:
    """The same table as CSV and as Parquet."""
    for kind, write in TABLE_WRITERS.items():
        with whole_file(Path(folder) / f"{stem}.{kind}") as file:
            write(file, columns)


def write_csv(file: BinaryIO, columns: dict[str, Any]) -> None:
    text = io.TextIOWrapper(file, "utf-8", newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(zip(*(_plain(values) for values in columns.values()), strict=True))
    text.detach()


def write_parquet(file: BinaryIO, columns: dict[str, Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({name: pa.array(values) for name, values in columns.items()}), file)


TABLE_WRITERS: dict[str, Callable[[BinaryIO, dict[str, Any]], None]] = {"csv": write_csv, "parquet": write_parquet}


def _plain(values: Any) -> Any:
    """Floats with four digits."""
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":
        return [f"{value:.4g}" for value in values]
    return values.tolist() if isinstance(values, np.ndarray) else values

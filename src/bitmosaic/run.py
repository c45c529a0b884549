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
edits.jsonl        what people changed by hand, and thumbnails.sqlite, map.npz: what the explorer keeps
"""

import csv
import io
import os
import platform
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bitmosaic import __version__
from bitmosaic.errors import FileFormatError, InvalidDataError, MissingFileError
from bitmosaic.files import LOCK, is_unfinished, locked, read_json, remove_unfinished, whole_file, write_json
from bitmosaic.hsic import HSIC
from bitmosaic.npy import open_npy
from bitmosaic.views import Views, read_views

FORMAT, VERSION = "bitmosaic-run", 1
_AGAIN = "Make the run again: bitmosaic fit VIEWS --clusters K --out OTHER."
STAGES = ("extract", "fit", "tables", "pictures")
SCORES = {"acc", "nmi", "purity", "f_score"}
_SURROGATE = re.compile("[\ud800-\udfff]")
_COLUMNS = {"codes": (np.uint8, 2), "labels": (np.int32, 1), "distances": (np.float32, 1)}  # type, dimensions
_MADE = {
    "extract": ("skipped.csv",),
    "fit": ("model.safetensors",),
    "tables": ("codes.npy", "labels.npy", "distances.npy", "clusters.csv", "clusters.parquet"),
    "pictures": ("overview.png", "clusters/*.jpg"),
}


class Run:
    """A run folder that exists; :meth:`at_work` makes one, or takes up one that was stopped."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.manifest = _read_manifest(self.folder)

    @classmethod
    @contextmanager
    def at_work(cls, folder, arguments: dict[str, Any]) -> "Iterator[Run]":
        """A new run with these arguments, or the one that is there if its arguments are the same.

        Meanwhile no other process works on it, and what a killed one left unfinished is gone.
        """
        folder = Path(folder)
        if folder.exists() and not folder.is_dir():
            raise InvalidDataError(f"A run is a folder; {folder} is a file. Choose another name.")
        if (kept := cls._kept(folder)) is not None:
            kept._check(arguments)
            yield kept
            return
        with locked(folder):
            run = cls._begin(folder, arguments)
            remove_unfinished(folder)
            run._forget_what_is_gone()
            yield run

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
        return {path.name: path.stat().st_size for path in paths}

    def finish(self, stage: str, seconds: float, **facts: Any) -> None:
        """Note that a stage is done, how long the attempt that finished it took, and what is to be known of it."""
        self.manifest["seconds"][stage] = round(seconds, 3)
        self.manifest |= facts
        if stage in _MADE:
            self.manifest.setdefault("bytes", {})[stage] = self._bytes(stage)
        write_json(self.folder / "manifest.json", self.manifest)

    # ---- what it holds

    @property
    def views_folder(self) -> Path:
        return Path(self.manifest["views_folder"]) if "views_folder" in self.manifest else self.folder / "views"

    @cached_property
    def views(self) -> Views:
        return read_views(self.views_folder)

    @cached_property
    def model(self) -> HSIC:
        return HSIC.load(self.folder / "model.safetensors")

    def column(self, name: str) -> np.ndarray:
        """codes, labels or distances, as a memory map."""
        path = self.folder / f"{name}.npy"
        if not path.is_file():
            raise MissingFileError(f"{path} is not there: the run was stopped before its tables. Run it again.")
        column = open_npy(path)
        expected = self.manifest.get("images")
        if column.shape[:1] != (expected,):
            raise FileFormatError(f"{path} must have a row for each of {expected} images, and has not. {_AGAIN}")
        dtype, ndim = _COLUMNS[name]
        if column.dtype != dtype or column.ndim != ndim:
            raise FileFormatError(f"{path} must hold {name} of {np.dtype(dtype)}; it holds {column.dtype}. {_AGAIN}")
        return column

    @property
    def paths(self) -> tuple[str, ...]:
        return self.views.paths or tuple(map(str, range(self.views.n_rows)))

    def write_columns(self, **columns: np.ndarray) -> None:
        for name, values in columns.items():
            with whole_file(self.folder / f"{name}.npy") as file:
                np.lib.format.write_array(file, np.ascontiguousarray(values), allow_pickle=False)


def _in_words(key: str, value: Any) -> str:
    """An argument of a run, for a person."""
    if key in ("pictures", "fingerprint", "shape"):
        return "other data: they have changed since"
    if key == "views" and isinstance(value, list):
        return f"views {', '.join(view['name'] for view in value)}" if value else "no views"
    return f"{key.replace('_', ' ')} {value if value is not None else 'not given'}"


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    try:
        manifest = read_json(path)
    except FileNotFoundError:
        raise MissingFileError(
            f"A run folder has a manifest.json; there is none in {folder}. Make a run with: bitmosaic cluster"
        ) from None
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{path} cannot be read ({error}).") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise FileFormatError(f"{folder} is not a run folder: its manifest is not that of a run.")
    if manifest.get("version") != VERSION:
        raise FileFormatError(
            f"{folder} is a run of version {manifest.get('version')!r}; this bitmosaic reads {VERSION}."
        )
    wrong = next((key for key, is_right in _parts(manifest).items() if not is_right(manifest.get(key))), None)
    if wrong is not None:
        raise FileFormatError(f"{path} lacks a part, or has a wrong one: {wrong!r}. Was it changed by hand?")
    return manifest


def _parts(manifest: dict[str, Any]) -> dict[str, Callable[[Any], bool]]:
    """What the manifest must hold, after the stages that are done, and how each part is checked."""
    parts: dict[str, Callable[[Any], bool]] = {
        "begun": _is_text,
        "bitmosaic": _is_text,
        "arguments": _are_arguments,
        "seconds": _are_figures,
    }
    done = manifest["seconds"] if isinstance(manifest.get("seconds"), dict) else {}
    found: tuple[dict[str, Callable[[Any], bool]], ...] = (
        {"images": _is_count, "skipped": _is_count},
        {"view_weights": _are_figures, "iterations": _is_count},
        {"sizes": _are_counts},
        {"sheets": _is_count},
    )
    for number, stage_parts in enumerate(found):
        if any(stage in done for stage in STAGES[number:]):  # a later stage needs what an earlier one has left
            parts |= stage_parts
    optional = {
        "bytes": lambda part: isinstance(part, dict) and all(map(_are_figures, part.values())),
        "views_folder": lambda part: isinstance(part, str) and "\0" not in part,
        "scores": lambda part: _are_figures(part) and part.keys() >= SCORES,
        "how_many": lambda part: isinstance(part, dict) and _is_text(part.get("words")),
    }
    return parts | {key: is_right for key, is_right in optional.items() if key in manifest}


def _is_text(part: Any) -> bool:
    return isinstance(part, str) and part.isprintable() and bool(part)


def _is_count(part: Any) -> bool:
    return type(part) is int and 0 <= part < 2**48


def _are_counts(part: Any) -> bool:
    return isinstance(part, list) and all(map(_is_count, part))


def _are_figures(part: Any) -> bool:
    """Numbers, each under a name; a view may have any, as long as it can be encoded."""
    return isinstance(part, dict) and all(
        key and not _SURROGATE.search(key) and type(value) in (int, float) and -1e12 < value < 1e12
        for key, value in part.items()
    )


def _are_arguments(part: Any) -> bool:
    """What is shown of them, or taken for what it is: the number of clusters and the names of the views."""
    if not isinstance(part, dict) or not (_is_count(part.get("clusters")) or _is_text(part.get("clusters"))):
        return False
    views = part.get("views", [])
    return isinstance(views, list) and all(isinstance(view, dict) and _is_text(view.get("name")) for view in views)


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

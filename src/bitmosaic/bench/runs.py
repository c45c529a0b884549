"""Runs on disk: labels as they came out, one line of JSON each, so that a measurement that was stopped goes on."""

import json
import os
import zlib
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path

import numpy as np

from bitmosaic.bench.cases import Case
from bitmosaic.errors import FileFormatError, InvalidDataError
from bitmosaic.metrics import clustering_scores
from bitmosaic.views import read_rows

STAMPED_ROWS = 1000
FIRST = b'{"data"'  # what the first line begins with


Key = tuple


@dataclass(frozen=True)
class Run:
    """What one method gave on one data set with one seed."""

    data: str
    method: str
    seed: int
    seconds: float | None
    made_by: str
    labels: np.ndarray | None  # None: cut off
    truth: np.ndarray
    views: tuple[str, ...] = ()  # () is all of them
    n_clusters: int | None = None  # None is as many as there are classes
    n_bits: int | None = None
    cpu_seconds: float | None = None
    peak_bytes: int | None = None
    sizes: dict[str, int] = field(default_factory=dict)  # bytes of what is kept: data, centroids, projection, encoder
    cut_off: str = ""  # why there are no labels
    caps: str = ""  # under which it was cut off

    @property
    def key(self) -> Key:
        return self.data, self.method, self.seed, self.views, self.n_clusters, self.n_bits

    @property
    def group(self) -> Key:
        """The key without the seed."""
        return self.data, self.method, self.views, self.n_clusters, self.n_bits

    @cached_property
    def scores(self) -> dict[str, float]:
        return clustering_scores(self.truth, self.labels)


class RunFile:
    """The runs so far, and where the next ones go. Without a path, nowhere.

    Lines are of two kinds: a data set with its true classes, and a run.
    """

    def __init__(self, path: str | os.PathLike[str] | None):
        self.path = None if path is None else Path(path)
        self.runs: dict[Key, Run] = {}  # the last one, where one was done again
        self._stamps: dict[str, int] = {}
        self._whole = 0  # bytes of whole lines; what follows is a line that a kill cut short
        if self.path is not None and self.path.exists():
            self._read(self.path)

    def _read(self, path: Path) -> None:
        truth: dict[str, np.ndarray] = {}
        whole, _, cut = path.read_bytes().rpartition(b"\n")
        try:
            for line in map(json.loads, whole.splitlines()):
                if "truth" in line:
                    truth[line["data"]], self._stamps[line["data"]] = np.array(line["truth"]), line["stamp"]
                else:
                    arrays = {"labels": None if line["labels"] is None else np.array(line["labels"])}
                    arrays["truth"] = truth[line["data"]]
                    run = Run(**line | arrays | {"views": tuple(line.get("views", ()))})
                    self.runs.pop(run.key, None)
                    self.runs[run.key] = run
        except (ValueError, TypeError, KeyError) as error:
            raise _not_ours(path) from error
        if cut and not whole and not cut.startswith(FIRST):
            raise _not_ours(path)
        self._whole = path.stat().st_size - len(cut)

    def check(self, case: Case) -> None:
        """Refuse to go on with other data of the same name."""
        if self._stamps.get(case.name, stamp(case)) != stamp(case):
            raise InvalidDataError(
                f"Runs go on with the data they began with; {self.path} has runs on another {case.name!r}. "
                "Take another --out."
            )

    def add(self, run: Run, case: Case) -> None:
        self.runs[run.key] = run
        if self.path is None:
            return
        lines = []
        if case.name not in self._stamps:
            self._stamps[case.name] = stamp(case)
            lines.append({"data": case.name, "stamp": stamp(case), "truth": case.truth.tolist()})
        lines.append({f.name: getattr(run, f.name) for f in fields(run) if f.name != "truth"})
        lines[-1]["labels"] = None if run.labels is None else run.labels.tolist()
        text = b"".join(json.dumps(line).encode("ascii") + b"\n" for line in lines)
        with self.path.open("r+b" if self.path.exists() else "wb") as file:
            file.truncate(self._whole)
            file.seek(self._whole)
            file.write(text)
        self._whole += len(text)


def load(path: str | os.PathLike[str]) -> list[Run]:
    """The runs that a file holds. Of a method on the same views, those that the code of the last one has made."""
    runs = RunFile(path).runs.values()
    last = {run.group: run.made_by for run in runs}  # a run that was done again stands last
    return [run for run in runs if run.made_by == last[run.group]]


def stamp(case: Case) -> int:
    """A checksum of the names, the classes and up to 1000 rows of the data."""
    views = case.views(0)
    rows = np.unique(np.linspace(0, views.n_rows - 1, STAMPED_ROWS).astype(int))
    parts = [repr((views.names, views.widths, case.truth.tolist())).encode()]
    parts += [read_rows(array, rows).tobytes() for array in views.arrays]
    return zlib.crc32(b"".join(parts))


def _not_ours(path: Path) -> FileFormatError:
    return FileFormatError(f"Runs are stored as lines of JSON; {path} holds something else. Take another --out.")

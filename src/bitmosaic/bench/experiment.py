"""Experiments in TOML files: methods × data sets × views × code lengths × numbers of clusters × seeds; stored runs."""

import json
import os
import tomllib
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from bitmosaic.bench.baselines import METHODS, method_class
from bitmosaic.bench.datasets import Choice, choose_rows, choose_views, open_data, take_rows
from bitmosaic.errors import FileFormatError, InvalidDataError, MissingFileError
from bitmosaic.estimators.metrics import clustering_scores
from bitmosaic.solver.memory import parse_memory
from bitmosaic.views import Views, read_rows

# ---- Runs stored on disk, one JSON line per run with its labels, so that an interrupted measurement can be resumed.


STAMPED_ROWS = 1000
FIRST = b'{"data"'  # beginning of the first line

SCORES = {"acc": "ACC", "nmi": "NMI", "purity": "purity", "f_score": "F-score"}

Key = tuple


@dataclass(frozen=True)
class Case:
    """One data set, possibly modified, as input of the methods."""

    name: str
    truth: np.ndarray
    views: Callable[[int], Views]  # seed -> views; the same object if the seed changes nothing
    compared: bool = False  # True: run every method; False: only HSIC
    spoiled: str | None = None  # the case to which a useless view was added
    family: str = ""  # the row in the table of blobs


@dataclass(frozen=True)
class Run:
    """The result of one method on one data set with one seed."""

    data: str
    method: str
    seed: int
    seconds: float | None
    made_by: str
    labels: np.ndarray | None  # None: cut off
    truth: np.ndarray
    views: tuple[str, ...] = ()  # (): all
    n_clusters: int | None = None  # None: the number of classes
    n_bits: int | None = None
    cpu_seconds: float | None = None
    peak_bytes: int | None = None
    sizes: dict[str, int] = field(default_factory=dict)  # bytes of what is kept: data, centroids, projection, encoder
    cut_off: str = ""  # why there are no labels
    caps: str = ""  # limits under which it was cut off

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
    """Stored runs in a file, to which new ones are appended. Without a path, runs are kept only in memory.

    A line is either a data set with its true labels, or a run.
    """

    def __init__(self, path: str | os.PathLike[str] | None):
        self.path = None if path is None else Path(path)
        self.runs: dict[Key, Run] = {}  # the last one of repeated runs
        self._stamps: dict[str, int] = {}
        self._whole = 0  # bytes of complete lines; the rest is an incomplete line from an interrupted write
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
        """Refuse other data with the same name."""
        if self._stamps.get(case.name, stamp(case)) != stamp(case):
            raise InvalidDataError(
                f"{self.path} contains runs on other data with the name {case.name!r}. Choose another --out."
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
    """The runs in a file. For each method and views, only those of the code version of the last run."""
    runs = RunFile(path).runs.values()
    last = {run.group: run.made_by for run in runs}  # a repeated run comes last
    return [run for run in runs if run.made_by == last[run.group]]


def stamp(case: Case) -> int:
    """A checksum of the names, the labels and up to 1000 rows of the data."""
    views = case.views(0)
    rows = np.unique(np.linspace(0, views.n_rows - 1, STAMPED_ROWS).astype(int))
    parts = [repr((views.names, views.widths, case.truth.tolist())).encode()]
    parts += [read_rows(array, rows).tobytes() for array in views.arrays]
    return zlib.crc32(b"".join(parts))


def _not_ours(path: Path) -> FileFormatError:
    return FileFormatError(f"{path} is not a file of runs (lines of JSON). Choose another --out.")


SHIPPED = files("bitmosaic.bench") / "experiments"
DEFAULTS: dict[str, Any] = {
    "seeds": 10,
    "slow_seconds": 60.0,
    "slow_seeds": 3,
    "cap_seconds": 600.0,
    "cap_memory": "8GB",
    "threads": 1,
    "jobs": 1,
}


@dataclass(frozen=True)
class DataSet:
    """The path of a data set, and the part of it to use."""

    name: str
    path: Path
    views: tuple[str, ...] = ()  # (): all
    choice: Choice = field(default_factory=Choice)

    def open(self) -> Views:
        """The chosen views and rows. If all rows are chosen, large files are mapped into memory, not read."""
        _, views, _ = open_data(str(self.path))
        if self.views:
            views = choose_views(views, self.views)
        return take_rows(views, choose_rows(np.asarray(views.labels), self.choice, self.name))


@dataclass(frozen=True)
class Group:
    """One method on one set of views, with all settings except the seed."""

    data: DataSet
    views: tuple[str, ...]
    method: str
    n_clusters: int
    n_bits: int | None

    def __str__(self) -> str:
        parts = [self.method, f"on {self.data.name}[{','.join(self.views)}]", f"{self.n_clusters} clusters"]
        return ", ".join(parts + ([f"{self.n_bits} bits"] if self.n_bits else []))


@dataclass(frozen=True)
class Experiment:
    """The content of a TOML file, with all paths and names checked."""

    name: str
    groups: tuple[Group, ...]
    cases: dict[str, Case]
    seeds: int
    slow_seconds: float  # a method that takes longer than this
    slow_seeds: int  # is run with this number of seeds
    cap_seconds: float
    cap_memory: str
    threads: int
    jobs: int

    @property
    def cap_bytes(self) -> int:
        return parse_memory(self.cap_memory)


def shipped() -> list[str]:
    return sorted(entry.name.removesuffix(".toml") for entry in SHIPPED.iterdir() if entry.name.endswith(".toml"))


def read_experiment(file: str, root: Path | None = None) -> Experiment:
    """Read a TOML file, or a shipped one by name. Paths are relative to `root` (default: the folder of the file)."""
    place = Path(file)
    if file in shipped():
        text, name, root = (SHIPPED / f"{file}.toml").read_text(encoding="utf-8"), file, root or Path()
    elif place.is_file():
        text, name, root = place.read_text(encoding="utf-8", errors="replace"), place.stem, root or place.parent
    else:
        raise MissingFileError(f"There is no experiment {file!r}. Pass a TOML file, or one of {', '.join(shipped())}.")
    try:
        asked = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FileFormatError(f"An experiment must be valid TOML; {file}: {error}.") from None
    return _experiment(name, asked, root)


def _experiment(name: str, asked: dict[str, Any], root: Path) -> Experiment:
    limits = {key: value for key, value in (DEFAULTS | asked).items() if key not in ("data", "runs")}
    try:
        data = {called: _data(called, root, **table) for called, table in asked["data"].items()}
        opened = {called: chosen.open() for called, chosen in data.items()}
        cases = {called: _case(called, views) for called, views in opened.items()}
        groups = [group for block in asked["runs"] for group in _groups(opened, data, **block)]
        parse_memory(limits["cap_memory"])
        return Experiment(name, tuple(dict.fromkeys(groups)), cases, **limits)
    except (TypeError, KeyError, AttributeError) as error:  # a key is missing, unknown or of another type
        raise FileFormatError(
            f"{name}: an experiment has the tables [data.NAME] and [[runs]] with the keys of "
            f"bench/experiments/middle.toml; {error} is wrong or missing."
        ) from error


def _data(
    called: str,
    root: Path,
    *,
    path: str,
    views: Sequence[str] = (),
    classes: int | None = None,
    per_class: int | None = None,
    at_least: int | None = None,
) -> DataSet:
    return DataSet(called, root / path, tuple(views), Choice(classes, per_class, at_least))


def _groups(
    opened: dict[str, Views],
    known: dict[str, DataSet],
    *,
    methods: Sequence[str] = tuple(METHODS),
    data: Sequence[str] | None = None,
    views: str = "all",
    n_bits: Sequence[int] = (128,),
    n_clusters: Sequence[int] | None = None,
) -> Iterator[Group]:
    """`views`: all together, each alone, or both. The default number of clusters is that of the classes."""
    for called, method in product(known if data is None else data, methods):
        names, labels = opened[called].names, np.asarray(opened[called].labels)
        together, alone = [names], [(name,) for name in names] if len(names) > 1 else []
        sets = {"all": together, "each": alone or together, "both": alone + together}[views]
        lengths = n_bits if has_bits(method) else [None]
        for some, length, count in product(sets, lengths, n_clusters or [len(np.unique(labels))]):
            yield Group(known[called], some, method, count, length)


def has_bits(method: str) -> bool:
    return any(f.name == "n_bits" for f in fields(method_class(method)))


def _case(name: str, views: Views) -> Case:
    assert views.labels is not None  # checked by open_data
    return Case(name, np.asarray(views.labels), lambda seed: views)

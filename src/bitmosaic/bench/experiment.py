"""A small TOML file -> what is to be run: methods × data sets × views × code lengths × numbers of clusters × seeds."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from bitmosaic.bench.baselines import METHODS, method_class
from bitmosaic.bench.cases import Case, choose_views, open_data
from bitmosaic.bench.selection import Choice, choose_rows, take_rows
from bitmosaic.errors import FileFormatError, MissingFileError, ParameterError
from bitmosaic.solver.memory import parse_memory
from bitmosaic.views import Views

SHIPPED = files("bitmosaic.bench") / "experiments"
VIEW_CHOICES = ("all", "each", "both")
TOP: dict[str, tuple[type, Any]] = {
    "seeds": (int, 10),
    "slow_seconds": (float, 60.0),
    "slow_seeds": (int, 3),
    "cap_seconds": (float, 600.0),
    "cap_memory": (str, "8GB"),
    "threads": (int, 1),
    "jobs": (int, 1),
}


@dataclass(frozen=True)
class DataSet:
    """Where a data set lies, and which part of it is meant."""

    name: str
    path: Path
    views: tuple[str, ...] = ()  # () is all of them
    choice: Choice = field(default_factory=Choice)

    def open(self) -> Views:
        """The chosen views of the chosen rows; large files are mapped, not read, where all rows are meant."""
        _, views, _ = open_data(str(self.path))
        if self.views:
            views = choose_views(views, self.views)
        return take_rows(views, choose_rows(np.asarray(views.labels), self.choice, self.name))


@dataclass(frozen=True)
class Group:
    """One method on one set of views: everything but the seed."""

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
    """What a TOML file asks for, with every path and name checked."""

    name: str
    groups: tuple[Group, ...]
    cases: dict[str, Case]
    seeds: int
    slow_seconds: float  # a method that takes longer
    slow_seeds: int  # is run with so many seeds only
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
    """A TOML file, or the name of one that bitmosaic ships. Its paths are relative to `root`, or to its own folder."""
    place = Path(file)
    if file in shipped():
        text, name, root = (SHIPPED / f"{file}.toml").read_text(encoding="utf-8"), file, root or Path()
    elif place.is_file():
        text, name, root = place.read_text(encoding="utf-8", errors="replace"), place.stem, root or place.parent
    else:
        raise MissingFileError(f"An experiment is a TOML file or one of {', '.join(shipped())}; there is no {file!r}.")
    try:
        asked = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FileFormatError(f"An experiment must be valid TOML; {file}: {error}.") from None
    return _experiment(name, asked, root)


def _experiment(name: str, asked: dict[str, Any], root: Path) -> Experiment:
    _known(name, asked, {*TOP, "data", "runs"})
    limits = {key: _of_type(name, key, asked.get(key, default), kind) for key, (kind, default) in TOP.items()}
    _check_caps(name, limits)
    tables = [*_values(asked.get("data")), *_values(asked.get("runs"))]
    if not _values(asked.get("data")) or not _values(asked.get("runs")) or not all(isinstance(t, dict) for t in tables):
        raise FileFormatError(f"{name}: an experiment needs tables [data.NAME] and [[runs]]; one of them is missing.")
    data = {called: _data(name, called, table, root) for called, table in asked["data"].items()}
    opened = {called: chosen.open() for called, chosen in data.items()}
    cases = {called: _case(called, views) for called, views in opened.items()}
    groups = [group for block in asked["runs"] for group in _groups(name, block, data, opened)]
    return Experiment(name, tuple(dict.fromkeys(groups)), cases, **limits)


def _values(part: Any) -> list[Any]:
    """The tables of [data.NAME] or of [[runs]]; none where it is something else."""
    return list(part.values()) if isinstance(part, dict) else part if isinstance(part, list) else []


def _check_caps(name: str, limits: dict[str, Any]) -> None:
    try:
        enough = parse_memory(limits["cap_memory"]) > 0
    except ParameterError:
        enough = False
    if not enough:
        raise FileFormatError(f"{name}: cap_memory must be a text such as '8GB'; got {limits['cap_memory']!r}.")


def _data(name: str, called: str, table: dict[str, Any], root: Path) -> DataSet:
    _known(f"{name}, [data.{called}]", table, {"path", "views", "classes", "per_class", "at_least"})
    if not isinstance(table.get("path"), str):
        raise FileFormatError(f"{name}: [data.{called}] needs a path, relative to --root.")
    for key in ("per_class", "at_least"):
        if key in table:
            _of_type(name, f"{key} of {called}", table[key], int)
    views, classes = table.get("views", []), table.get("classes")
    for key, names in (("views", views), ("classes", [] if isinstance(classes, int) or classes is None else classes)):
        if not isinstance(names, list) or not all(isinstance(value, str) for value in names):
            raise FileFormatError(f"{name}: {key} of {called} must be a list of names; got {table[key]!r}.")
    classes = tuple(classes) if isinstance(classes, list) else classes
    choice = Choice(classes, table.get("per_class"), table.get("at_least"))
    return DataSet(called, root / table["path"], tuple(views), choice)


def _groups(name: str, block: dict[str, Any], data: dict[str, DataSet], opened: dict[str, Views]) -> Iterator[Group]:
    _known(f"{name}, [[runs]]", block, {"methods", "data", "views", "n_bits", "n_clusters"})
    methods, chosen, which = (
        block.get("methods", list(METHODS)),
        block.get("data", list(data)),
        block.get("views", "all"),
    )
    for what, values, allowed in (
        ("methods", methods, METHODS),
        ("data", chosen, data),
        ("views", [which], VIEW_CHOICES),
    ):
        if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
            raise FileFormatError(f"{name}: {what} must be a list of names; got {values!r}.")
        if unknown := [value for value in values if value not in allowed]:
            raise FileFormatError(f"{name}: {what} must be among {', '.join(allowed)}; got {unknown[0]!r}.")
    for key in ("n_bits", "n_clusters"):
        values = block.get(key, [1])
        if not isinstance(values, list) or not values or any(type(value) is not int or value < 1 for value in values):
            raise FileFormatError(f"{name}: {key} must be whole numbers from 1 on, in a list; got {values!r}.")
    if odd := [n_bits for n_bits in block.get("n_bits", []) if n_bits % 8]:
        raise FileFormatError(f"{name}: n_bits must be multiples of 8; got {odd[0]}.")
    for called, method in product(chosen, methods):
        views = opened[called]
        sets: list[tuple[str, ...]] = [views.names] if which in ("all", "both") else []
        if which in ("each", "both") and len(views) > 1:
            sets = [(view,) for view in views.names] + sets
        lengths = block.get("n_bits", [128]) if has_bits(method) else [None]
        counts = block.get("n_clusters", [len(np.unique(np.asarray(views.labels)))])
        if max(counts) > views.n_rows:
            raise FileFormatError(
                f"{name}: {called} has {views.n_rows:,} rows; n_clusters must not be {max(counts):,}."
            )
        for some, n_bits, n_clusters in product(sets, lengths, counts):
            yield Group(data[called], some, method, n_clusters, n_bits)


def has_bits(method: str) -> bool:
    return any(f.name == "n_bits" for f in fields(method_class(method)))


def _case(name: str, views: Views) -> Case:
    assert views.labels is not None  # open_data sees to it
    return Case(name, np.asarray(views.labels), lambda seed: views)


def _known(where: str, table: dict[str, Any], keys: set[str]) -> None:
    if unknown := sorted(set(table) - keys):
        raise FileFormatError(f"{where}: keys are {', '.join(sorted(keys))}; got {unknown[0]!r}.")


def _of_type(name: str, key: str, value: Any, kind: type) -> Any:
    value = float(value) if kind is float and isinstance(value, int) else value
    wrong = not isinstance(value, kind) or isinstance(value, bool)
    if wrong or (kind is not str and not 0 < value < float("inf")):
        wanted = {int: "a whole number from 1 on", float: "a number above 0", str: "a text such as '8GB'"}[kind]
        raise FileFormatError(f"{name}: {key} must be {wanted}; got {value!r}.")
    return value

"""What the methods are tried on: data as it is, each view alone, data with something useless added, and blobs."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bitmosaic.errors import InvalidDataError
from bitmosaic.views import Views, read_views

BLOBS = "blobs"
BLOB_SIZES = ((200, 4, 3), (600, 10, 5), (1500, 8, 12), (3000, 30, 20))  # samples, dimensions, clusters
APART = 10  # standard deviations between any two centres
MAPS: dict[str, Callable] = {
    "x": lambda X: X,
    "tanh(x/5)": lambda X: np.tanh(X / 5),
    "x+0.05x²": lambda X: X + 0.05 * X**2,
    "exp(x/8)": lambda X: np.exp(X / 8),
    "linear": lambda X: X @ np.random.default_rng(0).normal(size=(X.shape[1], X.shape[1] + 3)),
}


@dataclass(frozen=True)
class Case:
    """One data set as the methods see it."""

    name: str
    truth: np.ndarray
    views: Callable[[int], Views]  # of a seed; where the seed changes nothing, the same object
    compared: bool = False  # with every method; otherwise HSIC alone
    spoiled: str | None = None  # the name of the case to which something useless was added
    family: str = ""  # cases of one row of the table of blobs


def cases_of(data: list[str], each_view: bool = False, spoil: bool = False) -> list[Case]:
    """Each of `data` is PATH or PATH?views=NAME,NAME. Files are opened, large ones are not read."""
    found: dict[str, Case] = {}
    for name, views, truth in map(open_data, data):
        if name in found and found[name].compared:
            raise InvalidDataError(f"Each data set must have a name of its own; {name} came twice. Rename a file.")
        found[name] = Case(name, truth, _always(views), compared=True)
        if each_view and len(views) > 1:
            for view in views:
                called = f"{name.partition('[')[0]}[{view}]"
                found.setdefault(called, Case(called, truth, _always(choose_views(views, [view]))))
        for addition, spoilt in _spoilt(views) if spoil else ():
            called = f"{name} + {addition}"
            found[called] = Case(called, truth, spoilt, spoiled=name)
    return list(found.values())


def open_data(data: str, labels_needed: bool = True) -> tuple[str, Views, Any]:
    """PATH or PATH?views=NAME,NAME -> a name, the views, and the true classes if there are any."""
    path, asked, chosen = data.partition("?views=")
    views = read_views(path)
    truth = views.labels
    if truth is None and labels_needed:
        raise InvalidDataError(f"Scores need true classes; {path} has none. Add a variable Y, or a labels.npy.")
    place = Path(path).resolve()
    name = place.parent.name if place.name == "views" else place.stem  # RUN/views is known by its run
    if asked:
        name, views = f"{name}[{chosen}]", choose_views(views, chosen.split(","))
    return name, views, truth


def _always(views: Views) -> Callable[[int], Views]:
    return lambda seed: views


def choose_views(views: Views, names: Sequence[str]) -> Views:
    return Views(tuple(names), tuple(views[name] for name in names), views.labels)


def _spoilt(views: Views) -> Iterator[tuple[str, Callable[[int], Views]]]:
    """What is added, and the views with it."""

    def added(name, array):
        return replace(views, names=(*views.names, name), arrays=(*views.arrays, array), columns=None)

    n = views.n_rows
    yield "noise", lambda seed: added("+noise", np.random.default_rng(seed).normal(size=(n, 50)).astype(np.float32))
    yield "constant", _always(added("+constant", np.ones((n, 5), np.float32)))
    for name, array in zip(views.names, views.arrays, strict=True):
        yield f"copy of {name}", _always(added("+copy", array))


def blob_cases() -> list[Case]:
    """Blobs of every size, seen through every pair of maps; other centres and samples with every seed."""
    return [_blob_case(*size, pair) for pair in itertools.combinations(MAPS, 2) for size in BLOB_SIZES]


def _blob_case(n: int, d: int, c: int, pair: tuple[str, str]) -> Case:
    truth = np.random.default_rng(0).permutation(np.arange(n) % c)

    def views(seed):
        rng = np.random.default_rng(seed)
        X = blob_centres(c, d, rng)[truth] + rng.normal(size=(n, d))
        return Views(pair, tuple(MAPS[name](X).astype(np.float32) for name in pair), truth)

    return Case(f"{BLOBS} {n}×{d}, {c} clusters: {', '.join(pair)}", truth, views, family=", ".join(pair))


def blob_centres(c: int, d: int, rng: np.random.Generator) -> np.ndarray:
    """(c, d) centres between -10 and 10, where the maps still tell values apart, none closer than `APART`."""
    centres = np.empty((0, d))
    while len(centres) < c:
        centre = rng.uniform(-10, 10, d)
        if np.all(np.linalg.norm(centres - centre, axis=1) >= APART):
            centres = np.vstack([centres, centre])
    return centres

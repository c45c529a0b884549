"""Registry of feature extractors, and `extract`, which applies extractors to a list of images.

Nothing heavy is imported here: the module of a built-in extractor (and Numba) is imported when it is first used.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, TypeVar

import numpy as np

from bitmosaic.errors import BitmosaicError, InvalidDataError, ParameterError
from bitmosaic.io.threads import available_threads, in_order, single_threaded_blas

BUILT_IN = {
    "lbp": "bitmosaic.features.texture",
    "gist": "bitmosaic.features.gist",
    "hog": "bitmosaic.features.gradients",
    "ch": "bitmosaic.features.color",
    "cm": "bitmosaic.features.color",
    "corr": "bitmosaic.features.color",
    "edh": "bitmosaic.features.gradients",
    "wt": "bitmosaic.features.texture",
    "onnx": "bitmosaic.features.onnx",
}
HAND_MADE = frozenset(BUILT_IN) - {"onnx"}
ENTRY_POINTS = "bitmosaic.extractors"

# The size of a piece depends only on the shape of the images, never on the number of threads.
IMAGES_PER_PIECE = 64
PIXELS_PER_PIECE = 1 << 18


class Extractor(Protocol):
    """A function from images of one shape to one row of features per image.

    The row of an image must not depend on the other images of the batch. Calls must be thread-safe.
    """

    name: str
    width: int

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """images (b, h, w, 3) uint8, any h, w ≥ 1 -> (b, width) float32."""


Factory = TypeVar("Factory", bound=Callable[..., Extractor])
_factories: dict[str, Callable[..., Extractor]] = {}


def register(name: str) -> Callable[[Factory], Factory]:
    """Register a class, or a function that returns an extractor, as `name`. Its keyword arguments are the options.

    Registering a name again replaces the old extractor, so a notebook cell can be run twice.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise ParameterError(
            "The name of an extractor must be letters, digits, '_' and '-', because it names the file of the view; "
            f"got {name!r}."
        )

    def keep(factory: Factory) -> Factory:
        if name in BUILT_IN and factory.__module__ != BUILT_IN[name]:
            raise ParameterError(f"{name!r} is the name of a built-in extractor; register yours under another name.")
        _factories[name] = factory
        return factory

    return keep


def extractor_names() -> list[str]:
    """Names of all extractors: built in, registered, or installed by other packages."""
    return sorted({*BUILT_IN, *_factories, *_installed()})


def extractor(name: str, /, **options: Any) -> Extractor:
    """Create an extractor by name. All extractors have the option ``mirror``; the others differ.

    ``mirror=True`` gives the element-wise maximum of the features of an image and of its mirror image.
    """
    try:
        return _factory(name)(**options)
    except TypeError as error:  # an unknown or missing option
        raise ParameterError(f"Extractor {name!r} takes other options: {error}.") from error


def _factory(name: str) -> Callable[..., Extractor]:
    if name not in _factories:
        if name in BUILT_IN:
            import_module(BUILT_IN[name])
        elif name in (installed := _installed()):
            _load(installed[name])
        else:
            raise ParameterError(f"Unknown extractor {name!r}; the extractors are {', '.join(extractor_names())}.")
    return _factories[name]


def _installed() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def _load(point: EntryPoint) -> None:
    """Load an entry point: a factory, or a module that registers one under the entry point's name."""
    try:
        loaded = point.load()
    except Exception as error:
        raise ParameterError(
            f"Extractor {point.name!r} could not be loaded from {point.value!r}: {type(error).__name__}: {error}. "
            "Repair or uninstall the package that provides it."
        ) from error
    if point.name in _factories:
        return
    register(point.name)(loaded)


def extract(
    extractors: Sequence[Extractor], images: Sequence[np.ndarray], n_threads: int | None = None
) -> list[np.ndarray]:
    """One view per extractor, (n, width) float32, its rows in the order of the images.

    images: each (h, w, 3) uint8; the shapes may differ. The row of an image depends neither on the other images nor on
    the number of threads (None: every core).
    """
    shapes = [image.shape[:2] for image in images]
    views = [np.empty((len(images), extractor.width), np.float32) for extractor in extractors]

    def rows_of(piece: list[int]) -> list[np.ndarray]:
        batch = np.stack([images[i] for i in piece])  # (b, h, w, 3)
        return [_rows(extractor, batch) for extractor in extractors]

    with single_threaded_blas():
        pieces = list(_pieces(shapes))
        results = in_order(rows_of, pieces, min(available_threads(n_threads), max(len(pieces), 1)))
        for piece, rows in zip(pieces, results, strict=True):
            for view, block in zip(views, rows, strict=True):
                view[piece] = block
    return views


def _pieces(shapes: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """Positions of images of one shape, a few at a time."""
    groups: dict[tuple[int, int], list[int]] = {}
    for i, shape in enumerate(shapes):
        groups.setdefault(shape, []).append(i)
    for (height, width), members in groups.items():
        step = min(IMAGES_PER_PIECE, max(1, PIXELS_PER_PIECE // (height * width)))
        for start in range(0, len(members), step):
            yield members[start : start + step]


def _rows(extractor: Extractor, batch: np.ndarray) -> np.ndarray:
    """The features of a batch. Raises if the extractor fails or returns another shape."""
    try:
        rows = extractor(batch)
    except BitmosaicError:
        raise
    except Exception as error:
        raise InvalidDataError(
            f"Extractor {extractor.name!r} failed on images of {batch.shape[1:]}: {type(error).__name__}: {error}."
        ) from error
    if rows.shape != (len(batch), extractor.width):
        raise InvalidDataError(
            f"Extractor {extractor.name!r} must return shape {(len(batch), extractor.width)} for {len(batch)} images; "
            f"got {rows.shape}."
        )
    return rows


def check_count(name: str, option: str, value: Any) -> None:
    """Refuse an option of extractor `name` that is not an integer of at least 1."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ParameterError(f"{name}: {option} must be an integer of at least 1; got {value!r}.")

"""Labels of a data set -> which of its pictures or rows are taken: some classes, so many of each, chosen by a seed."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bitmosaic.errors import InvalidDataError, ParameterError
from bitmosaic.images import ImageSource, display_path
from bitmosaic.images.source import Piece
from bitmosaic.views import Views, read_rows


@dataclass(frozen=True)
class Choice:
    """What is taken of a data set; by default all of it."""

    classes: int | Sequence[str] | None = None  # so many random ones, or their names
    per_class: int | None = None  # so many random ones of each class
    at_least: int | None = None  # classes with fewer are left out
    seed: int = 0

    def __post_init__(self) -> None:
        n_classes = self.classes if isinstance(self.classes, int) else 2 if self.classes is None else len(self.classes)
        for name, value, least in (
            ("classes", n_classes, 2),
            ("per_class", self.per_class, 1),
            ("at_least", self.at_least, 1),
        ):
            if value is not None and value < least:
                raise ParameterError(f"{name} must be at least {least}; got {value}.")


def parse_classes(text: str | None) -> int | list[str] | None:
    """What is typed at an option: 10, or n01440764,n02084071."""
    if text is None or text.strip().isdecimal():
        return None if text is None else int(text)
    return [name.strip() for name in text.split(",") if name.strip()]


def choose_rows(labels: np.ndarray, choice: Choice, data: str) -> np.ndarray:
    """The positions that are taken, ascending. `data` is what messages call the data set."""
    values, numbers, counts = np.unique(labels, return_inverse=True, return_counts=True)
    names = [str(value) for value in values]
    rng, at_least = np.random.default_rng(choice.seed), choice.at_least or 1
    large = np.flatnonzero(counts >= at_least)
    if len(large) < 2:
        raise InvalidDataError(
            f"At least two classes with {at_least:,} images or more are needed; {data} has {len(names):,} "
            f"classes, {len(large)} of them so large, the largest with {counts.max():,}. Lower at_least, or check "
            "the path."
        )
    wanted = choice.per_class or 1
    if isinstance(choice.classes, int):
        large = large[counts[large] >= wanted]
        if len(large) < choice.classes:
            raise ParameterError(
                f"classes must be at most the number of classes with {max(wanted, at_least):,} images or more, "
                f"{len(large):,} in {data}; got {choice.classes:,}."
            )
        chosen = np.sort(rng.choice(large, choice.classes, replace=False))
    elif choice.classes is not None:
        known = {names[i]: i for i in large}
        if missing := [name for name in choice.classes if name not in known]:
            raise ParameterError(
                f"classes must name classes of {data}, such as {', '.join(list(known)[:3])}; it has no "
                f"{', '.join(missing[:3])} with {at_least:,} images or more."
            )
        chosen = np.unique([known[name] for name in choice.classes])
    else:
        chosen = large
    if choice.per_class is None:
        return np.flatnonzero(np.isin(numbers, chosen))
    smallest = chosen[counts[chosen].argmin()]
    if counts[smallest] < wanted:
        raise ParameterError(
            f"per_class must be at most the size of the smallest class; {names[smallest]} of {data} has "
            f"{counts[smallest]:,} images, and {wanted:,} were asked for. Leave small classes out with at_least."
        )
    of_class = [rng.choice(np.flatnonzero(numbers == c), wanted, replace=False) for c in chosen]
    return np.sort(np.concatenate(of_class))


def take_rows(views: Views, positions: np.ndarray) -> Views:
    """Some rows of all views, in memory; the same object where that is all of them."""
    if len(positions) == views.n_rows:
        return views
    return replace(
        views,
        arrays=tuple(read_rows(array, positions, array.dtype) for array in views.arrays),
        labels=None if views.labels is None else views.labels[positions],
        paths=None if views.paths is None else tuple(views.paths[i] for i in positions),
    )


class LabelledSource(ImageSource):
    """Some pictures of another source, in its order, each with its class."""

    def __init__(self, source: ImageSource, positions: np.ndarray, labels: np.ndarray):
        super().__init__(source.name, (source.paths[i] for i in positions))
        self.source = source
        self.positions = positions  # (n,) ascending, in `source`
        self._labels = labels  # (n,) strings

    def labels(self) -> np.ndarray:
        return self._labels

    def take(self, positions: np.ndarray) -> "LabelledSource":
        return LabelledSource(self.source, self.positions[positions], self._labels[positions])

    def fingerprint(self, position: int) -> tuple[int, int]:
        return self.source.fingerprint(int(self.positions[position]))

    def _pieces(self, positions: Sequence[int], piece_size: int) -> Generator[Piece, None, None]:
        # An archive reads forwards, so the source makes the pieces; they come back under our positions.
        theirs = [int(self.positions[i]) for i in positions]
        for piece in self.source._pieces(theirs, piece_size):
            yield [(int(np.searchsorted(self.positions, i)), content) for i, content in piece]

    def _content(self, position: int) -> object:
        return self.source._content(int(self.positions[position]))

    def _decode(self, content: object, max_side: int | None) -> np.ndarray:
        return self.source._decode(content, max_side)


def labelled(source: ImageSource, labels: np.ndarray) -> LabelledSource:
    return LabelledSource(source, np.arange(len(source)), labels)


def called(path: object) -> str:
    """A path as messages show it."""
    return display_path(str(path))

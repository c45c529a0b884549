"""Run -> groups of near-duplicates, each with the copy to keep, and why. Nothing is deleted.

Fingerprints of the pictures know copies that were resized, recompressed or toned; codes and features know those that
were slightly cropped, and stand alone where there are no pictures. docs/decisions/duplicates.md has the figures.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from PIL import Image

from bitmosaic.copies import RADIUS, copy_groups
from bitmosaic.errors import MissingFileError, ParameterError
from bitmosaic.explorer.kept import keep, kept
from bitmosaic.fingerprints import BITS, DECODED_SIDE, fingerprint
from bitmosaic.images import Progress, display_path, quiet
from bitmosaic.near_duplicates import duplicate_groups, feature_pairs
from bitmosaic.run import AnyRun, Run, as_run
from bitmosaic.run_pictures import RunPictures
from bitmosaic.threads import available_threads

WAYS = ("pictures", "features", "both")
NAME = "fingerprints"  # of the file that keeps them in the run folder
COMMON_SIDE = 512  # pixels; larger pictures are compared for sharpness at this size
AS_SHARP = 0.5  # of the sharpest one's: what compression adds looks like detail, and only half of it is surely less


@dataclass(frozen=True)
class Copy:
    """One picture of a group. What cannot be known without the picture is None."""

    row: int
    path: str
    distance: int  # bits that differ from the one to keep: of fingerprints, or of codes without pictures
    width: int | None
    height: int | None
    sharpness: float | None
    bytes: int | None
    reason: str

    @property
    def pixels(self) -> int:
        return (self.width or 0) * (self.height or 0)


@dataclass(frozen=True)
class Duplicates:
    """Groups with the surest first; in each the one to keep comes first, then the nearest to it."""

    way: str  # one of WAYS
    radius: int  # in bits: of fingerprints, of codes if the way is "features"
    groups: list[list[Copy]]

    @property
    def n_others(self) -> int:
        return sum(len(group) - 1 for group in self.groups)

    def table(self) -> dict[str, list]:
        """A line for each picture of each group."""
        lines = [(number, i == 0, copy) for number, group in enumerate(self.groups) for i, copy in enumerate(group)]
        facts = ("path", "distance", "width", "height", "sharpness", "bytes", "reason")
        columns: dict[str, list] = {"group": [line[0] for line in lines], "keep": [line[1] for line in lines]}
        return columns | {fact: [getattr(copy, fact) for _, _, copy in lines] for fact in facts}


def find_duplicates(
    run: AnyRun,
    radius: int | None = None,
    way: str | None = None,
    source: Any = None,
    n_threads: int | None = None,
    progress: Progress = quiet,
) -> Duplicates:
    """Near-duplicates among all pictures of a run, with the copy to keep: the largest, sharpest, or first.

    `radius`: bits of 128 in which the fingerprints of copies may differ, 12 if not given.
    `way`: "pictures" by fingerprints alone, "features" by codes and features alone (the radius is then one of codes),
    "both" joins them, and then the radius bounds the first only. By default pictures, or features without them.
    `source`: where the pictures are now, if not where the run has read them.
    Fingerprints are kept in the run folder as fingerprints.npz; nothing else is written, and nothing deleted.
    """
    if way is not None and way not in WAYS:
        raise ParameterError(f"Duplicates are found by {', '.join(WAYS)}; got {way!r}.")
    if radius is not None and not 0 <= radius < BITS:
        raise ParameterError(f"The radius is a number of bits from 0 to {BITS - 1}; got {radius}.")
    run = as_run(run)
    finder = Finder(run, source, n_threads, progress)
    way = way or finder.best_way
    radius, groups = finder.groups(way, radius)
    rows = [int(row) for group in groups for row in group]
    measured = dict(finder.pictures.each(rows, _measure, progress))
    sizes = dict(_file_sizes(finder.pictures, rows))
    marks = finder.codes if way == "features" else finder.marks
    return Duplicates(way, radius, [_ranked(run, group.tolist(), measured, sizes, marks) for group in groups])


class Finder:
    """What finding duplicates in a run takes, read when first needed, so that several radii can be tried."""

    def __init__(self, run: Run, source: Any = None, n_threads: int | None = None, progress: Progress = quiet):
        self.run, self.n_threads, self.progress = run, available_threads(n_threads), progress
        self.pictures = RunPictures(run, source, progress)
        self.codes = np.ascontiguousarray(run.column("codes"))
        self._feature_pairs: dict[int | None, tuple[int, np.ndarray, np.ndarray]] = {}

    @cached_property
    def best_way(self) -> str:
        return "pictures" if self.pictures.available or _stored(self.run) is not None else "features"

    @cached_property
    def fingerprints(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows whose pictures can be read, ascending, and their fingerprints; from now on kept in the run."""
        stored = _stored(self.run)
        if stored is None and not self.pictures.available:
            raise MissingFileError(
                f"Fingerprints need pictures; those of {self.run.folder} are not where they were, or there never were "
                "any. Say where they are (--source PICTURES), or compare their features (--by features)."
            )
        rows, prints = stored or (np.empty(0, np.int64), np.empty((0, BITS // 8), np.uint8))
        missing = np.setdiff1d(np.arange(len(self.codes)), rows)  # they may be back, or were added since
        found = {}
        if len(missing) and self.pictures.available:
            found = dict(self.pictures.each(missing, fingerprint, self.progress, DECODED_SIDE))
        if found:
            new = np.array(sorted(found), np.int64)
            order = np.argsort(np.concatenate([rows, new]), kind="stable")
            rows = np.concatenate([rows, new])[order]
            prints = np.concatenate([prints, np.array([found[row] for row in new.tolist()], np.uint8)])[order]
            keep(self.run, NAME, rows=rows, fingerprints=prints)
        return rows, prints

    @property
    def marks(self) -> np.ndarray:
        """The fingerprint of each row, zeros without: (n, 16) uint8."""
        rows, prints = self.fingerprints
        marks = np.zeros((len(self.codes), BITS // 8), np.uint8)
        marks[rows] = prints
        return marks

    def feature_pairs(self, radius: int | None = None) -> tuple[int, np.ndarray, np.ndarray]:
        if len(self.codes) < 2:
            return radius or 0, np.empty((0, 2), np.int64), np.empty(0)
        if radius not in self._feature_pairs:
            found = feature_pairs(self.codes, self.run.views, radius, self.n_threads, self.progress)
            self._feature_pairs[radius] = found
        return self._feature_pairs[radius]

    def groups(
        self, way: str, radius: int | None = None, among: np.ndarray | None = None
    ) -> tuple[int, list[np.ndarray]]:
        """The radius that was used, and the rows of each group; `among` (n,) bool: only of these rows."""
        if way == "features":
            radius, pairs, scores = self.feature_pairs(radius)
            there = np.ones(len(pairs), bool) if among is None else among[pairs].all(1)
            return radius, [rows for rows, _ in duplicate_groups(pairs[there], scores[there])]
        rows, prints = self.fingerprints
        if among is not None:
            rows, prints = rows[among[rows]], prints[among[rows]]
        pairs, scores = self.feature_pairs()[1:] if way == "both" else (np.empty((0, 2), np.int64), np.empty(0))
        place = np.full(len(self.codes), -1)
        place[rows] = np.arange(len(rows))
        there = (place[pairs] >= 0).all(1)
        radius, groups = copy_groups(
            prints,
            RADIUS if radius is None else radius,
            place[pairs[there]],
            scores[there],
            self.n_threads,
            self.progress,
        )
        return radius, [rows[group] for group in groups]


def _stored(run: Run) -> tuple[np.ndarray, np.ndarray] | None:
    arrays = kept(run, NAME, ("rows", "fingerprints"))
    if arrays is None:
        return None
    rows, prints = arrays
    whole = prints.dtype == np.uint8 and prints.shape == (len(rows), BITS // 8) and (np.diff(rows) > 0).all()
    return (rows, prints) if whole else None


# ---- the one to keep


def sharpness(image: np.ndarray) -> float:
    """The variance of the Laplacian of the grey picture, reduced to at most 512 pixels a side."""
    picture = Image.fromarray(image).convert("L")
    picture.thumbnail((COMMON_SIDE, COMMON_SIDE), Image.Resampling.LANCZOS)
    grey = np.pad(np.asarray(picture, np.float64), 1, mode="edge")
    around = grey[:-2, 1:-1] + grey[2:, 1:-1] + grey[1:-1, :-2] + grey[1:-1, 2:]
    return float((around - 4 * grey[1:-1, 1:-1]).var())


def _measure(image: np.ndarray) -> tuple[int, int, float]:
    return image.shape[1], image.shape[0], round(sharpness(image), 2)


def _file_sizes(pictures: RunPictures, rows: list[int]) -> Iterator[tuple[int, int]]:
    """Rows with the bytes of their pictures: of a file or of a member of an archive; of an array, all its pixels."""
    inside = []
    for row in rows:
        place = pictures.place(row)
        if place is None:
            inside.append(row)
        elif os.path.isfile(place):
            yield row, os.path.getsize(place)
    for row, content in pictures.contents(inside) if inside else ():
        if content is not None:
            yield row, content.nbytes if isinstance(content, np.ndarray) else len(content)


def _ranked(run: Run, rows: list[int], measured: dict, sizes: dict, marks: np.ndarray) -> list[Copy]:
    """The copies of a group, the one to keep first, then by their distance from it."""
    copies = []
    for row in sorted(rows):
        width, height, sharp = measured.get(row, (None, None, None))
        copies.append(Copy(row, display_path(run.paths[row]), 0, width, height, sharp, sizes.get(row), ""))
    best, why = _to_keep(copies)
    bits = np.bitwise_count(marks[[copy.row for copy in copies]] ^ marks[best.row]).sum(1).tolist()
    ranked = [
        replace(copy, distance=distance, reason=why if copy is best else _why_not(copy, best))
        for copy, distance in zip(copies, bits, strict=True)
    ]
    return sorted(ranked, key=lambda copy: (copy.row != best.row, copy.distance, copy.row))


def _to_keep(copies: list[Copy]) -> tuple[Copy, str]:
    """The largest; of those the sharpest; of those the largest file; of those the first. And which of it decided."""
    if all(copy.width is None for copy in copies):
        return copies[0], "first: the pictures cannot be read"
    left, why = copies, "first of equals"
    for word, value, share in (
        ("largest", lambda c: c.pixels, 1.0),
        ("sharpest", lambda c: c.sharpness or 0.0, AS_SHARP),
        ("largest file", lambda c: c.bytes or 0, 1.0),
    ):
        most = max(map(value, left))
        best = [copy for copy in left if value(copy) >= share * most]
        if len(best) < len(left):
            left, why = best, word
        if len(left) == 1:
            break
    return left[0], why


def _why_not(copy: Copy, best: Copy) -> str:
    if copy.width is None:
        return "cannot be read" if best.width is not None else "later"
    if copy.pixels < best.pixels:
        return "smaller"
    if (copy.sharpness or 0) < AS_SHARP * (best.sharpness or 0):
        return "less sharp"
    return "smaller file" if (copy.bytes or 0) < (best.bytes or 0) else "later"

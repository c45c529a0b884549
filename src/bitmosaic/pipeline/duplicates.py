"""Run -> groups of near-duplicates, each with the copy to keep and the reason. Nothing is deleted.

Perceptual hashes find copies that were resized, recompressed or brightened. Codes and features also find slightly
cropped copies and similar images. Pairs of hashes within a radius are copies; pairs found by features can be added.
Equal hashes are one item until the groups are made: ten thousand blank pages would make fifty million pairs.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy.linalg import eigh, qr

from bitmosaic.errors import MissingFileError, ParameterError
from bitmosaic.hamming.codes import ROWS_PER_PIECE
from bitmosaic.hamming.pairs import (
    MOST_PAIRS,
    PAIRS_AT_ONCE,
    affordable_radius,
    duplicate_groups,
    evenly_spaced,
    scored_pairs,
)
from bitmosaic.images import Progress, display_path, quiet
from bitmosaic.images.hashes import BITS, DECODED_SIDE, perceptual_hash
from bitmosaic.io.threads import available_threads, in_order, row_ranges, single_threaded_blas
from bitmosaic.pipeline.curation import TABLES, save_sheet
from bitmosaic.pipeline.export.formats import Exported
from bitmosaic.pipeline.export.links import short_names, write_links
from bitmosaic.run.folder import AnyRun, Run, as_run
from bitmosaic.run.images import RunImages
from bitmosaic.run.sheets import TILE, group_sheet
from bitmosaic.run.tables import save_table
from bitmosaic.views import Rows, Views, exact_dtype, forget_pages, read_rows

RADIUS = 12  # bits; on CIFAR-10 F1 is the best for resized and recompressed copies from 10 to 14
MOST_COMPARISONS = 2e10  # of two hashes: a minute or two


def copy_groups(
    hashes,
    radius: int = RADIUS,
    pairs=None,
    scores=None,
    n_threads: int = 1,
    progress: Progress = quiet,
) -> tuple[int, list[np.ndarray]]:
    """Group near-duplicates. Returns the radius used, and the rows of each group, (m,) int64, the most central first.

    `hashes` (n, b) uint8 · `pairs` (p, 2): more copies, regardless of their hashes · `scores` (p,): their distances,
    about 1 for unrelated images. Groups with the nearest images come first. The radius is reduced if the search would
    take more than a minute or two, or give more than a million pairs.
    """
    n_bits = 8 * hashes.shape[1]
    if len(hashes) < 2:
        return radius, []
    unique, first, owners = np.unique(hashes, axis=0, return_index=True, return_inverse=True)
    radius, some = affordable_radius(unique, radius, MOST_COMPARISONS)
    sketches = np.empty((len(some), 0, 0), np.float32)
    near, bits = scored_pairs(unique[some], radius, sketches, radius, MOST_PAIRS, n_threads, progress)
    while len(near) == MOST_PAIRS and radius:  # the list was cut off
        radius //= 2
        near, bits = scored_pairs(unique[some], radius, sketches, radius, MOST_PAIRS, n_threads, progress)
    apart = bits / (n_bits / 2)  # half the bits of unrelated images differ
    linked = {(one, other): d for (one, other), d in zip(some[near].tolist(), apart.tolist(), strict=True)}
    if pairs is not None:
        for (one, other), score in zip(np.sort(owners[pairs], axis=1).tolist(), scores.tolist(), strict=True):
            if one != other:
                linked[one, other] = min(score, linked.get((one, other), score))
    # Sort by rows, not by unique hashes: the order of groups must not depend on the bits.
    ends = first[np.array(list(linked), np.int64).reshape(-1, 2)]
    found = duplicate_groups(np.sort(ends, axis=1), np.array(list(linked.values())))
    order = np.argsort(owners, kind="stable")
    equal = dict(zip(first.tolist(), np.split(order, np.cumsum(np.bincount(owners))[:-1]), strict=True))
    groups = []
    for rows, near in found:
        members = [equal.pop(row) for row in rows.tolist()]
        nearest = 0.0 if any(len(same) > 1 for same in members) else near[1]
        groups.append((nearest, np.concatenate(members)))
    groups += [(0.0, rows) for rows in equal.values() if len(rows) > 1]
    return radius, [rows for _, rows in sorted(groups, key=lambda group: (group[0], -len(group[1]), group[1][0]))]


CODE_RADIUS = 12  # bits by which the codes of near-duplicates may differ
SAME_FEATURES = 0.25  # unrelated images are at about 1; below this, nearly all pairs of CIFAR-10 show one scene
MOST_CODE_COMPARISONS = 1e9  # of two codes, or of their sketches: a minute or two at most
SAMPLE = 1000  # rows to estimate the variance of a view
SKETCH, MAIN = 32, 12  # numbers per row and view, and those along the main directions
SKETCH_MARGIN = 1.5  # the distance of sketches may be larger than that of the features


# ---- distances of features


def feature_distances(views: Views, pairs) -> np.ndarray:
    """(p,) float64: ‖x - y‖² / (2 · variance of the view), a mean over the views that both rows have.

    About 1 for unrelated images. NaN if no view has both rows; a constant view is left out.
    """
    total, common = np.zeros(len(pairs)), np.zeros(len(pairs))
    order = np.argsort(pairs[:, 0], kind="stable")
    for array in views.arrays:
        variance = _sample(array).var(0).sum()
        if not variance > 0:
            continue
        for piece in row_ranges(len(pairs), PAIRS_AT_ONCE):
            some = order[piece]
            rows, places = np.unique(pairs[some], return_inverse=True)
            features = read_rows(array, rows, exact_dtype(array))
            forget_pages(array, rows)
            first, second = features[places.reshape(-1, 2).T]
            distances = np.square(first - second, dtype=np.float64).sum(1) / (2 * variance)
            known = ~np.isnan(distances)
            total[some[known]] += distances[known]
            common[some] += known
    return np.divide(total, common, out=np.full(len(pairs), np.nan), where=common > 0)


def _sketches(views: Views, n_threads, report) -> np.ndarray:
    """(n, v, SKETCH) float32: a few numbers per row and view; the first is NaN for a missing or constant view.

    Squared distances of sketches are those of features within about 20 %: exact along the main directions of the view,
    estimated by random directions for the rest.
    """
    sketches = np.zeros((views.n_rows, len(views), SKETCH), np.float32)
    for v, array in enumerate(views.arrays):
        sample = _sample(array)
        mean, variance = sample.mean(0), sample.var(0).sum()
        if not variance > 0:
            sketches[:, v, 0] = np.nan
            continue
        basis = (_directions(sample - mean) / np.sqrt(2 * variance)).astype(np.float32)

        def project(rows, v=v, array=array, mean=mean, basis=basis):
            block = (read_rows(array, rows, exact_dtype(array)) - mean).astype(np.float32)
            forget_pages(array, np.arange(rows.start, rows.stop))
            sketches[rows, v, : basis.shape[1]] = block @ basis
            sketches[rows, v, 0][np.isnan(block).any(1)] = np.nan

        with single_threaded_blas():
            for i, _ in enumerate(in_order(project, row_ranges(views.n_rows, ROWS_PER_PIECE), n_threads)):
                report("reading features", v * views.n_rows + i * ROWS_PER_PIECE, len(views) * views.n_rows)
    return sketches


def _directions(sample):
    """Centered rows (m, d) -> (d, at most SKETCH): orthonormal main directions, then random ones orthogonal to them."""
    m, d = sample.shape
    _, vectors = eigh(sample @ sample.T, subset_by_index=[max(m - MAIN, 0), m - 1])
    main = qr(sample.T @ vectors, mode="economic")[0][:, :d]
    random = np.random.default_rng(0).standard_normal((d, SKETCH - MAIN)) / np.sqrt(SKETCH - MAIN)
    return np.concatenate([main, random - main @ (main.T @ random)], axis=1)


def _sample(array: Rows) -> np.ndarray:
    """Rows spread over a view, without missing ones: (m, d) float64."""
    rows = read_rows(array, evenly_spaced(array.shape[0], SAMPLE), np.float64)
    return rows[~np.isnan(rows).any(1)]


# ---- pairs


def feature_pairs(
    codes, views: Views, radius: int | None = None, n_threads: int = 1, progress: Progress = quiet
) -> tuple[int, np.ndarray, np.ndarray]:
    """The radius used, the pairs within it whose features agree (p, 2), and their feature distances (p,)."""
    radius, rows = affordable_radius(codes, CODE_RADIUS if radius is None else radius, MOST_CODE_COMPARISONS)
    sketches = _sketches(views, n_threads, progress)[rows]
    limit = SKETCH_MARGIN * SAME_FEATURES
    pairs, _ = scored_pairs(codes[rows], radius, sketches, limit, MOST_PAIRS, n_threads, progress)
    progress("checking", 0, len(pairs))
    scores = feature_distances(views, rows[pairs])
    return radius, rows[pairs[scores <= SAME_FEATURES]], scores[scores <= SAME_FEATURES]


WAYS = ("images", "features", "both")
CACHE = "perceptual_hashes"  # in the run folder
MOST_GROUPS, MOST_COPIES = 200, 10  # on a sheet
COMMON_SIDE = 512  # pixels; larger images are reduced to this size before their sharpness is measured
AS_SHARP = 0.5  # of the largest sharpness; compression artifacts look like detail, so small differences do not count


@dataclass(frozen=True)
class Copy:
    """One image of a group. Fields that need the image file are None if it cannot be read."""

    row: int
    path: str
    distance: int  # in bits from the image to keep: of perceptual hashes, or of codes without images
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
    """Groups, the nearest copies first. In each group the image to keep comes first, then the nearest to it."""

    way: str  # one of WAYS
    radius: int  # in bits of perceptual hashes, or of codes if the way is "features"
    groups: list[list[Copy]]

    @property
    def n_others(self) -> int:
        return sum(len(group) - 1 for group in self.groups)

    def table(self) -> dict[str, list]:
        """One row for each image of each group."""
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
    """Find near-duplicates among all images of a run, with the copy to keep: the largest, sharpest, or first.

    `radius`: bits of 128 by which the perceptual hashes of copies may differ, by default 12.
    `way`: "images" compares perceptual hashes, "features" compares codes and features (the radius is then one of
    codes), "both" uses both (the radius is then one of hashes). By default "images", or "features" without images.
    `source`: where the images are now, if they were moved.
    Perceptual hashes are stored in the run folder as perceptual_hashes.npz. Nothing else is written or deleted.
    """
    if way is not None and way not in WAYS:
        raise ParameterError(f"way must be one of {', '.join(WAYS)}; got {way!r}.")
    if radius is not None and not 0 <= radius < BITS:
        raise ParameterError(f"radius must be from 0 to {BITS - 1} bits; got {radius}.")
    run = as_run(run)
    finder = Finder(run, source, n_threads, progress)
    way = way or finder.best_way
    radius, groups = finder.groups(way, radius)
    rows = [int(row) for group in groups for row in group]
    measured = dict(finder.images.each(rows, _measure, progress))
    sizes = dict(_file_sizes(finder.images, rows))
    bits = finder.codes if way == "features" else finder.hash_of_row
    return Duplicates(way, radius, [_ranked(run, group.tolist(), measured, sizes, bits) for group in groups])


class Finder:
    """Finds duplicates in a run. Hashes and pairs are computed once, so that several radii can be tried."""

    def __init__(self, run: Run, source: Any = None, n_threads: int | None = None, progress: Progress = quiet):
        run.require("tables")
        self.run, self.n_threads, self.progress = run, available_threads(n_threads), progress
        self.images = RunImages(run, source, progress)
        self.codes = np.ascontiguousarray(run.column("codes"))
        self._feature_pairs: dict[int | None, tuple[int, np.ndarray, np.ndarray]] = {}

    @cached_property
    def best_way(self) -> str:
        return (
            "images"
            if self.images.available or self.run.load_cached(CACHE, ("rows", "hashes")) is not None
            else "features"
        )

    @cached_property
    def hashes(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows of readable images, ascending, and their perceptual hashes. They are stored in the run folder."""
        stored = self.run.load_cached(CACHE, ("rows", "hashes"))
        if stored is None and not self.images.available:
            raise MissingFileError(
                f"Perceptual hashes need the images; those of {self.run.folder} were not found. "
                "Pass their folder (--source FOLDER), or compare features (--by features)."
            )
        rows, hashes = stored or (np.empty(0, np.int64), np.empty((0, BITS // 8), np.uint8))
        missing = np.setdiff1d(np.arange(len(self.codes)), rows)  # added since, or not readable the last time
        found = {}
        if len(missing) and self.images.available:
            found = dict(self.images.each(missing, perceptual_hash, self.progress, DECODED_SIDE))
        if found:
            new = np.array(sorted(found), np.int64)
            order = np.argsort(np.concatenate([rows, new]), kind="stable")
            rows = np.concatenate([rows, new])[order]
            hashes = np.concatenate([hashes, np.array([found[row] for row in new.tolist()], np.uint8)])[order]
            self.run.store_cached(CACHE, rows=rows, hashes=hashes)
        return rows, hashes

    @property
    def hash_of_row(self) -> np.ndarray:
        """The perceptual hash of each row, zeros without one: (n, 16) uint8."""
        rows, hashes = self.hashes
        spread_out = np.zeros((len(self.codes), BITS // 8), np.uint8)
        spread_out[rows] = hashes
        return spread_out

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
        """The radius used, and the rows of each group; `among` (n,) bool: only of these rows."""
        if way == "features":
            radius, pairs, scores = self.feature_pairs(radius)
            there = np.ones(len(pairs), bool) if among is None else among[pairs].all(1)
            return radius, [rows for rows, _ in duplicate_groups(pairs[there], scores[there])]
        rows, hashes = self.hashes
        if among is not None:
            rows, hashes = rows[among[rows]], hashes[among[rows]]
        pairs, scores = self.feature_pairs()[1:] if way == "both" else (np.empty((0, 2), np.int64), np.empty(0))
        place = np.full(len(self.codes), -1)
        place[rows] = np.arange(len(rows))
        there = (place[pairs] >= 0).all(1)
        radius, groups = copy_groups(
            hashes,
            RADIUS if radius is None else radius,
            place[pairs[there]],
            scores[there],
            self.n_threads,
            self.progress,
        )
        return radius, [rows[group] for group in groups]


# ---- the image to keep


def sharpness(image: np.ndarray) -> float:
    """The variance of the Laplacian of the gray image, reduced to at most 512 pixels a side."""
    small = Image.fromarray(image).convert("L")
    small.thumbnail((COMMON_SIDE, COMMON_SIDE), Image.Resampling.LANCZOS)
    gray = np.pad(np.asarray(small, np.float64), 1, mode="edge")
    around = gray[:-2, 1:-1] + gray[2:, 1:-1] + gray[1:-1, :-2] + gray[1:-1, 2:]
    return float((around - 4 * gray[1:-1, 1:-1]).var())


def _measure(image: np.ndarray) -> tuple[int, int, float]:
    return image.shape[1], image.shape[0], round(sharpness(image), 2)


def _file_sizes(images: RunImages, rows: list[int]) -> Iterator[tuple[int, int]]:
    """Rows with the sizes of their images in bytes: of a file, a member of an archive, or an array of pixels."""
    inside = []
    for row in rows:
        place = images.place(row)
        if place is None:
            inside.append(row)
        elif os.path.isfile(place):
            yield row, os.path.getsize(place)
    for row, content in images.contents(inside) if inside else ():
        if content is not None:
            yield row, content.nbytes if isinstance(content, np.ndarray) else len(content)


def _ranked(run: Run, rows: list[int], measured: dict, sizes: dict, bits: np.ndarray) -> list[Copy]:
    """The copies of a group, the image to keep first, then by distance from it. `bits`: hash or code of each row."""
    copies = []
    for row in sorted(rows):
        width, height, sharp = measured.get(row, (None, None, None))
        copies.append(Copy(row, display_path(run.paths[row]), 0, width, height, sharp, sizes.get(row), ""))
    best, why = _to_keep(copies)
    distances = np.bitwise_count(bits[[copy.row for copy in copies]] ^ bits[best.row]).sum(1).tolist()
    ranked = [
        replace(copy, distance=distance, reason=why if copy is best else _why_not(copy, best))
        for copy, distance in zip(copies, distances, strict=True)
    ]
    return sorted(ranked, key=lambda copy: (copy.row != best.row, copy.distance, copy.row))


def _to_keep(copies: list[Copy]) -> tuple[Copy, str]:
    """The largest image, then the sharpest, then the largest file, then the first; and the criterion that decided."""
    if all(copy.width is None for copy in copies):
        return copies[0], "first: the images cannot be read"
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


# ---- tables, links and sheets


def write_duplicates(
    run: Run, found: Duplicates, out: Path, source: Any = None, progress: Progress = quiet
) -> Exported | None:
    """Write a table, or a folder of links for each group, the image to keep first: "1 keep …", "2 …"."""
    if out.suffix.lower() in TABLES:
        save_table(out, found.table())
        return None
    paths = [copy.path for group in found.groups for copy in group]
    names, width = iter(short_names(paths)), max(4, len(str(len(found.groups))))
    entries = []
    for number, group in enumerate(found.groups):
        digits = len(str(len(group)))
        for place, copy in enumerate(group, 1):
            mark = "keep " if place == 1 else ""
            entries.append((copy.row, f"{number:0{width}d}", f"{place:0{digits}d} {mark}{next(names)}"))
    return write_links(out, entries, RunImages(run, source, progress), progress, duplicates=len(found.groups))


def draw_duplicates(run: Run, found: Duplicates, sheet: Path, source: Any = None, progress: Progress = quiet) -> None:
    """Draw the first groups, the image to keep first and framed."""
    shown = found.groups[:MOST_GROUPS]
    rows = [copy.row for group in shown for copy in group[:MOST_COPIES]]
    images = RunImages(run, source, progress).required("A sheet").thumbnails(rows, TILE, progress)
    groups = []
    for number, group in enumerate(shown):
        far = max(copy.distance for copy in group)
        more = f", {len(group)} in all" if len(group) > MOST_COPIES else ""
        tiles = [images[copy.row] for copy in group[:MOST_COPIES] if copy.row in images]
        if tiles:
            groups.append((f"{number}: {group[0].reason}, {far} bits{more}", tiles))
    first = f", the first {len(shown)}" if len(shown) < len(found.groups) else ""
    save_sheet(
        group_sheet(f"{len(found.groups):,} groups of near-duplicates{first}; keep the framed one", groups), sheet
    )

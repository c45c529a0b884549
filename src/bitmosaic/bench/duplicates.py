"""Precision and recall of the duplicate search: copies of 1% of the images are added to a collection and searched for.

The whole pipeline runs on the collection with the copies: features, codes, perceptual hashes, groups. Each pair of
images in one group is a found pair. A copy with its original is right. A copy with another image is wrong, and so are
two originals that are not in one group without the copies. Duplicates that the collection already contains count as
neither: two originals that are also in one group without the copies, and a copy with an image that is in the group of
its original without the copies. The strict precision counts them as wrong.
"""

import io
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.box import SIMPLE_HEAD
from rich.table import Table

from bitmosaic import pipeline
from bitmosaic.errors import InvalidDataError
from bitmosaic.images import ImageSource, open_images
from bitmosaic.images.files import FileSource
from bitmosaic.pipeline.duplicates import Finder
from bitmosaic.run.folder import Run

VARIANTS = (
    *(("resized", factor) for factor in (0.5, 0.75, 1.5, 2.0)),
    *(("recompressed", quality) for quality in (30, 50, 70, 90)),
    *(("cropped", share) for share in (0.03, 0.06)),
)
KINDS = tuple(dict.fromkeys(kind for kind, _ in VARIANTS))
RADII = (0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 24, 28)
FEATURE_RADII = (0, 4, 8, 12)


@dataclass(frozen=True)
class Copy:
    """A modified copy of one image."""

    file: str
    original: int  # its position among the originals
    kind: str
    amount: float


@dataclass(frozen=True)
class Found:
    """Pairs found by one way at one radius, for the copies of one kind. `planted` is the number of copies."""

    seed: int
    way: str
    radius: int
    kind: str
    planted: int
    right: int
    wrong: int
    natural: int  # duplicates in the collection itself, wrong only in the strict scores

    @property
    def recall(self) -> float:
        return self.right / max(self.planted, 1)

    @property
    def precision(self) -> float:
        """NaN if nothing was found."""
        found = self.right + self.wrong
        return self.right / found if found else np.nan

    @property
    def f1(self) -> float:
        return 2 * self.right / max(2 * self.right + self.wrong + self.planted - self.right, 1)

    @property
    def strict_f1(self) -> float:
        return 2 * self.right / max(2 * self.right + self.wrong + self.natural + self.planted - self.right, 1)


def measure(
    src: Any,
    seeds: int,
    ways: Sequence[str],
    views: Sequence[Any] = pipeline.DEFAULT_VIEWS,
    n_clusters: int = 10,
    share: float = 0.01,
    n_threads: int | None = None,
    progress: Any = None,
) -> list[Found]:
    """Run the whole measurement, with one run of the pipeline per seed."""
    source = open_images(src, progress)
    results = []
    with tempfile.TemporaryDirectory() as place:
        originals = _as_files(source, Path(place) / "originals")
        for seed in range(seeds):
            folder = Path(place) / str(seed)
            copies = write_copies(source, folder / "copies", share, np.random.default_rng(seed))
            everything = [*originals, *(str(folder / "copies" / copy.file) for copy in copies)]
            listed = folder / "images.txt"
            listed.write_bytes(b"".join(os.fsencode(path) + b"\0" for path in everything))
            run = pipeline.cluster(
                listed, folder / "run", n_clusters, views=views, seed=seed, n_threads=n_threads, progress=progress
            )
            results += score(run, everything, len(originals), copies, ways, seed, n_threads, progress)
            progress("seeds", seed + 1, seeds)
    return results


def _as_files(source: ImageSource, folder: Path) -> list[str]:
    """Paths of all images. Images in an archive or an array are written to files first."""
    if isinstance(source, FileSource):
        return [str(Path(source.root, path).absolute()) for path in source.paths]
    folder.mkdir(parents=True)
    paths = [str(folder / f"{i:08d}") for i in range(len(source))]
    for position, content in source.contents(range(len(source))):
        if isinstance(content, bytes):
            Path(paths[position]).write_bytes(content)
        elif content is not None:
            Image.fromarray(content).save(paths[position], "PNG")
    return [path for path in paths if Path(path).exists()]


def write_copies(source: ImageSource, folder: Path, share: float, rng: np.random.Generator) -> list[Copy]:
    """Write copies of a share of the images, cycling through the variants."""
    count = round(share * len(source))
    if count < len(VARIANTS):
        raise InvalidDataError(
            f"At least {len(VARIANTS)} copies are needed, one per variant; {share:.1%} of {len(source):,} images are "
            f"{count}. Pass more images, or a larger --share."
        )
    folder.mkdir(parents=True)
    chosen = rng.permutation(len(source))[:count]
    images = source.read_many(chosen)
    copies = []
    for i, position in enumerate(p for p in chosen.tolist() if p in images):
        kind, amount = VARIANTS[i % len(VARIANTS)]
        content, suffix = copy_of(images[position], kind, amount, rng)
        copies.append(Copy(f"{i:06d}.{suffix}", position, kind, amount))
        (folder / copies[-1].file).write_bytes(content)
    return copies


def copy_of(pixels: np.ndarray, kind: str, amount: float, rng: np.random.Generator) -> tuple[bytes, str]:
    """The file content of a copy, and its suffix. A cropped copy loses at least one pixel, at random sides."""
    image, file = Image.fromarray(pixels), io.BytesIO()
    width, height = image.size
    if kind == "recompressed":
        image.save(file, "JPEG", quality=int(amount))
        return file.getvalue(), "jpg"
    if kind == "resized":
        size = max(1, round(amount * width)), max(1, round(amount * height))
        image = image.resize(size, Image.Resampling.BICUBIC)
    else:
        less = [min(max(1, round(amount * side)), side - 1) for side in (width, height)]
        left, top = (int(rng.integers(cut + 1)) for cut in less)
        image = image.crop((left, top, left + width - less[0], top + height - less[1]))
    image.save(file, "PNG")
    return file.getvalue(), "png"


def score(
    run: Run,
    everything: list[str],
    n_originals: int,
    copies: list[Copy],
    ways: Sequence[str],
    seed: int,
    n_threads: int | None = None,
    progress: Any = None,
) -> list[Found]:
    """Score every way at every radius. A run has no rows for unreadable images, so rows are found by path."""
    row = {path: i for i, path in enumerate(run.paths)}
    place = [row.get(path, -1) for path in everything]
    original_of = {place[n_originals + i]: place[copy.original] for i, copy in enumerate(copies)}
    kind_of = {place[n_originals + i]: copy.kind for i, copy in enumerate(copies)}
    among = np.ones(len(run.paths), bool)
    among[[r for r in kind_of if r >= 0]] = False
    finder = Finder(run, None, n_threads, progress)
    results = []
    for way in ways:
        for radius in FEATURE_RADII if way == "features" else RADII:
            _, groups = finder.groups(way, radius)
            natural = _pairs(finder.groups(way, radius, among)[1])
            counts = _count(groups, natural, original_of, kind_of)
            for kind in KINDS:
                planted = sum(own == kind for own in kind_of.values())
                results.append(Found(seed, way, radius, kind, planted, *counts[kind]))
    return results


def _pairs(groups: Sequence[np.ndarray]) -> set[tuple[int, int]]:
    return {pair for group in groups for pair in combinations(sorted(group.tolist()), 2)}


def _count(groups, natural, original_of, kind_of) -> dict[str, list[int]]:
    """Right, wrong and natural pairs of each kind of copies."""
    counts = {kind: [0, 0, 0] for kind in KINDS}
    for group in groups:
        members = sorted(group.tolist())
        kinds = {kind_of[row] for row in members if row in kind_of}
        for one, other in combinations(members, 2) if kinds else ():
            copies = [row for row in (one, other) if row in kind_of]
            if not copies:
                if (one, other) not in natural:
                    for kind in kinds:
                        counts[kind][1] += 1
                continue
            if len(copies) == 1 and original_of[copies[0]] in (one, other):
                counts[kind_of[copies[0]]][0] += 1
                continue
            first, second = sorted(original_of.get(row, row) for row in (one, other))
            for row in copies:
                counts[kind_of[row]][2 if (first, second) in natural else 1] += 1
    return counts


# ---- table

WORDS = {"images": "perceptual hashes", "both": "perceptual hashes and features", "features": "codes and features"}
FIGURES = ("precision", "recall", "f1")


def of(results: Sequence[Found], way: str, kind: str) -> dict[int, list[Found]]:
    """Radius -> results of all seeds."""
    own = [r for r in results if (r.way, r.kind) == (way, kind)]
    return {radius: [r for r in own if r.radius == radius] for radius in sorted({r.radius for r in own})}


def best_radius(results: Sequence[Found], way: str, kind: str) -> int:
    """The radius with the highest mean F1; the smallest one in a tie."""
    means = {radius: np.mean([r.f1 for r in some]) for radius, some in of(results, way, kind).items()}
    return max(means, key=lambda radius: (means[radius], -radius))


def duplicate_table(results: Sequence[Found]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in ("way", "kind", "radius", "precision", "recall", "F1", "strict F1", "wrong pairs"):
        table.add_column(name, no_wrap=True, justify="left" if name in ("way", "kind") else "right")
    for way in dict.fromkeys(r.way for r in results):
        for kind in KINDS:
            best = best_radius(results, way, kind)
            for radius, some in of(results, way, kind).items():
                mark = "[bold]" if radius == best else ""
                figures = [_spread([getattr(r, name) for r in some]) for name in (*FIGURES, "strict_f1")]
                wrong = f"{np.mean([r.wrong for r in some]):.1f}"
                table.add_row(*(f"{mark}{cell}" for cell in (WORDS[way], kind, radius, *figures, wrong)))
            table.add_section()
    n_seeds = len({r.seed for r in results})
    planted = sum(r.planted for r in results if (r.seed, r.way, r.radius) == _first(results))
    table.caption = (
        f"{planted:,} copies added, mean ± standard deviation over {n_seeds} seeds; bold: the radius with the best F1. "
        "Duplicates in the collection itself count as neither right nor wrong; strict F1 counts them as wrong."
    )
    return table


def _first(results: Sequence[Found]) -> tuple[int, str, int]:
    return results[0].seed, results[0].way, results[0].radius


def _spread(values: Sequence[float]) -> str:
    return "–" if np.isnan(values).any() else f"{np.mean(values):.3f} ± {np.std(values):.3f}"

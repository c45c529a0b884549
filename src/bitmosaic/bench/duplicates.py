"""Copies of 1% of the pictures, planted in a collection: how many of them are found, and what else is taken for one.

The whole pipeline runs over the collection with the plants: features, codes, fingerprints, groups. A pair of pictures
in one group is found. A plant with its original is right. A plant with another picture is wrong, and so are two
originals that would not be in one group without the plants. Pictures that a collection has twice by itself are neither
right nor wrong: two originals that are found without the plants too, and a plant with a picture that is found with its
original without the plants. The strict precision calls even those wrong.
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

from bitmosaic import pipeline
from bitmosaic.curation.duplicates import Finder
from bitmosaic.errors import InvalidDataError
from bitmosaic.images import ImageSource, open_images
from bitmosaic.images.files import FileSource
from bitmosaic.run import Run

VARIANTS = (
    *(("resized", factor) for factor in (0.5, 0.75, 1.5, 2.0)),
    *(("recompressed", quality) for quality in (30, 50, 70, 90)),
    *(("cropped", share) for share in (0.03, 0.06)),
)
KINDS = tuple(dict.fromkeys(kind for kind, _ in VARIANTS))
RADII = (0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 24, 28)
FEATURE_RADII = (0, 4, 8, 12)


@dataclass(frozen=True)
class Plant:
    """A copy of one picture."""

    file: str
    original: int  # its position among the originals
    kind: str
    amount: float


@dataclass(frozen=True)
class Found:
    """What one way found at one radius of the plants of one kind; pairs, but for `planted`."""

    seed: int
    way: str
    radius: int
    kind: str
    planted: int
    right: int
    wrong: int
    natural: int  # wrong only if one is strict

    @property
    def recall(self) -> float:
        return self.right / max(self.planted, 1)

    @property
    def precision(self) -> float:
        """NaN where nothing was found."""
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
    """The whole measurement, a run of the pipeline for each seed."""
    source = open_images(src, progress)
    results = []
    with tempfile.TemporaryDirectory() as place:
        originals = _as_files(source, Path(place) / "originals")
        for seed in range(seeds):
            folder = Path(place) / str(seed)
            plants = plant(source, folder / "plants", share, np.random.default_rng(seed))
            everything = [*originals, *(str(folder / "plants" / p.file) for p in plants)]
            listed = folder / "pictures.txt"
            listed.write_bytes(b"".join(os.fsencode(path) + b"\0" for path in everything))
            run = pipeline.cluster(
                listed, folder / "run", n_clusters, views=views, seed=seed, n_threads=n_threads, progress=progress
            )
            results += score(run, everything, len(originals), plants, ways, seed, n_threads, progress)
            progress("seeds", seed + 1, seeds)
    return results


def _as_files(source: ImageSource, folder: Path) -> list[str]:
    """Paths of all pictures; those that are in an archive or an array are written out first."""
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


def plant(source: ImageSource, folder: Path, share: float, rng: np.random.Generator) -> list[Plant]:
    """Copies of a share of the pictures, each in one variant, the variants in turn."""
    count = round(share * len(source))
    if count < len(VARIANTS):
        raise InvalidDataError(
            f"Every one of {len(VARIANTS)} variants must be planted; {share:.1%} of {len(source):,} pictures are "
            f"{count}. Take more pictures, or a larger --share."
        )
    folder.mkdir(parents=True)
    chosen = rng.permutation(len(source))[:count]
    images = source.read_many(chosen)
    plants = []
    for i, position in enumerate(p for p in chosen.tolist() if p in images):
        kind, amount = VARIANTS[i % len(VARIANTS)]
        content, suffix = copy_of(images[position], kind, amount, rng)
        plants.append(Plant(f"{i:06d}.{suffix}", position, kind, amount))
        (folder / plants[-1].file).write_bytes(content)
    return plants


def copy_of(image: np.ndarray, kind: str, amount: float, rng: np.random.Generator) -> tuple[bytes, str]:
    """The file of a copy, and its suffix. What is cropped is cut off at random sides, a pixel at least."""
    picture, file = Image.fromarray(image), io.BytesIO()
    width, height = picture.size
    if kind == "recompressed":
        picture.save(file, "JPEG", quality=int(amount))
        return file.getvalue(), "jpg"
    if kind == "resized":
        size = max(1, round(amount * width)), max(1, round(amount * height))
        picture = picture.resize(size, Image.Resampling.BICUBIC)
    else:
        less = [min(max(1, round(amount * side)), side - 1) for side in (width, height)]
        left, top = (int(rng.integers(cut + 1)) for cut in less)
        picture = picture.crop((left, top, left + width - less[0], top + height - less[1]))
    picture.save(file, "PNG")
    return file.getvalue(), "png"


def score(
    run: Run,
    everything: list[str],
    n_originals: int,
    plants: list[Plant],
    ways: Sequence[str],
    seed: int,
    n_threads: int | None = None,
    progress: Any = None,
) -> list[Found]:
    """Every way at every radius. A run leaves out pictures that it could not read, so its rows are found by path."""
    row = {path: i for i, path in enumerate(run.paths)}
    place = [row.get(path, -1) for path in everything]
    original_of = {place[n_originals + i]: place[p.original] for i, p in enumerate(plants)}
    kind_of = {place[n_originals + i]: p.kind for i, p in enumerate(plants)}
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
    """Right, wrong and natural pairs of each kind of plants."""
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

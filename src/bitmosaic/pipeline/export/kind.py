"""Shared by all exports: their result, JSON with long lists, names of image files."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from bitmosaic.images import Progress, display_path
from bitmosaic.run.clusters import Clusters
from bitmosaic.run.images import RunImages


@dataclass(frozen=True)
class Exported:
    """The result of an export: facts for programs, words and notes for people."""

    facts: dict[str, int]
    words: str
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, clusters: Clusters, notes: list[str] | None = None, **facts: int) -> "Exported":
        """The result of an export of all images."""
        counts = {"pictures": len(clusters.labels), "clusters": len(clusters.numbers)}
        words = f"{counted(counts['pictures'], 'image')} in {counted(counts['clusters'], 'cluster')}"
        return cls(counts | facts, words, notes or [])


FindImages = Callable[[], RunImages]  # opened only by the exports that need image files
Write = Callable[[Clusters, Path, FindImages, Progress], Exported]


@dataclass(frozen=True)
class Kind:
    """A format: its name, its file suffixes and its writer."""

    name: str
    suffixes: tuple[str, ...]
    write: Write


def counted(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def write_object(file: BinaryIO, head: dict[str, Any], **lists: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object in ASCII: `head`, then the lists. Entries are written one per line as they come, so that a
    million images take no memory.
    """
    separator = b"{\n"
    for key, value in head.items():
        file.write(separator + _text(key) + b": " + _text(value))
        separator = b",\n"
    for key, entries in lists.items():
        file.write(separator + _text(key) + b": [")
        comma = b"\n"
        for entry in entries:
            file.write(comma + _text(entry))
            comma = b",\n"
        file.write(b"\n]")
        separator = b",\n"
    file.write(b"\n}\n")


def _text(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False).encode("ascii")


def file_names(images: RunImages, paths: list[str]) -> tuple[list[str], list[str]]:
    """The file of each image, or its path in the run if it has none, and notes for the user.

    A name that is not UTF-8 is shown with replacement characters, because most JSON readers accept only UTF-8.
    """
    places = [images.place(row) for row in range(len(paths))]
    without = places.count(None)
    notes = []
    if not images.available:
        notes = ["The images were not found; paths are those of the run. Pass their folder: --source FOLDER."]
    elif without:
        notes = [f"{without:,} images are not files: their paths are those in their archive or array."]
    return [path if place is None else display_path(place) for place, path in zip(places, paths, strict=True)], notes

"""The images of a run, by row: from the source of the first fit and the source of each addition."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bitmosaic.errors import BitmosaicError, MissingFileError
from bitmosaic.images import ImageSource, Progress, open_images, quiet
from bitmosaic.images.archive import CompressedTarSource
from bitmosaic.images.decode import shrink
from bitmosaic.images.files import FileSource
from bitmosaic.run.folder import Run
from bitmosaic.views.folder import RECIPE, read_recipe

Result = TypeVar("Result")


def find_source(views_folder: Path, progress: Progress = quiet) -> ImageSource | None:
    """The image source of a views folder. None if it is unknown or cannot be opened any more."""
    try:
        return open_images(read_recipe(views_folder / RECIPE)["source"], progress)
    except (BitmosaicError, KeyError):
        return None


@dataclass
class _Section:
    """Consecutive rows whose images come from one source."""

    start: int
    stop: int
    source: ImageSource | None
    position: dict[str, int] = field(default_factory=dict)  # by path


class RunImages:
    """The images of a run. The sources are opened on first use, which may list a large folder. Thread-safe.

    `source`: where the images of the first fit are now, if they were moved. Images of additions whose own source
    cannot be opened are looked up there, too.
    """

    def __init__(self, run: Run, source: Any = None, progress: Progress = quiet):
        self.run, self._given, self._progress = run, source, progress
        self._opening = threading.Lock()
        self._found: list[_Section] | None = None

    @property
    def available(self) -> bool:
        """Whether any source can be opened."""
        return any(section.source is not None for section in self._sections())

    def required(self, what: str) -> "RunImages":
        """These images. An error if no source can be opened; `what` needs them."""
        if not self.available:
            raise MissingFileError(
                f"{what} needs the images; those of {self.run.folder} were not found. "
                "Pass their folder: --source FOLDER."
            )
        return self

    def place(self, row: int) -> str | None:
        """The absolute path of an image that is a file. None for images in archives or arrays."""
        section = next(section for section in self._sections() if row < section.stop)
        position = section.position.get(self.run.paths[row])
        if position is None or not isinstance(section.source, FileSource):
            return None
        return os.path.abspath(os.path.join(section.source.root, section.source.paths[position]))

    def each(
        self,
        rows: Iterable[int],
        then: Callable[[np.ndarray], Result],
        progress: Progress = quiet,
        max_side: int | None = None,
    ) -> Iterator[tuple[int, Result]]:
        """Pairs of a row and ``then(image)``. Each image is decoded once, by several threads.

        Images are in full size, or reduced to at most `max_side` by `max_side` pixels. They are yielded source by
        source, in the order of the source. Images that cannot be read are skipped.
        """
        for source, owners in self._wanted(rows):
            for position, result in source.each(owners, then, progress, max_side):
                for row in owners[position]:
                    yield row, result

    def contents(self, rows: Iterable[int]) -> Iterator[tuple[int, bytes | np.ndarray | None]]:
        """Pairs of a row and the bytes of its file, or its RGB array if the source is an array. None if unreadable."""
        for source, owners in self._wanted(rows):
            for position, content in source.contents(owners):
                for row in owners[position]:
                    yield row, content

    def thumbnails(self, rows: Iterable[int], side: int, progress: Progress = quiet) -> dict[int, np.ndarray]:
        """Images by row, reduced to at most `side` pixels per side. The aspect ratio is kept."""
        return dict(self.each(rows, lambda image: shrink(image, side), progress))

    def read_only_in_order(self, progress: Progress = quiet) -> list[int]:
        """The rows in compressed archives, which can only be read sequentially."""
        found = (section for section in self._sections(progress) if isinstance(section.source, CompressedTarSource))
        return [row for section in found for row in range(section.start, section.stop)]

    def _wanted(self, rows: Iterable[int]) -> Iterator[tuple[ImageSource, dict[int, list[int]]]]:
        """Sources of some rows, each with its positions and the rows of each position."""
        wanted = np.array(sorted({int(row) for row in rows}), np.int64)
        if not len(wanted):
            return
        paths = self.run.paths
        for section in self._sections():
            begin, end = np.searchsorted(wanted, [section.start, section.stop])
            owners: dict[int, list[int]] = {}
            for row in wanted[begin:end].tolist():
                if (position := section.position.get(paths[row])) is not None:
                    owners.setdefault(position, []).append(row)
            if section.source is not None and owners:
                yield section.source, owners

    def _sections(self, progress: Progress | None = None) -> list[_Section]:
        with self._opening:
            if self._found is None:
                self._found = self._open(progress or self._progress)
        return self._found

    def _open(self, progress: Progress) -> list[_Section]:
        given = None if self._given is None else open_images(self._given, progress)
        base = find_source(self.run.views_folder, progress) if given is None else given
        sections = [_Section(0, self.run.manifest.images, base)]
        for addition in self.run.additions:
            start = sections[-1].stop
            source = find_source(addition.views_folder, progress) or given
            sections.append(_Section(start, start + addition.n_rows, source))
        paths = self.run.paths
        for section in sections:
            if section.source is not None:
                known = set(paths[section.start : section.stop])
                section.position = {path: i for i, path in enumerate(section.source.paths) if path in known}
        return sections

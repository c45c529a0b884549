"""Rows of a run -> the pictures behind them, wherever each of its sources is: the base, then every addition."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bitmosaic.errors import BitmosaicError
from bitmosaic.extraction import RECIPE, read_recipe
from bitmosaic.images import ImageSource, Progress, open_images, quiet
from bitmosaic.images.decode import shrink
from bitmosaic.images.files import FileSource
from bitmosaic.images.tars import CompressedTarSource
from bitmosaic.run import Run

Result = TypeVar("Result")


def find_source(views_folder: Path, progress: Progress = quiet) -> ImageSource | None:
    """The pictures behind a views folder, None if they are not known or not there any more."""
    try:
        return open_images(read_recipe(views_folder / RECIPE)["source"], progress)
    except (BitmosaicError, KeyError):
        return None


@dataclass
class _Section:
    """Neighbouring rows whose pictures come from one source."""

    start: int
    stop: int
    source: ImageSource | None
    position: dict[str, int] = field(default_factory=dict)  # by path


class RunPictures:
    """The pictures of a run, found when first asked for: that may mean to search a large folder. Any thread may ask.

    `source`: where the pictures of the run itself are now, if not where it has read them. Those of an addition that are
    not where they were are looked for there, too.
    """

    def __init__(self, run: Run, source: Any = None, progress: Progress = quiet):
        self.run, self._given, self._progress = run, source, progress
        self._opening = threading.Lock()
        self._found: list[_Section] | None = None

    @property
    def available(self) -> bool:
        """Whether there is any source of pictures."""
        return any(section.source is not None for section in self._sections())

    def place(self, row: int) -> str | None:
        """The absolute path of a picture that is a file of its own, or was; None for others, and where nobody knows."""
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
        """What `then` makes of the pictures of some rows, each decoded once, by several threads: in full size, or with
        larger ones squeezed to `max_side` pixels a side.

        They come source by source, in the order of each; those that cannot be had are left out.
        """
        for source, owners in self._wanted(rows):
            for position, result in source.each(owners, then, progress, max_side):
                for row in owners[position]:
                    yield row, result

    def contents(self, rows: Iterable[int]) -> Iterator[tuple[int, bytes | np.ndarray | None]]:
        """The bytes of the files of some rows, or RGB arrays of pictures in an array; None where they cannot be had."""
        for source, owners in self._wanted(rows):
            for position, content in source.contents(owners):
                for row in owners[position]:
                    yield row, content

    def thumbnails(self, rows: Iterable[int], side: int, progress: Progress = quiet) -> dict[int, np.ndarray]:
        """Pictures of some rows, each reduced in its proportions to at most `side` pixels a side."""
        return dict(self.each(rows, lambda image: shrink(image, side), progress))

    def read_only_in_order(self, progress: Progress = quiet) -> list[int]:
        """The rows in compressed archives, which can be read from their beginning only."""
        found = (section for section in self._sections(progress) if isinstance(section.source, CompressedTarSource))
        return [row for section in found for row in range(section.start, section.stop)]

    def _wanted(self, rows: Iterable[int]) -> Iterator[tuple[ImageSource, dict[int, list[int]]]]:
        """Sources with the positions that are wanted of them, and the rows of each position."""
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
        sections = [_Section(0, self.run.manifest["images"], base)]
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

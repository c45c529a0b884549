"""The pictures behind the rows of a run: full size, as files, or as thumbnails."""

import os
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from bitmosaic.images import ImageSource, Progress, open_images, quiet
from bitmosaic.images.decode import shrink
from bitmosaic.images.files import FileSource
from bitmosaic.pipeline import find_source
from bitmosaic.run import Run

Result = TypeVar("Result")


class RunPictures:
    """`source`: where the pictures are now, if not where the run has read them."""

    def __init__(self, run: Run, source: Any = None, progress: Progress = quiet):
        self._run = run
        self._images: ImageSource | None = (
            find_source(run.views_folder, progress) if source is None else open_images(source, progress)
        )

    @property
    def available(self) -> bool:
        return self._images is not None

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {} if self._images is None else {path: i for i, path in enumerate(self._images.paths)}

    def _rows_at(self, rows: Iterable[int]) -> dict[int, int]:
        """Position in the source -> row, of those that are there."""
        paths, positions = self._run.paths, self._positions
        return {positions[paths[row]]: int(row) for row in rows if paths[row] in positions}

    def each(
        self,
        rows: Iterable[int],
        then: Callable[[np.ndarray], Result],
        progress: Progress = quiet,
        max_side: int | None = None,
    ) -> Iterator[tuple[int, Result]]:
        """What `then` makes of some pictures, in one pass; those that cannot be read are left out."""
        row_at = self._rows_at(rows)
        if self._images is not None:
            for position, result in self._images.each(row_at, then, progress, max_side):
                yield row_at[position], result

    def thumbnails(self, rows: Iterable[int], side: int, progress: Progress = quiet) -> dict[int, np.ndarray]:
        return dict(self.each(rows, lambda image: shrink(image, side), progress))

    def contents(self, rows: Iterable[int]) -> Iterator[tuple[int, bytes | np.ndarray | None]]:
        """The bytes of their files, or arrays of those in an array; None where they cannot be had."""
        row_at = self._rows_at(rows)
        if self._images is not None:
            for position, content in self._images.contents(row_at):
                yield row_at[position], content

    def place(self, row: int) -> str | None:
        """Where the file is of a picture that has one of its own."""
        position = self._positions.get(self._run.paths[row])
        if position is None or not isinstance(self._images, FileSource):
            return None
        return os.path.abspath(os.path.join(self._images.root, self._images.paths[position]))

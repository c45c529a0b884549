"""Read images from a source in a stable order, decoded to RGB batches by several threads."""

import hashlib
import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from bitmosaic.errors import ImageError
from bitmosaic.images.decode import cause_of, decode, quiet_pillow, shrink
from bitmosaic.io.threads import available_threads, in_order

OUTSIDE = "its name points outside the archive"
LINK = "a link inside an archive is not followed"

PIECE_SIZE = 64
"""Images per thread task: large enough for low overhead, small enough to keep all threads busy."""

READ_SIZE = 8
"""The same for interactive reads of a few images."""

Result = TypeVar("Result")

Piece = list[tuple[int, Any]]
"""(position, content) pairs, see `ImageSource._pieces`."""

Progress = Callable[[str, int, int], None]
"""Called with the stage name, the amount done, and the total (0 if unknown)."""


def quiet(stage: str, done: int, total: int) -> None:
    """No-op progress callback."""


@dataclass(frozen=True)
class Skipped:
    """A file that could not be read as an image, and the cause."""

    path: str
    cause: str


@dataclass(frozen=True)
class Batch:
    """Consecutive images of a source: the good ones decoded, the bad ones with their causes."""

    positions: np.ndarray
    """int64 (b,): positions of the good images in ``source.paths``, ascending."""

    images: list[np.ndarray]
    """uint8 (h, w, 3) RGB, one per position. Shapes may differ; arrays do not share memory."""

    skipped: list[tuple[int, Skipped]] = field(default_factory=list)
    """The bad ones with their positions, ascending."""


class ImageSource:
    """Images in a stable order; made by `open_images`.

    Subclasses pass the paths of the images and return the content of one image (`_content`), or of many in one pass
    (`_pieces`).
    """

    def __init__(self, name: str, paths: Iterable[str]):
        self.name = name
        self.paths = tuple(paths)

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {display_path(self.name)}: {len(self)} images>"

    def labels(self) -> np.ndarray | None:
        """The name of each image's folder, "" at the top; None where images have no folders."""
        return np.array([folder_name(path) for path in self.paths], dtype=np.str_)

    def image_signature(self, position: int) -> tuple[int, int]:
        """Two numbers that change with the image, such as size and modification time; (-1, -1) for a missing file.

        Each file is checked once: when the source is opened, or at the first call.
        """
        raise NotImplementedError

    @cached_property
    def signature(self) -> str:
        """A hash of the paths and image signatures of all images, computed once."""
        facts = hashlib.sha256()
        for position, path in enumerate(self.paths):
            facts.update(repr((path, self.image_signature(position))).encode())
        return facts.hexdigest()

    def batches(
        self,
        batch_size: int = 256,
        start: int = 0,
        max_side: int | None = 128,
        n_threads: int | None = None,
        strict: bool = False,
    ) -> Iterator[Batch]:
        """Decode the images from position `start`, `batch_size` positions (good and bad) at a time.

        An image with a side above `max_side` is resized to max_side × max_side pixels, ignoring its aspect ratio, so
        that features compare equal shapes. A smaller one stays as it is, and None keeps every size. A bad file is
        skipped with its cause, or raises an ImageError if `strict`. The result does not depend on `n_threads`.
        Memory holds the batch and `n_threads` + 1 pieces of 64 images.
        """
        results: list[tuple[int, np.ndarray | Skipped]] = []
        positions = range(start, len(self))
        piece_size, threads = min(PIECE_SIZE, batch_size), available_threads(n_threads)
        with closing(self._decoded(positions, piece_size, max_side, threads, _unchanged)) as pieces:
            for piece in pieces:
                if strict:
                    for _, result in piece:
                        if isinstance(result, Skipped):
                            raise image_error(result, "Repair or remove it, or leave out strict to skip such files.")
                results += piece
                while len(results) >= batch_size:
                    yield _batch(results[:batch_size])
                    del results[:batch_size]
        if results:
            yield _batch(results)

    def read(self, position: int, max_side: int | None = None) -> np.ndarray:
        """One image. Raises an ImageError with the cause if it cannot be read."""
        ((_, result),) = self._read([position], max_side, _unchanged)
        if isinstance(result, Skipped):
            raise image_error(result, "It may have changed since it was listed.")
        return result

    def read_many(self, positions: Iterable[int], max_side: int | None = None) -> dict[int, np.ndarray]:
        """Images by position, read in one pass over the source. Bad ones are left out."""
        images = self._read(positions, max_side, _unchanged)
        return {i: image for i, image in images if not isinstance(image, Skipped)}

    def thumbnails(self, positions: Iterable[int], side: int, progress: Progress = quiet) -> dict[int, np.ndarray]:
        """As `read_many`, each reduced to at most `side` pixels per side, keeping the aspect ratio."""
        return dict(self.each(positions, lambda image: shrink(image, side), progress))

    def each(
        self,
        positions: Iterable[int],
        then: Callable[[np.ndarray], Result],
        progress: Progress = quiet,
        max_side: int | None = None,
    ) -> Iterator[tuple[int, Result]]:
        """Apply `then` to some images, by ascending position, in one pass. Bad ones are left out.

        `then` runs in the decoding threads. Only a few images are in memory at a time, of full size or limited by
        `max_side` (see `batches`).
        """
        for i, result in self._read(positions, max_side, then, progress):
            if not isinstance(result, Skipped):
                yield i, result

    def contents(self, positions: Iterable[int]) -> Iterator[tuple[int, bytes | np.ndarray | None]]:
        """Images as stored, by ascending position, in one pass: the bytes of a file, or the RGB array of an array
        source; None for an unreadable image. Errors of the source itself are raised."""
        with closing(self._pieces(sorted(positions), PIECE_SIZE)) as pieces:
            for piece in pieces:
                for position, given in piece:
                    try:
                        content = self._content(position) if given is None else given
                        yield position, content if isinstance(content, bytes) else self._decode(content, None)
                    except OSError:
                        raise
                    except Exception:  # zipfile and tarfile raise many types for a damaged member
                        yield position, None

    def _read(
        self,
        positions: Iterable[int],
        max_side: int | None,
        then: Callable[[np.ndarray], Result],
        progress: Progress = quiet,
    ) -> Iterator[tuple[int, Result | Skipped]]:
        wanted = sorted({int(position) for position in positions})
        done = 0
        progress("reading images", 0, len(wanted))
        with closing(self._decoded(wanted, READ_SIZE, max_side, available_threads(), then)) as pieces:
            for piece in pieces:
                done += len(piece)
                yield from piece
                progress("reading images", done, len(wanted))

    def _decoded(
        self,
        positions: Sequence[int],
        piece_size: int,
        max_side: int | None,
        n_threads: int,
        then: Callable[[np.ndarray], Result],
    ) -> Generator[list[tuple[int, Result | Skipped]], None, None]:
        def decode_piece(piece: Piece) -> list[tuple[int, Result | Skipped]]:
            with quiet_pillow():
                images = [(i, self._image(i, content, max_side)) for i, content in piece]
            return [(i, p if isinstance(p, Skipped) else then(p)) for i, p in images]

        # Closed in reverse order: the threads end before the source they read from is closed.
        with (
            closing(self._pieces(positions, piece_size)) as pieces,
            closing(in_order(decode_piece, pieces, n_threads)) as results,  # type: ignore[type-var]
        ):
            yield from results

    def _image(self, position: int, content: Any, max_side: int | None) -> np.ndarray | Skipped:
        """Decode one image; any error of a decoder becomes the cause of a skipped image."""
        try:
            if content is None:
                content = self._content(position)
            return self._decode(content, max_side)
        except Exception as error:
            return Skipped(self.paths[position], cause_of(error, content if isinstance(content, bytes) else None))

    def _pieces(self, positions: Sequence[int], piece_size: int) -> Generator[Piece, None, None]:
        """(position, content) pairs, in order. Content None: the decoding thread calls `_content`."""
        for first in range(0, len(positions), piece_size):
            yield [(i, None) for i in positions[first : first + piece_size]]

    def _content(self, position: int) -> Any:
        """The input of `_decode`: the bytes of a file. Called by several threads at once."""
        raise NotImplementedError

    def _decode(self, content: Any, max_side: int | None) -> np.ndarray:
        return decode(content, max_side)


def _unchanged(image: np.ndarray) -> np.ndarray:
    return image


def _batch(results: list[tuple[int, np.ndarray | Skipped]]) -> Batch:
    good = [(i, result) for i, result in results if not isinstance(result, Skipped)]
    return Batch(
        positions=np.array([i for i, _ in good], dtype=np.int64),
        images=[image for _, image in good],
        skipped=[(i, result) for i, result in results if isinstance(result, Skipped)],
    )


def image_error(skipped: Skipped, cure: str) -> ImageError:
    path = display_path(skipped.path).replace("\n", r"\n")
    return ImageError(f"Cannot read the image {path}: {skipped.cause}. {cure}")


def folder_name(path: str) -> str:
    """The name of the folder that contains the file, "" if there is none."""
    name = path.replace(os.sep, "/").rpartition("/")[0].rpartition("/")[2]
    return "" if name in (".", "..") else display_path(name)


def is_hidden(path: str) -> bool:
    """Whether a part of the path begins with a dot ("." and ".." excepted), with / or \\ as separator."""
    return any(part.startswith(".") and part not in (".", "..") for part in re.split(r"[/\\]", path))


def points_outside(name: str) -> bool:
    """Whether the name of an archive member points outside the archive, on any system: ../x, /x, C:\\x."""
    return re.match(r"[/\\]|[A-Za-z]:[/\\]", name) is not None or ".." in re.split(r"[/\\]", name)


def display_path(path: str) -> str:
    """A path that can be printed and encoded: bytes that are not UTF-8 appear as \\xNN."""
    return re.sub("[\ud800-\udfff]", _visible_surrogate, path)


def printable(text: str) -> str:
    """Text that is safe to print on a terminal: line ends, control characters and direction marks are escaped."""
    shown = display_path(text)
    return shown if shown.isprintable() else "".join(map(_visible, shown))


def _visible(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")


def _visible_surrogate(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"

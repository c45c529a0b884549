"""A source of pictures -> batches of RGB arrays in a stable order, decoded by several threads."""

import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from bitmosaic.errors import ImageError, ParameterError
from bitmosaic.images.decode import cause_of, decode, quiet_pillow, shrink
from bitmosaic.threads import available_threads, in_order

PIECE_SIZE = 64
"""Pictures per task of a thread: enough to make handing over cheap, few enough to keep all threads busy."""

READ_SIZE = 8
"""The same where a few pictures are picked out and somebody waits for them."""

Result = TypeVar("Result")

Piece = list[tuple[int, Any]]
"""Positions with what their pictures are decoded from."""

Progress = Callable[[str, int, int], None]
"""Called with the name of a stage, how much of it is done, and of how much: 0 where nobody knows."""


def quiet(stage: str, done: int, total: int) -> None:
    """Progress that nobody looks at."""


@dataclass(frozen=True)
class Skipped:
    """A file that gave no picture, and why, in words for a person."""

    path: str
    cause: str


@dataclass(frozen=True)
class Batch:
    """Neighbouring pictures of a source: the good ones decoded, the bad ones with their causes."""

    positions: np.ndarray
    """int64 (b,): where the good pictures stand in ``source.paths``, ascending."""

    images: list[np.ndarray]
    """uint8 (h, w, 3) RGB, one per position, each with a shape and memory of its own."""

    skipped: list[tuple[int, Skipped]] = field(default_factory=list)
    """The bad ones with their positions, ascending."""


class ImageSource:
    """Pictures in a stable order; made by `open_images`.

    A kind of source says what its pictures are called and gives the content of one (`_content`), or of many in one
    pass (`_pieces`). Everything else is here.
    """

    def __init__(self, name: str, paths: Iterable[str]):
        self.name = name
        self.paths = tuple(paths)

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {display_path(self.name)}: {len(self)} pictures>"

    def labels(self) -> np.ndarray | None:
        """The name of each picture's folder, "" at the top; None where pictures have no folders."""
        return np.array([folder_name(path) for path in self.paths], dtype=np.str_)

    def fingerprint(self, position: int) -> tuple[int, int]:
        """Two numbers, cheap to get, that change when the picture changes; (-1, -1) for a file that is gone."""
        raise NotImplementedError

    def batches(
        self,
        batch_size: int = 256,
        start: int = 0,
        max_side: int | None = 128,
        n_threads: int | None = None,
        strict: bool = False,
    ) -> Iterator[Batch]:
        """Decode the pictures from position `start` on, `batch_size` positions at a time, good and bad together.

        A picture with a side above `max_side` is squeezed to max_side × max_side pixels, whatever its proportions, so
        that features compare equal shapes; a smaller one stays as it is, and None keeps every size. A bad file is
        skipped with its cause, or raises an ImageError if `strict`. The result does not depend on `n_threads`.
        Memory holds the batch and `n_threads` + 1 pieces of 64 pictures.
        """
        if batch_size < 1:
            raise ParameterError(f"batch_size must be at least 1; got {batch_size}.")
        if not 0 <= start <= len(self):
            raise ParameterError(f"start must be from 0 to {len(self)}, the number of pictures; got {start}.")
        check_max_side(max_side)
        return self._batches(batch_size, start, max_side, available_threads(n_threads), strict)

    def _batches(
        self, batch_size: int, start: int, max_side: int | None, n_threads: int, strict: bool
    ) -> Iterator[Batch]:
        results: list[tuple[int, np.ndarray | Skipped]] = []
        positions = range(start, len(self))
        with closing(self._decoded(positions, min(PIECE_SIZE, batch_size), max_side, n_threads, _unchanged)) as pieces:
            for piece in pieces:
                if strict:
                    for _, result in piece:
                        if isinstance(result, Skipped):
                            raise image_error(result, "Mend or remove it, or do without strict to skip such files.")
                results += piece
                while len(results) >= batch_size:
                    yield _batch(results[:batch_size])
                    del results[:batch_size]
        if results:
            yield _batch(results)

    def read(self, position: int, max_side: int | None = None) -> np.ndarray:
        """One picture. Raises an ImageError with the cause if it is a bad one."""
        ((_, result),) = self._read([position], max_side, _unchanged)
        if isinstance(result, Skipped):
            raise image_error(result, "It may have changed since it was listed.")
        return result

    def read_many(self, positions: Iterable[int], max_side: int | None = None) -> dict[int, np.ndarray]:
        """Some pictures by their positions, in one pass over the source; bad ones are left out."""
        pictures = self._read(positions, max_side, _unchanged)
        return {i: image for i, image in pictures if not isinstance(image, Skipped)}

    def unreadable(self, positions: Iterable[int], max_side: int | None = None) -> list[Skipped]:
        """The bad ones of some pictures, with their causes."""
        pictures = self._read(positions, max_side, lambda _: None)
        return [result for _, result in pictures if isinstance(result, Skipped)]

    def thumbnails(self, positions: Iterable[int], side: int, progress: Progress = quiet) -> dict[int, np.ndarray]:
        """As `read_many`, each reduced in its proportions to at most `side` pixels a side."""
        return dict(self.each(positions, lambda image: shrink(image, side), progress))

    def each(
        self,
        positions: Iterable[int],
        then: Callable[[np.ndarray], Result],
        progress: Progress = quiet,
        max_side: int | None = None,
    ) -> Iterator[tuple[int, Result]]:
        """What `then` makes of some pictures, by ascending position, in one pass; bad ones are left out.

        `then` runs in the threads that decode, and memory holds a few pictures only, of full size or as `max_side`
        says (see `batches`).
        """
        for i, result in self._read(positions, max_side, then, progress):
            if not isinstance(result, Skipped):
                yield i, result

    def contents(self, positions: Iterable[int]) -> Iterator[tuple[int, bytes | np.ndarray | None]]:
        """Some pictures as they are kept, by ascending position, in one pass: the bytes of their files, or RGB arrays
        of those in an array; None where they cannot be had. Whatever stops the source itself is raised."""
        with closing(self._pieces(sorted(positions), PIECE_SIZE)) as pieces:
            for piece in pieces:
                for position, given in piece:
                    try:
                        content = self._content(position) if given is None else given
                        yield position, content if isinstance(content, bytes) else self._decode(content, None)
                    except OSError:
                        raise
                    except Exception:  # whatever a damaged member makes a reader raise
                        yield position, None

    def _read(
        self,
        positions: Iterable[int],
        max_side: int | None,
        then: Callable[[np.ndarray], Result],
        progress: Progress = quiet,
    ) -> Iterator[tuple[int, Result | Skipped]]:
        wanted = sorted({int(position) for position in positions})
        check_max_side(max_side)
        if wanted and not 0 <= wanted[0] <= wanted[-1] < len(self):
            raise ParameterError(f"Positions go from 0 to {len(self) - 1}; got {wanted[0]} to {wanted[-1]}.")
        done = 0
        progress("reading pictures", 0, len(wanted))
        with closing(self._decoded(wanted, READ_SIZE, max_side, available_threads(), then)) as pieces:
            for piece in pieces:
                done += len(piece)
                yield from piece
                progress("reading pictures", done, len(wanted))

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
                pictures = [(i, self._picture(i, content, max_side)) for i, content in piece]
            return [(i, p if isinstance(p, Skipped) else then(p)) for i, p in pictures]

        # Closed from right to left: the threads are done before what they read from goes.
        with (
            closing(self._pieces(positions, piece_size)) as pieces,
            closing(in_order(decode_piece, pieces, n_threads)) as results,  # type: ignore[type-var]
        ):
            yield from results

    def _picture(self, position: int, content: Any, max_side: int | None) -> np.ndarray | Skipped:
        """Decode one picture. Whatever a decoder may raise on a bad file ends here, as a cause."""
        try:
            if content is None:
                content = self._content(position)
            return self._decode(content, max_side)
        except Exception as error:
            return Skipped(self.paths[position], cause_of(error, content if isinstance(content, bytes) else None))

    def _pieces(self, positions: Sequence[int], piece_size: int) -> Generator[Piece, None, None]:
        """Positions with their contents, in order; None where the decoding thread shall get the content itself."""
        for first in range(0, len(positions), piece_size):
            yield [(i, None) for i in positions[first : first + piece_size]]

    def _content(self, position: int) -> Any:
        """What `_decode` takes: the bytes of a file. Called by several threads at once."""
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


def check_max_side(max_side: int | None) -> None:
    if max_side is not None and max_side < 1:
        raise ParameterError(f"max_side must be at least 1, or None to keep every size; got {max_side}.")


def image_error(skipped: Skipped, cure: str) -> ImageError:
    path = display_path(skipped.path).replace("\n", r"\n")
    return ImageError(f"Cannot read the picture {path}: {skipped.cause}. {cure}")


def folder_name(path: str) -> str:
    """The last folder of a path with slashes, "" if there is none."""
    name = path.replace(os.sep, "/").rpartition("/")[0].rpartition("/")[2]
    return "" if name in (".", "..") else display_path(name)


def display_path(path: str) -> str:
    """A path that can be printed and encoded: bytes that are no UTF-8 appear as \\xNN."""
    return re.sub("[\ud800-\udfff]", _visible_surrogate, path)


def printable(text: str) -> str:
    """A text that does nothing to a terminal but appear: line ends, escapes and marks for direction are written out."""
    shown = display_path(text)
    return shown if shown.isprintable() else "".join(map(_visible, shown))


def _visible(letter: str) -> str:
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")


def _visible_surrogate(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"

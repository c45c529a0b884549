"""What exports say of the pictures behind the rows of a run: where each lies, and how large it is."""

import io
import os

import numpy as np

from bitmosaic.images import Progress, display_path, quiet
from bitmosaic.images.decode import quiet_pillow, size_of
from bitmosaic.run_pictures import RunPictures
from bitmosaic.threads import available_threads, in_order

FILES_AT_ONCE = 256


def file_names(pictures: RunPictures, paths: list[str]) -> tuple[list[str], list[str]]:
    """Where the file of each picture is, or else its path in the run, with a note on those.

    A name that is not UTF-8 is shown as well as can be: most readers of JSON take nothing else.
    """
    places = [pictures.place(row) for row in range(len(paths))]
    without = places.count(None)
    notes = []
    if not pictures.available:
        notes = ["The pictures are not where they were; paths are those of the run. Say where they are: --source."]
    elif without:
        notes = [f"{without:,} pictures are no files of their own: paths are those in their archive or array."]
    return [path if place is None else display_path(place) for place, path in zip(places, paths, strict=True)], notes


def picture_sizes(pictures: RunPictures, n_rows: int, progress: Progress = quiet) -> np.ndarray:
    """(n, 2) int32: width and height of each picture as it is shown, 0 where they cannot be had.

    Of a file, only the header is read; a picture in an archive is unpacked, but not decoded.
    """
    sizes, done = np.zeros((n_rows, 2), np.int32), 0
    places = {row: place for row in range(n_rows) if (place := pictures.place(row)) is not None}
    rows = list(places)
    pieces = [rows[first : first + FILES_AT_ONCE] for first in range(0, len(rows), FILES_AT_ONCE)]
    with quiet_pillow():
        measured = in_order(lambda piece: (piece, [_size(places[row]) for row in piece]), pieces, available_threads())
        for piece, found in measured:
            sizes[piece] = found
            done += len(piece)
            progress("reading sizes", done, n_rows)
        for row, content in pictures.contents(row for row in range(n_rows) if row not in places):
            sizes[row] = _size(content)
            done += 1
            progress("reading sizes", done, n_rows)
    return sizes


def _size(picture: str | bytes | np.ndarray | None) -> tuple[int, int]:
    try:
        if isinstance(picture, str):
            if not os.path.isfile(picture):  # opening a pipe would wait for ever
                return 0, 0
            with open(picture, "rb") as file:
                return size_of(file)
        if isinstance(picture, bytes):
            return size_of(io.BytesIO(picture))
    except Exception:  # whatever a reader of headers may raise on a bad file
        return 0, 0
    return (0, 0) if picture is None else (picture.shape[1], picture.shape[0])

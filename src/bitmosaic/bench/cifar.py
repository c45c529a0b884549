"""CIFAR-10 as its page gives it, the binary or the Python version, unpacked or as .tar.gz -> pictures with classes.

Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009. Six batches of 10,000 pictures; a picture is
3,072 bytes: 32×32 of red, then of green, then of blue, row by row.
"""

import os
import re
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from bitmosaic.bench.plain_pickle import read_pickle
from bitmosaic.bench.selection import LabelledSource, called, labelled
from bitmosaic.errors import FileFormatError, InvalidDataError
from bitmosaic.images import Progress, quiet
from bitmosaic.images.arrays import ArraySource
from bitmosaic.images.tars import STREAM_ERRORS

BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
PIXELS = 3 * 32 * 32
LARGEST_FILE = 2**28  # nine times a real batch
_BATCH = re.compile(r"(data_batch_[1-5]|test_batch)(\.bin)?")
_NAMES = ("batches.meta", "batches.meta.txt")


def is_batch(path: str) -> bool:
    return _BATCH.fullmatch(path.rpartition("/")[2]) is not None


def read_cifar(path: Path, progress: Progress = quiet) -> LabelledSource:
    """A folder or archive with all six batches, or one batch. Labels are names where batches.meta has them."""
    pixels: dict[str, np.ndarray] = {}  # batch -> (n, 3072)
    numbers: dict[str, np.ndarray] = {}  # batch -> (n,)
    seen: dict[str, str] = {}
    names = None
    n_batches = 1 if is_batch(path.name) else len(BATCHES)
    for file, content in _files(path):
        base = file.rpartition("/")[2]
        if base in _NAMES:
            names = _class_names(content, file)
            continue
        batch = base.removesuffix(".bin")
        if batch in seen:
            raise InvalidDataError(
                f"Each batch of CIFAR-10 must be there once; {called(path)} has {batch} twice, as {seen[batch]} and "
                f"{file}. Choose one of the folders."
            )
        seen[batch] = file
        pixels[batch], numbers[batch] = (_binary if base.endswith(".bin") else _pickled)(content, file)
        progress("reading batches", len(seen), n_batches)
    order = [batch for batch in BATCHES if batch in seen]
    if len(order) < n_batches:
        raise InvalidDataError(
            f"CIFAR-10 is the files {BATCHES[0]} … {BATCHES[4]} and {BATCHES[5]} (with .bin in the binary version); "
            f"{called(path)} lacks {', '.join(batch for batch in BATCHES if batch not in seen)}. Get the rest, or pass "
            "one batch by itself."
        )
    if len({len(rows) for rows in pixels.values()}) > 1:
        sizes = ", ".join(f"{batch} {len(pixels[batch]):,}" for batch in order)
        raise InvalidDataError(
            f"All batches of CIFAR-10 must have as many pictures, 10,000; {called(path)} has {sizes}. "
            "A file may be cut: get it again."
        )
    classes = np.concatenate([numbers[batch] for batch in order])
    texts = [str(i) for i in range(10)] if names is None else names
    if classes.max() >= len(texts):
        raise FileFormatError(
            f"{_NAMES[0]} must name every class; that of {called(path)} has {len(texts)} names for {classes.max() + 1} "
            "classes. Get it again, or remove it."
        )
    pictures = np.concatenate([pixels[batch] for batch in order]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    source = ArraySource(pictures)
    source.name = os.fspath(path)
    return labelled(source, np.array(texts)[classes])


def _files(path: Path) -> Iterator[tuple[str, bytes]]:
    """The batches and lists of names at a path, with their contents."""
    if path.is_dir():
        yield from _read(place for folder in (path, *_folders(path)) for place in folder.iterdir())
    elif is_batch(path.name):
        yield from _read([path, *(path.parent / name for name in _NAMES)])
    else:
        try:
            with tarfile.open(path) as archive:
                for member in archive:
                    if member.isreg() and _is_wanted(member.name) and (file := archive.extractfile(member)):
                        _check_size(member.name, member.size)
                        yield member.name, file.read()
        except STREAM_ERRORS as error:
            if isinstance(error, FileFormatError):
                raise
            raise FileFormatError(
                f"An archive of CIFAR-10 must be a whole .tar.gz; {called(path)} is cut short or damaged: {error}. "
                "Get it again."
            ) from error


def _read(places: Iterable[Path]) -> Iterator[tuple[str, bytes]]:
    for place in sorted(places):
        if _is_wanted(place.name) and place.is_file():
            file = called(place.as_posix())
            _check_size(file, place.stat().st_size)
            yield file, place.read_bytes()


def _folders(path: Path) -> list[Path]:
    return sorted(place for place in path.iterdir() if place.is_dir() and not place.name.startswith("."))


def _is_wanted(name: str) -> bool:
    return is_batch(name) or name.rpartition("/")[2] in _NAMES


def _check_size(file: str, size: int) -> None:
    if size > LARGEST_FILE:
        raise FileFormatError(
            f"A batch of CIFAR-10 has some 30 MB; {file} has {size / 1e6:,.0f} MB. It is of another data set: check "
            "the path."
        )


def _binary(content: bytes, file: str) -> tuple[np.ndarray, np.ndarray]:
    if not content or len(content) % (1 + PIXELS):
        raise FileFormatError(
            f"A binary batch of CIFAR-10 is records of {1 + PIXELS:,} bytes, 10,000 of them in 30,730,000 bytes; "
            f"{file} has {len(content):,} bytes. It may be cut or of another data set: get it again."
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, 1 + PIXELS)
    _check_labels(records[:, 0], file)
    return records[:, 1:], records[:, 0]


def _pickled(content: bytes, file: str) -> tuple[np.ndarray, np.ndarray]:
    batch = read_pickle(content, file)
    pixels, labels = batch.get("data"), batch.get("labels")
    if not isinstance(pixels, np.ndarray) or not isinstance(labels, list):
        raise FileFormatError(
            f"A pickled batch of CIFAR-10 has an array 'data' and a list 'labels'; {file} has "
            f"{', '.join(map(repr, batch)) or 'nothing'}. It is of another data set, or was changed: get it again."
        )
    if not len(pixels) or pixels.shape != (len(labels), PIXELS) or not all(type(label) is int for label in labels):
        raise FileFormatError(
            f"A pickled batch of CIFAR-10 has 10,000 rows of {PIXELS:,} bytes and a whole number for each; {file} has "
            f"{pixels.shape[0]:,} rows of {pixels.shape[1]:,} and {len(labels):,} labels. Get it again."
        )
    _check_labels(np.array(labels, object), file)
    return pixels, np.array(labels, np.uint8)


def _check_labels(labels: np.ndarray, file: str) -> None:
    if wrong := [label for label in (labels.min(), labels.max()) if not 0 <= label <= 9]:
        raise FileFormatError(
            f"Labels of CIFAR-10 go from 0 to 9; {file} has {wrong[0]}. It is cut, or of another data set such as "
            "CIFAR-100: get it again."
        )


def _class_names(content: bytes, file: str) -> list[str]:
    if file.endswith(".txt"):
        return content.decode(errors="replace").split()
    names = read_pickle(content, file).get("label_names")
    if not isinstance(names, list) or not all(isinstance(name, bytes) for name in names):
        raise FileFormatError(f"{_NAMES[0]} must have a list 'label_names'; {file} has none. Get it again.")
    return [name.decode(errors="replace") for name in names]

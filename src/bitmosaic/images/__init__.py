"""Open, find, decode and stream images. A bad file is skipped, and its cause is reported."""

import os
from collections.abc import Iterable
from typing import Any

import numpy as np

from bitmosaic.errors import DataTypeError, FileFormatError, InvalidDataError, MissingFileError
from bitmosaic.images.archive import OPENERS, CompressedTarSource, TarSource, ZipSource
from bitmosaic.images.array import ArraySource, read_npy
from bitmosaic.images.decode import FORMAT_NAMES, has_image_suffix, image_format
from bitmosaic.images.files import FileSource, FolderSource, list_of_paths, read_list
from bitmosaic.images.source import Batch, ImageSource, Progress, Skipped, display_path, folder_name, printable, quiet

__all__ = [
    "Batch",
    "ImageSource",
    "Progress",
    "Skipped",
    "display_path",
    "folder_name",
    "open_images",
    "printable",
    "quiet",
]

_RULE = (
    "Images come from a folder, a list of paths (or a .txt file with one path per line), a .tar, .tar.xz, .tar.gz, "
    ".tar.bz2 or .zip archive, or a NumPy array of images (or a .npy file)"
)


def open_images(src: Any, progress: Progress = quiet) -> ImageSource:
    """Open a source of images. The kind of a file is detected from its content.

    `src`: a folder, searched recursively; a list of paths; a .txt file with one path per line; one image; an archive
    (.tar, .tar.xz, .tar.gz, .tar.bz2, .zip); an array (n, h, w) or (n, h, w, 1 | 3 | 4) of uint8 or of floats from 0
    to 1; a .npy file with such an array. `progress` reports the search of a folder or archive, in images, files or
    megabytes; the stage name says which.
    """
    if isinstance(src, ImageSource):
        return src
    if isinstance(src, np.ndarray | memoryview):
        return ArraySource(np.asarray(src))
    if isinstance(src, str | bytes | os.PathLike):
        return _open_path(os.fsdecode(src), progress)
    if isinstance(src, Iterable):
        entries = list(src)
        strange = [entry for entry in entries if not isinstance(entry, str | bytes | os.PathLike)]
        if strange:
            raise DataTypeError(
                f"{_RULE}; got a list with a {type(strange[0]).__name__} in it. Stack arrays with np.stack."
            )
        return FileSource("the list", list_of_paths("the list", [os.fsdecode(entry) for entry in entries]))
    raise DataTypeError(f"{_RULE}; got a {type(src).__name__}.")


def _open_path(path: str, progress: Progress) -> ImageSource:
    shown = display_path(path)
    try:
        if os.path.isdir(path):
            return FolderSource(path, progress)
        if not os.path.exists(path):
            raise MissingFileError(f"{_RULE}; there is nothing at {shown}. Check the path.")
        if not os.path.isfile(path):
            raise FileFormatError(f"{_RULE}; {shown} is neither a file nor a folder.")
        with open(path, "rb") as file:
            head = file.read(512)
    except PermissionError as error:
        raise FileFormatError(f"{_RULE}; {shown} cannot be read: permission denied. Check its owner.") from error
    source = _open_file(path, head, progress)
    if source is None:
        raise FileFormatError(f"{_RULE}; {shown} is none of these, judging by its first bytes.")
    if not len(source):
        raise InvalidDataError(f"No images found in {shown}; looked for {FORMAT_NAMES}. Check the path.")
    return source


def _open_file(path: str, head: bytes, progress: Progress) -> ImageSource | None:
    if image_format(head):
        return FileSource(path, [path])
    if head.startswith(b"\x93NUMPY"):
        return read_npy(path)
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return ZipSource(path, progress)
    for magic, opener in OPENERS.items():
        if head.startswith(magic):
            return CompressedTarSource(path, opener, progress)
    if head[257:262] == b"ustar" or path.lower().endswith(".tar"):
        return TarSource(path, progress)
    if path.lower().endswith(".txt"):
        return read_list(path)
    if has_image_suffix(path):  # a bad image: reported as skipped
        return FileSource(path, [path])
    return None

"""Images in files: a folder searched by content, or a list of paths."""

import os
import stat
from array import array
from collections.abc import Iterable

from bitmosaic.errors import InvalidDataError
from bitmosaic.images.decode import (
    FORMAT_NAMES,
    HEAD_BYTES,
    LARGEST_FILE,
    NOT_REGULAR,
    TOO_LARGE,
    BadImageError,
    has_image_suffix,
    image_format,
)
from bitmosaic.images.source import ImageSource, Progress, display_path, quiet
from bitmosaic.io.read import is_manifest

_MISSING = (-1, -1)
_UNKNOWN = -2


class FileSource(ImageSource):
    """Files on disk. `paths` are as given, or relative to `root`."""

    def __init__(self, name: str, paths: Iterable[str], root: str = ""):
        super().__init__(name, paths)
        self.root = root
        self._sizes = array("q", [_UNKNOWN]) * len(self.paths)
        self._dates = array("q", [_UNKNOWN]) * len(self.paths)

    def image_signature(self, position: int) -> tuple[int, int]:
        if self._sizes[position] == _UNKNOWN:
            try:
                status = os.stat(self._place(position))
                found = status.st_size, status.st_mtime_ns
            except (OSError, ValueError):
                found = _MISSING
            self._sizes[position], self._dates[position] = found
        return self._sizes[position], self._dates[position]

    def _place(self, position: int) -> str:
        return os.path.join(self.root, self.paths[position])

    def _content(self, position: int) -> bytes:
        place = self._place(position)
        if "\0" in place:
            raise FileNotFoundError(place)
        with open(place, "rb", opener=_open_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise BadImageError(NOT_REGULAR)
            if status.st_size > LARGEST_FILE:
                raise BadImageError(TOO_LARGE)
            return file.read(LARGEST_FILE)


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a named pipe without waiting for its writer. Windows has no such pipes and no such flag."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


class FolderSource(FileSource):
    def __init__(self, root: str, progress: Progress = quiet):
        found = sorted(find_images(root, progress), key=lambda entry: os.fsencode(entry[0]))
        super().__init__(root, (path for path, _, _ in found), root)
        if not self.paths:
            raise InvalidDataError(
                f"No images found in {display_path(root)}; looked for {FORMAT_NAMES} in it and the folders below. "
                "Is it the right folder?"
            )
        self._sizes = array("q", (size for _, size, _ in found))
        self._dates = array("q", (date for _, _, date in found))


def find_images(root: str, progress: Progress = quiet) -> list[tuple[str, int, int]]:
    """Every image below `root`: its path relative to it, with slashes, and its size and date.

    An image is a file with the first bytes of an image format, or with the suffix of one (a bad one is then reported).
    Names with a leading dot, and folders written by bitmosaic, are left out. Links are followed. Each folder is read
    once: under its real path if that is below `root`, otherwise under the first link. A file or folder that cannot be
    read is listed as an image, so that it is reported as skipped.
    """
    found: list[tuple[str, int, int]] = []
    progress("finding images", 0, 0)
    folders = [""]
    linked: list[str] = []
    seen: set[tuple[int, int]] = set()
    while folders or linked:
        if not folders:
            linked.sort(key=os.fsencode, reverse=True)
            folders.append(linked.pop())
        folder = folders.pop()
        place = os.path.join(root, folder)
        try:
            status = os.stat(place)
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(place) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    path = f"{folder}/{entry.name}" if folder else entry.name
                    if _is_folder(entry):
                        if is_manifest(
                            os.path.join(entry.path, "manifest.json")
                        ):  # a run folder contains contact sheets
                            continue
                        (linked if entry.is_symlink() else folders).append(path)
                    elif has_image_suffix(path) or _may_be_an_image(entry):
                        found.append((path, *_size_and_date(entry)))
                        if len(found) % 1000 == 0:
                            progress("finding images", len(found), 0)
        except FileNotFoundError:  # removed during the search
            pass
        except OSError:
            if not folder:
                raise
            found.append((folder, *_MISSING))
    progress("finding images", len(found), len(found))
    return found


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # for example a symbolic link that points to itself
        return False


def _size_and_date(entry: os.DirEntry[str]) -> tuple[int, int]:
    try:
        status = entry.stat()
    except OSError:
        return _MISSING
    return status.st_size, status.st_mtime_ns


def _may_be_an_image(entry: os.DirEntry[str]) -> bool:
    try:
        if not entry.is_file():
            return False
        with open(entry.path, "rb") as file:
            return image_format(file.read(HEAD_BYTES)) is not None
    except PermissionError:
        return True
    except OSError:
        return False


def read_list(path: str) -> FileSource:
    """A text file with one path per line, or with NUL bytes between paths as ``find -print0`` writes them.

    Relative paths start at the folder of the list.
    """
    with open(path, "rb") as file:
        text = file.read().removeprefix(b"\xef\xbb\xbf")
    lines = text.split(b"\0") if b"\0" in text else [line.removesuffix(b"\r") for line in text.split(b"\n")]
    return FileSource(path, list_of_paths(path, [os.fsdecode(line) for line in lines if line]), os.path.dirname(path))


def list_of_paths(name: str, paths: list[str]) -> list[str]:
    if not paths:
        raise InvalidDataError(f"A list of images needs at least one path; {display_path(name)} is empty.")
    return paths

"""Pictures in files: a folder searched by content, or a list of paths."""

import os
import stat
from collections.abc import Iterable

from bitmosaic.errors import InvalidDataError
from bitmosaic.images.decode import LARGEST_FILE, TOO_LARGE, BadPictureError
from bitmosaic.images.sniff import FORMAT_NAMES, HEAD_BYTES, has_picture_suffix, picture_format
from bitmosaic.images.source import ImageSource, Progress, display_path, quiet
from bitmosaic.reading import is_manifest


class FileSource(ImageSource):
    """Files on disk. `paths` are as given, or relative to `root`."""

    def __init__(self, name: str, paths: Iterable[str], root: str = ""):
        super().__init__(name, paths)
        self.root = root

    def fingerprint(self, position: int) -> tuple[int, int]:
        try:
            status = os.stat(self._place(position))
        except (OSError, ValueError):
            return -1, -1
        return status.st_size, status.st_mtime_ns

    def _place(self, position: int) -> str:
        return os.path.join(self.root, self.paths[position])

    def _content(self, position: int) -> bytes:
        place = self._place(position)
        if "\0" in place:
            raise FileNotFoundError(place)
        status = os.stat(place)
        if stat.S_ISDIR(status.st_mode):
            raise BadPictureError("it is a folder" if os.access(place, os.R_OK | os.X_OK) else "permission denied")
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for ever
            raise BadPictureError("not a regular file")
        with open(place, "rb") as file:
            content = file.read(LARGEST_FILE + 1) if status.st_size <= LARGEST_FILE else None
        if content is None or len(content) > LARGEST_FILE:
            raise BadPictureError(TOO_LARGE)
        return content


class FolderSource(FileSource):
    def __init__(self, root: str, progress: Progress = quiet):
        super().__init__(root, find_pictures(root, progress), root)
        if not self.paths:
            raise InvalidDataError(
                f"A folder of pictures must hold one at least; no pictures found in {display_path(root)}; "
                f"looked for {FORMAT_NAMES} in it and the folders below. Is it the right folder?"
            )


def find_pictures(root: str, progress: Progress = quiet) -> list[str]:
    """Every picture below `root`, as a path relative to it, with slashes, sorted by the bytes of the path.

    A picture is a file that begins like one, or is named like one (then a bad one is reported, not passed over).
    Names with a leading dot, and folders that bitmosaic made, are left out. Links are followed; each folder is read
    once, under its own name if it has one below `root`. A file or folder that may not be read stands among the
    pictures, to be reported.
    """
    found: list[str] = []
    progress("finding pictures", 0, 0)
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
                        if is_manifest(os.path.join(entry.path, "manifest.json")):  # contact sheets are no pictures
                            continue
                        (linked if entry.is_symlink() else folders).append(path)
                    elif has_picture_suffix(path) or _may_be_a_picture(entry):
                        found.append(path)
                        if len(found) % 1000 == 0:
                            progress("finding pictures", len(found), 0)
        except FileNotFoundError:  # removed in the meantime
            pass
        except OSError:
            if not folder:
                raise
            found.append(folder)
    progress("finding pictures", len(found), len(found))
    return sorted(found, key=os.fsencode)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # such as a link that leads back to itself
        return False


def _may_be_a_picture(entry: os.DirEntry[str]) -> bool:
    try:
        if not entry.is_file():
            return False
        with open(entry.path, "rb") as file:
            return picture_format(file.read(HEAD_BYTES)) is not None
    except PermissionError:  # nobody can tell
        return True
    except OSError:
        return False


def read_list(path: str) -> FileSource:
    """A text file with a path on each line, or between NUL bytes as ``find -print0`` writes them.

    Relative paths count from the folder of the list.
    """
    with open(path, "rb") as file:
        text = file.read().removeprefix(b"\xef\xbb\xbf")
    lines = text.split(b"\0") if b"\0" in text else [line.removesuffix(b"\r") for line in text.split(b"\n")]
    return FileSource(path, list_of_paths(path, [os.fsdecode(line) for line in lines if line]), os.path.dirname(path))


def list_of_paths(name: str, paths: list[str]) -> list[str]:
    if not paths:
        raise InvalidDataError(f"A list of pictures must name one at least; {display_path(name)} is empty.")
    return paths

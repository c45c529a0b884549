"""Paths that users name: made a Path or refused in one sentence, and no output takes the place of something else."""

import os
import stat
from pathlib import Path
from typing import Any

from bitmosaic.errors import DataTypeError, InvalidDataError, MissingFileError, ParameterError, UnwritableFileError
from bitmosaic.reading import is_manifest

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def as_path(value: Any, what: str) -> Path:
    """A path as users write it; `what` it is of begins the sentence that refuses anything else."""
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise DataTypeError(f"{what} must be a path, as a string or a pathlib.Path; got {_shown(value)}. Write one.")
    try:
        os.lstat(value)
    except ValueError as error:  # NUL, or what is no text
        raise ParameterError(
            f"{what} must be a path of ordinary text; got {_shown(value)}. Choose another name."
        ) from error
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass  # who opens it says so, or makes it
    except OSError as error:
        raise MissingFileError(
            f"{what} must be a path that the system takes; got {_shown(value)} ({error.strerror}). Choose another."
        ) from error
    return Path(value)


def _shown(value: Any) -> str:
    if not isinstance(value, str | bytes | os.PathLike):
        return f"a {type(value).__name__}"
    text = repr(os.fspath(value))
    return text if len(text) <= 100 else f"{text[:60]}… of {len(os.fspath(value)):,} characters"


def led_to(path: Any) -> Path:
    """Where a link leads that a user names as an output, as `open` would take it.

    Not below a folder that bitmosaic made: others may have put a link there, to have their way with another file.
    """
    path = Path(path)
    folder = Path(os.path.realpath(path.parent))
    if not os.path.islink(path) or any(is_manifest(place / "manifest.json") for place in (folder, *folder.parents)):
        return path
    real = Path(os.path.realpath(path))
    if os.path.islink(real):
        raise UnwritableFileError(f"A file is written where a link leads; {path} leads nowhere. Choose another name.")
    return real


def refuse_special(path: Any) -> None:
    """A rename would silently put a file in the place of a device or a pipe. Links are not followed."""
    try:
        kind = stat.S_IFMT(os.lstat(path).st_mode)
    except OSError:  # nothing is there, or whoever writes is told
        return
    if kind not in (stat.S_IFREG, stat.S_IFLNK):
        raise UnwritableFileError(
            f"A file is written where there is none, or a file; {path} is {_KINDS.get(kind, 'something else')}, and "
            "stays as it is. Choose another name."
        )


def check_output(path: Any, run_folder: Any = None, is_folder: bool = False) -> None:
    """Refuse, before any work, a place for a result of a run at which something else would be lost.

    Outputs go outside the run folder, links followed: one rule, so that nobody has to know the run's own files.
    """
    path = as_path(path, "The place of an output")
    if not is_folder:
        refuse_special(led_to(path))
    if run_folder is not None and _is_inside(path, run_folder):
        raise InvalidDataError(
            f"Outputs go outside the run folder, whose own files they might replace; got {path}. Choose another place."
        )


def _is_inside(path: Path, folder: Any) -> bool:
    real = Path(os.path.realpath(path))
    return any(place.exists() and place.samefile(folder) for place in (real, *real.parents))

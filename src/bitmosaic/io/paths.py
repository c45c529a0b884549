"""Checks of paths that users pass."""

import os
from pathlib import Path
from typing import Any

from bitmosaic.errors import DataTypeError, InvalidDataError, MissingFileError, ParameterError, UnwritableFileError


def as_path(value: Any, what: str) -> Path:
    """Convert to a Path. `what` names the path in error messages."""
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise DataTypeError(f"{what} must be a path, as a string or a pathlib.Path; got {_shown(value)}.")
    try:
        os.lstat(value)
    except ValueError as error:  # a NUL or a lone surrogate
        raise ParameterError(
            f"{what} must be a path of ordinary text; got {_shown(value)}. Choose another name."
        ) from error
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass  # reported when the path is opened or created
    except OSError as error:
        raise MissingFileError(
            f"{what} must be a path that the system accepts; got {_shown(value)} ({error.strerror}). "
            "Choose another path."
        ) from error
    return Path(value)


def _shown(value: Any) -> str:
    if not isinstance(value, str | bytes | os.PathLike):
        return f"a {type(value).__name__}"
    text = repr(os.fspath(value))
    return text if len(text) <= 100 else f"{text[:60]}… ({len(os.fspath(value)):,} characters)"


def refuse_special(path: Any) -> None:
    """Refuse to replace a folder, a pipe, or a device such as /dev/null by a file."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise UnwritableFileError(
            f"A file cannot be written to {path}: it is a folder or a device. Choose another name."
        )


def check_output(path: Any, run_folder: Any = None, is_folder: bool = False) -> None:
    """Check the path of an output before any work is done. Outputs go outside the run folder."""
    path = as_path(path, "The output path")
    if not is_folder:
        refuse_special(path)
    if run_folder is not None and _is_inside(path, run_folder):
        raise InvalidDataError(
            f"Outputs go outside the run folder, so that they do not overwrite its files; got {path}. "
            "Choose another path."
        )


def _is_inside(path: Path, folder: Any) -> bool:
    real = Path(os.path.realpath(path))
    return any(place.exists() and place.samefile(folder) for place in (real, *real.parents))

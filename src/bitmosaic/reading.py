"""Files that others may have made are read with care: nobody waits for a pipe, and little never becomes gigabytes."""

import json
import os
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bitmosaic.errors import FileFormatError

_LARGEST_JSON = 2**25  # bytes, of which Python makes up to twenty times as many; two million clusters need less
_MANIFEST_HEAD = 200  # bytes, in which a manifest says whose it is


def refuse_irregular(path) -> None:
    """Whoever opens a named pipe waits for ever, and a device may never end. Links are followed."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        raise FileFormatError(
            f"Only regular files are read; {shown} is a folder, a pipe, a device or the like. Put a file in its place."
        )


def read_json(path) -> Any:
    """The value in a JSON file; a ValueError whatever is wrong with its text, so that NaN, say, gets no further."""
    refuse_irregular(path)
    if os.path.getsize(path) > _LARGEST_JSON:
        raise ValueError(f"it has more than {_LARGEST_JSON // 2**20} MB")
    try:
        return json.loads(Path(path).read_bytes(), parse_constant=_no_number)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_lines(path, longest: int) -> Iterator[bytes]:
    """The lines of a regular file, each with its newline but perhaps the last; a ValueError at a longer one."""
    refuse_irregular(path)
    with open(path, "rb") as file:
        while line := file.readline(longest + 1):
            if len(line) > longest:
                raise ValueError(f"a line has more than {longest:,} bytes")
            yield line


def is_manifest(path, of: str = "bitmosaic-") -> bool:
    """Whether there is a manifest of a folder that bitmosaic made; `of` a certain kind, as "bitmosaic-views"."""
    try:
        refuse_irregular(path)
        with open(path, "rb") as file:
            return f'"format": "{of}'.encode() in file.read(_MANIFEST_HEAD)
    except (OSError, FileFormatError):
        return False


def unpacks_bit_by_bit(member: zipfile.ZipInfo) -> bool:
    """Whether Python reads no more of a member of a .zip than one asks for: other methods unpack gigabytes at once."""
    return member.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")

"""A JSON object whose long lists are written an entry a line, as they come: a million pictures take no memory."""

import json
from collections.abc import Iterable
from typing import Any, BinaryIO


def write_object(file: BinaryIO, head: dict[str, Any], **lists: Iterable[dict[str, Any]]) -> None:
    """`head`, and then the lists, in ASCII."""
    separator = b"{\n"
    for key, value in head.items():
        file.write(separator + _text(key) + b": " + _text(value))
        separator = b",\n"
    for key, entries in lists.items():
        file.write(separator + _text(key) + b": [")
        comma = b"\n"
        for entry in entries:
            file.write(comma + _text(entry))
            comma = b",\n"
        file.write(b"\n]")
        separator = b",\n"
    file.write(b"\n}\n")


def _text(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False).encode("ascii")

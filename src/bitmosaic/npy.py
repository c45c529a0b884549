"""The .npy and .npz files of others -> plain arrays. A header is checked before NumPy acts on it.

NumPy's own readers divide by a length of zero, overflow at a shape of billions, and raise anything from TokenError to
MemoryError at a damaged header; pickled objects would run code. Here all of it is a FileFormatError.
"""

import math
import os
import re
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from bitmosaic.errors import BitmosaicError, FileFormatError, InvalidDataError
from bitmosaic.reading import refuse_irregular, unpacks_bit_by_bit
from bitmosaic.threads import machine_memory

_LONGEST_HEADER, _MOST_DIMENSIONS = 10_000, 32
_PIECE = 2**20  # bytes
# A header is a dict in Python: {'descr': '<f8', 'fortran_order': False, 'shape': (20, 5), }. Old NumPy wrote 20L.
_HEADER_PARTS = (
    re.compile(rb"""['"]descr['"]\s*:\s*['"]([<>|=]?[biufcSUOmM]\d{0,9}(?:\[\w{1,9}\])?)['"]"""),
    re.compile(rb"""['"]fortran_order['"]\s*:\s*(True|False)"""),
    re.compile(rb"""['"]shape['"]\s*:\s*\(([\d\sL,]*)\)"""),
)


class _PickledError(ValueError):
    pass


def open_npy(path: Any) -> np.memmap:
    """The array in a .npy file as a memory map, read-only."""
    path = Path(path)
    try:
        refuse_irregular(path)
        with path.open("rb") as file:
            shape, order, dtype = _header(file)
            offset, size = file.tell(), path.stat().st_size
            _check_length(shape, dtype, size - offset, exactly=False)
        return np.memmap(path, dtype, "r", offset, shape, order)
    except FileFormatError:
        raise
    except Exception as error:
        raise _not_whole(path, error) from error


def load_npy(path: Any) -> np.ndarray:
    """The array in a .npy file, in memory; it takes no more than the file."""
    array = np.array(open_npy(path))
    try:
        _check_text(array)
    except ValueError as error:
        raise _not_whole(path, error) from error
    return array


def load_npz(path: Any) -> dict[str, np.ndarray]:
    """The arrays in a .npz file by name, in memory."""
    arrays = {}
    try:
        refuse_irregular(path)
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
            refuse_larger_than_memory(path, sum(member.file_size for member in members))
            if len({member.filename for member in members}) < len(members):
                raise ValueError("two of its arrays have the same name")
            for member in members:
                if not unpacks_bit_by_bit(member):
                    raise ValueError(f"{member.filename} is packed by another method than deflate")
                with archive.open(member) as file:
                    shape, order, dtype = _header(file)
                    n_bytes = member.file_size - file.tell()
                    _check_length(shape, dtype, n_bytes, exactly=True)
                    content = _read(file, n_bytes)
                array = np.ndarray(shape, dtype, content, order=order)
                _check_text(array)
                arrays[member.filename.removesuffix(".npy")] = array
    except FileFormatError:
        raise
    except Exception as error:  # a damaged archive raises anything, from BadZipFile to RuntimeError
        raise _not_whole(path, error, ".npz") from error
    return arrays


def _read(file: IO[bytes], n_bytes: int) -> bytearray:
    """So many bytes, with no second copy of all of them on the way."""
    content = bytearray(n_bytes)
    for start in range(0, n_bytes, _PIECE):
        piece = file.read(min(_PIECE, n_bytes - start))
        content[start : start + len(piece)] = piece
    return content


def refuse_larger_than_memory(path: Any, n_bytes: int) -> None:
    """What must be read whole, and unpacks to this size, has to leave room for the work on it."""
    if n_bytes > machine_memory() // 2:
        raise FileFormatError(
            f"{path} is read whole, and unpacks to {n_bytes / 1e9:,.1f} GB; that must be at most half of the memory of "
            "this machine. Save its matrices as .npy files in a folder: these stay on disk."
        )


def text_array(path: Any, texts: list[str] | list[bytes]) -> np.ndarray:
    """Texts from a file as an array, in which each takes the room of the longest."""
    refuse_larger_than_memory(path, 4 * max(map(len, texts), default=0) * len(texts))
    return np.array(texts)


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], Any, np.dtype]:
    """Shape, order and type of the array that follows in the file."""
    magic = file.read(8)
    if magic[:6] != b"\x93NUMPY" or magic[6:] not in (b"\1\0", b"\2\0", b"\3\0"):
        raise ValueError("it does not begin as one")
    text = file.read(min(int.from_bytes(file.read(2 if magic[6] == 1 else 4), "little"), _LONGEST_HEADER))
    if not re.fullmatch(rb"\{[^{}]*\}\s*", text):
        raise ValueError("its header is cut or damaged")
    descr, by_columns, sizes = (match[1] if (match := part.search(text)) else None for part in _HEADER_PARTS)
    if descr is None or by_columns is None or sizes is None:
        raise ValueError("its header is not that of a plain array")
    if b"O" in descr:
        raise _PickledError
    dtype = np.dtype(descr.decode())
    shape = tuple(int(size) for size in sizes.replace(b"L", b"").split(b",") if size.strip())
    if not dtype.itemsize or len(shape) > _MOST_DIMENSIONS:
        raise ValueError(f"it holds {dtype} in {len(shape)} dimensions")
    return shape, "F" if by_columns == b"True" else "C", dtype


def _check_length(shape: tuple[int, ...], dtype: np.dtype, n_bytes: int, exactly: bool) -> None:
    claimed = math.prod(shape) * dtype.itemsize
    # NumPy computes with the other sizes also where one is zero.
    if math.prod(max(size, 1) for size in shape) * dtype.itemsize >= 2**63 or claimed > n_bytes:
        raise ValueError(f"its array of shape {shape} takes {claimed:,} bytes, and {n_bytes:,} are there")
    if exactly and claimed < n_bytes:
        raise ValueError(f"{n_bytes - claimed:,} bytes follow its array")


def _check_text(array: np.ndarray) -> None:
    """NumPy finds numbers that are no characters only when somebody looks at them."""
    if array.dtype.kind == "U" and array.size:
        numbers = np.ascontiguousarray(array).reshape(-1).view(np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
        if numbers.max() > 0x10FFFF:
            raise ValueError("its text has numbers that are no characters")


def _not_whole(path: Any, error: Exception, kind: str = ".npy") -> FileFormatError:
    path = os.fsencode(path).decode("utf-8", "backslashreplace")
    if isinstance(error, _PickledError):
        return FileFormatError(
            f"{path} holds pickled objects, and these are refused because they can run code. "
            "Save plain arrays of numbers or strings."
        )
    return FileFormatError(
        f"{path} is not a whole {kind} file ({str(error) or type(error).__name__}). It may be "
        "missing, cut or of another format: write it again."
    )


def array_of(values: Any, rule: str, error: type[BitmosaicError] = InvalidDataError) -> Any:
    """What a user passes as an array; `rule` begins the sentence where it cannot be one."""
    try:
        return np.asarray(values)
    except (ValueError, TypeError, OverflowError) as problem:
        raise error(
            f"{rule}; got a {type(values).__name__} of parts that differ in length or kind. Make them alike."
        ) from problem

"""A pickle as Python 2 and NumPy 1 wrote it -> a dict of plain values and byte matrices. Nothing in it is run.

A pickle is a program that may call anything it can name. Here it can name three things, those that a NumPy array was
written with, and even these are stand-ins that remember what was asked for: the matrix is made afterwards, from a
checked shape and length. (NumPy's own would also warn of its old self, from 2.4 on.)
"""

import io
import pickle
import pickletools
import warnings
from typing import Any

import numpy as np

from bitmosaic.errors import FileFormatError

ALLOWED = ("numpy.core.multiarray._reconstruct", "numpy.ndarray", "numpy.dtype")


class _Part:
    """Stands in for one of `ALLOWED`, and for what it would have made."""

    def __init__(self, name: str, arguments: tuple = ()):
        self.name, self.arguments, self.state = name, arguments, None

    def __call__(self, *arguments: Any) -> "_Part":
        return _Part(self.name, arguments)

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Reader(pickle.Unpickler):
    def __init__(self, content: bytes, file: str):
        super().__init__(io.BytesIO(content), encoding="bytes")
        self.file = file

    def find_class(self, module: str, name: str, /) -> _Part:
        if f"{module}.{name}" not in ALLOWED:
            raise FileFormatError(
                f"A pickled batch of CIFAR-10 names nothing but {', '.join(ALLOWED)}; {self.file} asks for "
                f"{module}.{name}, which is refused because it could run code. Get the file from its own page."
            )
        return _Part(f"{module}.{name}")


def read_pickle(content: bytes, file: str) -> dict[str, Any]:
    """The dict in a pickle, its keys as text; an array in it becomes a uint8 matrix. `file` is for messages."""
    try:
        with warnings.catch_warnings():  # of odd escapes in damaged text
            warnings.simplefilter("ignore", DeprecationWarning)
            _check_memo(content)
            value = _Reader(content, file).load()
        if not isinstance(value, dict):
            raise ValueError(f"it holds a {type(value).__name__}, not a dict")
        texts = {key.decode() if isinstance(key, bytes) else str(key): item for key, item in value.items()}
        return {key: _matrix(item) if isinstance(item, _Part) else item for key, item in texts.items()}
    except FileFormatError:
        raise
    except Exception as error:  # a damaged pickle raises anything, from EOFError to MemoryError
        raise FileFormatError(
            f"The Python version of CIFAR-10 is pickled dicts of bytes, numbers and arrays of uint8; {file} is not "
            f"({error or type(error).__name__}). It may be cut or of another data set: get it again."
        ) from error


def _check_memo(content: bytes) -> None:
    """A pickle numbers what it remembers. For one damaged number, the reader would fill gigabytes."""
    for code, argument, _ in pickletools.genops(content):
        if code.name.endswith("PUT") and not 0 <= argument < len(content):  # type: ignore[operator]
            raise ValueError(f"it numbers a value {argument}")


def _matrix(part: _Part) -> np.ndarray:
    match part.state:
        case (int(), (int(rows), int(columns)), _Part() as dtype, fortran, bytes(raw)):
            if part.name != ALLOWED[0] or dtype.name != ALLOWED[2] or dtype.arguments[:1] not in ((b"u1",), (b"|u1",)):
                raise ValueError("an array in it is not of uint8")
            if min(rows, columns) < 0 or rows * columns != len(raw):
                raise ValueError(f"an array of {rows}×{columns} has {len(raw):,} bytes")
            return np.frombuffer(raw, np.uint8).reshape(rows, columns, order="F" if fortran else "C")
    raise ValueError("an array in it is no matrix of bytes")

"""A .mat file of version 5 (MATLAB 5 to 7.2) -> its variables. Every length in it is checked before it is believed.

SciPy reads these files too, in C: a damaged one makes it write outside of its memory. Of what such a file can hold,
matrices, text, cells and sparse matrices are read here; anything else is only described.

After 128 bytes come elements: kind and length, 4 bytes each, then content, filled up to 8 bytes. Up to 4 bytes stand in
the second half of the tag, with kind and length in the first. An element may hold others, compressed.
"""

import math
import os
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bitmosaic.npy import refuse_larger_than_memory

MATRIX, COMPRESSED = 14, 15
NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
TEXTS = {16: "utf-8", 17: "utf-16", 18: "utf-32"}
CELL, CHAR, SPARSE = 1, 4, 5
NUMERIC = range(6, 16)
COMPLEX, LOGICAL = 0x800, 0x200
MOST_DIMENSIONS, MOST_CELLS, DEEPEST = 32, 10**6, 3
# Bytes, at most: an array as such, a character of a text while its rows are made, and a row of it.
ARRAY_BYTES, CHARACTER_BYTES, ROW_BYTES = 300, 12, 100
SMALL_MATRIX, MOST_SPARSE = 2**28, 1000  # bytes, and bytes for each of the file, that a sparse matrix may become


class Memory:
    """What all variables of a file take together."""

    def __init__(self, path: Path) -> None:
        self.path, self.n_bytes = path, 0

    def take(self, n_bytes: int) -> None:
        self.n_bytes += n_bytes
        refuse_larger_than_memory(self.path, self.n_bytes)


def read_mat5(path: Path) -> dict[str, Any]:
    """Variables by name: arrays, lists for cells (column by column), a str for what is not read."""
    memory = Memory(path)
    memory.take(path.stat().st_size)
    content = memoryview(path.read_bytes())
    order = {b"IM": "<", b"MI": ">"}[bytes(content[126:128])]
    variables = {}
    for kind, data in _elements(content[128:], order):
        if kind == COMPRESSED:
            content_of_it = bytearray()
            for piece in _unpacked(data):
                memory.take(len(piece))
                content_of_it += piece
            (kind, data), *_ = _elements(memoryview(content_of_it), order)
        if kind == MATRIX:
            name, value = _matrix(data, order, memory)
            variables[name] = value
    return variables


def _elements(content: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    at = 0
    while at + 8 <= len(content):
        first, size = np.frombuffer(content[at : at + 8], order + "u4").tolist()
        kind, start = first, at + 8
        if first >> 16:
            kind, size, start = first & 0xFFFF, first >> 16, at + 4
            if size > 4:
                raise ValueError(f"a short element of {size} bytes")
        if start + size > len(content):
            raise ValueError(f"an element of {size:,} bytes where {len(content) - start:,} are left")
        yield kind, content[start : start + size]
        at = start + 4 if first >> 16 else start + size + (-size % 8 if kind != COMPRESSED else 0)


def _unpacked(packed: memoryview) -> Iterator[bytes]:
    unpacker, rest = zlib.decompressobj(), bytes(packed)
    while rest and not unpacker.eof:
        yield unpacker.decompress(rest, 2**22)
        rest = unpacker.unconsumed_tail
    if not unpacker.eof:
        raise ValueError("a compressed element is cut short")


def _matrix(data: memoryview, order: str, memory: Memory, depth: int = 0) -> tuple[str, Any]:
    """Name and value of a matrix, a cell or what else there is."""
    memory.take(ARRAY_BYTES)
    if not len(data):
        return "", np.zeros((0, 0))
    parts = _elements(data, order)
    flags = int(_numbers(next(parts), order)[0])
    kind = flags & 0xFF
    if kind > NUMERIC.stop - 1:
        return "", "an object"  # it has another head
    dims = _numbers(next(parts), order).tolist()
    if not 2 <= len(dims) <= MOST_DIMENSIONS or min(dims) < 0:
        raise ValueError(f"a matrix of dimensions {dims!s:.80}")
    name = bytes(next(parts)[1]).decode("latin1").rstrip("\0")
    if kind == CELL:
        if depth >= DEEPEST or math.prod(dims) > MOST_CELLS:
            return name, "a nested or very long cell"
        inside = islice(_only_matrices(parts), math.prod(dims))
        cells = [_matrix(part, order, memory, depth + 1)[1] for part in inside]
        if len(cells) != math.prod(dims):
            raise ValueError(f"{len(cells)} of {math.prod(dims)} cells")
        return name, cells
    if kind == CHAR:
        return name, _text(next(parts), dims, order, memory)
    if kind not in (SPARSE, *NUMERIC):
        return name, "a struct or object"
    if flags & COMPLEX:
        return name, "complex numbers"
    if kind == SPARSE:
        (n, d), (rows, ends, values) = dims, [_numbers(part, order) for part in islice(parts, 3)]
        memory.take(n * d * values.dtype.itemsize)
        return name, dense(memory.path, (n, d), rows, ends, values.astype(bool) if flags & LOGICAL else values)
    values = _numbers(next(parts), order)
    if math.prod(dims) != len(values):
        raise ValueError(f"a matrix of dimensions {dims} with {len(values)} values")
    return name, (values.astype(bool) if flags & LOGICAL else values).reshape(dims, order="F")


def _only_matrices(parts: Iterator[tuple[int, memoryview]]) -> Iterator[memoryview]:
    for kind, data in parts:
        if kind != MATRIX:
            raise ValueError(f"an element of kind {kind} in a cell")
        yield data


def _numbers(element: tuple[int, memoryview], order: str) -> np.ndarray:
    kind, data = element
    dtype = np.dtype(order + NUMBERS[kind])
    if len(data) % dtype.itemsize:
        raise ValueError(f"{len(data)} bytes of {dtype}")
    return np.frombuffer(data, dtype)


def decoded(numbers: np.ndarray) -> str:
    """Numbers of characters as text. A character beyond the first 65,536 is two numbers, and stays so."""
    if numbers.dtype.kind not in "iu":
        raise ValueError(f"text of {numbers.dtype}")
    return str(np.ascontiguousarray(numbers, "<u4").data, "utf-32-le", "surrogatepass")


def _text(element: tuple[int, memoryview], dims: list[int], order: str, memory: Memory) -> np.ndarray:
    """Rows of text, as an array of strings."""
    kind, data = element
    rows, columns = dims[0], math.prod(dims[1:])
    memory.take(CHARACTER_BYTES * max(len(data), rows * columns) + ROW_BYTES * rows)
    ending = {"<": "-le", ">": "-be"}[order]
    if kind in TEXTS:
        text = bytes(data).decode(TEXTS[kind] + (ending if kind != 16 else ""), "replace")
    else:
        text = decoded(_numbers(element, order))
    if len(text) != rows * columns:
        raise ValueError(f"text of {rows} rows and {columns} columns with {len(text)} characters")
    return np.array([text[row::rows].rstrip() for row in range(rows)], dtype=np.str_)


def dense(path: Any, shape: tuple[int, int], rows: np.ndarray, ends: np.ndarray, values: np.ndarray) -> np.ndarray:
    """A matrix from its columns: `ends` (d + 1,) says where each ends in rows and values. SciPy believes it all.

    Whether memory has room for it, the caller has asked.
    """
    n, d = shape
    if n * d * values.dtype.itemsize > max(SMALL_MATRIX, MOST_SPARSE * os.path.getsize(path)):
        raise ValueError(f"a sparse matrix of {n} × {d} in a file that is far too small for its values")
    ends, rows = ends.astype(np.int64), rows.astype(np.int64)
    lengths = np.diff(ends)
    if len(lengths) != d or ends[0] or (lengths < 0).any() or ends[-1] > min(len(rows), len(values)):
        raise ValueError("the columns of a sparse matrix do not end where they should")
    rows, values = rows[: ends[-1]], values[: ends[-1]]
    if ((rows < 0) | (rows >= n)).any():
        raise ValueError("a sparse matrix has values outside of it")
    matrix = np.zeros(shape, values.dtype)
    np.add.at(matrix, (rows, np.repeat(np.arange(d), lengths)), values)
    return matrix

"""How much the pages of a Parquet file unpack to, by their own word: Arrow believes it, whatever the file lists.

A page begins with a head in Thrift's compact form: fields of numbers and of further structures, each with its kind.
"""

import mmap
from pathlib import Path
from typing import Any

SIZE, PACKED_SIZE, DATA, DATA_2 = 2, 3, 5, 8  # fields of the head of a page
N_VALUES = 1  # field of the structures in it
_DEEPEST = 8
_TRUE, _FALSE, _BYTE, _INTEGERS, _DOUBLE, _TEXT, _LIST, _SET, _STRUCTURE = 1, 2, 3, (4, 5, 6), 7, 8, 9, 10, 12


def unpacked_size(path: Path, chunks: list[Any]) -> int:
    """Bytes that column chunks, as pyarrow describes them, will take; a ValueError where their pages make no sense."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return sum(_chunk_size(content, chunk) for chunk in chunks)


def _chunk_size(content: mmap.mmap, chunk: Any) -> int:
    """Of the pages that Arrow would read: from the first, until there are as many values as are listed."""
    start = min(filter(None, (chunk.dictionary_page_offset, chunk.data_page_offset)))
    at, end, seen, size = start, start + chunk.total_compressed_size, 0, 0
    while seen < chunk.num_values and 0 <= at < min(end, len(content)):
        head = _Compact(content, at)
        facts = head.structure()
        data = facts.get(DATA) or facts.get(DATA_2) or {}
        unpacked, packed = facts.get(SIZE), facts.get(PACKED_SIZE)
        n_values = data.get(N_VALUES, 0) if isinstance(data, dict) else None
        if not (isinstance(unpacked, int) and isinstance(packed, int) and isinstance(n_values, int)):
            raise ValueError("a page does not say how large it is")
        if min(unpacked, packed, n_values) < 0:
            raise ValueError("a page has a size below zero")
        seen += n_values
        size += max(unpacked, 8 * n_values)  # a few bytes may stand for any number of equal values
        at = head.at + packed
    return size


class _Compact:
    """Reads Thrift's compact form from a place on."""

    def __init__(self, content: mmap.mmap, at: int):
        self.content, self.at = content, at

    def structure(self, depth: int = 0) -> dict[int, Any]:
        """Its numbers and structures by field; all else is passed over."""
        if depth > _DEEPEST:
            raise ValueError("the head of a page is nested too deeply")
        found: dict[int, Any] = {}
        field = 0
        while head := self._byte():
            step, kind = head >> 4, head & 15
            field = field + step if step else self._integer()
            value = self._value(kind, depth)
            if value is not None:
                found[field] = value
        return found

    def _value(self, kind: int, depth: int, in_list: bool = False) -> Any:
        if kind in (_TRUE, _FALSE):
            self.at += in_list  # a field says it by its kind
        elif kind == _BYTE:
            self.at += 1
        elif kind in _INTEGERS:
            return self._integer()
        elif kind == _DOUBLE:
            self.at += 8
        elif kind == _TEXT:
            length = self._number()
            self.at += length
        elif kind in (_LIST, _SET):
            head = self._byte()
            for _ in range(head >> 4 if head >> 4 < 15 else self._number()):
                self._value(head & 15, depth + 1, in_list=True)
        elif kind == _STRUCTURE:
            return self.structure(depth + 1)
        else:
            raise ValueError(f"the head of a page has a field of kind {kind}")
        return None

    def _byte(self) -> int:
        if self.at >= len(self.content):
            raise ValueError("a page begins where the file ends")
        self.at += 1
        return self.content[self.at - 1]

    def _number(self) -> int:
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number
            if shift > 63:
                raise ValueError("a number in the head of a page has no end")

    def _integer(self) -> int:
        number = self._number()
        return number >> 1 if not number & 1 else -(number >> 1) - 1

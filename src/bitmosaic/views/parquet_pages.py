"""How much the pages of a Parquet file unpack to, by their own word: Arrow believes it, whatever the file lists.

What the file lists, at its end, and the head of each page are in Thrift's compact form: structures of fields, each with
its number and kind. pyarrow tells of the former too, but ends the process where some of it contradicts the rest.
"""

import mmap
from pathlib import Path
from typing import Any, NamedTuple

ROW_GROUPS, COLUMNS, METADATA = 4, 1, 3  # fields of the list at the end, and of the structures in it
PLACE, LISTED_VALUES, LISTED_SIZE, DATA_PAGE, DICTIONARY_PAGE = 3, 5, 7, 9, 11  # of the metadata of a column
SIZE, PACKED_SIZE, DATA, DATA_2 = 2, 3, 5, 8  # of the head of a page
N_VALUES = 1  # of the structures in it
_DEEPEST = 16
_TRUE, _FALSE, _BYTE, _INTEGERS, _DOUBLE, _TEXT, _LIST, _SET, _STRUCTURE = 1, 2, 3, (4, 5, 6), 7, 8, 9, 10, 12
_TAIL = 8  # bytes: the length of the list, and the name of the format


class Chunk(NamedTuple):
    """One column of one row group, as the file lists it."""

    column: str
    n_values: int
    start: int
    n_bytes: int


def listed_chunks(path: Path) -> list[list[Chunk]]:
    """The columns of each row group; a ValueError where the list makes no sense."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        length = int.from_bytes(content[-_TAIL : -_TAIL // 2], "little")
        if not 0 < length < len(content) - _TAIL:
            raise ValueError("its list does not begin in the file")
        listed = _Compact(content, len(content) - _TAIL - length).structure()
        try:
            groups = [[column[METADATA] for column in group[COLUMNS]] for group in listed[ROW_GROUPS]]
            return [[_chunk(facts) for facts in group] for group in groups]
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"its list lacks a part ({error})") from error


def _chunk(facts: dict[int, Any]) -> Chunk:
    starts = [start for start in (facts.get(DICTIONARY_PAGE), facts[DATA_PAGE]) if start]
    return Chunk(facts[PLACE][0].decode(), facts[LISTED_VALUES] + 0, min(starts) + 0, facts[LISTED_SIZE] + 0)


def unpacked_size(path: Path, chunks: list[Chunk]) -> int:
    """Bytes that column chunks will take; a ValueError where their pages make no sense."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return sum(_chunk_size(content, chunk) for chunk in chunks)


def _chunk_size(content: mmap.mmap, chunk: Chunk) -> int:
    """Of the pages that Arrow would read: from the first, until there are as many values as are listed."""
    at, end, seen, size = chunk.start, chunk.start + chunk.n_bytes, 0, 0
    while seen < chunk.n_values and 0 <= at < min(end, len(content)):
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
        """Its fields by number: integers, bytes, lists and structures; what else there is, is passed over."""
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
        if depth > _DEEPEST:
            raise ValueError("it is nested too deeply")
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
            return self.content[self.at - length : self.at]
        elif kind in (_LIST, _SET):
            head = self._byte()
            length = head >> 4 if head >> 4 < 15 else self._number()
            if length > len(self.content) - self.at:
                raise ValueError("it has a list that is longer than the file")
            return [self._value(head & 15, depth + 1, in_list=True) for _ in range(length)]
        elif kind == _STRUCTURE:
            return self.structure(depth + 1)
        else:
            raise ValueError(f"it has a field of kind {kind}")
        return None

    def _byte(self) -> int:
        if self.at >= len(self.content):
            raise ValueError("it goes on where the file ends")
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
                raise ValueError("one of its numbers has no end")

    def _integer(self) -> int:
        number = self._number()
        return number >> 1 if not number & 1 else -(number >> 1) - 1

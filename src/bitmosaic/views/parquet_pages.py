"""How much the pages of a Parquet file unpack to, by their own word: Arrow believes it, whatever the file lists.

What the file lists, at its end, and the head of each page are in Thrift's compact form: structures of fields, each with
its number and kind. pyarrow tells of the former too, but ends the process where some of it contradicts the rest.

What is read here must be what Arrow reads. It passes over a field of another kind than it expects, so that fields go by
number and kind; and what the two might read in different ways is refused.
"""

import mmap
from pathlib import Path
from typing import Any, NamedTuple

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _TEXT, _LIST, _SET, _STRUCTURE = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12
_INTEGERS = {_I16: 16, _I32: 32, _I64: 64}  # their bits

_PASSED_OVER = {_TRUE: 1, _FALSE: 1, _BYTE: 1, _DOUBLE: 8}  # bytes of each

# Fields, by number and kind: of the list at the end, and of the structures in it
ROW_GROUPS, COLUMNS, METADATA = (4, _LIST), (1, _LIST), (3, _STRUCTURE)
# of the metadata of a column
PLACE, LISTED_VALUES, LISTED_SIZE = (3, _LIST), (5, _I64), (7, _I64)
DATA_PAGE, DICTIONARY_PAGE = (9, _I64), (11, _I64)
# of the head of a page, and of the structures in it
PAGE_KIND, SIZE, PACKED_SIZE, N_VALUES = (1, _I32), (2, _I32), (3, _I32), (1, _I32)
DATA, INDEX, DICTIONARY, DATA_2 = ((number, _STRUCTURE) for number in (5, 6, 7, 8))
PAGE_HEADS = {0: DATA, 2: DICTIONARY, 3: DATA_2}  # by the kind of the page

# What the lists of a file hold, by the fields that lead to them: Arrow reads that, whatever such a list says.
_HELD = {
    **dict.fromkeys([(2,), (4,), (5,), (7,), (4, 1), (4, 4), (4, 1, 3, 8), (4, 1, 3, 13)], (_STRUCTURE,)),
    **dict.fromkeys([(4, 1, 3, 2), (4, 1, 3, 16, 2), (4, 1, 3, 16, 3), (4, 1, 3, 17, 2)], tuple(_INTEGERS)),
    **dict.fromkeys([(4, 1, 3, 3), (4, 1, 8, 2, 1)], (_TEXT,)),
}
_DEEPEST = 16
_TAIL = 8  # bytes: the length of the list, and the name of the format
_LONGEST_HEAD = 2**20  # bytes of a page; the least and the largest text of a page may be in it


class Chunk(NamedTuple):
    """One column of one row group, as the file lists it."""

    column: str  # with the fields inside of it, as in hog.list.element
    n_values: int
    start: int
    n_bytes: int


def listed_chunks(path: Path) -> list[list[Chunk]]:
    """The columns of each row group; a ValueError where the list makes no sense."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        length = int.from_bytes(content[-_TAIL : -_TAIL // 2], "little")
        end = len(content) - _TAIL
        if not 0 < length < end:
            raise ValueError("its list does not begin in the file")
        tail = content[end - length : end]  # bytes: read one by one, they are faster than a map
    try:
        listed = _Compact(tail, 0, length, _HELD).structure()
        groups = [[column[METADATA] for column in group[COLUMNS]] for group in listed[ROW_GROUPS]]
        return [[_chunk(facts) for facts in group] for group in groups]
    except LookupError as error:
        raise ValueError(f"its list lacks field {error}") from error


def _chunk(facts: dict[tuple[int, int], Any]) -> Chunk:
    start, dictionary = facts[DATA_PAGE], facts.get(DICTIONARY_PAGE, 0)
    if 0 < dictionary < start:  # else Arrow does not believe it
        start = dictionary
    chunk = Chunk(b".".join(facts[PLACE]).decode(), facts[LISTED_VALUES], start, facts[LISTED_SIZE])
    if min(chunk[1:]) < 0:
        raise ValueError(f"column {chunk.column} has a place or size below zero")
    return chunk


def unpacked_size(path: Path, chunks: list[Chunk]) -> int:
    """Bytes that column chunks will take; a ValueError where their pages make no sense."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return sum(_chunk_size(content, chunk) for chunk in chunks)


def _chunk_size(content: mmap.mmap, chunk: Chunk) -> int:
    """Of the pages that Arrow would read: from the first, until there are as many values as are listed."""
    at, end, seen, size = chunk.start, min(chunk.start + chunk.n_bytes, len(content)), 0, 0
    while seen < chunk.n_values:
        if at >= end:  # Arrow may look a little further, for files of old writers
            raise ValueError(f"the pages of column {chunk.column} hold {seen} values, not {chunk.n_values}")
        head = _Compact(content, at, min(at + _LONGEST_HEAD, len(content)), {})
        facts = head.structure()
        unpacked, packed, n_values = _page(facts)
        seen += 0 if DICTIONARY in facts else n_values
        size += max(unpacked, 8 * n_values)  # a few bytes may stand for any number of equal values
        at = head.at + packed
    return size


def _page(facts: dict[tuple[int, int], Any]) -> tuple[int, int, int]:
    """Its bytes, unpacked and packed, and its values."""
    kind = facts.get(PAGE_KIND)
    heads = [head for head in (DATA, INDEX, DICTIONARY, DATA_2) if head in facts]
    if kind not in PAGE_HEADS or heads != [PAGE_HEADS[kind]]:
        raise ValueError(f"a page of kind {kind} has the heads of fields {[number for number, _ in heads]}")
    unpacked, packed, n_values = facts.get(SIZE), facts.get(PACKED_SIZE), facts[heads[0]].get(N_VALUES)
    if unpacked is None or packed is None or n_values is None:
        raise ValueError("a page does not say how large it is")
    if min(unpacked, packed, n_values) < 0:
        raise ValueError("a page has a size below zero")
    return unpacked, packed, n_values


class _Compact:
    """Reads Thrift's compact form from one place to at most another."""

    def __init__(self, content: mmap.mmap | bytes, at: int, end: int, held: dict[tuple[int, ...], tuple[int, ...]]):
        self.content, self.at, self.end, self.held = content, at, end, held

    def structure(self, path: tuple[int, ...] = ()) -> dict[tuple[int, int], Any]:
        """Its fields by number and kind: integers, bytes, lists and structures; of what else there is, None."""
        found: dict[tuple[int, int], Any] = {}
        numbers: set[int] = set()
        number = 0
        while head := self._byte():
            step, kind = head >> 4, head & 15
            number = number + step if step else self._integer(_INTEGERS[_I16])
            if number >= 2**15:
                raise ValueError("it has a field whose number is too large")
            if number in numbers:
                raise ValueError(f"it has field {number} twice")
            numbers.add(number)
            found[number, kind] = self._value(kind, (*path, number))
        return found

    def _value(self, kind: int, path: tuple[int, ...], in_list: bool = False) -> Any:
        if kind in _INTEGERS:
            return self._integer(_INTEGERS[kind])
        if kind == _TEXT:
            length = self._length()
            self.at += length
            return self.content[self.at - length : self.at]
        if kind in (_LIST, _SET, _STRUCTURE) and len(path) > _DEEPEST:
            raise ValueError("it is nested too deeply")
        if kind in (_LIST, _SET):
            return self._list(path)
        if kind == _STRUCTURE:
            return self.structure(path)
        if kind not in _PASSED_OVER:
            raise ValueError(f"it has a field of kind {kind}")
        self.at += _PASSED_OVER[kind] if in_list or kind not in (_TRUE, _FALSE) else 0  # a field is true by its kind
        return None

    def _list(self, path: tuple[int, ...]) -> list[Any]:
        head = self._byte()
        kind, length = head & 15, head >> 4 if head >> 4 < 15 else self._length()
        if length and kind not in self.held.get(path, (kind,)):
            raise ValueError(f"its list in field {path[-1]} holds values of kind {kind}")
        inside = path if kind == _STRUCTURE else (*path, 0)  # a list in a list has a path of its own
        return [self._value(kind, inside, in_list=True) for _ in range(length)]

    def _byte(self) -> int:
        if self.at >= self.end:
            raise ValueError("it goes on where it should end")
        self.at += 1
        return self.content[self.at - 1]

    def _length(self) -> int:
        length = self._number()
        if length > min(self.end - self.at, 2**31 - 1):
            raise ValueError("it has a list or text that goes past its end")
        return length

    def _number(self) -> int:
        number, shift = 0, -7
        while shift < 63:
            byte = self._byte()
            shift += 7
            number |= (byte & 127) << shift
            if byte < 128:
                return number
        raise ValueError("one of its numbers has no end")

    def _integer(self, bits: int) -> int:
        number = self._number()
        if number >> bits:  # Arrow would take the lower bits
            raise ValueError(f"one of its numbers does not fit into {bits} bits")
        return (number >> 1) ^ -(number & 1)

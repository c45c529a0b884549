"""A Parquet file -> Views: list columns, or numbered columns, read one row group at a time."""

import re
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from bitmosaic.errors import FileFormatError
from bitmosaic.npy import refuse_larger_than_memory, text_array
from bitmosaic.views.core import Views
from bitmosaic.views.indexing import positions, runs
from bitmosaic.views.naming import is_label_name, is_path_name
from bitmosaic.views.parquet_pages import Chunk, listed_chunks, unpacked_size

_NUMBERED = re.compile(r"(?:(.*)[_.])?(\d+)")  # hog_0, hog.0, 0
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")
_TEXT_COPIES = 4  # of a row group while its texts are read: Arrow's list grows by copying, and then they become objects


class ParquetFile:
    """An open Parquet file that threads may share."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path = path
        self.lock = threading.Lock()
        self._sound: set[tuple[tuple[str, ...], tuple[int, ...]]] = set()
        self._broken = (OSError, ValueError, pa.ArrowException)
        try:
            self._file = pq.ParquetFile(path)
            self.schema = self._file.schema_arrow
            self.names: list[str] = self.schema.names  # decoded here: a damaged name is no UTF-8
        except self._broken as error:
            raise FileFormatError(
                f"{path} is not a whole Parquet file ({error}). It may be cut: copy it, or write it again."
            ) from error
        groups = range(self._file.metadata.num_row_groups)
        sizes = [self._file.metadata.row_group(group).num_rows for group in groups]
        if not all(0 <= size < 2**40 for size in sizes) or sum(sizes) != self._file.metadata.num_rows:
            raise FileFormatError(f"{path} has row groups of {sizes[:3]} rows, which cannot be. Write it again.")
        width = sum(max(1, getattr(field.type, "list_size", 1)) for field in self.schema)
        for group in map(self._file.metadata.row_group, groups):  # each is read at once
            least = 8 * group.num_rows * width  # a few bytes may stand for any number of equal values
            refuse_larger_than_memory(path, max(least, group.total_byte_size))
        self.starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])  # (groups + 1,)

    def read(self, columns: list[str], group: int | None = None) -> Any:
        """Columns of one row group, or of all, as an Arrow table."""
        self._refuse_bombs(columns, range(len(self.starts) - 1) if group is None else [group])
        with self._reading(columns):
            with self.lock:
                table = self._file.read(columns) if group is None else self._file.read_row_group(group, columns)
            return _whole(table)

    @cached_property
    def _chunks(self) -> list[list[Chunk]]:
        """Arrow finds a column by its place in a row group, whatever name stands there."""
        chunks = listed_chunks(self.path)
        if [[chunk.column for chunk in group] for group in chunks] != [self._leaves] * (len(self.starts) - 1):
            raise ValueError("its row groups list other columns than the file")
        return chunks

    @cached_property
    def _leaves(self) -> list[str]:
        schema = self._file.schema
        return [schema.column(place).path for place in range(len(schema))]

    def _refuse_bombs(self, columns: list[str], groups: Iterable[int], times: int = 1) -> None:
        """What is read at once must fit into memory, by the word of its pages. A fit asks for the same many times."""
        if (question := (tuple(columns), tuple(groups))) in self._sound:
            return
        with self._reading(columns):
            wanted = set(columns)
            places = [place for place, leaf in enumerate(self._leaves) if wanted & _beginnings(leaf)]
            size = unpacked_size(self.path, [self._chunks[group][place] for group in question[1] for place in places])
        refuse_larger_than_memory(self.path, times * size)
        self._sound.add(question)

    @contextmanager
    def _reading(self, columns: list[str]) -> Iterator[None]:
        """Inside, what is wrong with the file becomes one sentence."""
        try:
            yield
        except MemoryError as error:
            raise FileFormatError(
                f"{self.path}: columns {', '.join(columns[:3])} take more memory than there is ({error}). "
                "Write the file with smaller row groups."
            ) from error
        except self._broken as error:
            raise FileFormatError(
                f"{self.path}: columns {', '.join(columns[:3])} cannot be read ({error}). "
                "The file may be damaged: copy it, or write it again."
            ) from error

    def texts(self, name: str) -> list[Any]:
        """The values of a column of text. Few bytes of a file may stand for a long one in any number of rows: it is
        read as a list of different texts and the number of each row, and equal ones of a row group are one object."""
        import pyarrow.parquet as pq

        found: list[Any] = []
        n_bytes = 0
        with self._reading([name]):
            file = pq.ParquetFile(self.path, read_dictionary=[name])
        for group in range(len(self.starts) - 1):
            self._refuse_bombs([name], [group], _TEXT_COPIES)
            with self._reading([name]):
                chunks = _whole(file.read_row_group(group, [name])).column(name).chunks
                lists = [chunk.dictionary.to_pylist() for chunk in chunks]
            for chunk, values in zip(chunks, lists, strict=True):
                if chunk.null_count:
                    raise FileFormatError(
                        f"{self.path}: column {name!r} needs a value in every row; "
                        f"{chunk.null_count} are null in row group {group}."
                    )
                n_bytes += sum(map(sys.getsizeof, values)) + 24 * len(chunk)
                refuse_larger_than_memory(self.path, n_bytes)
                found += np.array(values, object)[chunk.indices.to_numpy()].tolist()
        return found


class ParquetRows:
    """Columns of a Parquet file as a matrix. Keeps the row group that was read last."""

    def __init__(self, file: ParquetFile, columns: list[str], width: int, dtype: np.dtype) -> None:
        self.shape: tuple[int, ...] = (int(file.starts[-1]), width)
        self.dtype = dtype
        self._file = file
        self._columns = columns
        self._lock = threading.Lock()
        self._group, self._block = -1, np.empty((0, width), dtype)

    def __getitem__(self, rows: Any) -> np.ndarray:
        index = positions(rows, self.shape[0])
        groups = np.searchsorted(self._file.starts, index, side="right") - 1
        out = np.empty((len(index), self.shape[1]), self.dtype)
        for run in runs(groups):
            group = int(groups[run.start])
            out[run] = self._read_group(group)[index[run] - self._file.starts[group]]
        return out

    def _read_group(self, group: int) -> np.ndarray:
        with self._lock:
            if group != self._group:
                self._block = self._decode(group)
                self._group = group
            return self._block

    def _decode(self, group: int) -> np.ndarray:
        table = self._file.read(self._columns, group)
        expected = int(self._file.starts[group + 1] - self._file.starts[group])
        if table.num_rows != expected:
            raise FileFormatError(
                f"{self._file.path} must have the {expected} rows in row group {group} that it lists; it has "
                f"{table.num_rows}. The file may be damaged: copy it, or write it again."
            )
        block = np.full((table.num_rows, self.shape[1]), np.nan, self.dtype)
        if len(self._columns) > 1 or not _is_list(table.schema.field(self._columns[0]).type):
            for j, column in enumerate(self._columns):
                block[:, j] = _numbers(table.column(column))
            return block
        start = 0
        for chunk in table.column(self._columns[0]).chunks:
            stop = start + len(chunk)
            self._decode_lists(chunk, block[start:stop], int(self._file.starts[group]) + start)
            start = stop
        return block

    def _decode_lists(self, chunk: Any, block: np.ndarray, first_row: int) -> None:
        """Null lists leave their rows NaN: the image has no such view."""
        import pyarrow.compute as pc

        present = chunk.is_valid().to_numpy(zero_copy_only=False)
        lengths = pc.fill_null(pc.list_value_length(chunk), -1).to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero(present & (lengths != self.shape[1]))
        if wrong.size:
            raise FileFormatError(
                f"{self._file.path}: all lists of column {self._columns[0]!r} must have the same length, "
                f"{self.shape[1]}; row {first_row + wrong[0]} has {lengths[wrong[0]]}. "
                "Write null where a view is missing."
            )
        block[present] = _numbers(chunk.flatten()).reshape(-1, self.shape[1])


def read_parquet(path: Path) -> Views:
    """Columns of lists are views. If there are none, hog_0, hog_1, … make the view hog."""
    file = ParquetFile(path)
    names = file.names
    if len(set(names)) < len(names):
        raise FileFormatError(f"{path}: columns must have different names; got {', '.join(names)}. Rename them.")
    types = {name: _type(file, name) for name in names}
    lists = [name for name in names if _is_list(types[name]) and _is_number(types[name].value_type)]
    label_column = next((name for name in names if is_label_name(name) and not _is_list(types[name])), None)
    path_column = next((name for name in names if is_path_name(name) and _is_text(types[name])), None)
    if lists:
        views = {name: ParquetRows(file, [name], _width(file, name), _dtype(file, [name])) for name in lists}
    else:
        plain = [name for name in names if _is_number(types[name]) and name != label_column]
        grouped = _group_columns([name for name in plain if not _PANDAS_INDEX.fullmatch(name)])
        views = {name: ParquetRows(file, cols, len(cols), _dtype(file, cols)) for name, cols in grouped.items()}
    if not views:
        held = ", ".join(f"{field.name} ({field.type})" for field in file.schema)
        raise FileFormatError(
            f"{path}: views are columns of lists of numbers, or numbered columns such as hog_0, hog_1; "
            f"the file holds {held or 'no columns'}."
        )
    labels = None if label_column is None else _labels(file, label_column)
    paths = None if path_column is None else tuple(file.texts(path_column))
    return Views(tuple(views), tuple(views.values()), labels, paths)


def _group_columns(names: list[str]) -> dict[str, list[str]]:
    numbered: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        match = _NUMBERED.fullmatch(name)
        view, number = (match[1] or "view0", int(match[2])) if match else (name, -1)
        numbered.setdefault(view, []).append((number, name))
    return {view: [name for _, name in sorted(columns)] for view, columns in numbered.items()}


def _labels(file: ParquetFile, name: str) -> np.ndarray:
    import pyarrow as pa

    kind = _type(file, name)
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if _is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return text_array(file.path, file.texts(name))
    if not _is_number(kind):
        raise FileFormatError(
            f"{file.path}: labels must be whole numbers or strings; column {name!r} holds {kind}. "
            "Number the classes, or rename the column."
        )
    column = file.read([name]).column(name)
    if column.null_count:
        raise FileFormatError(f"{file.path}: column {name!r} needs a value in every row; {column.null_count} are null.")
    return column.to_numpy(zero_copy_only=False)


def _width(file: ParquetFile, name: str) -> int:
    """The length of the first list that is there."""
    size = getattr(_type(file, name), "list_size", -1)
    if size >= 0:
        return size
    for group in range(len(file.starts) - 1):
        for value in file.read([name], group).column(name):
            if value.is_valid:
                return len(value)
    raise FileFormatError(f"{file.path}: column {name!r} must hold at least one list; all of its rows are null.")


def _beginnings(leaf: str) -> set[str]:
    """All names by which Arrow finds a column: hog, hog.list and hog.list.element."""
    return set(accumulate(leaf.split("."), "{}.{}".format))


def _whole(table: Any) -> Any:
    """A table whose offsets and numbers of texts lead to something: Arrow believes those of a file."""
    table.validate(full=True)
    return table


def _numbers(column: Any) -> np.ndarray:
    """Values as NumPy, nulls as NaN."""
    import pyarrow as pa

    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    return column.to_numpy(zero_copy_only=False)


def _dtype(file: ParquetFile, columns: list[str]) -> np.dtype:
    """A float type that holds the values, and NaN where one is missing."""
    types = [_type(file, name) for name in columns]
    return np.result_type(np.float16, *((t.value_type if _is_list(t) else t).to_pandas_dtype() for t in types))


def _type(file: ParquetFile, name: str) -> Any:
    return file.schema.field(name).type


def _is_list(type_: Any) -> bool:
    import pyarrow as pa

    return pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_)


def _is_number(type_: Any) -> bool:
    import pyarrow as pa

    return pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_boolean(type_)


def _is_text(type_: Any) -> bool:
    import pyarrow as pa

    return pa.types.is_string(type_) or pa.types.is_large_string(type_)

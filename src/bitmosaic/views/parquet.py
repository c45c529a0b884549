"""Views from a Parquet file: columns of lists, or numbered columns, read one row group at a time."""

import re
import threading
from pathlib import Path
from typing import Any

import numpy as np

from bitmosaic.errors import FileFormatError
from bitmosaic.io.read import refuse_larger_than_memory
from bitmosaic.views.views import Views, is_label_name, is_path_name, positions, runs

_NUMBERED = re.compile(r"(?:(.*)[_.])?(\d+)")  # hog_0, hog.0, 0
_INDEX = re.compile(r"__index_level_\d+__|__null_dask_index__")  # of pandas and Dask


class ParquetFile:
    """An open Parquet file that threads may share."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path = path
        self.lock = threading.Lock()
        try:
            self._file = pq.ParquetFile(path)  # with Arrow's own limits on the size of the footer
            self.schema = self._file.schema_arrow
            groups = [self._file.metadata.row_group(i) for i in range(self._file.num_row_groups)]
        except (OSError, ValueError, pa.ArrowException) as error:
            raise FileFormatError(
                f"{path} is not a whole Parquet file ({_one_line(error)}). "
                "It may be truncated. Copy it, or write it again."
            ) from error
        refuse_larger_than_memory(path, max((group.total_byte_size for group in groups), default=0))
        self.starts = np.cumsum([0, *(group.num_rows for group in groups)])  # (groups + 1,)

    def read(self, columns: list[str], group: int | None = None) -> Any:
        """Columns of one row group, or of all, as an Arrow table."""
        import pyarrow as pa

        try:
            with self.lock:
                return self._file.read(columns) if group is None else self._file.read_row_group(group, columns)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise FileFormatError(
                f"{self.path}: columns {', '.join(columns[:3])} cannot be read ({_one_line(error)}). "
                "The file may be damaged. Copy it, or write it again."
            ) from error

    def column(self, name: str) -> Any:
        """A whole column, without nulls."""
        column = self.read([name]).column(name)
        if column.null_count:
            raise FileFormatError(
                f"{self.path}: column {name!r} needs a value in every row; {column.null_count} are null. Fill them in."
            )
        return column

    def texts(self, name: str) -> list[Any]:
        """The values of a text column."""
        return self.column(name).to_pylist()


class ParquetRows:
    """Columns of a Parquet file as a matrix. The last row group is cached."""

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
        """Rows of null lists stay NaN: the image has no such view."""
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
    """Every column of lists is a view. If there are none, the columns hog_0, hog_1, … are the view hog."""
    file = ParquetFile(path)
    names = file.schema.names
    types = {name: _type(file, name) for name in names}
    lists = [name for name in names if _is_list(types[name]) and _is_number(types[name].value_type)]
    label_column = next((name for name in names if is_label_name(name) and not _is_list(types[name])), None)
    path_column = next((name for name in names if is_path_name(name) and _is_text(types[name])), None)
    if lists:
        views = {name: ParquetRows(file, [name], _width(file, name), _dtype(file, [name])) for name in lists}
    else:
        plain = [name for name in names if _is_number(types[name]) and name != label_column]
        grouped = _group_columns([name for name in plain if not _INDEX.fullmatch(name)])
        views = {name: ParquetRows(file, cols, len(cols), _dtype(file, cols)) for name, cols in grouped.items()}
    if not views:
        held = ", ".join(f"{field.name} ({field.type})" for field in file.schema)
        raise FileFormatError(
            f"{path}: views must be columns of lists of numbers, or numbered columns such as hog_0, hog_1; "
            f"the file holds {held or 'no columns'}. Rename or convert the columns."
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
        return np.array(file.texts(name))
    if not _is_number(kind):
        raise FileFormatError(
            f"{file.path}: labels must be whole numbers or strings; column {name!r} holds {kind}. "
            "Number the classes, or rename the column."
        )
    return file.column(name).to_numpy()


def _width(file: ParquetFile, name: str) -> int:
    """The length of the first list that is not null."""
    size = getattr(_type(file, name), "list_size", -1)
    if size >= 0:
        return size
    for group in range(len(file.starts) - 1):
        for value in file.read([name], group).column(name):
            if value.is_valid:
                return len(value)
    raise FileFormatError(
        f"{file.path}: column {name!r} must hold at least one list; all of its rows are null. Leave it out."
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _numbers(column: Any) -> np.ndarray:
    """Values as NumPy, nulls as NaN."""
    import pyarrow as pa

    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    return column.to_numpy(zero_copy_only=False)


def _dtype(file: ParquetFile, columns: list[str]) -> np.dtype:
    """A float type that holds the values and NaN."""
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

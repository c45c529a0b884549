"""A views folder made of Parquet parts, as many workers write it: parts/part-000000.parquet …, and manifest.json.

A part holds all views of some neighbouring rows, a column of lists for each view, with their paths and labels.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from bitmosaic.errors import BitmosaicError, FileFormatError, MissingFileError
from bitmosaic.files import whole_file, write_json
from bitmosaic.npy import text_array
from bitmosaic.threads import available_threads, in_order
from bitmosaic.views.core import Views
from bitmosaic.views.parquet import ParquetFile, ParquetRows

FORMAT, VERSION = "bitmosaic-parts", 1
GROUP_ROWS = 1024
"""Rows of a row group, which is read at once; a multiple of it makes blocks that share none."""

MOST_ROWS = 2**33
"""What a manifest may claim, since the list of row groups is made from it."""

PATH, LABEL = "path", "label"
_FACTS, _ODD_PATHS = b"bitmosaic", b"bitmosaic.paths"
_OPEN_PARTS = 8


def part_path(folder: Path, number: int) -> Path:
    return folder / "parts" / f"part-{number:06d}.parquet"


def write_part(
    path: Path,
    views: dict[str, np.ndarray],
    paths: Sequence[str],
    labels: Sequence[str] | None,
    facts: dict[str, Any],
) -> None:
    """Write rows of float32 views as one part; it appears whole. `facts` are what `part_facts` gives back."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, Any] = {}
    fields = []
    for name, rows in views.items():
        # Without nulls it is read half as fast again.
        item = pa.field("item", pa.float32(), nullable=False)
        fields.append(pa.field(name, pa.list_(item, rows.shape[1]), nullable=False))
        columns[name] = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), type=fields[-1].type)
    # Names that are not UTF-8 cannot stand in a column: there they are escaped, and here they are whole.
    shown = [path.encode("utf-8", "backslashreplace").decode() for path in paths]
    odd = {row: path for row, (path, text) in enumerate(zip(paths, shown, strict=True)) if path != text}
    for name, texts in ((PATH, shown), (LABEL, labels)):
        if texts is not None:
            fields.append(pa.field(name, pa.string(), nullable=False))
            columns[name] = pa.array(texts, pa.string())
    metadata = {_FACTS: json.dumps(facts), _ODD_PATHS: json.dumps(odd)}
    with whole_file(path) as file:
        pq.write_table(
            pa.table(columns, schema=pa.schema(fields, metadata=metadata)),
            file,
            row_group_size=GROUP_ROWS,
            compression="none",  # features hardly shrink
            use_dictionary=[PATH, LABEL],
            write_statistics=False,
        )


def part_facts(path: Path) -> dict[str, Any] | None:
    """What was written with a part; None where there is no whole part."""
    try:
        return json.loads(ParquetFile(path).schema.metadata[_FACTS]) if path.is_file() else None
    except (BitmosaicError, TypeError, KeyError, ValueError, RecursionError):
        return None


def write_parts_manifest(folder: Path, widths: dict[str, int], rows: Sequence[int], labels: bool) -> None:
    """Make a views folder of the parts that are there, in order; `rows` are those of each part."""
    write_json(
        folder / "manifest.json",
        {
            "format": FORMAT,
            "version": VERSION,
            "n_rows": sum(rows),
            "labels": labels,
            "views": [{"name": name, "width": width} for name, width in widths.items()],
            "parts": list(rows),
        },
    )


def read_parts(folder: Path, manifest: dict[str, Any], bare: bool = False) -> Views:
    """The views of all parts, one after the other, read by rows. `bare`: without paths and labels."""
    widths, rows = _listed(folder, manifest)
    file = PartsFile(folder, widths, rows)
    arrays = tuple(ParquetRows(file, [name], width, np.dtype(np.float32)) for name, width in widths.items())
    if bare:
        return Views(tuple(widths), arrays)
    paths, labels = file.names_of_rows(bool(manifest.get("labels")))
    return Views(tuple(widths), arrays, labels, paths)


def _listed(folder: Path, manifest: dict[str, Any]) -> tuple[dict[str, int], list[int]]:
    try:
        widths = {str(view["name"]): view["width"] for view in manifest["views"]}
        rows = list(manifest["parts"])
        if not all(type(number) is int for number in (*widths.values(), *rows)):
            raise ValueError("some are no whole numbers")
        if (
            min(rows) < 0
            or sum(rows) != manifest["n_rows"]
            or not 0 < min(widths.values()) <= max(widths.values()) < 2**31
        ):
            raise ValueError("the numbers contradict each other")
        if sum(rows) > MOST_ROWS:
            raise ValueError(f"more than {MOST_ROWS:,} rows are not read")
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(
            f"{folder / 'manifest.json'} must list the width of each view and the rows of each part ({error}). "
            "Was it changed by hand? Extract the views again."
        ) from error
    return widths, rows


class PartsFile(ParquetFile):
    """All parts as if they were one file: their row groups, one after the other. A few are open at a time."""

    def __init__(self, folder: Path, widths: dict[str, int], rows: list[int]) -> None:
        self.path = folder
        self._widths = widths
        self._rows = rows
        sizes = np.array(rows, np.int64)
        ends = np.cumsum(sizes)
        groups = -(-sizes // GROUP_ROWS)
        self._first_group = np.concatenate([[0], np.cumsum(groups)])  # (parts + 1,)
        part = np.repeat(np.arange(len(rows)), groups)
        within = np.arange(len(part)) - self._first_group[part]
        starts = (ends - sizes)[part] + GROUP_ROWS * within
        self.starts = np.concatenate([starts, ends[-1:]])  # (groups + 1,)
        self._part = lru_cache(_OPEN_PARTS)(self._open)

    def read(self, columns: list[str], group: int | None = None) -> Any:
        """Columns of one row group, as an Arrow table."""
        assert group is not None
        number = int(np.searchsorted(self._first_group, group, side="right")) - 1
        return self._part(number).read(columns, group - int(self._first_group[number]))

    def names_of_rows(self, labelled: bool) -> tuple[tuple[str, ...], np.ndarray | None]:
        """The path of every row and, where known, its label."""

        def names_in(number: int) -> tuple[list[str], list[str]]:
            file = self._open(number)
            try:
                paths = file.texts(PATH)
                for row, path in json.loads(file.schema.metadata[_ODD_PATHS]).items():
                    paths[int(row)] = path
                labels = file.texts(LABEL) if labelled else []
                if not all(isinstance(text, str) for text in chain(paths, labels)):
                    raise ValueError("some are no text")
            except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
                if isinstance(error, FileFormatError):
                    raise
                raise FileFormatError(
                    f"{file.path} must have a path for each row, and a label where there are some; it has not "
                    f"({error}). Extract the views again."
                ) from error
            return paths, labels

        numbers = [number for number, n_rows in enumerate(self._rows) if n_rows]
        found = list(in_order(names_in, numbers, available_threads()))
        labels = None
        if labelled:
            labels = text_array(self.path, list(chain.from_iterable(names for _, names in found)))
        return tuple(chain.from_iterable(paths for paths, _ in found)), labels

    def _open(self, number: int) -> ParquetFile:
        path = part_path(self.path, number)
        if not path.is_file():
            raise MissingFileError(
                f"A views folder must have all of its {len(self._rows)} parts; {path} is missing. "
                "Extract the views again."
            )
        file = ParquetFile(path)
        edges = np.append(np.arange(0, self._rows[number], GROUP_ROWS), self._rows[number])
        if not np.array_equal(file.starts, edges) or not self._has_views(file):
            raise FileFormatError(
                f"{path} must have {self._rows[number]} rows of the views {', '.join(self._widths)}, as the manifest "
                "lists them, and has not. Extract the views again."
            )
        return file

    def _has_views(self, file: ParquetFile) -> bool:
        types = {field.name: field.type for field in file.schema}
        return PATH in types and all(
            getattr(types.get(name), "list_size", 0) == width and str(types[name].value_type) == "float"
            for name, width in self._widths.items()
        )

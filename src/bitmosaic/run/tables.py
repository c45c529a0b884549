"""Tables with a row per image: names of the columns, and writers for CSV and Parquet."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bitmosaic.io.files import result_file, whole_file

# All columns in order, for every table: clusters.csv of runs and additions, predictions, exports.
COLUMNS = ("path", "cluster", "name", "original_cluster", "addition", "distance", "margin", "confidence", "label")


def image_table(**columns: Any) -> dict[str, Any]:
    """The columns of a table, in the order of COLUMNS. None is left out."""
    unknown = columns.keys() - set(COLUMNS)
    assert not unknown, f"add {unknown} to COLUMNS"
    return {name: columns[name] for name in COLUMNS if columns.get(name) is not None}


def write_csv(file: BinaryIO, columns: dict[str, Any]) -> None:
    text = io.TextIOWrapper(file, "utf-8", newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(zip(*(_plain(values) for values in columns.values()), strict=True))
    text.detach()


def write_parquet(file: BinaryIO, columns: dict[str, Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({name: pa.array(values) for name, values in columns.items()}), file)


TABLE_WRITERS: dict[str, Callable[[BinaryIO, dict[str, Any]], None]] = {".csv": write_csv, ".parquet": write_parquet}


def table_names(stem: str) -> tuple[str, ...]:
    """The names of the files of `write_tables`."""
    return tuple(f"{stem}{suffix}" for suffix in TABLE_WRITERS)


def write_tables(folder: Path, columns: dict[str, Any], stem: str = "clusters") -> None:
    """Write the same table in every format."""
    for name, write in zip(table_names(stem), TABLE_WRITERS.values(), strict=True):
        with whole_file(Path(folder) / name) as file:
            write(file, columns)


def save_table(path: Path, columns: dict[str, Any], suffix: str | None = None) -> None:
    """Write a table to a path from the user, in the format of `suffix` or of the path."""
    with result_file(path) as file:
        TABLE_WRITERS[suffix or path.suffix.lower()](file, columns)


def write_column(path: Path, values: np.ndarray) -> None:
    """Write an array as .npy."""
    with whole_file(path) as file:
        np.lib.format.write_array(file, np.ascontiguousarray(values), allow_pickle=False)


def _plain(values: Any) -> Any:
    """Values for CSV. Floats are rounded to four digits."""
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":
        return [f"{value:.4g}" for value in values]
    return values.tolist() if isinstance(values, np.ndarray) else values

"""Parquet files written by pyarrow: columns of lists, or numbered columns."""

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bitmosaic.errors import FileFormatError
from bitmosaic.io import read as npy
from bitmosaic.views import read_rows, read_views
from bitmosaic.views.parquet import ParquetFile

MATRIX = np.random.default_rng(0).normal(size=(25, 4)).astype(np.float32)
LABELS = np.arange(25) % 3


@pytest.fixture
def write(tmp_path):
    def write_table(columns, row_group_size=10):
        pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=row_group_size)
        return tmp_path / "a.parquet"

    return write_table


def lists(kind, matrix=MATRIX, missing=()):
    rows = [None if i in missing else row.tolist() for i, row in enumerate(matrix)]
    return pa.array(rows, kind)


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float32()), pa.list_(pa.float32(), 4)])
def test_columns_of_lists_are_views(write, kind):
    path = write({"id": np.arange(25), "hog": lists(kind), "path": [f"{i}.png" for i in range(25)], "label": LABELS})
    views = read_views(path)
    assert views.names == ("hog",)
    assert views["hog"].shape == (25, 4)
    assert views["hog"].dtype == np.float32
    np.testing.assert_array_equal(read_rows(views["hog"], slice(None)), MATRIX)
    np.testing.assert_array_equal(views.labels, LABELS)
    assert views.paths[24] == "24.png"


FIXED = (
    [pa.list_(pa.float64(), 4)] if int(pa.__version__.split(".")[0]) >= 24 else []
)  # earlier ones cannot write nulls


@pytest.mark.parametrize("kind", [pa.list_(pa.float64()), *FIXED])
def test_a_missing_list_is_a_row_of_nan(write, kind):
    views = read_views(write({"hog": lists(kind, missing={0, 13, 24})}))
    expected = MATRIX.copy()
    expected[[0, 13, 24]] = np.nan
    np.testing.assert_array_equal(read_rows(views["hog"], slice(None)), expected)


@pytest.mark.parametrize("kind", ["i8", "f2", "?"])
def test_missing_values_of_any_number_type_are_nan(write, kind):
    matrix = (np.arange(100).reshape(25, 4) % 7).astype(kind)
    value = pa.from_numpy_dtype(np.dtype(kind))
    rows = [[np.dtype(kind).type(v) for v in row] for row in matrix]
    rows[3] = None
    rows[5][1] = None
    views = read_views(write({"hog": pa.array(rows, pa.list_(value))}))
    expected = matrix.astype(np.float32)
    expected[3] = np.nan
    expected[5, 1] = np.nan
    np.testing.assert_array_equal(read_rows(views["hog"], slice(None)), expected)


def test_the_first_row_groups_may_be_null(write):
    views = read_views(write({"hog": lists(pa.list_(pa.float32()), missing=set(range(20)))}))
    assert views.widths == (4,)
    np.testing.assert_array_equal(read_rows(views["hog"], np.array([20, 24])), MATRIX[[20, 24]])


def test_a_column_of_nulls_is_refused(write):
    with pytest.raises(FileFormatError, match="'hog' must hold at least one list; all of its rows are null"):
        read_views(write({"hog": lists(pa.list_(pa.float32()), missing=set(range(25)))}))


def test_the_error_for_lists_of_different_length_names_the_row(write):
    rows = MATRIX.tolist()
    rows[17] = [1.0, 2.0]
    views = read_views(write({"hog": rows}))
    with pytest.raises(FileFormatError, match="same length, 4; row 17 has 2"):
        read_rows(views["hog"], slice(None))


@pytest.mark.parametrize("separator", ["_", "."])
def test_numbered_columns_are_grouped_and_ordered_by_number(write, separator):
    wide = np.random.default_rng(1).normal(size=(25, 12))
    columns = {f"color_hist{separator}{j}": wide[:, j] for j in reversed(range(12))}
    views = read_views(write(columns | {"sharpness": LABELS * 2, "y": LABELS, "file": ["a.png"] * 25}))
    assert views.names == ("color_hist", "sharpness")
    np.testing.assert_array_equal(read_rows(views["color_hist"], slice(None)), wide.astype(np.float32))
    np.testing.assert_array_equal(read_rows(views["sharpness"], slice(None)), LABELS[:, None] * 2)
    np.testing.assert_array_equal(views.labels, LABELS)
    assert views.paths == ("a.png",) * 25


def test_missing_numbers_in_columns_are_nan(write):
    views = read_views(write({"a_0": pa.array([1, None, 3]), "a_1": pa.array([1.0, 2.0, None])}))
    np.testing.assert_array_equal(read_rows(views["a"], slice(None)), [[1, 1], [np.nan, 2], [3, np.nan]])


def test_a_data_frame_of_numbers_is_one_view(tmp_path):
    frame = pandas.DataFrame(MATRIX, columns=list("0123"), index=np.arange(25) * 2)
    frame.to_parquet(tmp_path / "a.parquet")
    views = read_views(tmp_path / "a.parquet")
    assert views.names == ("view0",)
    np.testing.assert_array_equal(read_rows(views["view0"], slice(None)), MATRIX)


def test_the_index_columns_of_pandas_and_dask_are_no_views(write):
    index = {"__index_level_0__": LABELS, "__null_dask_index__": LABELS}
    assert read_views(write({"hog_0": MATRIX[:, 0], "hog_1": MATRIX[:, 1]} | index)).names == ("hog",)


def test_string_labels_are_read(write):
    labels = pa.array(["cat", "dog"] * 12 + ["cat"]).dictionary_encode()
    assert read_views(write({"hog": MATRIX.tolist(), "truth": labels})).labels.tolist()[:2] == ["cat", "dog"]


def test_null_labels_are_refused(write):
    with pytest.raises(FileFormatError, match="'y' needs a value in every row; 1 are null"):
        read_views(write({"hog": [[1.0], [2.0]], "y": [1, None]}))


def test_the_error_for_a_file_without_numbers_lists_its_columns(write):
    with pytest.raises(FileFormatError, match=r"the file holds name \(string\)"):
        read_views(write({"name": ["a", "b"]}))


def test_a_row_group_is_read_once_for_consecutive_blocks(write, monkeypatch):
    views = read_views(write({"hog": lists(pa.list_(pa.float32(), 4))}))
    read = []
    original = ParquetFile.read
    monkeypatch.setattr(ParquetFile, "read", lambda self, c, group: read.append(group) or original(self, c, group))
    for start in range(0, 25, 2):
        np.testing.assert_array_equal(views["hog"][start : start + 2], MATRIX[start : start + 2])
    assert read == [0, 1, 2]


@pytest.mark.parametrize(("version", "codec"), [("1.0", "snappy"), ("2.0", "zstd")])
def test_columns_of_all_usual_types_and_codecs_are_read(tmp_path, version, codec):
    n = 30
    lists = np.arange(5.0 * n).reshape(n, 5)
    columns = {
        "meta": [{"a": i, "b": [{"c": "x"}]} for i in range(n)],
        "hog": pa.array([*lists[:-1], None], pa.list_(pa.float64())),
        "a.b": pa.FixedSizeListArray.from_arrays(lists.ravel(), 5),
        "large": pa.array(list(lists), pa.large_list(pa.float32())),
        "y": pa.array(["a", "b", "c"] * 10).dictionary_encode(),
        "path": [f"{i}.png" for i in range(n)],
    }
    table = pa.table(columns)
    path = tmp_path / "a.parquet"
    options = {"write_page_index": True, "sorting_columns": [pq.SortingColumn(0)], "write_page_checksum": True}
    with pq.ParquetWriter(path, table.schema, data_page_version=version, compression=codec, **options) as writer:
        for piece in (table[:7], table[:0], table[7:]):
            writer.write_table(piece)
    views = read_views(path)
    assert views.names == ("hog", "a.b", "large")
    assert views.paths == tuple(f"{i}.png" for i in range(n))
    assert views.labels.tolist() == ["a", "b", "c"] * 10
    for array in views.arrays:
        np.testing.assert_array_equal(array[: n - 1], lists[:-1])


def test_a_row_group_larger_than_memory_is_refused(write, monkeypatch):
    path = write({"hog": list(np.random.default_rng(0).normal(size=(10, 10_000)))})
    monkeypatch.setattr(npy, "machine_memory", lambda: 10**6)
    with pytest.raises(FileFormatError, match="more than half of the memory"):
        read_views(path)


def test_damage_inside_a_column_is_reported_when_it_is_read(write):
    path = write({"hog_0": MATRIX[:, 0]})
    damaged = bytearray(path.read_bytes())
    damaged[4:40] = b"\xff" * 36
    path.write_bytes(damaged)
    with pytest.raises(FileFormatError, match=r"columns hog_0 cannot be read .*write it again"):
        read_views(path).arrays[0][:]

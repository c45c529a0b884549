"""Rows of every kind of source equal the rows of the NumPy array, as float32."""

import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.io
from scipy.sparse import csc_array, csr_array

from bitmosaic.views import as_views, forget_pages, read_rows, read_views, write_views, writer
from bitmosaic.views import views as views_module

N = 53
MATRIX = np.random.default_rng(0).normal(size=(N, 6))


def _array(folder):
    return as_views(MATRIX)


def _fortran(folder):
    return as_views(np.asfortranarray(MATRIX))


def _sparse(folder):
    return as_views(csc_array(MATRIX))


def _folder(folder):
    write_views(folder / "views", MATRIX)
    return read_views(folder / "views")


def _npy(folder):
    np.save(folder / "a.npy", MATRIX)
    return read_views(folder / "a.npy")


def _npz(folder):
    np.savez_compressed(folder / "a.npz", hog=MATRIX)
    return read_views(folder / "a.npz")


def _mat(folder):
    scipy.io.savemat(folder / "a.mat", {"X": MATRIX})
    return read_views(folder / "a.mat")


def _mat73(folder):
    with h5py.File(folder / "a.mat", "w", userblock_size=512) as file:
        file["X"] = MATRIX.T
    return read_views(folder / "a.mat")


def _hdf5(folder):
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("hog", data=MATRIX, chunks=(7, 3), compression="gzip")
    return read_views(folder / "a.h5")


def _parquet(folder):
    table = pa.table({"hog": pa.FixedSizeListArray.from_arrays(pa.array(MATRIX.ravel()), 6)})
    pq.write_table(table, folder / "a.parquet", row_group_size=10)
    return read_views(folder / "a.parquet")


def _parquet_columns(folder):
    table = pa.table({f"hog_{j}": MATRIX[:, j] for j in (3, 1, 0, 2, 5, 4)})
    pq.write_table(table, folder / "a.parquet", row_group_size=N)
    return read_views(folder / "a.parquet")


SOURCES = [_array, _fortran, _sparse, _folder, _npy, _npz, _mat, _mat73, _hdf5, _parquet, _parquet_columns]


@pytest.fixture(params=SOURCES, ids=lambda source: source.__name__.strip("_"))
def source(request, tmp_path):
    return request.param(tmp_path).arrays[0]


@pytest.mark.parametrize(
    "rows",
    [
        slice(None),
        slice(50, 90),
        slice(5, 5),
        slice(3, 40, 5),
        np.array([0, 1, 9, 10, 11, 52]),
        np.array([4, 4, 7]),
        np.array([], dtype=np.int64),
    ],
    ids=str,
)
def test_rows_equal_those_of_the_array(source, rows):
    assert (tuple(source.shape), source.dtype) == ((N, 6), np.float64)
    read = read_rows(source, rows)
    np.testing.assert_array_equal(read, MATRIX[rows].astype(np.float32))
    assert read.dtype == np.float32
    assert read.dtype.isnative
    assert read.flags.c_contiguous


def test_rows_outside_the_view_are_an_index_error(source):
    with pytest.raises(IndexError):
        read_rows(source, np.array([0, N]))


def test_every_source_may_be_read_by_threads(source):
    rows = [slice(i % 40, i % 40 + 13) for i in range(0, 200, 7)]
    with ThreadPoolExecutor(4) as pool:
        for wanted, read in zip(rows, pool.map(lambda r: read_rows(source, r), rows), strict=True):
            np.testing.assert_array_equal(read, MATRIX[wanted].astype(np.float32))


def test_a_sparse_row_is_missing_if_its_stored_values_are_all_nan():
    nan, matrix = np.nan, csr_array([[1.0, 0, 2], [0, np.nan, 0], [0, 0, 0], [np.nan, 0, 1]])
    expected = [[1, 0, 2], [nan, nan, nan], [0, 0, 0], [nan, 0, 1]]
    rows = as_views(matrix).arrays[0]
    np.testing.assert_array_equal(read_rows(rows, slice(None)), expected)
    np.testing.assert_array_equal(read_rows(rows, np.array([1, 2])), expected[1:3])


def test_a_sparse_view_is_written_to_a_folder_as_a_dense_one(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "_BLOCK_BYTES", 500)
    write_views(tmp_path / "views", {"words": csr_array(MATRIX)})
    np.testing.assert_array_equal(read_views(tmp_path / "views")["words"], MATRIX)


@pytest.mark.parametrize("dtype", ["f2", ">f8", "u1", ">i4", "?"])
def test_every_number_type_becomes_native_float32(dtype):
    array = (np.arange(12).reshape(4, 3) % 5).astype(dtype)
    read = read_rows(array, slice(1, 3))
    assert read.dtype == np.dtype("=f4")
    np.testing.assert_array_equal(read, array.tolist()[1:3])


def test_float32_rows_are_not_copied():
    array = np.ones((5, 2), np.float32)
    assert np.shares_memory(read_rows(array, slice(1, 3)), array)


def test_values_beyond_float32_become_infinite_without_a_warning():
    read = read_rows(np.array([[1e300, -1e300, 1.0]]), slice(None))
    np.testing.assert_array_equal(read, [[np.inf, -np.inf, 1.0]])


@pytest.mark.parametrize("window", [64, 10**6])
@pytest.mark.parametrize("row_cost", [0, 10**9])
def test_scattered_hdf5_rows_do_not_depend_on_how_they_are_read(tmp_path, monkeypatch, window, row_cost):
    monkeypatch.setattr(views_module, "_WINDOW_BYTES", window)
    monkeypatch.setattr(views_module, "_ROW_COST_BYTES", row_cost)
    rows = np.sort(np.random.default_rng(1).integers(0, N, 30))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a"], file["t"] = MATRIX, MATRIX.T
        np.testing.assert_array_equal(read_rows(file["a"], rows), MATRIX[rows].astype(np.float32))
        upright = views_module.H5Rows(file["t"]).T
        np.testing.assert_array_equal(read_rows(upright, rows), MATRIX[rows].astype(np.float32))


def test_an_hdf5_file_stays_open_as_long_as_its_views_live(tmp_path):
    array = _hdf5(tmp_path).arrays[0]
    gc.collect()
    assert read_rows(array, slice(0, 1)).shape == (1, 6)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="no list of mapped pages here")
def test_only_the_pages_of_the_given_rows_are_released(tmp_path):
    write_views(tmp_path / "views", np.ones((16, 2**18), np.float32))  # rows of a megabyte
    array = read_views(tmp_path / "views").arrays[0]

    def resident():
        """Megabytes of the file that are in this process."""
        mappings = Path("/proc/self/smaps").read_text().split("VmFlags")
        (mapping,) = (text for text in mappings if str(tmp_path) in text)
        return int(mapping.split("Rss:")[1].split()[0]) / 1024

    assert array.sum() == array.size
    assert resident() >= 16
    forget_pages(array, np.arange(4, 12))
    assert 4 <= resident() <= 8.1  # a huge page has two megabytes
    forget_pages(array, np.array([], int))
    assert resident() >= 4
    forget_pages(array, np.array([0, 15]))  # a sample: rows in between may have been read
    assert resident() <= 0.1
    np.testing.assert_array_equal(array, 1)

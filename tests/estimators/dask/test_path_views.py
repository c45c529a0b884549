"""dask_views: Dask arrays of a path, whose blocks are read by the workers."""

import shutil

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bitmosaic.errors import BitmosaicError, MissingFileError, ParameterError
from bitmosaic.estimators.dask import dask_views
from bitmosaic.views import write_views

N = 10_000
RNG = np.random.default_rng(0)
VIEWS = {"a": RNG.normal(size=(N, 5)).astype(np.float32), "b": RNG.normal(size=(N, 2)).astype(np.float32)}


def as_npy(folder):
    write_views(folder / "views", VIEWS, labels=np.zeros(N, int), paths=[str(i) for i in range(N)])
    return folder / "views"


def as_npz(folder):
    np.savez(folder / "views.npz", **VIEWS)
    return folder / "views.npz"


def as_hdf5(folder):
    with h5py.File(folder / "views.h5", "w") as file:
        for name, view in VIEWS.items():
            file[name] = view
    return folder / "views.h5"


def as_parquet(folder):
    columns = {name: pa.array(list(view), pa.list_(pa.float32())) for name, view in VIEWS.items()}
    pq.write_table(pa.table(columns), folder / "views.parquet", row_group_size=3000)
    return folder / "views.parquet"


@pytest.mark.parametrize("write", [as_npy, as_npz, as_hdf5, as_parquet])
def test_workers_read_the_same_values_from_every_format(write, tmp_path, client):
    arrays = dask_views(write(tmp_path), block_rows=2048)
    assert list(arrays) == ["a", "b"]
    for name, array in arrays.items():
        assert array.dtype == np.float32
        assert array.chunks == ((2048,) * 4 + (N - 4 * 2048,), (VIEWS[name].shape[1],))
        np.testing.assert_array_equal(array.compute(), VIEWS[name])


def test_an_array_keeps_its_type(tmp_path, client):
    view = np.arange(20, dtype=">i2").reshape(10, 2)
    write_views(tmp_path, {"a": view})
    array = dask_views(tmp_path)["a"]
    assert array.dtype == np.dtype(">i2")
    np.testing.assert_array_equal(array.compute(), view)


@pytest.mark.parametrize(
    ("width", "n_rows", "expected"),
    [(1000, 90_000, 32_768), (1, 300_000, 262_144), (9000, 9000, 8192)],
)
def test_a_block_has_about_128_megabytes_and_a_multiple_of_1024_rows(width, n_rows, expected, tmp_path):
    np.lib.format.open_memmap(tmp_path / "a.npy", "w+", np.float32, (n_rows, width))  # a sparse file
    assert dask_views(tmp_path / "a.npy")["view0"].chunksize == (expected, width)


def test_block_rows_must_be_a_multiple_of_1024(tmp_path):
    write_views(tmp_path, VIEWS)
    with pytest.raises(ParameterError, match="multiple of 1024; got 1000"):
        dask_views(tmp_path, block_rows=1000)


def test_an_array_with_many_blocks_has_a_lazy_graph(tmp_path, client):
    rows = 50_000 * 4096
    array = np.lib.format.open_memmap(tmp_path / "a.npy", "w+", np.uint8, (rows, 1))
    array[-1] = 7
    view = dask_views(tmp_path / "a.npy", block_rows=4096)["view0"]
    assert view.numblocks == (50_000, 1)
    layer = next(iter(view.dask.layers.values()))
    assert not layer.is_materialized()
    assert view.blocks[49_999].compute()[-1] == 7


def test_a_file_rewritten_in_place_is_read_again(tmp_path, client):
    np.save(tmp_path / "a.npy", VIEWS["a"])
    assert dask_views(tmp_path)["a"].sum().compute() == pytest.approx(VIEWS["a"].sum(), rel=1e-3)
    with open(tmp_path / "a.npy", "r+b") as file:  # the folder itself does not change
        np.save(file, VIEWS["a"] + 1)
    np.testing.assert_array_equal(dask_views(tmp_path)["a"].compute(), VIEWS["a"] + 1)


def test_a_path_that_a_worker_cannot_read_raises_an_error(tmp_path, client):
    folder = as_npy(tmp_path)
    array = dask_views(folder, block_rows=1024)["b"][5000:]
    shutil.rmtree(folder)
    with pytest.raises(
        BitmosaicError, match=r"Every worker must be able to read .* of 'b': There is no file or folder"
    ):
        array.compute()
    with pytest.raises(MissingFileError, match="There is no file or folder"):
        dask_views(folder)

"""Bad input of a fit on a cluster raises an error with the rows, and leaves nothing running."""

from functools import partial

import dask.array as da
import numpy as np
import pytest
from made_views import (
    FAINT,
    SMALL,
    N,
    as_dask,
    assert_nothing_left,
    leave_rows_on_workers,
    marking,
    spoiled,
    troubled_block,
    use_small_parts,
)
from scipy.sparse import csr_array

from bitmosaic import HSIC, BinaryKMeans
from bitmosaic.errors import BitmosaicError, ClusterError, DataTypeError, InvalidDataError

pytestmark = pytest.mark.filterwarnings("ignore:The objective still fell")
FEW = {"train_size": 500}  # with this seed, the sample does not include the bad rows


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    use_small_parts(monkeypatch)


def error_of(client, X, progress=None, **parameters):
    """Return the type and message of the error of a fit, after checking that the cluster is empty."""
    with pytest.raises(BitmosaicError) as caught:
        HSIC(**SMALL | parameters).fit(X, progress=progress)
    assert_nothing_left(client)
    return caught.type, str(caught.value)


# ---- before anything runs


def test_a_fit_without_a_client_raises_an_error():
    for fit, X in ((HSIC(**SMALL).fit, as_dask(FAINT)), (BinaryKMeans(2).fit, da.zeros((10, 2), dtype="u1"))):
        with pytest.raises(ClusterError, match=r"there is none\. Create one first: client = distributed\.Client"):
            fit(X)


def test_chunks_of_unknown_size_raise_an_error():
    X = as_dask(FAINT)["a"]
    unknown = X[X[:, 0] > 0]
    with pytest.raises(InvalidDataError, match=r"View 'a': The rows of each chunk .* Call its compute_chunk_sizes\(\)"):
        HSIC(**SMALL).fit({"a": unknown})
    with pytest.raises(InvalidDataError, match="rows of each chunk of a Dask array must be known"):
        BinaryKMeans(2).fit(unknown.astype("u1"))


class Frame:
    """Has the attributes of a Dask data frame."""

    shape, ndim, dtype = (N, 3), 2, np.dtype("f4")

    def __dask_graph__(self):
        return {}


def test_a_data_frame_raises_an_error():
    with pytest.raises(DataTypeError, match=r"got a Frame\. Turn a data frame into one with \.to_dask_array"):
        HSIC(**SMALL).fit(Frame())
    with pytest.raises(DataTypeError, match="a view is an array; got a Frame"):
        HSIC(**SMALL).fit({"a": Frame(), "b": Frame()})


def test_sparse_chunks_raise_an_error():
    with pytest.raises(DataTypeError, match=r"must be dense; these are sparse\. Pass the sparse matrix without Dask"):
        HSIC(**SMALL).fit(as_dask(FAINT)["a"].map_blocks(csr_array))


def test_a_mix_of_dask_and_other_arrays_raises_an_error():
    mixed = as_dask(FAINT) | {"b": FAINT()["b"]}
    model = HSIC(**SMALL).fit(FAINT())
    for take in (HSIC(**SMALL).fit, model.predict):
        with pytest.raises(DataTypeError, match="got arrays of another kind for b"):
            take(mixed)


def test_views_of_different_lengths_raise_an_error():
    views = as_dask(FAINT) | {"b": as_dask(FAINT)["b"][:-1]}
    with pytest.raises(InvalidDataError, match=f"{N - 1}"):
        HSIC(**SMALL).fit(views)


@pytest.mark.parametrize(
    ("parameters", "sample_weight", "expected"),
    [
        ({}, np.ones(10), "got a Dask array. Leave it out"),
        ({"n_clusters": 11}, None, "n_samples=10 should be >= n_clusters=11"),
        ({"bit_weights": np.ones(3)}, None, "bit_weights must be 16 numbers"),
        ({"init": np.zeros((2, 3), "u1")}, None, "init must hold n_clusters=2 codes of 16 bits"),
    ],
    ids=["sample_weight", "n_clusters", "bit_weights", "init"],
)
def test_bad_parameters_raise_an_error_before_codes_are_computed(parameters, sample_weight, expected):
    with pytest.raises(BitmosaicError) as caught:
        BinaryKMeans(**{"n_clusters": 2} | parameters).fit(da.zeros((10, 2), dtype="u1"), sample_weight=sample_weight)
    assert expected in str(caught.value)


def test_codes_of_another_type_raise_an_error():
    with pytest.raises(DataTypeError, match="uint8 or uint64; got float64"):
        BinaryKMeans(2).fit(da.zeros((10, 2)))
    with pytest.raises(InvalidDataError, match=r"got shape \(10,\)"):
        BinaryKMeans(2).fit(da.zeros(10, dtype="u1"))


# ---- bad rows


@pytest.mark.parametrize("way", ["rows come", "rows stay", "while encoding"])
def test_the_error_of_a_bad_row_has_its_number(client, monkeypatch, way):
    if way == "rows stay":
        leave_rows_on_workers(monkeypatch)
    make = partial(spoiled, FAINT, "b", 4501, 2, np.nan)
    kind, message = error_of(client, as_dask(make, 1500), **FEW if way == "while encoding" else {})
    assert kind is InvalidDataError
    assert "view 'b' has NaN in 1 of 7 columns of row 4501." in message


@pytest.mark.parametrize(
    ("staying", "step"),
    [(False, 0), (True, 3)],
    ids=["sampling", "iterations"],
)
def test_the_error_of_a_failed_block_has_its_cause(client, monkeypatch, tmp_path, staying, step):
    if staying:
        leave_rows_on_workers(monkeypatch)
    marker = tmp_path / "gone"
    views = as_dask(FAINT, 1100, block=partial(troubled_block, marker=marker))
    kind, message = error_of(client, views, marking(marker, step))
    assert kind is ClusterError
    assert "A block of the views could not be computed; it raised OSError: the disk is gone." in message


def too_short(block, block_id):
    return block[1:] if block_id[0] == 0 else block


def test_chunks_with_too_few_rows_raise_an_error(client):
    views = as_dask(FAINT)
    views["b"] = views["b"].map_blocks(too_short, meta=np.empty((0, 0), np.float32))
    kind, message = error_of(client, views)
    assert kind is InvalidDataError
    assert "A chunk of view 'b' has 1023 rows, expected 1024 (rows 0 to 1023" in message
    codes = da.zeros((10, 2), dtype="u1", chunks=5).map_blocks(too_short, meta=np.empty((0, 0), np.uint8))
    with pytest.raises(InvalidDataError, match="have 9 rows, expected 10"):
        BinaryKMeans(2).fit(codes)

"""BinaryKMeans finds exactly the same clusters on Dask arrays as on one machine."""

from functools import cache

import dask.array as da
import numpy as np
import pytest
from crowded_codes import crowded_codes
from made_views import assert_nothing_left

from bitmosaic import BinaryKMeans

N = 3000
CHUNKS = (1000, 1, 1500, 499)


@cache
def codes_of(dtype="u1", n_codes=N):
    """Packed codes of 64 bits, at most `n_codes` different ones. Cached: do not write to it."""
    return crowded_codes(n_codes, 8, seed=3)[np.arange(N) % n_codes].view(dtype)


def codes_block(kind, n_codes, block_info):
    (start, stop), columns = block_info[None]["array-location"]
    return codes_of(kind, n_codes)[start:stop, slice(*columns)]


def as_dask(dtype="u1", n_codes=N, chunks=CHUNKS, columns=-1):
    chunks = da.core.normalize_chunks((chunks, columns), codes_of(dtype).shape)
    meta = np.empty((0, 0), dtype)
    return da.map_blocks(codes_block, kind=dtype, n_codes=n_codes, chunks=chunks, meta=meta)


def assert_same_clusters(model, local):
    for name in ("cluster_centers_", "labels_"):
        found, expected = np.asarray(getattr(model, name)), getattr(local, name)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    assert (model.inertia_, model.n_iter_) == (local.inertia_, local.n_iter_)


WEIGHTS = np.random.default_rng(0).uniform(0, 2, 64)
FAR = np.full((6, 8), 255, np.uint8)  # six times the same code: five of the clusters are empty


@pytest.mark.parametrize(
    ("dtype", "columns", "parameters"),
    [
        ("u1", 3, {"n_init": 3}),
        ("u1", -1, {"bit_weights": WEIGHTS, "n_init": 1}),
        ("u8", -1, {"bit_weights": np.full(64, 0.5), "balance": 0.3, "n_init": 1}),
        ("u1", -1, {"init": FAR, "bit_weights": WEIGHTS}),
    ],
    ids=["plain", "weights", "equal weights, balanced", "empty clusters, weights"],
)
def test_the_clusters_are_those_of_one_machine(client, dtype, columns, parameters):
    model = BinaryKMeans(6, random_state=0, **parameters).fit(as_dask(dtype, columns=columns))
    local = BinaryKMeans(6, random_state=0, **parameters).fit(codes_of(dtype))
    assert_same_clusters(model, local)
    assert isinstance(model.labels_, da.Array)
    assert model.labels_.chunks == (CHUNKS,)
    assert np.bincount(model.labels_, minlength=6).min() > 0


@pytest.mark.parametrize("chunks", [150, (1, 2999)], ids=["many", "uneven"])
def test_chunks_do_not_matter(client, chunks):
    model = BinaryKMeans(5, n_init=1, random_state=0).fit(as_dask(chunks=chunks))
    assert_same_clusters(model, BinaryKMeans(5, n_init=1, random_state=0).fit(codes_of()))


def test_new_codes_are_assigned_lazily_and_a_saved_model_has_numpy_arrays(client, tmp_path):
    model = BinaryKMeans(4, n_init=1, bit_weights=WEIGHTS, random_state=0).fit(as_dask("u8"))
    model.save(tmp_path / "model")
    loaded = BinaryKMeans.load(tmp_path / "model")
    assert type(loaded.labels_) is np.ndarray
    assert_same_clusters(loaded, model)
    new = as_dask("u8", chunks=(400, 2600))
    for estimator in (model, loaded):
        labels, distances = estimator.predict(new), estimator.transform(new)
        assert (labels.chunks, distances.chunks) == (((400, 2600),), ((400, 2600), (4,)))
        np.testing.assert_array_equal(labels, loaded.predict(codes_of("u8")))
        np.testing.assert_array_equal(distances, loaded.transform(codes_of("u8")))
        assert (labels.dtype, distances.dtype, distances.compute().dtype) == (np.int32, np.float32, np.float32)


def test_nothing_is_left_on_the_cluster_after_the_model_is_deleted(client):
    BinaryKMeans(4, n_init=2, random_state=0).fit(as_dask())
    assert_nothing_left(client)

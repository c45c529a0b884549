"""HSIC gives exactly the same model on Dask arrays as on one machine."""

from functools import cache, partial

import dask.array as da
import numpy as np
import pytest
from dask import compute
from distributed import Client, LocalCluster
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_views import (
    APART,
    FAINT,
    GAPS,
    SMALL,
    N,
    as_dask,
    assert_nothing_left,
    assert_same_fit,
    leave_rows_on_workers,
    planted,
    use_small_parts,
)

from bitmosaic import HSIC

pytestmark = pytest.mark.filterwarnings("ignore:The objective still fell")  # two iterations are enough here

STAYING_IDS = ["rows_come", "rows_stay"]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    use_small_parts(monkeypatch)


@cache
def local_fit(make, staying=False, **parameters):
    with pytest.MonkeyPatch.context() as patch:
        if staying:
            leave_rows_on_workers(patch)
        return HSIC(**SMALL | parameters).fit(make())


def check(make, staying=False, chunks=2048, columns=-1, **parameters):
    """Fit on the cluster and on one machine, compare, and return both models."""
    local = local_fit(make, staying, **parameters)
    with pytest.MonkeyPatch.context() as patch:
        if staying:
            leave_rows_on_workers(patch)
        model = HSIC(**SMALL | parameters).fit(as_dask(make, chunks, columns))
    assert_same_fit(model, local)
    return model, local


# ---- a fit


@pytest.mark.parametrize("staying", [False, True], ids=STAYING_IDS)
def test_a_fit_is_the_same_to_the_last_bit(client, staying):
    model, _ = check(GAPS, staying)
    assert isinstance(model.labels_, da.Array)
    assert model.labels_.chunks == ((2048, 2048, 1404),)
    assert isinstance(model.codes_, da.Array)
    assert model.codes_.chunks == ((2048, 2048, 1404), (4,))


@pytest.mark.parametrize(
    ("chunks", "columns"),
    [(100, -1), ((3000, 1, 24, 2475), 5)],
    ids=["tiny", "uneven, and cut columns"],
)
def test_chunks_do_not_matter_and_labels_have_the_same(client, chunks, columns):
    model, _ = check(FAINT, chunks=chunks, columns=columns)
    rows = da.core.normalize_chunks(chunks, (N,))
    assert (model.labels_.chunks, model.codes_.chunks) == (rows, (*rows, (4,)))


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, N - 1), max_size=6, unique=True), st.sampled_from([1, 2]))
def test_labels_do_not_depend_on_chunks(client, cuts, least_blocks):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bitmosaic.estimators.dask.rows.LEAST_BLOCKS", least_blocks)
        check(GAPS, chunks=tuple(np.diff([0, *sorted(cuts), N]).tolist()), train_size=3000)


@pytest.mark.parametrize(
    ("staying", "parameters"),
    [
        (True, {"train_size": 0.5}),  # too many rows for this machine, but not all
        (True, {"start": "rotation", "train_size": 1.0, "norm": "frobenius"}),
        (False, {"joint": False, "memory_limit": "80MB", "chunk_size": 100, "n_threads": 2}),
        (False, {"preset": "fast", "anchors": "per_view", "scaling": "center", "n_components": 8}),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else STAYING_IDS[value],
)
def test_a_fit_with_other_parameters_is_the_same(client, staying, parameters):
    check(FAINT, staying, **parameters)


def test_the_number_of_clusters_is_found_as_on_one_machine(client, monkeypatch):
    monkeypatch.setattr("bitmosaic.solver.n_clusters.ROWS", 300)
    model, local = check(APART, True, n_clusters="auto")
    assert model.n_clusters_ == local.n_clusters_ == 4
    assert model.cluster_counts_ == local.cluster_counts_


def test_views_may_be_a_list_or_one_array(client):
    views, local = as_dask(FAINT), FAINT()
    assert_same_fit(HSIC(**SMALL).fit(list(views.values())), HSIC(**SMALL).fit(list(local.values())))
    labels = HSIC(**SMALL).fit_predict(views["a"])
    assert labels.chunks == views["a"].chunks[:1]
    np.testing.assert_array_equal(labels, HSIC(**SMALL).fit_predict(local["a"]))


def test_a_fit_runs_on_a_cluster_of_threads():
    threads = {"processes": False, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(2, **threads) as cluster, Client(cluster) as client:
        check(GAPS, staying=True)
        assert_nothing_left(client)


# ---- the fitted model


@pytest.fixture(scope="module")
def fitted(two_workers):
    with Client(two_workers), pytest.MonkeyPatch.context() as patch:
        use_small_parts(patch)
        yield check(FAINT)


def test_new_rows_are_encoded_lazily_and_as_on_one_machine(fitted):
    model, local = fitted
    new, rows = as_dask(partial(planted, 4000, gaps=True), (1000, 17, 2983), 4), planted(4000, gaps=True)
    for views, same in ((new, rows), ({"c": new["c"], "a": new["a"]}, {"a": rows["a"], "c": rows["c"]})):
        codes, labels = model.transform(views), model.predict(views)
        assert isinstance(codes, da.Array)
        assert isinstance(labels, da.Array)
        assert (codes.chunks, labels.chunks) == (((1000, 17, 2983), (4,)), ((1000, 17, 2983),))
        assert (codes.dtype, labels.dtype) == (np.uint8, np.int32)
        nearest = model.nearest(views)
        expected = local.transform(same), local.predict(same), *local.nearest(same)
        for promised, found, right in zip(
            [codes, labels, *nearest], compute(codes, labels, *nearest), expected, strict=True
        ):
            assert promised.dtype == found.dtype == right.dtype
            np.testing.assert_array_equal(found, right)


def test_a_model_fitted_on_one_machine_takes_dask_arrays_without_a_client():
    views = as_dask(APART)
    for scheduler in ("threads", "sync"):
        labels = local_fit(FAINT).predict(views).compute(scheduler=scheduler)
        np.testing.assert_array_equal(labels, local_fit(FAINT).predict(APART()))


def test_a_saved_model_has_numpy_arrays(fitted, tmp_path):
    model, local = fitted
    model.save(tmp_path / "model")
    loaded = HSIC.load(tmp_path / "model")
    assert type(loaded.labels_) is type(loaded.codes_) is np.ndarray
    assert_same_fit(loaded, local)
    np.testing.assert_array_equal(loaded.predict(APART()), local.predict(APART()))

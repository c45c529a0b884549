"""HSIC(start="proposals"): views of unequal quality, search, and everything that other starts promise."""

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.metrics import normalized_mutual_info_score as nmi

from bitmosaic import HSIC, Constraints
from bitmosaic.estimators import checkpoint
from bitmosaic.estimators.model_file import read_model, write_model
from bitmosaic.solver import proposals

TRUTH = np.arange(600) % 4
SMALL = {"start": "proposals", "n_bits": 64, "n_anchors": 60, "n_init": 4, "random_state": 0}


def views(seed=0):
    """A good view, a poor one of more columns, and noise."""
    rng = np.random.default_rng(seed)
    good = 2 * rng.normal(size=(4, 10))[TRUTH] + rng.normal(size=(600, 10))
    poor = 0.3 * rng.normal(size=(4, 40))[TRUTH] + rng.normal(size=(600, 40))
    return {"good": good, "poor": poor, "noise": rng.normal(size=(600, 20))}


@pytest.fixture(scope="module")
def model():
    return HSIC(4, **SMALL).fit(views())


def test_weak_views_do_not_spoil_a_strong_one(model):
    alone = HSIC(4, **SMALL).fit({"good": views()["good"]})
    assert nmi(TRUTH, model.labels_) > 0.98 * nmi(TRUTH, alone.labels_) > 0.9
    good, poor, noise = model.view_weights_
    assert good > 2 * poor > 2 * noise
    assert model.view_weights_.sum() == pytest.approx(1)


@pytest.mark.parametrize("d", [1, 2, 30])
def test_noise_of_any_width_does_not_spoil_a_single_view(d):
    """A view of few columns predicts any clusters of its own, even if it is noise."""
    X, digits = load_digits(return_X_y=True)
    noise = np.random.default_rng(0).normal(size=(len(X), d))
    model = HSIC(10, n_fits=1, random_state=0).fit([X, noise])
    assert nmi(digits, model.labels_) > 0.75
    assert model.view_weights_[0] > 0.8


def test_clusters_of_very_unequal_sizes_are_found():
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(4), [700, 80, 40, 20])
    X = 4 * rng.normal(size=(4, 10))[truth] + rng.normal(size=(840, 10))
    assert nmi(truth, HSIC(4, **SMALL).fit(X).labels_) > 0.95


def test_the_objective_never_rises(model):
    values = [value for _, _, value in model.objective_history_]
    assert all(after <= before * (1 + 1e-9) for before, after in pairwise(values))
    assert values[-1] < values[0]


def test_training_images_keep_their_codes_and_labels_also_from_a_file(model, tmp_path):
    np.testing.assert_array_equal(model.transform(views()), model.codes_)
    np.testing.assert_array_equal(model.predict(views()), model.labels_)
    model.save(tmp_path / "model")
    loaded = HSIC.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(views(1)), model.predict(views(1)))


def test_a_model_without_scalings_can_be_read(tmp_path):
    fitted = HSIC(4, n_bits=64, n_anchors=60, start="rotation", random_state=0).fit(views()["good"] ** 2)
    fitted.save(tmp_path / "model")
    arrays, facts = read_model(tmp_path / "model", "HSIC")
    assert facts["kernels"][0][1] == "root"
    facts["kernels"] = [[gamma, scaling == "root", silence] for gamma, scaling, silence, *_ in facts["kernels"]]
    del facts["parameters"]["scaling"]
    facts["parameters"] |= {"root": True, "standardize": True, "start": "consensus"}
    write_model(tmp_path / "early", "HSIC", arrays, facts)
    early, X = HSIC.load(tmp_path / "early"), views(1)["good"] ** 2
    np.testing.assert_array_equal(early.transform(X), fitted.transform(X))
    assert (early.scaling, early.start) == ("auto", "proposals")


@pytest.mark.parametrize("how", [{"n_threads": 1}, {"chunk_size": 7}, {"memory_limit": "40MB"}], ids=str)
def test_labels_do_not_depend_on_the_machine(model, how):
    np.testing.assert_array_equal(HSIC(4, **SMALL, **how).fit(views()).codes_, model.codes_)


def test_more_draws_of_anchors_change_codes_and_stay_within_the_memory_limit():
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(6000, 30)) + 4 * rng.normal(size=(4, 30))[np.arange(6000) % 4] for _ in range(3)]
    codes = []
    for n_fits in (3, 1):
        tracemalloc.start()
        fitted = HSIC(4, n_fits=n_fits, memory_limit="120MB", max_iter=1, n_init=2, random_state=0).fit(X)
        codes.append(fitted.codes_)
        assert tracemalloc.get_traced_memory()[1] < 120e6
        tracemalloc.stop()
    assert (codes[0] != codes[1]).any()


def test_missing_views_are_left_out(model):
    some = views()
    some["good"][::5] = np.nan
    fitted = HSIC(4, **SMALL).fit(some)
    present = np.arange(600) % 5 > 0
    assert nmi(TRUTH[present], fitted.labels_[present]) > 0.9
    assert nmi(TRUTH, fitted.predict({"good": views()["good"]})) > 0.9


def test_constraints_and_first_labels_hold(model):
    fixed = {0: 3, 1: 3, 2: 0}
    fitted = HSIC(4, **SMALL).fit(views(), constraints=Constraints(fixed=fixed))
    assert [fitted.labels_[row] for row in fixed] == list(fixed.values())
    numbered = HSIC(4, **SMALL).fit(views(), init_labels=(TRUTH + 1) % 4)
    assert (numbered.labels_ == (TRUTH + 1) % 4).mean() > 0.9


def test_rows_of_sparse_counts_get_length_1():
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(300, 0.05), size=4)
    texts = np.stack([rng.multinomial(rng.integers(20, 400), topics[c]) for c in TRUTH])
    fitted = HSIC(4, **SMALL).fit([texts, rng.normal(size=(600, 5))])
    assert fitted.scalings_ == ["unit", "center"]
    assert nmi(TRUTH, fitted.labels_) > 0.95
    np.testing.assert_array_equal(fitted.transform({"view0": 3 * texts}), fitted.transform({"view0": texts}))


def test_codes_keep_what_is_inside_clusters(model):
    X = views()["good"]
    assert len(np.unique(model.codes_, axis=0)) > 360  # of 600; the number varies with the processor
    distances = np.square(X[:100, None] - X[None, :]).sum(2)
    bits = np.unpackbits(model.codes_, axis=1).astype(int)
    hamming = np.abs(bits[:100, None] - bits[None, :]).sum(2)
    inside = TRUTH[:100, None] == TRUTH
    assert np.corrcoef(distances[inside], hamming[inside])[0, 1] > 0.35


def test_one_cluster_two_rows_and_many_clusters_work():
    X = np.random.default_rng(0).normal(size=(300, 3))
    assert set(HSIC(1, **SMALL).fit(X).labels_) == {0}
    assert HSIC(2, **(SMALL | {"n_bits": 8})).fit(X[:2]).labels_.shape == (2,)
    assert len(set(HSIC(150, **SMALL).fit(X).labels_)) > 140


def test_blobs_through_a_smooth_map_are_found():
    rng = np.random.default_rng(0)
    X = rng.uniform(-10, 10, size=(4, 5))[TRUTH] + 0.5 * rng.normal(size=(600, 5))
    assert nmi(TRUTH, HSIC(4, **SMALL).fit([X, np.tanh(X / 5)]).labels_) > 0.99


def test_a_killed_fit_resumes_with_the_same_result(model, tmp_path):
    class Killed(Exception):
        pass

    def die(done, total):
        if done == total - 3:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "EVERY", 0)
        patch.setattr(checkpoint, "COST", 0)
        with pytest.raises(Killed):
            HSIC(4, **SMALL).fit(views(), progress=die, checkpoint=tmp_path / "fit")
        resumed = HSIC(4, **SMALL).fit(views(), checkpoint=tmp_path / "fit")
    np.testing.assert_array_equal(resumed.codes_, model.codes_)


def test_a_dask_cluster_gives_the_same_codes(model, client):
    import dask.array as da

    lazy = {name: da.from_array(X, chunks=(200, -1)) for name, X in views().items()}
    np.testing.assert_array_equal(HSIC(4, **SMALL).fit(lazy).codes_.compute(), model.codes_)


def test_given_labels_are_the_first_labels(monkeypatch):
    seen, fused_start = [], proposals.fused_start
    monkeypatch.setattr(proposals, "fused_start", lambda *a: seen.append(a[2]) or fused_start(*a))
    given = np.random.default_rng(0).integers(-1, 4, size=600)  # k-means would change most of them
    HSIC(4, **SMALL).fit(views(), init_labels=given)
    np.testing.assert_array_equal(seen[0][given >= 0], given[given >= 0])
    assert set(seen[0]) == {0, 1, 2, 3}


def test_indicators_of_many_clusters_are_projected():
    labels = np.arange(1000) % 300
    few, many = (proposals.indicators(labels % c, c, np.random.default_rng(0)) for c in (100, 300))
    assert (few.shape, many.shape) == ((1000, 100), (1000, proposals.FEW_CLUSTERS))
    for T in (few, many):
        np.testing.assert_allclose(T.mean(0), 0, atol=1e-6)
    np.testing.assert_array_equal(many[0], many[300])
    assert not np.array_equal(many[0], many[1])

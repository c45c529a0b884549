"""BinaryKMeans and HSIC meet constraints exactly, learn from them, and start from initial labels."""

import tracemalloc

import numpy as np
import pytest
from planted_views import NOISY, blobs
from sklearn.datasets import load_digits

from bitmosaic import HSIC, BinaryKMeans, Constraints
from bitmosaic.errors import ConstraintError, InvalidDataError, ParameterError, StaleCheckpointError
from bitmosaic.estimators.metrics import clustering_scores
from bitmosaic.solver.model import distances_to_own

C = 4
HARD, TRUTH = blobs(n=900, n_clusters=C, spread=0.9, seed=5)
RNG = np.random.default_rng(0)
SOME = np.sort(RNG.choice(900, 45, replace=False))  # 5%
FIXED = {int(row): int(TRUTH[row]) for row in SOME}
GROUPS = [SOME[TRUTH[SOME] == j].tolist() for j in range(C)]
APART = [(GROUPS[i][0], GROUPS[j][0]) for i in range(C) for j in range(i)]
SMALL = {"n_clusters": C, "n_bits": 32, "n_anchors": 60, "max_iter": 4, "random_state": 0}
OPTIONS = [{}, {"start": "rotation"}, {"joint": False, "train_size": 300, "norm": "frobenius"}]
ids = ["proposals", "rotation", "codes first"]


def packed(n=600, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.integers(C, size=n)
    bits = rng.integers(2, size=(C, 64))[truth] ^ (rng.random((n, 64)) < 0.35)
    return np.packbits(bits, axis=1), truth


def assert_met(labels, rows=900):
    np.testing.assert_array_equal(labels[SOME], TRUTH[SOME])
    counts = np.bincount(labels, minlength=C)
    assert counts.min() >= 215
    assert counts.max() <= 235


ALL_CONSTRAINTS = Constraints(fixed=FIXED, min_size=215, max_size=235)


@pytest.mark.parametrize("options", OPTIONS, ids=ids)
def test_hsic_meets_all_constraints_exactly_with_all_options(options):
    model = HSIC(**SMALL | options).fit(HARD, constraints=ALL_CONSTRAINTS)
    assert_met(model.labels_)
    assert model.labels_.dtype == np.int32
    linked = Constraints(must_link=GROUPS, cannot_link=APART, max_size=240)
    labels = HSIC(**SMALL | options).fit(HARD, constraints=linked).labels_
    assert all(len(set(labels[group])) == 1 for group in GROUPS)
    assert len({labels[group[0]] for group in GROUPS}) == C
    assert np.bincount(labels).max() <= 240


@pytest.fixture(scope="module")
def digits():
    """Two views of 900 of scikit-learn's digits, the true labels, and 10% of the rows, whose labels are given."""
    data = load_digits()
    pixels, truth = data.data[:900], data.target[:900]
    waves = np.abs(np.fft.rfft2(data.images[:900])).reshape(900, -1)
    labeled = np.sort(np.random.default_rng(0).choice(900, 90, replace=False))
    return [pixels, waves], truth, labeled


def accuracy_of_others(digits, **prior):
    views, truth, some = digits
    others = np.setdiff1d(np.arange(len(truth)), some)
    fits = [HSIC(10, preset="fast", random_state=seed).fit(views, **prior).labels_ for seed in range(2)]
    return np.mean([clustering_scores(truth[others], labels[others])["acc"] for labels in fits])


@pytest.fixture(scope="module")
def accuracy_without(digits):
    return accuracy_of_others(digits)


@pytest.mark.parametrize("kind", ["fixed", "links", "init_labels"])
def test_a_few_true_labels_raise_the_accuracy_of_the_others(digits, accuracy_without, kind):
    truth, some = digits[1:]
    groups = [some[truth[some] == j].tolist() for j in range(10)]
    apart = [(groups[i][0], groups[j][0]) for i in range(10) for j in range(i)]
    prior = {
        "fixed": {"constraints": Constraints(fixed={int(row): int(truth[row]) for row in some})},
        "links": {"constraints": Constraints(must_link=groups, cannot_link=apart)},
        "init_labels": {"init_labels": np.where(np.isin(np.arange(len(truth)), some), truth, -1)},
    }[kind]
    assert accuracy_of_others(digits, **prior) > accuracy_without + 0.03


def test_predict_returns_the_nearest_center_and_labels_meet_the_constraints():
    model = HSIC(**SMALL).fit(HARD, constraints=ALL_CONSTRAINTS)
    nearest = model.predict(HARD)
    assert (nearest != model.labels_).any()
    centers = model.cluster_centers_, model.bit_weights_
    shortest = model.nearest(HARD)[1]
    distance, margin = distances_to_own(model.codes_, model.labels_, *centers)
    np.testing.assert_array_equal(margin < 0, distance > shortest)
    assert (margin[nearest != model.labels_] <= 0).all()
    np.testing.assert_allclose(distances_to_own(model.codes_, nearest, *centers)[0], shortest)


@pytest.mark.parametrize("options", OPTIONS[:2], ids=ids[:2])
def test_clusters_keep_the_numbers_of_initial_labels(options):
    views, truth = blobs(n=900, n_clusters=C, spread=3, seed=5)
    first = np.where(np.arange(900) % 2, (truth + 1) % C, -1)
    model = HSIC(**SMALL | options).fit(views, init_labels=first)
    assert np.mean(model.labels_ == (truth + 1) % C) > 0.95


@pytest.mark.parametrize("options", OPTIONS[:2], ids=ids[:2])
def test_a_cluster_without_initial_label_starts_among_rows_without_one(options):
    views, truth = blobs(n=900, n_clusters=C, spread=3, seed=5)
    model = HSIC(**SMALL | options).fit(views, init_labels=np.where(truth == 2, -1, truth))
    assert np.mean(model.labels_ == truth) > 0.95


def test_labels_do_not_depend_on_threads_blocks_and_memory():
    def labels(**how):
        return (
            HSIC(**SMALL | {"train_size": 500} | how)
            .fit(NOISY, constraints=Constraints(FEW, [(0, 1)], max_size=170))
            .labels_
        )

    FEW = [(2, 3, 4), (5, 6)]
    expected = labels(n_threads=1)
    for how in ({"n_threads": 2}, {"chunk_size": 64, "memory_limit": "30MB"}):
        np.testing.assert_array_equal(labels(**how), expected)


@pytest.mark.parametrize("prior", [{"constraints": Constraints()}, {"init_labels": np.full(900, -1)}])
def test_empty_constraints_and_unknown_labels_change_nothing(prior):
    plain, empty = (HSIC(**SMALL).fit(HARD, **how) for how in ({}, prior))
    np.testing.assert_array_equal(plain.labels_, empty.labels_)
    np.testing.assert_array_equal(plain.codes_, empty.codes_)
    codes = packed()[0]
    plain, empty = (BinaryKMeans(C, random_state=0).fit(codes, constraints=how) for how in (None, Constraints()))
    np.testing.assert_array_equal(plain.labels_, empty.labels_)


def test_a_checkpoint_of_other_constraints_raises_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("bitmosaic.estimators.checkpoint.EVERY", 0.0)
    fixed = Constraints(fixed=FIXED)
    first = HSIC(**SMALL).fit(HARD, constraints=fixed, checkpoint=tmp_path)
    again = HSIC(**SMALL).fit(HARD, constraints=Constraints(fixed=dict(reversed(FIXED.items()))), checkpoint=tmp_path)
    np.testing.assert_array_equal(first.labels_, again.labels_)
    for prior in ({}, {"constraints": Constraints(fixed=FIXED, max_size=300)}, {"init_labels": TRUTH}):
        with pytest.raises(StaleCheckpointError, match="other constraints or init_labels"):
            HSIC(**SMALL).fit(HARD, checkpoint=tmp_path, **prior)


def test_the_memory_limit_includes_constraints():
    views = {"a": np.random.default_rng(0).standard_normal((30_000, 8)).astype(np.float32)}
    limit = 28_000_000
    model = HSIC(**SMALL | {"train_size": 600, "memory_limit": limit, "n_threads": 1})
    limits = Constraints([(0, 1)], [(2, 3)], {4: 1}, 7_000, 8_000)
    model.fit(views, constraints=limits)  # compiles kernels and imports modules
    tracemalloc.start()
    try:
        model.fit(views, constraints=limits)
        kept = model.labels_.nbytes + model.codes_.nbytes
        assert tracemalloc.get_traced_memory()[1] < limit + kept
    finally:
        tracemalloc.stop()
    with pytest.raises(ParameterError, match="memory_limit must be at least"):
        model.set_params(memory_limit="5MB").fit(views, constraints=limits)


@pytest.mark.parametrize(
    ("prior", "error", "message"),
    [
        ({"constraints": {"max_size": 3}}, ConstraintError, "must be a bitmosaic.Constraints; got dict"),
        (
            {"init_labels": [0, 1]},
            InvalidDataError,
            r"for each of 900 rows, -1 where unknown; got int64 of shape",
        ),
        ({"init_labels": np.full(900, C)}, InvalidDataError, "from -1 to n_clusters - 1 = 3; got 4"),
        ({"init_labels": np.full(900, -2)}, InvalidDataError, "from -1 to n_clusters - 1 = 3; got -2"),
        ({"init_labels": np.zeros(900)}, InvalidDataError, "got float64"),
    ],
)
def test_bad_constraints_and_labels_raise_an_error(prior, error, message):
    with pytest.raises(error, match=message):
        HSIC(**SMALL).fit(HARD, **prior)


def test_constraints_need_a_number_of_clusters():
    with pytest.raises(ParameterError, match="need a number of clusters; got n_clusters='auto'"):
        HSIC("auto").fit(HARD, constraints=ALL_CONSTRAINTS)


def test_constraints_with_dask_arrays_raise_an_error():
    array = pytest.importorskip("dask.array")
    with pytest.raises(ConstraintError, match="got Dask arrays"):
        BinaryKMeans(C).fit(array.from_array(packed()[0]), constraints=Constraints([(0, 1)]))
    views = {name: array.from_array(X) for name, X in HARD.items()}
    with pytest.raises(ConstraintError, match="got Dask arrays"):
        HSIC(**SMALL).fit(views, constraints=ALL_CONSTRAINTS)
    with pytest.raises(ParameterError, match="got Dask arrays"):
        HSIC(**SMALL).fit(views, init_labels=TRUTH)


# ---- BinaryKMeans


def test_clusters_have_the_numbers_of_their_fixed_rows():
    codes, truth = packed()
    fixed = {int(np.flatnonzero(truth == j)[k]): (j + 1) % C for j in range(C - 1) for k in range(5)}
    labels = BinaryKMeans(C, random_state=0).fit(codes, constraints=Constraints(fixed=fixed)).labels_
    assert np.mean(labels == (truth + 1) % C) > 0.9


@pytest.mark.parametrize("dtype", [np.uint8, np.uint64])
def test_equal_sizes_and_as_many_clusters_as_rows_work(dtype):
    codes = packed(24)[0].view(dtype)
    labels = BinaryKMeans(C, random_state=0).fit(codes, constraints=Constraints(min_size=6, max_size=6)).labels_
    np.testing.assert_array_equal(np.bincount(labels), [6] * C)
    alone = BinaryKMeans(24, random_state=0).fit(codes, constraints=Constraints(min_size=1))
    assert len(set(alone.labels_)) == 24
    assert alone.inertia_ == 0


def test_size_limits_are_met_if_all_codes_are_equal():
    codes = np.zeros((30, 8), np.uint8)
    labels = BinaryKMeans(5, random_state=0).fit(codes, constraints=Constraints(min_size=5, max_size=7)).labels_
    counts = np.bincount(labels, minlength=5)
    assert counts.min() >= 5
    assert counts.max() <= 7


def test_sample_weights_work_with_links_but_not_with_size_limits():
    codes = packed()[0]
    weights = np.random.default_rng(0).uniform(0.5, 2, len(codes))
    labels = (
        BinaryKMeans(C, random_state=0).fit(codes, sample_weight=weights, constraints=Constraints([(0, 1, 2)])).labels_
    )
    assert len(set(labels[:3])) == 1
    with pytest.raises(ParameterError, match="min_size and max_size count rows; remove sample_weight"):
        BinaryKMeans(C).fit(codes, sample_weight=weights, constraints=Constraints(max_size=200))

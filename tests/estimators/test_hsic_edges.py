"""HSIC and BinaryKMeans with extreme scales, unusual types and shapes."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_views import NOISY, TRUTH, VIEWS
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score

from bitmosaic import HSIC, BinaryKMeans
from bitmosaic.errors import BitmosaicError, InvalidDataError, ParameterError, ViewMismatchError
from bitmosaic.solver.scan import scan
from bitmosaic.views import as_views

SMALL = {"n_bits": 32, "n_anchors": 40, "random_state": 0}
EXACT = {name: X.astype(np.float64) for name, X in NOISY.items()}


def fitted(X, n_clusters=4, **changes):
    return HSIC(n_clusters, **(SMALL | changes)).fit(X)


@pytest.fixture(scope="module")
def model():
    return fitted(EXACT)


def assert_same(model, other):
    np.testing.assert_array_equal(model.codes_, other.codes_)
    np.testing.assert_array_equal(model.labels_, other.labels_)


# ---- parameters


@pytest.mark.parametrize("kind", [np.int8, np.uint64])
def test_integer_parameters_may_be_numpy_integers(model, kind):
    same = HSIC(kind(4), n_bits=kind(32), n_anchors=kind(40), n_init=kind(HSIC().n_init), random_state=0).fit(EXACT)
    assert_same(same, model)
    codes = model.codes_
    expected = BinaryKMeans(4, random_state=0).fit(codes).labels_
    np.testing.assert_array_equal(BinaryKMeans(kind(4), random_state=0).fit(codes).labels_, expected)


# ---- scales


@settings(max_examples=5, deadline=None)
@given(
    st.tuples(*[st.integers(-120, 122)] * 3),
    st.sampled_from([np.float32, np.float64]),
    st.sampled_from(["standard", "center"]),
)
def test_scaling_views_by_a_power_of_two_changes_nothing(powers, kind, scaling):
    scaled = {name: (X * 2.0**e).astype(kind) for (name, X), e in zip(EXACT.items(), powers, strict=True)}
    assert_same(fitted(scaled, scaling=scaling), fitted(NOISY, scaling=scaling))


@pytest.mark.parametrize(("scale", "kind"), [(1e-38, np.float32), (5e-324, np.float64)])
def test_a_view_too_small_for_float32_is_ignored_with_a_warning(scale, kind):
    tiny = {f"tiny {name}": (0.1 * X * scale).astype(kind) for name, X in EXACT.items()}
    with pytest.warns(UserWarning, match=r"Views \['tiny a'\] are constant .* \(a spread below 1e-37 counts"):
        model = fitted(VIEWS | {"tiny a": tiny["tiny a"]})
    assert adjusted_rand_score(TRUTH, model.labels_) == 1
    with (
        pytest.warns(UserWarning, match=r"'tiny a', 'tiny b', 'tiny c'\]"),
        pytest.warns(ConvergenceWarning, match="1 clusters were found"),
    ):
        assert not fitted(tiny).labels_.any()


@pytest.mark.parametrize("outlier", [1e25, 3e38])
@pytest.mark.parametrize("start", ["proposals", "rotation"])
def test_two_outliers_give_no_overflow_and_no_nan(outlier, start):
    """With outliers of 1e25, the inverse of the other distances overflows float32."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((6000, 3))
    X[7], X[8] = outlier, -outlier
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no overflow, no NaN
        warnings.filterwarnings("ignore", "There are fewer distinct codes")
        model = fitted(X, 3, start=start)
    assert all(np.isfinite(e.mean).all() for e in model._model.embeddings)
    assert np.isfinite(model.objective_)
    np.testing.assert_array_equal(model.predict(X), model.labels_)


def test_new_rows_with_the_largest_float32_get_a_cluster(model):
    largest = float(np.finfo(np.float32).max)
    far = {name: np.array([[largest], [-largest]]) * np.ones(X.shape[1]) for name, X in EXACT.items()}
    assert set(model.predict(far)) <= set(range(4))


@pytest.mark.parametrize("constant", [0.1, -1e20])
def test_a_constant_column_is_recognized_and_ignored_in_new_rows(constant):
    """A rounding error in the mean would give a tiny standard deviation, and move every new value far away."""
    X = np.hstack([EXACT["a"], np.full((600, 1), constant)])
    assert scan(as_views(X))[0].constant.tolist() == [False] * EXACT["a"].shape[1] + [True]
    model = fitted(X)
    X[:, -1] *= 1.001
    np.testing.assert_array_equal(model.predict(X), model.labels_)


def test_a_view_of_zeros_is_ignored_with_a_warning():
    with pytest.warns(UserWarning, match=r"Views \['zero'\] are constant"):
        model = fitted(VIEWS | {"zero": np.zeros((600, 3))})
    assert adjusted_rand_score(TRUTH, model.labels_) == 1
    np.testing.assert_array_equal(model.predict(VIEWS), model.labels_)
    far = VIEWS | {"zero": np.full((600, 3), 1e30)}
    np.testing.assert_array_equal(model.predict(far), model.labels_)


# ---- types and forms

WHOLE = {name: np.round(20 * X).clip(-120, 120) for name, X in EXACT.items()}


@pytest.fixture(scope="module")
def whole_model():
    return fitted(WHOLE)


@pytest.mark.parametrize("kind", ["f2", ">f8", "g", "i1", ">i8", "O"])
def test_every_type_of_number_gives_the_same_labels(kind, whole_model):
    X = {name: X.astype(kind) for name, X in WHOLE.items()}
    assert_same(fitted(X), whole_model)
    np.testing.assert_array_equal(whole_model.predict(X), whole_model.labels_)


@pytest.mark.parametrize(
    "X",
    [
        np.full((9, 2), "", object),
        np.full((9, 2), ""),
        np.full((9, 2), None),
        np.zeros((9, 2), "m8[s]"),
        np.zeros((9, 2), "c8"),
        np.zeros((9,), [("x", "f4")]),
        np.zeros((9, 2), "V4"),
    ],
    ids=["empty strings", "empty text", "None", "time", "complex", "records", "bytes"],
)
def test_values_that_are_not_numbers_raise_an_error(X):
    with pytest.raises(BitmosaicError):
        fitted({"a": X}, 2)


# ---- shapes


def test_views_may_have_many_columns_and_one_column():
    rng = np.random.default_rng(0)
    rows = np.arange(160)
    wide = rng.standard_normal((4, 30_000), dtype=np.float32)[rows % 4]
    wide += rng.standard_normal(wide.shape, dtype=np.float32)
    model = fitted({"wide": wide, "one": rng.standard_normal((160, 1))}, n_components=8)
    assert adjusted_rand_score(rows % 4, model.labels_) == 1
    far = wide[:2].copy()
    far[0], far[1, 0] = 3e38, -3e38
    assert set(model.predict({"wide": far})) <= set(range(4))


@pytest.mark.parametrize("start", ["proposals", "rotation"])
@pytest.mark.parametrize("n", [1, 2, 150])
def test_as_many_clusters_as_images_and_no_more(n, start):
    some = {name: X[:n] for name, X in NOISY.items()}
    assert sorted(fitted(some, n, start=start, n_bits=128).labels_) == list(range(n))
    assert not fitted(some, 1, start=start).labels_.any()
    with pytest.raises(InvalidDataError, match=f"n_samples={n} should be >= n_clusters={n + 1}"):
        fitted(some, n + 1, start=start)


@pytest.mark.parametrize("n_others", [0, 600])
def test_many_copies_of_one_image_give_a_warning(n_others):
    rng = np.random.default_rng(0)
    X = np.tile(rng.standard_normal(8).astype(np.float32), (30_000, 1))
    others = np.linspace(0, 29_999, n_others).astype(int)
    X[others] += 1 + rng.random((n_others, 8), dtype=np.float32)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = HSIC(10, random_state=0).fit(X)
    said = " ".join(str(w.message) for w in caught)
    assert ("Views ['view0'] are constant" in said) == (n_others == 0)
    alike = np.ones(30_000, bool)
    alike[others] = False
    assert len(set(model.labels_[alike])) == 1
    found = len(set(model.labels_))
    assert found <= 1 + n_others
    assert (f"{found} clusters were found" in said) == (found < 10)


@pytest.mark.parametrize("weight", [2.0**-1000, 2.0**90])
def test_the_scale_of_sample_weights_does_not_matter(weight):
    rng = np.random.default_rng(0)
    codes, ones = rng.integers(0, 256, (300, 4), dtype=np.uint8), np.ones(300)
    plain = BinaryKMeans(5, random_state=0).fit(codes, sample_weight=ones)
    scaled = BinaryKMeans(5, random_state=0).fit(codes, sample_weight=weight * ones)
    np.testing.assert_array_equal(scaled.labels_, plain.labels_)
    assert scaled.inertia_ == plain.inertia_ * weight


@pytest.mark.parametrize("weight", [2.0**-90, 2.0**90])
def test_the_scale_of_bit_weights_does_not_matter_within_float32(weight):
    rng = np.random.default_rng(0)
    codes, bits = rng.integers(0, 256, (300, 4), dtype=np.uint8), rng.random(32)
    plain = BinaryKMeans(5, random_state=0, bit_weights=bits).fit(codes)
    scaled = BinaryKMeans(5, random_state=0, bit_weights=weight * bits).fit(codes)
    np.testing.assert_array_equal(scaled.labels_, plain.labels_)
    with pytest.raises(ParameterError, match="must not all be zero, or below 1e-30: all distances would be zero"):
        BinaryKMeans(5, bit_weights=2.0**-120 * bits).fit(codes)


# ---- names


NAMES = st.lists(st.text(min_size=1, max_size=12), min_size=3, max_size=3, unique=True)


@settings(max_examples=5, deadline=None)
@given(NAMES, st.permutations(range(3)))
def test_views_may_have_any_names_in_any_order(names, order):
    views = dict(zip(names, NOISY.values(), strict=True))
    model = fitted(views)
    shuffled = {names[i]: views[names[i]] for i in order}
    np.testing.assert_array_equal(model.predict(shuffled), model.labels_)
    assert model.labels_.tolist() == fitted(NOISY).labels_.tolist()


def test_views_in_a_list_are_identified_by_position():
    model = fitted(list(NOISY.values()))
    with pytest.raises(ViewMismatchError, match="as many columns as at fit"):
        model.predict(list(NOISY.values())[::-1])
    np.testing.assert_array_equal(
        model.predict({"view2": NOISY["c"], "view0": NOISY["a"], "view1": NOISY["b"]}), model.labels_
    )

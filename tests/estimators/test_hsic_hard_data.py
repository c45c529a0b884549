"""HSIC with missing views, extreme scales, constants, copies and very few samples."""

import warnings

import numpy as np
import pytest
from planted_views import NOISY, TRUTH, VIEWS, blobs, lacking
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score

from bitmosaic import HSIC

SMALL = {"n_bits": 32, "n_anchors": 40, "random_state": 0}


@pytest.fixture(scope="module")
def model():
    return HSIC(4, **SMALL).fit(VIEWS)


@pytest.fixture(scope="module")
def noisy_model():
    return HSIC(4, **SMALL).fit(NOISY)


# ---- missing views


@pytest.mark.parametrize("names", [["b"], ["c", "a"]])
def test_clusters_are_predicted_from_any_views_in_any_order(model, names):
    some = {name: VIEWS[name] for name in names}
    assert adjusted_rand_score(TRUTH, model.predict(some)) == 1
    np.testing.assert_array_equal(model.transform(some), model.transform(dict(sorted(some.items()))))


@pytest.mark.parametrize("names", [["c"], ["a", "b"]])
def test_a_missing_view_is_the_same_as_nan(noisy_model, names):
    gaps = np.arange(600) % 3 > 0  # the other rows keep all views
    partly = {name: X if name in names else lacking(X, gaps) for name, X in NOISY.items()}
    codes = noisy_model.transform(partly)
    from_some = noisy_model.transform({name: NOISY[name] for name in names})
    np.testing.assert_array_equal(codes[gaps], from_some[gaps])
    np.testing.assert_array_equal(codes[~gaps], noisy_model.codes_[~gaps])
    assert (from_some != noisy_model.codes_).any()


def with_gaps(views, share, seed=0):
    """Each view missing in this share of the rows, and no row without any view."""
    rng = np.random.default_rng(seed)
    n = len(next(iter(views.values())))
    gaps = rng.random((len(views), n)) < share
    gaps[rng.integers(len(views), size=n), np.arange(n)] = False
    return {name: lacking(X, gap) for (name, X), gap in zip(views.items(), gaps, strict=True)}, gaps


@pytest.mark.parametrize("changes", [{}, {"start": "rotation"}, {"train_size": 0.5}])
def test_planted_clusters_are_found_with_a_third_of_the_views_missing(changes):
    views, gaps = with_gaps(VIEWS, 0.4)
    assert gaps.mean() > 0.25
    model = HSIC(4, **SMALL, **changes).fit(views)
    assert adjusted_rand_score(TRUTH, model.labels_) == 1
    np.testing.assert_array_equal(model.transform(views), model.codes_)
    np.testing.assert_array_equal(model.predict(views), model.labels_)
    assert adjusted_rand_score(TRUTH, model.predict(VIEWS)) == 1


def test_images_that_never_share_two_views_can_be_fitted():
    rows = np.arange(600)
    views = {name: lacking(X, rows % 3 != i) for i, (name, X) in enumerate(VIEWS.items())}
    with pytest.warns(UserWarning, match="nothing links the views"):
        model = HSIC(4, **SMALL).fit(views)
    assert model.labels_.shape == (600,)
    np.testing.assert_array_equal(model.predict(views), model.labels_)


@pytest.mark.parametrize("start", ["proposals", "rotation"])
@pytest.mark.parametrize("name", ["b"])
def test_a_view_does_not_gain_weight_by_missing_rows(start, name):
    rows = np.random.default_rng(0).random(2000) < 0.5
    views, _ = blobs(2000, spread=2.0, seed=2)
    model = HSIC(4, **(SMALL | {"start": start, "n_anchors": 30, "max_iter": 30}))
    complete = model.fit(views).view_weights_[model.view_names_.index(name)]
    halved = model.fit(views | {name: lacking(views[name], rows)}).view_weights_[model.view_names_.index(name)]
    # A sum over half of the rows would halve the loss of the view: α grows by 2^(1/4), its share of 1 by 12%.
    assert halved / complete < 1.05


# ---- numerically difficult data


@pytest.mark.parametrize("scaling", ["standard", "center"])
def test_a_large_offset_of_the_features_does_not_matter(scaling):
    views = {name: 1e6 + 0.9 * X / X.std(0, dtype=np.float64) for name, X in VIEWS.items()}
    model = HSIC(4, scaling=scaling, **SMALL).fit(views)
    assert adjusted_rand_score(TRUTH, model.labels_) == 1


@pytest.mark.parametrize("kind", [np.float64, np.int64])
def test_an_offset_beyond_the_precision_of_float32_does_not_matter(kind):
    scaled = {name: np.round(1000 * X.astype(np.float64)) for name, X in VIEWS.items()}
    near = HSIC(4, **SMALL).fit({name: X.astype(kind) for name, X in scaled.items()})
    far = HSIC(4, **SMALL).fit({name: (X + 1e12).astype(kind) for name, X in scaled.items()})
    assert adjusted_rand_score(TRUTH, far.labels_) == adjusted_rand_score(TRUTH, near.labels_) == 1


def test_few_anchors_are_enough_for_many_clusters():
    with pytest.warns(ConvergenceWarning, match="fewer distinct codes than n_clusters=100"):
        model = HSIC(100, **(SMALL | {"n_anchors": 5})).fit(VIEWS)
    assert len(np.unique(model.labels_)) == len(np.unique(model.codes_, axis=0))


@pytest.mark.parametrize("start", ["proposals", "rotation"])
def test_constant_features_are_ignored(start):
    settings = SMALL | {"start": start}
    constant = np.full((600, 3), [0, 7.7, -1e20])
    for X in (np.hstack([VIEWS["a"], constant]), {"a": VIEWS["a"], "constant": constant}):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = HSIC(4, **settings).fit(X)
        assert ["['constant']" in str(w.message) for w in caught] == [True] * isinstance(X, dict)
        assert adjusted_rand_score(TRUTH, model.labels_) > 0.9
        np.testing.assert_array_equal(model.predict(X), model.labels_)


def test_more_bits_than_the_data_have_dimensions_are_possible():
    model = HSIC(4, n_bits=512, n_anchors=10, random_state=0).fit(VIEWS["b"][:, :2])
    assert model.codes_.shape == (600, 64)
    assert len(set(model.labels_)) == 4
    np.testing.assert_array_equal(model.transform(VIEWS["b"][:, :2]), model.codes_)


@pytest.mark.parametrize(("start", "n_bits", "n_views"), [("proposals", 32, 1), ("rotation", 8, 2)])
def test_equal_samples_give_one_cluster_and_a_warning(start, n_bits, n_views):
    same = [np.full((300, 3), 2.5)] * n_views
    model = HSIC(3, **(SMALL | {"start": start, "n_bits": n_bits}))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(same)
    assert [str(w.message) for w in caught] == [
        f"Views {['view0', 'view1'][:n_views]} are constant in the 300 rows scanned and carry no information "
        "(a spread below 1e-37 counts as constant). Scale the values up or remove these views.",
        "There are fewer distinct codes than n_clusters=3: 1 clusters were found. "
        "Many images may be alike, or n_bits too small.",
    ]
    assert set(model.labels_) == {0}
    np.testing.assert_array_equal(model.predict(same), model.labels_)


@pytest.mark.parametrize("start", ["proposals", "rotation"])
def test_fewer_distinct_samples_than_clusters_give_a_warning(start):
    X = np.repeat(VIEWS["a"][:3], 50, axis=0)
    with pytest.warns(ConvergenceWarning, match=r"fewer distinct codes than n_clusters=5: 3 clusters were found"):
        model = HSIC(5, start=start, **SMALL).fit(X)
    assert adjusted_rand_score(np.repeat(range(3), 50), model.labels_) == 1


def test_an_objective_that_still_falls_gives_a_warning():
    with pytest.warns(ConvergenceWarning, match="in the last of max_iter=2 iterations. Raise max_iter"):
        HSIC(4, max_iter=2, start="rotation", **SMALL).fit(NOISY)


def test_views_are_scaled_by_what_they_hold():
    rng = np.random.default_rng(0)
    histogram, signed = rng.gamma(0.5, size=(300, 6)), rng.gamma(0.5, size=(300, 5)) - 1
    symmetric = rng.uniform(size=(300, 5))
    histogram[7] = np.nan
    views = [histogram, signed, symmetric]
    model = HSIC(3, n_bits=32, random_state=0).fit(views)
    assert model.scalings_ == ["root", "center", "standard"]
    np.testing.assert_array_equal(model.transform(views), model.codes_)
    roots, rooted = (HSIC(3, n_bits=32, random_state=0, scaling=scaling) for scaling in ("root", "standard"))
    np.testing.assert_array_equal(roots.fit(histogram[8:]).labels_, rooted.fit(np.sqrt(histogram[8:])).labels_)
    assert HSIC.paper(3, random_state=0).fit([histogram[8:]]).scalings_ == ["center"]

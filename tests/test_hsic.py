"""HSIC: one common binary code and one cluster for every image, from all or some of its views."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.estimator_checks import parametrize_with_checks

import bitmosaic.hsic
from bitmosaic import HSIC

SMALL = {"n_bits": 32, "n_anchors": 40, "random_state": 0}
WIDTHS = {"a": 12, "b": 7, "c": 20}


def blobs(n=600, n_clusters=4, spread=4.0, seed=0):
    """Three views of the same planted clusters with unit noise, and the true clusters."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(n_clusters, size=n)
    views = {
        name: (spread * rng.standard_normal((n_clusters, d))[truth] + rng.standard_normal((n, d))).astype(np.float32)
        for name, d in WIDTHS.items()
    }
    return views, truth


VIEWS, TRUTH = blobs()
NOISY, _ = blobs(spread=0.7, seed=1)  # no clear clusters: codes and labels are easily upset


def lacking(X, rows):
    X = X.copy()
    X[rows] = np.nan
    return X


@pytest.fixture(scope="module")
def model():
    return HSIC(4, **SMALL).fit(VIEWS)


@pytest.fixture(scope="module")
def noisy_model():
    return HSIC(4, **SMALL).fit(NOISY)


@parametrize_with_checks([HSIC(n_clusters=3, n_bits=16, n_anchors=20, random_state=0)])
def test_hsic_keeps_the_contract_of_scikit_learn(estimator, check):
    check(estimator)


# ---- what a fit gives


def test_every_fitted_attribute_has_its_shape_and_type(model):
    assert (model.labels_.shape, model.labels_.dtype) == ((600,), np.int32)
    assert (model.codes_.shape, model.codes_.dtype) == ((600, 4), np.uint8)
    assert (model.cluster_centers_.shape, model.cluster_centers_.dtype) == ((4, 4), np.uint8)
    assert (model.view_weights_.shape, model.view_weights_.dtype) == ((3,), np.float64)
    assert (model.view_weights_ > 0).all()
    assert model.view_weights_.sum() == pytest.approx(1)
    assert isinstance(model.objective_, float)
    assert model.objective_ == model.objective_history_[-1][2]
    assert {step for _, step, _ in model.objective_history_} == {"P", "B", "Q", "F", "α"}
    assert isinstance(model.n_iter_, int)
    assert 1 <= model.n_iter_ <= 10
    assert model.view_names_ == ["a", "b", "c"]
    assert model.n_features_in_ == sum(WIDTHS.values())
    assert model.get_feature_names_out().tolist() == ["hsic0", "hsic1", "hsic2", "hsic3"]


@pytest.mark.parametrize("X", [VIEWS, list(VIEWS.values()), VIEWS["a"]], ids=["dict", "list", "array"])
@pytest.mark.parametrize("start", ["consensus", "rotation"])
def test_planted_clusters_are_found(X, start):
    assert adjusted_rand_score(TRUTH, HSIC(4, start=start, **SMALL).fit_predict(X)) == 1


def test_views_in_a_list_are_named_by_their_number():
    assert HSIC(4, **SMALL).fit(list(VIEWS.values())).view_names_ == ["view0", "view1", "view2"]


def test_the_labels_are_ignored(model):
    np.testing.assert_array_equal(clone(model).fit(VIEWS, TRUTH).labels_, model.labels_)


def test_codes_of_the_same_cluster_are_nearer_than_codes_of_two(model):
    bits = np.unpackbits(model.codes_, axis=1).astype(int)
    distance = np.abs(bits[:, None] - bits).sum(2)
    same = model.labels_[:, None] == model.labels_
    assert distance[same].mean() < 0.5 * distance[~same].mean()


def test_transform_can_give_a_data_frame(model):
    pytest.importorskip("pandas")
    frame = clone(model).set_output(transform="pandas").fit(VIEWS).transform(VIEWS)
    assert frame.columns.tolist() == ["hsic0", "hsic1", "hsic2", "hsic3"]
    np.testing.assert_array_equal(frame.to_numpy(), model.codes_)


@pytest.mark.parametrize("train_size", [300, 0.5, 5000, "auto"])
def test_all_rows_get_codes_and_labels_whatever_the_training_sample(train_size, capsys, monkeypatch):
    monkeypatch.setattr(bitmosaic.hsic, "AUTO_TRAIN_SIZE", 450)
    model = HSIC(4, train_size=train_size, verbose=1, **SMALL).fit(VIEWS)
    assert model.labels_.shape == (600,)
    assert model.codes_.shape == (600, 4)
    assert adjusted_rand_score(TRUTH, model.labels_) == 1
    np.testing.assert_array_equal(model.predict(VIEWS), model.labels_)
    n_train = {300: 300, 0.5: 300, 5000: 600, "auto": 450}[train_size]
    assert f"embedding {n_train} training rows with 40 anchors" in capsys.readouterr().out


def test_verbose_tells_how_far_the_work_is_and_silence_is_the_default(capsys):
    HSIC(4, **SMALL).fit(NOISY)
    assert capsys.readouterr().out == ""
    HSIC(4, verbose=1, **SMALL).fit(NOISY)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "HSIC: looking through 600 rows of 3 views"
    assert any(line.startswith("HSIC: iteration 1/10: objective ") for line in lines)
    assert lines[-1] == "HSIC: encoding 600 rows"


# ---- new images


VARIANTS = {
    "default": {},
    "rotation": {"start": "rotation"},
    "frobenius": {"norm": "frobenius"},
    "two steps": {"joint": False},
    "unbalanced": {"balance": 0, "variance_reward": 0},
    "own anchors": {"anchors": "per_view"},
    "centred": {"standardize": False},
    "sample": {"train_size": 200},
    "sample, two steps": {"train_size": 200, "joint": False, "start": "rotation"},
    "all shared": {"shared_ratio": 1},
    "none shared": {"shared_ratio": 0.0},
    "long codes": {"n_bits": 200},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_training_images_keep_their_codes_and_labels(variant):
    model = HSIC(4, **(SMALL | VARIANTS[variant])).fit(NOISY)
    np.testing.assert_array_equal(model.transform(NOISY), model.codes_)
    np.testing.assert_array_equal(model.predict(NOISY), model.labels_)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_finds_planted_clusters(variant):
    assert adjusted_rand_score(TRUTH, HSIC(4, **(SMALL | VARIANTS[variant])).fit(VIEWS).labels_) == 1


@pytest.mark.parametrize("variant", ["frobenius", "two steps", "unbalanced", "rotation", "all shared"])
def test_a_variant_is_not_the_default(noisy_model, variant):
    other = HSIC(4, **(SMALL | VARIANTS[variant])).fit(NOISY)
    assert other.objective_ != noisy_model.objective_


def test_one_image_at_a_time_is_encoded_as_in_a_batch(noisy_model):
    for i in range(30):
        one = {name: X[i : i + 1] for name, X in NOISY.items()}
        np.testing.assert_array_equal(noisy_model.transform(one)[0], noisy_model.codes_[i])
        assert noisy_model.predict(one)[0] == noisy_model.labels_[i]


@pytest.mark.parametrize("n", [2, 63, 64, 65, 130])
def test_a_batch_of_any_size_is_encoded_alike(noisy_model, n):
    some = {name: X[600 - n :] for name, X in NOISY.items()}
    np.testing.assert_array_equal(noisy_model.transform(some), noisy_model.codes_[600 - n :])


def test_the_two_step_variant_learns_codes_that_do_not_depend_on_the_clusters():
    fits = [HSIC(k, joint=False, coupling=c, start="rotation", **SMALL).fit(NOISY) for k, c in [(4, 1e-5), (9, 100.0)]]
    np.testing.assert_array_equal(fits[0].codes_, fits[1].codes_)


@pytest.mark.parametrize("norm", ["l21", "frobenius"])
def test_a_strong_balance_gives_centers_with_as_many_ones_as_zeros(norm):
    ones = {
        balance: np.unpackbits(HSIC(4, balance=balance, norm=norm, **SMALL).fit(NOISY).cluster_centers_, axis=1).sum(1)
        for balance in (0, 10.0)
    }
    assert (ones[0] != 16).any()  # otherwise there is nothing to balance
    assert ones[10.0].tolist() == [16] * 4


def test_one_view_has_nothing_to_share():
    fits = [HSIC(4, shared_ratio=ratio, **SMALL).fit(NOISY["a"]) for ratio in (0, 0.5)]
    np.testing.assert_array_equal(fits[0].codes_, fits[1].codes_)


def test_the_paper_settings_are_those_of_the_paper():
    model = HSIC.paper(7)
    settings = {
        "n_clusters": 7,
        "n_bits": 128,
        "n_anchors": 1000,
        "shared_ratio": 0.2,
        "ridge": 1e-3,
        "variance_reward": 1e-3,
        "coupling": 1e-5,
        "view_exponent": 5,
        "max_iter": 10,
        "cluster_iter": 10,
        "norm": "l21",
        "joint": True,
        "start": "rotation",
        "standardize": False,
        "train_size": 1.0,
    }
    assert {name: model.get_params()[name] for name in settings} == settings
    assert model.train_size == 1.0  # the number 1 would be one row
    assert not isinstance(model.train_size, int)


def test_the_paper_settings_can_be_changed():
    model = HSIC.paper(4, n_bits=32, n_anchors=40, random_state=5)
    assert (model.n_bits, model.n_anchors, model.random_state, model.coupling) == (32, 40, 5, 1e-5)
    assert adjusted_rand_score(TRUTH, model.fit(VIEWS).labels_) == 1
    with pytest.raises(TypeError, match="n_bit"):
        HSIC.paper(4, n_bit=32)


# ---- views that images lack


@pytest.mark.parametrize("names", [["a"], ["b"], ["c"], ["c", "a"], ["b", "c"], ["c", "b", "a"]])
def test_clusters_are_predicted_from_any_views_in_any_order(model, names):
    some = {name: VIEWS[name] for name in names}
    assert adjusted_rand_score(TRUTH, model.predict(some)) == 1
    np.testing.assert_array_equal(model.transform(some), model.transform(dict(sorted(some.items()))))


@pytest.mark.parametrize("names", [["a"], ["c"], ["a", "b"], ["c", "b"]])
def test_a_view_left_out_is_a_view_of_nan(noisy_model, names):
    gaps = np.arange(600) % 3 > 0  # the other rows keep all views
    partly = {name: X if name in names else lacking(X, gaps) for name, X in NOISY.items()}
    codes = noisy_model.transform(partly)
    from_some = noisy_model.transform({name: NOISY[name] for name in names})
    np.testing.assert_array_equal(codes[gaps], from_some[gaps])
    np.testing.assert_array_equal(codes[~gaps], noisy_model.codes_[~gaps])
    assert (from_some != noisy_model.codes_).any()


def test_images_that_all_lack_the_same_view_can_be_predicted(noisy_model):
    none = {"a": NOISY["a"], "b": np.full_like(NOISY["b"], np.nan)}
    np.testing.assert_array_equal(noisy_model.transform(none), noisy_model.transform({"a": NOISY["a"]}))


def test_one_image_that_lacks_a_view_is_encoded_as_in_a_batch(noisy_model):
    gaps = np.arange(600) % 2 == 0
    partly = NOISY | {"b": lacking(NOISY["b"], gaps)}
    codes = noisy_model.transform(partly)
    for i in range(4):
        one = {name: X[i : i + 1] for name, X in partly.items()}
        np.testing.assert_array_equal(noisy_model.transform(one)[0], codes[i])


def with_gaps(views, share, seed=0):
    """Each view missing in this share of the rows, and no row without any view."""
    rng = np.random.default_rng(seed)
    n = len(next(iter(views.values())))
    gaps = rng.random((len(views), n)) < share
    gaps[rng.integers(len(views), size=n), np.arange(n)] = False
    return {name: lacking(X, gap) for (name, X), gap in zip(views.items(), gaps, strict=True)}, gaps


@pytest.mark.parametrize("changes", [{}, {"start": "rotation"}, {"train_size": 0.5}, {"anchors": "per_view"}])
def test_planted_clusters_are_found_where_a_third_of_the_views_are_missing(changes):
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
    model = HSIC(4, **SMALL).fit(views)
    assert model.labels_.shape == (600,)
    np.testing.assert_array_equal(model.predict(views), model.labels_)


@pytest.mark.parametrize("start", ["consensus", "rotation"])
@pytest.mark.parametrize("name", WIDTHS)
def test_a_view_does_not_gain_weight_by_missing_rows(start, name):
    rows = np.random.default_rng(0).random(2000) < 0.5
    views, _ = blobs(2000, spread=2.0, seed=2)
    model = HSIC(4, **(SMALL | {"start": start, "n_anchors": 30}))
    complete = model.fit(views).view_weights_[model.view_names_.index(name)]
    halved = model.fit(views | {name: lacking(views[name], rows)}).view_weights_[model.view_names_.index(name)]
    # A sum over half of the rows would halve the loss of the view: α grows by 2^(1/4), its share of 1 by 12%.
    assert halved / complete < 1.05


# ---- data that are hard to compute with


@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_the_scale_of_the_features_does_not_matter(scale, standardize):
    views = {name: X.astype(np.float64) * scale for name, X in VIEWS.items()}
    model = HSIC(4, standardize=standardize, **SMALL).fit(views)
    reference = HSIC(4, standardize=standardize, **SMALL).fit(VIEWS)
    assert adjusted_rand_score(reference.labels_, model.labels_) == 1
    assert adjusted_rand_score(TRUTH, model.labels_) == 1


@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("deviation", [0.9, 5])
def test_a_large_offset_of_the_features_does_not_matter(deviation, standardize):
    views = {name: 1e6 + deviation * X / X.std(0, dtype=np.float64) for name, X in VIEWS.items()}
    model = HSIC(4, standardize=standardize, **SMALL).fit(views)
    assert adjusted_rand_score(TRUTH, model.labels_) == 1


def test_features_too_small_for_float32_to_standardise_do_no_harm():
    tiny = HSIC(4, **SMALL).fit(VIEWS | {"tiny": VIEWS["b"] * np.float32(1e-40)})
    assert adjusted_rand_score(TRUTH, tiny.labels_) == 1


@pytest.mark.parametrize("start", ["consensus", "rotation"])
@pytest.mark.parametrize("n_bits", [8, 32])
def test_constant_features_do_no_harm(start, n_bits):
    settings = SMALL | {"start": start, "n_bits": n_bits}
    constant = np.full((600, 3), [0, 7.7, -1e20])
    for X in (np.hstack([VIEWS["a"], constant]), {"a": VIEWS["a"], "constant": constant}):
        model = HSIC(4, **settings).fit(X)
        assert adjusted_rand_score(TRUTH, model.labels_) > 0.9
        np.testing.assert_array_equal(model.predict(X), model.labels_)


def test_more_bits_than_the_data_have_dimensions_are_possible():
    model = HSIC(4, n_bits=512, n_anchors=10, random_state=0).fit(VIEWS["b"][:, :2])
    assert model.codes_.shape == (600, 64)
    assert len(set(model.labels_)) == 4
    np.testing.assert_array_equal(model.transform(VIEWS["b"][:, :2]), model.codes_)


@pytest.mark.parametrize("start", ["consensus", "rotation"])
@pytest.mark.parametrize("n_bits", [8, 32])
@pytest.mark.parametrize("n_views", [1, 2])
def test_samples_that_are_all_the_same_are_one_cluster_and_one_warning(start, n_bits, n_views):
    same = [np.full((300, 3), 2.5)] * n_views
    model = HSIC(3, **(SMALL | {"start": start, "n_bits": n_bits}))
    with pytest.warns(ConvergenceWarning) as caught:
        model.fit(same)
    assert [str(w.message) for w in caught] == [
        "There are fewer distinct codes than n_clusters=3: 1 clusters were found. "
        "Many images may be alike, or n_bits too small."
    ]
    assert set(model.labels_) == {0}
    np.testing.assert_array_equal(model.predict(same), model.labels_)


@pytest.mark.parametrize("start", ["consensus", "rotation"])
def test_fewer_distinct_samples_than_clusters_are_found_and_a_warning(start):
    X = np.repeat(VIEWS["a"][:3], 50, axis=0)
    with pytest.warns(ConvergenceWarning, match=r"fewer distinct codes than n_clusters=5: 3 clusters were found"):
        model = HSIC(5, start=start, **SMALL).fit(X)
    assert adjusted_rand_score(np.repeat(range(3), 50), model.labels_) == 1


def test_an_objective_that_still_falls_is_a_warning():
    with pytest.warns(ConvergenceWarning, match="in the last of max_iter=2 iterations. Raise max_iter"):
        HSIC(4, max_iter=2, **SMALL).fit(VIEWS["a"])


@pytest.mark.parametrize("start", ["consensus", "rotation"])
def test_as_many_samples_as_clusters_are_a_cluster_each(start):
    model = HSIC(7, start=start, **SMALL).fit(VIEWS["a"][:7])
    assert sorted(model.labels_) == list(range(7))


def test_one_sample_is_one_cluster():
    model = HSIC(1, **SMALL).fit(VIEWS["a"][:1])
    assert model.labels_.tolist() == [0]
    assert model.predict(VIEWS["a"][:5]).tolist() == [0] * 5

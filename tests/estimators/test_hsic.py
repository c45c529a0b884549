"""HSIC: one binary code and one cluster per image, from all or some of its views."""

import numpy as np
import pytest
from planted_views import NOISY, TRUTH, VIEWS, WIDTHS
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from bitmosaic import HSIC
from bitmosaic.estimators import hsic
from bitmosaic.solver.memory import Needs
from bitmosaic.solver.train import loop_settings

SMALL = {"n_bits": 32, "n_anchors": 40, "random_state": 0}


@pytest.fixture(scope="module")
def model():
    return HSIC(4, **SMALL).fit(VIEWS)


@pytest.fixture(scope="module")
def noisy_model():
    return HSIC(4, **SMALL).fit(NOISY)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # the checks use data without clusters
@parametrize_with_checks([HSIC(n_clusters=3, n_bits=16, n_anchors=20, random_state=0)])
def test_hsic_passes_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


# ---- fit


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
@pytest.mark.parametrize("start", ["proposals", "rotation"])
def test_planted_clusters_are_found(X, start):
    assert adjusted_rand_score(TRUTH, HSIC(4, start=start, **SMALL).fit_predict(X)) == 1


@pytest.mark.parametrize("train_size", [0.5, 5000, "auto"])
def test_all_rows_get_codes_and_labels_for_any_train_size(train_size, capsys, monkeypatch):
    monkeypatch.setattr(hsic, "AUTO_TRAIN_SIZE", 450)
    model = HSIC(4, train_size=train_size, verbose=1, **SMALL).fit(VIEWS)
    assert model.labels_.shape == (600,)
    assert model.codes_.shape == (600, 4)
    assert adjusted_rand_score(TRUTH, model.labels_) == 1
    np.testing.assert_array_equal(model.predict(VIEWS), model.labels_)
    n_train = {0.5: 300, 5000: 600, "auto": 450}[train_size]
    assert f"embedding {n_train} training rows with 40 anchors" in capsys.readouterr().out


@pytest.mark.parametrize(("n", "n_train"), [(14_999, 14_999), (15_001, 15_000)])
def test_the_default_train_size_is_at_most_15000_rows(n, n_train):
    assert HSIC(4).check(n).n_train == n_train
    assert HSIC(4, train_size=1.0).check(n).n_train == HSIC(4, train_size=n).check(n).n_train == n
    assert HSIC.paper(4).check(n).n_train == n


def test_verbose_prints_progress_and_the_default_prints_nothing(capsys):
    HSIC(4, **SMALL).fit(NOISY)
    assert capsys.readouterr().out == ""
    HSIC(4, verbose=1, **SMALL).fit(NOISY)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "HSIC: scanning 600 of 600 rows of 3 views"
    assert any(line.startswith("HSIC: iteration 1/8: objective ") for line in lines)
    assert lines[-1] == "HSIC: encoding 600 rows"


# ---- prediction


VARIANTS = {
    "default": {},
    "rotation": {"start": "rotation"},
    "frobenius": {"norm": "frobenius"},
    "two steps": {"joint": False},
    "unbalanced": {"balance": 0, "variance_reward": 0},
    "own anchors": {"anchors": "per_view"},
    "centered": {"scaling": "center"},
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


@pytest.mark.parametrize("variant", ["frobenius", "two steps", "own anchors", "all shared", "long codes"])
def test_variants_find_planted_clusters(variant):
    assert adjusted_rand_score(TRUTH, HSIC(4, **(SMALL | VARIANTS[variant])).fit(VIEWS).labels_) == 1


@pytest.mark.parametrize("variant", ["frobenius", "two steps", "unbalanced"])
def test_a_variant_is_not_the_default(noisy_model, variant):
    other = HSIC(4, **(SMALL | VARIANTS[variant])).fit(NOISY)
    assert other.objective_ != noisy_model.objective_


@pytest.mark.parametrize("n", [63, 130])
def test_codes_do_not_depend_on_the_batch_size(noisy_model, n):
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


def widths_of(model):
    """Number of columns of the anchors of each view."""
    return [e.anchors.shape[1] for e in model._model.embeddings]


def test_views_are_reduced_to_n_components_unless_it_is_none():
    assert widths_of(HSIC(4, n_components=3, **SMALL).fit(NOISY)) == [3, 3, 3]
    some = widths_of(HSIC(4, n_components=10, **SMALL).fit(NOISY))
    assert all(k <= most for k, most in zip(some, [10, 7, 10], strict=True))
    whole = HSIC(4, n_components=None, **SMALL).fit(NOISY)
    assert widths_of(whole) == list(WIDTHS.values())
    assert all(e.basis is None for e in whole._model.embeddings)
    assert all(e.basis is None for e in HSIC.paper(4, **SMALL).fit(NOISY)._model.embeddings)


def test_redundant_columns_are_damped():
    """A signal in 300 columns has 300 times the variance of one in a single column; after damping, about 25 times."""
    rng = np.random.default_rng(0)
    copies = np.repeat(rng.standard_normal((500, 1)), 300, axis=1)
    X = np.hstack([copies + 0.01 * rng.standard_normal(copies.shape), rng.standard_normal((500, 9))])
    variance = np.linalg.eigvalsh(np.corrcoef(X.T))[::-1][:8]
    assert variance[0] > 250 * variance[1:].mean()
    for views, expected in (([X, X[:, ::-1]], variance / np.sqrt(variance + 1)), ([X], variance)):  # not if alone
        e = HSIC(2, n_components=8, scaling="standard", **SMALL).fit(views)._model.embeddings[0]
        assert e.width == 8
        np.testing.assert_allclose(e.normalize(X)[0].var(0), expected, rtol=0.02)


def test_a_row_without_similar_anchor_has_the_same_code_with_and_without_cache(monkeypatch):
    """Rows without any similarity are zero before and after centering."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1500, 4)) + 8 * np.eye(3, 4)[np.arange(1500) % 3]
    X[::100] += 40 * rng.standard_normal((15, 4))
    model = HSIC(3, **SMALL).fit([X, X[:, :2]])
    assert any((~e(X[:, : len(e.offset)])[0].any(1)).any() for e in model._model.embeddings)
    np.testing.assert_array_equal(model.predict([X, X[:, :2]]), model.labels_)
    monkeypatch.setattr(Needs, "plan", lambda needs, limit, n_threads: (n_threads, 0))
    small = HSIC(3, **SMALL).fit([X, X[:, :2]])
    np.testing.assert_array_equal(small.codes_, model.codes_)


def test_shared_ratio_is_ignored_with_one_view():
    fits = [HSIC(4, shared_ratio=ratio, **SMALL).fit(NOISY["a"]) for ratio in (0, 0.5)]
    np.testing.assert_array_equal(fits[0].codes_, fits[1].codes_)


def test_paper_has_the_settings_of_the_paper():
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
        "scaling": "center",
        "n_components": None,
        "train_size": 1.0,
    }
    assert {name: model.get_params()[name] for name in settings} == settings
    assert model.train_size == 1.0  # the number 1 would be one row
    assert not isinstance(model.train_size, int)


def test_the_paper_settings_can_be_changed():
    model = HSIC.paper(4, n_bits=32, n_anchors=40, random_state=5)
    assert (model.n_bits, model.n_anchors, model.random_state, model.coupling) == (32, 40, 5, 1e-5)
    assert adjusted_rand_score(TRUTH, model.fit(VIEWS).labels_) == 1
    with pytest.raises(ValueError, match=r"Invalid parameter .n_bit."):
        HSIC.paper(4, n_bit=32)


def test_the_fast_preset_changes_only_defaults(tmp_path):
    fast = HSIC(30, preset="fast").check(50_000)
    assert (fast.n_anchors, fast.n_train, fast.max_iter, fast.n_init) == (128, 5000, 4, 3)
    given = HSIC(30, preset="fast", n_anchors=50, train_size=0.5, max_iter=7).check(50_000)
    assert (given.n_anchors, given.n_train, given.max_iter, given.n_init) == (50, 25_000, 7, 3)
    assert HSIC(500, preset="fast").check(50_000).n_train == 10_000  # twenty rows for each cluster
    assert HSIC(30).check(50_000).n_train == 15_000
    assert HSIC(2000).check(50_000).n_train == 40_000
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 80)) + 2 * rng.standard_normal((3, 80))[np.arange(400) % 3]
    model = HSIC(3, preset="fast", random_state=0).fit(X)
    assert adjusted_rand_score(np.arange(400) % 3, model.labels_) == 1
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(HSIC.load(tmp_path / "model").predict(X), model.labels_)


def test_many_clusters_have_fewer_iterations_and_rounds():
    """Only if the number is "auto"."""
    given = ((99, "auto"), (100, "auto"), (100, 6), ("auto", "auto"))
    assert [HSIC(c, max_iter=most).check(50_000).max_iter for c, most in given] == [8, 4, 6, 8]
    assert HSIC.paper(1000).check(50_000).max_iter == 10
    options = [HSIC(c, cluster_iter=given).check(50_000) for c, given in ((200, "auto"), (1000, "auto"), (1000, 7))]
    settings = [loop_settings(o, 20_000, [np.arange(5)]) for o in options]
    assert [s.cluster_iter for s in settings] == [10, 2, 7]
    assert HSIC.paper(1000).check(50_000).cluster_iter == 10

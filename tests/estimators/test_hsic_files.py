"""A saved HSIC is loaded exactly."""

import numpy as np
import pytest

from bitmosaic import HSIC
from bitmosaic.estimators import hsic

SMALL = {"n_bits": 16, "n_anchors": 20, "random_state": 0}
RNG = np.random.default_rng(0)
A, B = RNG.standard_normal((90, 5)), RNG.standard_normal((90, 3))
B[RNG.random(90) < 0.2] = np.nan
VIEWS = {"hog": A, "gist": B}

MODELS = {
    "two views": (VIEWS, HSIC(3, **SMALL)),
    "a list": ([A, B], HSIC(3, start="rotation", norm="frobenius", joint=False, **SMALL)),
    "one array": (A, HSIC(3, train_size=40, memory_limit="1GB", chunk_size=7, n_threads=2, **SMALL)),
    "numbers of NumPy": (A, HSIC(np.int64(3), n_bits=16, ridge=np.float32(1e-3), joint=np.True_, random_state=0)),
    "a generator": (VIEWS, HSIC(3, n_bits=24, random_state=np.random.RandomState(0))),
    "few components": (VIEWS, HSIC(3, n_components=2, **SMALL)),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_saved_model_is_loaded_exactly(kind, tmp_path):
    X, model = MODELS[kind]
    model.fit(X).save(tmp_path / "model")
    back = HSIC.load(tmp_path / "model")

    for name in ("labels_", "codes_", "cluster_centers_", "view_weights_"):
        np.testing.assert_array_equal(getattr(back, name), getattr(model, name))
        assert getattr(back, name).dtype == getattr(model, name).dtype
    for name in ("objective_", "objective_history_", "n_iter_", "view_names_", "n_features_in_"):
        assert getattr(back, name) == getattr(model, name)
    expected = model.get_params()
    if isinstance(expected["random_state"], np.random.RandomState):
        expected["random_state"] = None  # the state of a RandomState is not saved
    assert back.get_params() == expected

    for e, other in zip(back._model.embeddings, model._model.embeddings, strict=True):
        narrow = model.n_components is None or len(e.offset) <= model.n_components
        assert (e.basis is None) == (other.basis is None) == narrow
        if e.basis is not None:
            np.testing.assert_array_equal(e.basis, other.basis)

    np.testing.assert_array_equal(back.predict(X), model.labels_)
    np.testing.assert_array_equal(back.transform(X), model.codes_)
    assert back.get_feature_names_out().tolist() == model.get_feature_names_out().tolist()


def test_a_saved_model_does_not_depend_on_later_presets(tmp_path, monkeypatch):
    X = np.random.default_rng(0).standard_normal((90, 40))
    model = HSIC(3, preset="fast", n_bits=16, random_state=0).fit(X)
    model.save(tmp_path / "model")
    monkeypatch.setitem(hsic.FAST, "n_components", 64)  # today's preset would not reduce 40 columns
    np.testing.assert_array_equal(HSIC.load(tmp_path / "model").predict(X), model.labels_)


def test_a_loaded_model_predicts_from_some_views(tmp_path):
    model = HSIC(3, **SMALL).fit(VIEWS)
    model.save(tmp_path / "model")
    back = HSIC.load(tmp_path / "model")
    np.testing.assert_array_equal(back.predict({"hog": A}), model.predict({"hog": A}))
    with pytest.raises(ValueError, match="got 4"):
        back.predict({"hog": A[:, :4]})


def test_a_loaded_model_can_be_fitted_and_saved_again(tmp_path):
    model = HSIC(3, **SMALL).fit(VIEWS)
    model.save(tmp_path / "model")
    back = HSIC.load(tmp_path / "model")
    back.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "model").read_bytes()
    np.testing.assert_array_equal(back.fit(VIEWS).codes_, model.codes_)


def test_a_loaded_model_knows_the_names_of_the_columns(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(A, columns=list("abcde"))
    HSIC(3, **SMALL).fit(frame).save(tmp_path / "model")
    back = HSIC.load(tmp_path / "model")
    assert back.feature_names_in_.tolist() == list("abcde")
    with pytest.raises(ValueError, match="feature names should match"):
        back.predict(frame[list("edcba")])

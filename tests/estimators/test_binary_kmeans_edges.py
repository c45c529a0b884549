"""BinaryKMeans: bad input, scikit-learn conventions, and files."""

import re

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from bitmosaic import BinaryKMeans
from bitmosaic.errors import BitmosaicError, ModelFileError
from bitmosaic.estimators.model_file import read_model, write_model

CODES = np.random.default_rng(0).integers(256, size=(60, 8), dtype=np.uint8)


@pytest.fixture(scope="module")
def model():
    return BinaryKMeans(4, random_state=0).fit(CODES)


BAD_CODES = {
    "floats": (CODES / 2, TypeError, r"array of uint8 or uint64; got float64. Pack ±1 or 0/1 columns with np.packbits"),
    "a list": (CODES.tolist(), TypeError, "array of uint8 or uint64; got list"),
    "the wrong byte order": (CODES.view(">u8"), TypeError, "array of uint8 or uint64; got >u8"),
    "one code": (CODES[0], ValueError, r"2-D array with one row per sample; got shape \(8,\)"),
    "no bits": (CODES[:, :0], ValueError, r"2-D array with one row per sample; got shape \(60, 0\)"),
}


@pytest.mark.parametrize("kind", BAD_CODES)
def test_codes_of_a_wrong_type_raise_an_error(model, kind):
    bad, builtin, message = BAD_CODES[kind]
    for method in (BinaryKMeans(4).fit, model.predict, model.transform):
        with pytest.raises(BitmosaicError, match=message) as caught:
            method(bad)
        assert isinstance(caught.value, builtin)


def test_codes_of_another_width_raise_an_error(model):
    for method in (model.predict, model.transform):
        with pytest.raises(ValueError, match="must have 64 bits, as at fit; got 40") as caught:
            method(CODES[:, :5])
        assert isinstance(caught.value, BitmosaicError)


@pytest.mark.parametrize("n", [0, 3])
def test_fewer_samples_than_clusters_raise_an_error(n):
    with pytest.raises(ValueError, match=f"n_samples={n} should be >= n_clusters=4. Lower n_clusters") as caught:
        BinaryKMeans(4).fit(CODES[:n])
    assert isinstance(caught.value, BitmosaicError)


BAD_SAMPLE_WEIGHTS = {
    "negative": (np.r_[-1.0, np.ones(59)], r"60 numbers from 0 to 1e30; got shape \(60,\) with -1.0 as"),
    "NaN": (np.r_[np.nan, np.ones(59)], "60 numbers from 0"),
    "too few": (np.ones(59), r"got shape \(59,\)"),
    "words": (["a"] * 60, "sample_weight must be numbers; got list"),
}


@pytest.mark.parametrize("kind", BAD_SAMPLE_WEIGHTS)
def test_bad_sample_weights_raise_an_error(kind):
    bad, message = BAD_SAMPLE_WEIGHTS[kind]
    with pytest.raises(ValueError, match=message) as caught:
        BinaryKMeans(4).fit(CODES, sample_weight=bad)
    assert isinstance(caught.value, BitmosaicError)


BAD_PARAMETERS = [
    ({"n_clusters": 0}, r"'n_clusters' parameter of BinaryKMeans must be an int in the range \[1, inf\). Got 0"),
    ({"n_clusters": 2.5}, "'n_clusters' .* Got 2.5"),
    ({"n_init": 0}, "'n_init' .* Got 0"),
    ({"max_iter": 0}, "'max_iter' .* Got 0"),
    ({"balance": -0.1}, "'balance' .* Got -0.1"),
    ({"n_threads": 0}, "'n_threads' .* Got 0"),
    ({"random_state": "x"}, "'random_state' .* Got 'x'"),
    ({"init": "random"}, "'init' .* Got 'random'"),
    ({"init": CODES[:3]}, "init must hold n_clusters=4 codes of 64 bits; got 3 of 64"),
    ({"init": CODES[:4, :5]}, "init must hold n_clusters=4 codes of 64 bits; got 4 of 40"),
    ({"init": CODES[0]}, r"got shape \(8,\)"),
    ({"bit_weights": -np.ones(64)}, "bit_weights must be 64 numbers from 0 to 1e30; .* -1.0"),
    ({"bit_weights": np.ones(63)}, r"bit_weights must be 64 .* got shape \(63,\)"),
    ({"bit_weights": np.zeros(64)}, "bit_weights must not all be zero"),
    ({"bit_weights": ["a"] * 64}, "bit_weights must be numbers; got list"),
]


@pytest.mark.parametrize(("parameters", "message"), BAD_PARAMETERS)
def test_parameters_out_of_range_raise_an_error(parameters, message):
    with pytest.raises(ValueError, match=message) as caught:
        BinaryKMeans(**({"n_clusters": 4} | parameters)).fit(CODES)
    assert isinstance(caught.value, BitmosaicError)


def test_an_unfitted_model_raises_an_error(tmp_path):
    model = BinaryKMeans(4)
    calls = [lambda: model.predict(CODES), lambda: model.transform(CODES), lambda: model.save(tmp_path / "model")]
    for call in calls:
        with pytest.raises(NotFittedError, match="This BinaryKMeans instance is not fitted yet") as caught:
            call()
        assert isinstance(caught.value, BitmosaicError)
    assert not list(tmp_path.iterdir())


# ---- scikit-learn's conventions


# ---- files


MODELS = {
    "bytes": (CODES, {"random_state": 0}),
    "words": (CODES.view(np.uint64), {"random_state": 1}),
    "bit weights": (CODES, {"random_state": 0, "bit_weights": np.linspace(0.1, 2, 64)}),
    "centers": (CODES, {"init": CODES[:4], "balance": 0.01, "n_threads": 2}),
    "a generator": (CODES, {"random_state": np.random.RandomState(0)}),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_saved_model_is_loaded_exactly(kind, tmp_path):
    codes, parameters = MODELS[kind]
    model = BinaryKMeans(4, max_iter=50, **parameters).fit(codes)
    model.save(tmp_path / "model")
    back = BinaryKMeans.load(tmp_path / "model")

    for name in ("labels_", "cluster_centers_"):
        np.testing.assert_array_equal(getattr(back, name), getattr(model, name))
        assert getattr(back, name).dtype == getattr(model, name).dtype
    for name in ("inertia_", "n_iter_", "n_features_in_"):
        assert getattr(back, name) == getattr(model, name)
    np.testing.assert_array_equal(back.predict(codes), model.labels_)
    np.testing.assert_array_equal(back.transform(codes), model.transform(codes))
    assert back.transform(codes).dtype == model.transform(codes).dtype
    assert back.get_feature_names_out().tolist() == model.get_feature_names_out().tolist()
    for name, value in model.get_params().items():
        if isinstance(value, np.random.RandomState):
            assert back.get_params()[name] is None  # the state of a RandomState is not saved
        else:
            np.testing.assert_array_equal(back.get_params()[name], value)


INCOMPLETE = {
    "no labels": lambda arrays, facts: arrays.pop("labels"),
    "no inertia": lambda arrays, facts: facts.pop("inertia"),
    "an unknown parameter": lambda arrays, facts: facts["parameters"].update(k=4),
}


@pytest.mark.parametrize("kind", INCOMPLETE)
def test_an_incomplete_model_file_raises_an_error(model, kind, tmp_path):
    path = tmp_path / "model"
    model.save(path)
    arrays, facts = read_model(path, "BinaryKMeans")
    INCOMPLETE[kind](arrays, facts)
    write_model(path, "BinaryKMeans", arrays, facts)
    with pytest.raises(ModelFileError, match=re.escape(f"{path} is not a usable model")):
        BinaryKMeans.load(path)

"""A saved HSIC is loaded exactly; an inconsistent file raises a ModelFileError."""

import pickle
import re

import numpy as np
import pytest

from bitmosaic import HSIC, BinaryKMeans
from bitmosaic.errors import ModelFileError
from bitmosaic.estimators import hsic
from bitmosaic.estimators.model_file import read_model, write_model

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
    "the paper's settings": (VIEWS, HSIC.paper(3, random_state=4)),
    "a generator": (VIEWS, HSIC(3, n_bits=24, random_state=np.random.RandomState(0))),
    "as many components as columns": (VIEWS, HSIC(3, n_components=500, **SMALL)),
    "few components": (VIEWS, HSIC(3, n_components=2, **SMALL)),
    "columns as they are": (VIEWS, HSIC(3, n_components=None, **SMALL)),
    "no seed": (VIEWS, HSIC(3, n_bits=24, random_state=None)),
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


def test_a_pickled_model_predicts_as_before():
    model = HSIC(3, **SMALL).fit(VIEWS)
    back = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(back.predict(VIEWS), model.labels_)
    np.testing.assert_array_equal(back.transform(VIEWS), model.codes_)


def test_a_file_of_binary_kmeans_raises_an_error(tmp_path):
    codes = np.random.default_rng(0).integers(256, size=(30, 4), dtype=np.uint8)
    BinaryKMeans(3, random_state=0).fit(codes).save(tmp_path / "model")
    with pytest.raises(ModelFileError, match="holds a 'BinaryKMeans' model, not 'HSIC'; load it with BinaryKMeans"):
        HSIC.load(tmp_path / "model")


def test_a_missing_file_raises_an_error(tmp_path):
    with pytest.raises(ModelFileError, match=r"There is no model file at .*nowhere. Check the path"):
        HSIC.load(tmp_path / "nowhere")


# ---- files with a correct hash and inconsistent content


@pytest.fixture(scope="module")
def contents(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "model"
    HSIC(3, n_components=2, **SMALL).fit(VIEWS).save(path)
    return read_model(path, "HSIC")


def array(name, change):
    return lambda arrays, facts: arrays.update({name: change(arrays[name])})


def fact(**changes):
    return lambda arrays, facts: facts.update(changes)


def parameter(**changes):
    return lambda arrays, facts: facts["parameters"].update(changes)


def without(where, name):
    return lambda arrays, facts: (arrays if where == "arrays" else facts).pop(name)


ARRAYS = ["labels", "codes", "centers", "bit_weights", "weights", "view_weights"]
ARRAYS += [f"view{v}.{name}" for v in (0, 1) for name in ("offset", "factor", "basis", "anchors", "mean", "projection")]
FACTS = ["parameters", "view_names", "kernels", "n_iter", "objective_history", "n_features_in"]

CONTRADICTIONS = (
    {f"without array {name}": without("arrays", name) for name in ARRAYS}
    | {f"without fact {name}": without("facts", name) for name in FACTS}
    | {f"{name} one too short": array(name, lambda a: a[1:]) for name in ARRAYS if name not in ("labels", "codes")}
    | {f"{name} with one more axis": array(name, lambda a: a[..., None]) for name in ARRAYS}
    | {f"{name} as int64": array(name, lambda a: a.astype(np.int64)) for name in ARRAYS if not name.startswith("view1")}
    | {
        f"{name} of NaN": array(name, lambda a: np.full(a.shape, np.nan, a.dtype))
        for name in ARRAYS
        if name not in ("labels", "codes", "centers") and not name.startswith("view1")
    }
    | {
        "fewer labels than codes": array("labels", lambda a: a[1:]),
        "a label too high": array("labels", lambda a: a + 3),
        "a label below zero": array("labels", lambda a: a - 1),
        "labels of floats": array("labels", lambda a: a.astype(np.float32)),
        "labels of booleans": array("labels", lambda a: a > 1),
        "codes too narrow": array("codes", lambda a: a[:, 1:]),
        "centers too narrow": array("centers", lambda a: a[:, 1:]),
        "centers without bits": array("centers", lambda a: a[:, :0]),
        "the projection transposed": array("view0.projection", lambda a: a.T),
        "a projection with too few bits": array("view1.projection", lambda a: a[:, 1:]),
        "anchors of float64": array("view0.anchors", lambda a: a.astype(np.float64)),
        "a projection of float64": array("view0.projection", lambda a: a.astype(np.float64)),
        "no anchors": lambda arrays, facts: arrays.update(
            {f"view0.{name}": arrays[f"view0.{name}"][:0] for name in ("anchors", "mean", "projection")}
        ),
        "anchors without columns": lambda arrays, facts: arrays.update(
            {"view0.anchors": arrays["view0.anchors"][:, :0]}
            | {f"view0.{name}": arrays[f"view0.{name}"][:0] for name in ("offset", "factor")}
        ),
        "anchors wider than the offset": array("view0.anchors", lambda a: np.hstack([a, a])),
        "a basis transposed": array("view0.basis", lambda a: a.T),
        "a basis with a column more": array("view0.basis", lambda a: np.hstack([a, a[:, :1]])),
        "a basis with a row more": array("view0.basis", lambda a: np.vstack([a, a[:1]])),
        "a basis without columns": array("view0.basis", lambda a: a[:, :0]),
        "a basis of float64": array("view0.basis", lambda a: a.astype(np.float64)),
        "a basis of a view that is not there": lambda arrays, facts: arrays.update(
            {"view2.basis": arrays["view0.basis"]}
        ),
        "a view more in the names": fact(view_names=["hog", "gist", "lbp"]),
        "a view less in the names": fact(view_names=["hog"]),
        "the same name twice": fact(view_names=["hog", "hog"]),
        "names that are numbers": fact(view_names=[1, 2]),
        "names in one word": fact(view_names="hg"),
        "a width too few": fact(kernels=[[1.0, False]]),
        "a width too many": fact(kernels=[[1.0, False]] * 3),
        "widths in words": fact(kernels=[["wide", False], ["narrow", True]]),
        "a width of zero": fact(kernels=[[0.0, True], [1.0, True]]),
        "a width below zero": fact(kernels=[[-1.0, True], [1.0, True]]),
        "a width beyond all numbers": fact(kernels=[[10**400, False], [1, False]]),
        "no kernels": fact(kernels=None),
        "no history": fact(objective_history=[]),
        "a history of pairs": fact(objective_history=[[1, "P"]]),
        "a history of words": fact(objective_history=[["a", "b", "c"]]),
        "a history beyond all numbers": fact(objective_history=[[1, "P", 10**400]]),
        "iterations in words": fact(n_iter="ten"),
        "a number of columns that is wrong": fact(n_features_in=99),
        "names of columns that are too few": fact(feature_names_in=["x"]),
        "parameters in a list": fact(parameters=[3, 16]),
        "parameters in a number": fact(parameters=3),
        "no parameters": fact(parameters=None),
        "an unknown parameter": parameter(n_bit=16),
        "another number of clusters": parameter(n_clusters=4),
        "a number of clusters in words": parameter(n_clusters="three"),
        "another number of bits": parameter(n_bits=24),
        "a number of bits that fills no byte": parameter(n_bits=20),
        "a parameter out of range": parameter(view_exponent=0.5),
        "a parameter that is a list": parameter(start=["rotation"]),
    }
)


@pytest.mark.parametrize("kind", CONTRADICTIONS)
def test_an_inconsistent_model_file_raises_an_error(contents, kind, tmp_path):
    arrays, facts = dict(contents[0]), dict(contents[1])
    facts["parameters"] = dict(facts["parameters"])
    CONTRADICTIONS[kind](arrays, facts)
    write_model(tmp_path / "model", "HSIC", arrays, facts)
    with pytest.raises(ModelFileError, match=re.escape(f"{tmp_path / 'model'} is not a usable model: ")):
        HSIC.load(tmp_path / "model")


def test_the_unchanged_content_is_a_usable_model(contents, tmp_path):
    write_model(tmp_path / "model", "HSIC", *contents)
    assert set(contents[0]) == set(ARRAYS)
    assert set(FACTS) <= set(contents[1])
    np.testing.assert_array_equal(HSIC.load(tmp_path / "model").predict(VIEWS), contents[0]["labels"])


@pytest.mark.parametrize("n_components", [128, None])
def test_an_added_square_basis_raises_an_error(n_components, tmp_path):
    """All shapes are consistent with it; only n_components shows the error."""
    HSIC(3, n_components=n_components, **SMALL).fit(A).save(tmp_path / "model")
    arrays, facts = read_model(tmp_path / "model", "HSIC")
    arrays["view0.basis"] = np.eye(5, dtype=np.float32)
    write_model(tmp_path / "model", "HSIC", arrays, facts)
    with pytest.raises(ModelFileError, match="a view is not reduced to n_components="):
        HSIC.load(tmp_path / "model")

"""Errors of HSIC: each is a BitmosaicError and a builtin error, and says what is wrong and what was found."""

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.exceptions import NotFittedError

from bitmosaic import HSIC
from bitmosaic.errors import (
    BitmosaicError,
    InvalidDataError,
    ParameterError,
    ViewMismatchError,
)

SMALL = {"n_bits": 16, "n_anchors": 20, "random_state": 0}
RNG = np.random.default_rng(0)
A, B = RNG.standard_normal((60, 5)), RNG.standard_normal((60, 3))


@pytest.fixture(scope="module")
def model():
    return HSIC(2, **SMALL).fit({"a": A, "b": B})


@pytest.fixture(scope="module")
def one_view_model():
    return HSIC(2, **SMALL).fit(A)


def changed(X, row, column, value):
    X = X.copy()
    X[row, column] = value
    return X


BAD_VALUES = {
    "NaN in part of a row": (
        changed(A, 7, slice(1, 3), np.nan),
        r"no NaN, or be all NaN .* view 'view0' has NaN in 2 of 5 columns of row 7. Fill in",
    ),
    "infinity": (changed(A, 3, 1, np.inf), "must be finite and within the range of float32; view 'view0' .* row 3"),
    "minus infinity": ([A, changed(B, 4, 0, -np.inf)], "view 'view1' has infinity or a too large value in row 4"),
    "a number too large for float32": (changed(A, 5, 0, 1e39), "infinity or a too large value in row 5"),
    "an image without any view": (
        {"a": changed(A, 9, slice(None), np.nan), "b": changed(B, [9, 11], slice(None), np.nan)},
        r"needs at least one view, but row 9 is NaN in all of \['a', 'b'\]",
    ),
    "a row of NaN in the only view": (
        changed(A, [2, 8], slice(None), np.nan),
        r"row 2 is all NaN and there is no other view \(2 such rows in this block\)",
    ),
}


@pytest.mark.parametrize("kind", BAD_VALUES)
def test_bad_values_raise_an_error_with_the_row(model, one_view_model, kind):
    X, message = BAD_VALUES[kind]
    fitted = one_view_model if isinstance(X, np.ndarray) else model
    for method in (HSIC(2, **SMALL).fit, fitted.predict, fitted.transform):
        with pytest.raises(ValueError, match=message) as caught:
            method(X)
        assert isinstance(caught.value, BitmosaicError)


OUTSIDE = {  # columns and value of row 2345, and the message
    "NaN in part of a row": (0, np.nan, "view 'b' has NaN in 1 of 2 columns of row 2345"),
    "infinity": (1, np.inf, "view 'b' has infinity or a too large value in row 2345"),
    "no view": (slice(None), np.nan, r"row 2345 is NaN in all of \['a', 'b'\] \(1 such rows in this block\)"),
}


def bad_in_one_row(kind):
    """Two views of 3000 rows with a bad row 2345, and the message."""
    columns, value, message = OUTSIDE[kind]
    X, Y = np.random.default_rng(0).standard_normal((2, 3000, 2))
    X[2345] = np.nan
    return {"a": X, "b": changed(Y, 2345, columns, value)}, message


@pytest.mark.parametrize("kind", OUTSIDE)
@pytest.mark.parametrize("how", [{}, {"n_threads": 2, "chunk_size": 50}], ids=str)
def test_bad_rows_outside_the_training_sample_raise_an_error(kind, how, capsys):
    X, message = bad_in_one_row(kind)
    with pytest.raises(InvalidDataError, match=message):
        HSIC(2, train_size=100, verbose=1, **(SMALL | how)).fit(X)
    assert "encoding 3000 rows" in capsys.readouterr().out  # otherwise the sample had the row
    with pytest.raises(InvalidDataError, match=message):
        HSIC(2, train_size=2999, verbose=1, **(SMALL | how)).fit(X)
    assert "encoding" not in capsys.readouterr().out


@pytest.mark.parametrize("kind", OUTSIDE)
def test_the_error_of_a_bad_new_image_has_its_row_number(kind):
    X, message = bad_in_one_row(kind)
    good = {name: np.delete(rows, 2345, axis=0) for name, rows in X.items()}
    model = HSIC(2, train_size=100, n_threads=2, chunk_size=50, **SMALL).fit(good)
    for method in (model.predict, model.transform, model.nearest):
        with pytest.raises(InvalidDataError, match=message):
            method(X)


def test_a_view_that_no_training_image_has_raises_an_error():
    rare = np.full((60, 3), np.nan)
    rare[17] = 1.0
    message = r"none of its 4 rows has view 'rare'. Raise train_size or remove the view"
    with pytest.raises(ValueError, match=message) as caught:
        HSIC(2, train_size=4, **SMALL).fit({"a": A, "rare": rare})
    assert isinstance(caught.value, BitmosaicError)


BAD_KINDS = {
    "text": ("no such folder", FileNotFoundError, "no file or folder no such folder"),
    "None": (None, ValueError, "Expected 2D array, got scalar array instead"),
    "a sparse matrix without rows": (csr_array(A[:0]), ValueError, r"at least one row and one column; .* \(0, 5\)"),
    "a sparse view of complex numbers": ({"a": A, "b": csr_array(B + 1j)}, ValueError, "View 'b': Complex data not"),
    "complex numbers": (A + 1j, ValueError, "Complex data not supported: got complex128"),
    "three dimensions": (A[:, :, None], ValueError, "Found array with dim 3"),
    "ragged rows": ([[1.0, 2.0], [3.0]], ValueError, "inhomogeneous shape"),
    "words among numbers": ([[1, "a"], [2, "b"]], ValueError, "numeric|numbers"),
    "dates": (np.zeros((9, 2), "M8[D]"), ValueError, "must hold real numbers; view 'view0' holds datetime64"),
    "a masked array": (np.ma.masked_array(A), TypeError, "Masked arrays are not supported"),
    "a dict without views": ({}, ValueError, "There must be at least one view; got none"),
    "a list with None": ([A, None], ValueError, r"must be a matrix of shape \(n, d\); item 1 is a NoneType"),
    "a list with a vector": ([A, B[:, 0]], ValueError, r"item 1 is a ndarray of shape \(60,\)"),
    "a view with a number for a name": ({1: A}, ValueError, "name of a view must be a non-empty string; got 1"),
    "views of different length": (
        [A, B[:-1]],
        ValueError,
        r"same number of rows; got \[60, 59\] for view0, view1. Did one extractor skip unreadable images",
    ),
    "no rows": (A[:0], ValueError, r"0 sample\(s\)"),
    "no columns": (A[:, :0], ValueError, r"0 feature\(s\)"),
}


@pytest.mark.parametrize("kind", BAD_KINDS)
def test_data_of_a_wrong_type_raise_an_error(model, kind):
    bad, builtin, message = BAD_KINDS[kind]
    for method in (HSIC(2, **SMALL).fit, model.predict, model.transform):
        with pytest.raises(BitmosaicError, match=message) as caught:
            method(bad)
        assert isinstance(caught.value, builtin)


def test_fewer_samples_than_clusters_raise_an_error():
    with pytest.raises(ValueError, match=r"n_samples=4 should be >= n_clusters=5\. Lower n_clusters") as caught:
        HSIC(5, **SMALL).fit(A[:4])
    assert isinstance(caught.value, BitmosaicError)


# ---- parameters


BAD_VALUE = {  # scikit-learn checks these ranges
    "n_clusters": 0,
    "preset": "slow",
    "n_anchors": 0,
    "shared_ratio": 1.1,
    "start": "pca",
    "norm": "l1",
    "joint": "yes",
    "ridge": np.nan,
    "variance_reward": 1,
    "coupling": "strong",
    "balance": -1,
    "view_exponent": 1,
    "anchors": "none",
    "scaling": "square",
    "n_components": 2.0,
    "kernel_width": 0,
    "max_iter": 0,
    "cluster_iter": 0,
    "n_init": 0,
    "n_fits": 0,
    "tol": -1,
    "chunk_size": 0,
    "n_threads": 0,
    "random_state": "x",
    "verbose": -1,
}
BAD_PARAMETERS = [
    *(({name: value}, f"'{name}' parameter of HSIC must be .* Got {value!r}") for name, value in BAD_VALUE.items()),
    ({"n_bits": 12}, "n_bits must be a multiple of 8; got 12"),
    ({"train_size": 1.5}, "'train_size' .* Got 1.5"),
    ({"train_size": 0.01}, "train_size must give at least n_clusters=2 rows; 0.01 of 60 gives 1. Raise it"),
    ({"memory_limit": "lots"}, "a number of bytes or a string such as '512MB' or '2GiB'; got 'lots'"),
    ({"memory_limit": 1000}, r"at least \dMB for 1 views with 12 anchors; got 0MB. Raise it or lower n_anchors"),
]


@pytest.mark.parametrize(("parameters", "message"), BAD_PARAMETERS, ids=lambda value: str(value)[:40])
def test_parameters_out_of_range_raise_an_error(parameters, message):
    with pytest.raises(ParameterError, match=message) as caught:
        HSIC(**({"n_clusters": 2} | SMALL | parameters)).fit(A)
    assert isinstance(caught.value, BitmosaicError)
    assert isinstance(caught.value, ValueError)


def test_every_parameter_has_a_bad_value_in_this_test():
    assert {name for parameters, _ in BAD_PARAMETERS for name in parameters} == set(HSIC().get_params())


def test_clusters_are_found_with_a_high_view_exponent():
    views = [np.repeat([-5.0, 5.0], 100)[:, None] + RNG.standard_normal((200, 4)) for _ in range(3)]
    labels = HSIC(2, view_exponent=100, **SMALL).fit(views).labels_
    assert len(set(labels[:100])) == len(set(labels[100:])) == 1
    assert labels[0] != labels[-1]


# ---- new images with other views or columns


MISFITS = {
    "a view that became narrower": (
        {"a": A[:, :4]},
        "as many columns as at fit; view 'a' had 5, got 4. Was it made by another extractor",
    ),
    "a view that became wider in a list": ([A, A], "had 3, got 5"),
    "an unknown view": ({"a": A, "hog": B}, r"fitted on, \['a', 'b'\]; got \['hog'\]. Rename or drop them"),
    "a list with too few views": (
        [A],
        r"all of \['a', 'b'\], in this order; got 1 views. Pass a dict of name -> array",
    ),
    "a list with too many views": ([A, B, A], r"all of \['a', 'b'\], in this order; got 3 views"),
    "one array": (A, r"all of \['a', 'b'\], in this order; got 1 views"),
}


@pytest.mark.parametrize("kind", MISFITS)
def test_other_views_than_at_fit_raise_an_error(model, kind):
    X, message = MISFITS[kind]
    with pytest.raises(ViewMismatchError, match=message) as caught:
        model.predict(X)
    assert isinstance(caught.value, BitmosaicError)
    assert isinstance(caught.value, ValueError)


def test_an_unfitted_model_raises_an_error(tmp_path):
    model = HSIC(2)
    for call in (lambda: model.predict(A), lambda: model.transform(A), lambda: model.save(tmp_path / "model")):
        with pytest.raises(NotFittedError, match="This HSIC instance is not fitted yet") as caught:
            call()
        assert isinstance(caught.value, BitmosaicError)
        assert isinstance(caught.value, ValueError)
    assert not list(tmp_path.iterdir())


def test_a_failed_fit_does_not_change_the_model():
    model = HSIC(2, **SMALL).fit({"a": A, "b": B})
    labels = model.labels_.copy()
    with pytest.raises(ValueError, match="infinity"):
        model.fit({"other": changed(A[:, :2], 0, 0, np.inf)})
    assert model.view_names_ == ["a", "b"]
    assert model.n_features_in_ == 8
    np.testing.assert_array_equal(model.predict({"a": A, "b": B}), labels)


def test_the_columns_of_a_data_frame_must_be_those_of_the_fit(tmp_path):
    import pandas as pd

    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(60, 3)), columns=["x", "y", "z"])
    model = HSIC(2, n_anchors=10, max_iter=50, random_state=0).fit({"a": table, "b": rng.normal(size=(60, 2))})
    model.save(tmp_path / "model")
    for fitted in (model, HSIC.load(tmp_path / "model")):
        assert fitted.predict({"a": table}).shape == (60,)
        with pytest.raises(ViewMismatchError, match="view 'a' have other names or another order"):
            fitted.predict({"a": table[["z", "y", "x"]]})

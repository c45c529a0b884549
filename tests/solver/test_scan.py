"""The first pass: moments that do not depend on block boundaries."""

import numpy as np
import pytest
from scipy.stats import skew

from bitmosaic.errors import InvalidDataError
from bitmosaic.solver.scan import LARGEST, Moments, check_images, check_rows, scan
from bitmosaic.views import as_views


@pytest.mark.parametrize("cuts", [[], [1], [1, 2, 700], [500]])
def test_moments_of_blocks_are_those_of_all_rows(cuts):
    X = np.random.default_rng(0).gamma(1, size=(900, 4)) + 1e6 * np.arange(4)
    moments = Moments(np.empty((0, 4)))
    for part in np.split(X, cuts):
        moments.add(Moments(part.copy()))
    np.testing.assert_allclose(moments.mean, X.mean(0))
    np.testing.assert_allclose(moments.variance, X.var(0), rtol=1e-6)
    assert moments.typical_skewness() == pytest.approx(np.median(np.abs(skew(X))), rel=1e-5)


def test_a_rooted_view_has_the_moments_of_its_roots():
    X = np.random.default_rng(0).gamma(0.5, size=(3000, 3))
    (facts,) = scan(as_views(X))
    assert facts.scaling == "root"
    np.testing.assert_allclose(facts.mean, np.sqrt(X).mean(0))
    np.testing.assert_allclose(facts.variance, np.sqrt(X).var(0))
    for other in (X**0.25, np.zeros((5, 2))):  # more symmetric as they are, nothing to say
        assert scan(as_views(other))[0].scaling == "standard"


def test_a_sparse_view_has_the_moments_of_rows_of_length_1():
    X = np.random.default_rng(0).poisson(0.3, size=(3000, 8)).astype(float)
    X[5] = 0
    (facts,) = scan(as_views(X))
    rows = X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-9)
    assert facts.scaling == "unit"
    np.testing.assert_allclose(facts.mean, rows.mean(0))
    np.testing.assert_allclose(facts.variance, rows.var(0))
    assert scan(as_views(X + 1))[0].scaling == "root"  # not near zero


def test_a_view_of_both_signs_is_standardized_only_if_its_columns_have_different_units():
    X = np.random.default_rng(0).normal(size=(3000, 8)) * np.linspace(1, 4, 8)
    (facts,) = scan(as_views(X))
    assert facts.scaling == "center"
    np.testing.assert_allclose(facts.variance, X.var(0))
    X[:, 3] *= 100
    assert scan(as_views(X))[0].scaling == "standard"


@pytest.mark.parametrize("scaling", ["standard", "root", "unit", "center"])
def test_the_scaling_can_be_given(scaling):
    X = np.random.default_rng(0).gamma(2, size=(300, 3))
    rows = {"root": np.sqrt(X), "unit": X / np.linalg.norm(X, axis=1, keepdims=True)}.get(scaling, X)
    (facts,) = scan(as_views(X), scaling=scaling)
    assert facts.scaling == scaling
    np.testing.assert_allclose(facts.mean, rows.mean(0))
    np.testing.assert_allclose(facts.variance, rows.var(0))


def test_roots_of_negative_values_are_refused():
    with pytest.raises(InvalidDataError, match="scaling='root' needs values that are not negative; view 'view0'"):
        scan(as_views(-np.ones((3, 2))), scaling="root")


# ---- some rows only


@pytest.mark.parametrize("scaling", ["standard", "auto"])
@pytest.mark.parametrize("n_threads", [1, 2])
def test_a_scan_of_some_rows_is_that_of_a_table_of_these(scaling, n_threads):
    rng = np.random.default_rng(0)
    X, Y = rng.gamma(0.5, size=(5000, 3)).astype(np.float32), rng.normal(size=(5000, 2))
    X[rng.random(5000) < 0.3] = np.nan
    rows = np.sort(rng.choice(5000, 2100, replace=False))
    some = scan(as_views([X, Y]), rows, n_threads, scaling)
    for facts, alone in zip(some, scan(as_views([X[rows], Y[rows]]), scaling=scaling), strict=True):
        np.testing.assert_array_equal(facts.present, alone.present)
        np.testing.assert_array_equal(facts.mean, alone.mean)
        np.testing.assert_array_equal(facts.variance, alone.variance)
        assert facts.scaling == alone.scaling
    assert some[0].scaling == ("root" if scaling == "auto" else "standard")
    np.testing.assert_array_equal(some[0].present, ~np.isnan(X[rows, 0]))
    np.testing.assert_allclose(some[1].mean, Y[rows].mean(0))


def test_a_scan_does_not_read_other_rows():
    X = np.random.default_rng(0).normal(size=(3000, 2))
    rows = np.arange(0, 3000, 2)
    X[1], X[3, 0], X[5] = np.nan, np.nan, np.inf  # none of these can be used
    (facts,) = scan(as_views(X), rows)
    np.testing.assert_allclose(facts.mean, X[rows].mean(0))


@pytest.mark.parametrize(
    ("value", "columns", "message"),
    [
        (np.nan, 0, "NaN in 1 of 2 columns of row 2900"),
        (-np.inf, 1, "infinity or a too large value in row 2900"),
        (np.nan, slice(None), r"row 2900 is all NaN and there is no other view \(1 such rows in this block\)"),
    ],
    ids=["part of a row", "infinity", "no view"],
)
def test_a_scan_of_some_rows_names_a_row_by_its_number_in_the_data(value, columns, message):
    X = np.zeros((3000, 2))
    X[2900, columns] = value
    with pytest.raises(InvalidDataError, match=message):
        scan(as_views(X), np.arange(100, 3000, 2))


# ---- the checks by themselves


ROWS = np.array([3, 8, 20, 21, 50])


@pytest.mark.parametrize(("rows", "number"), [(None, 4), (ROWS, 50)], ids=["all rows", "some rows"])
def test_checked_rows_are_numbered_from_the_first_of_their_block(rows, number):
    X = np.ones((2, 3), np.float32)
    X[1, 1] = np.nan
    with pytest.raises(InvalidDataError, match=f"view 'hog' has NaN in 1 of 3 columns of row {number}\\."):
        check_rows("hog", X, rows, 3)
    X[1, 1] = np.inf
    with pytest.raises(InvalidDataError, match=f"view 'hog' has infinity or a too large value in row {number}\\."):
        check_rows("hog", X, rows, 3)
    with pytest.raises(InvalidDataError, match=rf"row {number} is NaN in all of \['a', 'b'\] \(1 such rows in this"):
        check_images(["a", "b"], np.array([[True, True], [False, True]]), rows, 3)


def test_a_checked_row_is_present_unless_it_is_all_nan():
    X = np.array([[1, LARGEST], [np.nan, np.nan], [-LARGEST, 0]])
    np.testing.assert_array_equal(check_rows("a", X, None, 0), [True, False, True])
    np.testing.assert_array_equal(check_rows("a", X[[0, 2]], None, 0), [True, True])
    assert check_rows("a", X[:0], None, 0).shape == (0,)
    for too_large in (2 * float(LARGEST), -2 * float(LARGEST)):
        with pytest.raises(InvalidDataError, match="row 0"):
            check_rows("a", np.array([[1, too_large]]), None, 0)

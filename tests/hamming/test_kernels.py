"""The kernels over rows of features and similarities agree with plain NumPy."""

import numpy as np
import pytest
from numba import njit
from scipy.stats import moment

from bitmosaic.hamming import kernels

FAR = 1e15


# ---- normalize


def normalized(X, offset, factor, root, far=FAR):
    out = np.full(X.shape, np.nan, np.float32)
    kernels.normalize(X, offset, factor, root, far, out)
    return out


def reference_normalize(X, offset, factor, root, far=FAR):
    x = np.sign(X) * np.sqrt(np.abs(X)) if root else X
    rows = np.clip((x.astype(np.float64) - offset) * factor.astype(np.float64), -far, far)
    rows[np.isnan(X).any(1)] = 0
    return rows


@pytest.mark.parametrize("root", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(50, 7), (0, 4)], ids=str)
def test_normalize_agrees_with_numpy(root, dtype, shape):
    rng = np.random.default_rng(0)
    X = rng.normal(1, 5, size=shape).astype(dtype)  # with negative values
    X[::4] = np.nan
    offset, factor = rng.normal(size=shape[1]), rng.uniform(0, 3, shape[1]).astype(np.float32)
    before = X.copy()
    found = normalized(X, offset, factor, root)
    np.testing.assert_allclose(found, reference_normalize(X, offset, factor, root), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found[::4], 0)
    np.testing.assert_array_equal(X, before)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bad", [np.nan, -np.inf, None])
def test_normalize_returns_whether_float32_can_hold_every_value(dtype, bad):
    X = np.full((20, 9), np.finfo(np.float32).max, dtype)
    X[::2] *= -1
    with np.errstate(over="ignore"):
        X[13, 5] = bad or 0
    found = kernels.normalize(X, np.zeros(9), np.ones(9, np.float32), False, FAR, np.empty(X.shape, np.float32))
    assert found == (bad is None)


@pytest.mark.parametrize("root", [False, True])
def test_normalize_clips_to_far(root):
    X = np.array([[3e38, -3e38, 1, -1]], np.float32)
    found = normalized(X, np.zeros(4), np.full(4, 100, np.float32), root, far=50.0)
    np.testing.assert_array_equal(found, [[50, -50, 50, -50]])
    found = normalized(X, np.zeros(4), np.zeros(4, np.float32), root)  # a constant column has the factor 0
    np.testing.assert_array_equal(found, 0)


def test_normalize_subtracts_in_float64():
    X = 1e10 + np.array([[0.0, 1.0], [2.0, 3.0]])
    found = normalized(X, np.full(2, 1e10), np.ones(2, np.float32), False)
    np.testing.assert_array_equal(found, [[0, 1], [2, 3]])
    X = np.full((1, 1), 16777216, np.float32)  # the next number of float32 is 2 more
    assert normalized(X, np.array([16777215.0]), np.ones(1, np.float32), False)[0, 0] == 1


# ---- exp


@njit
def exp_of_each(x, out):
    for i in range(len(x)):
        out[i] = kernels.fast_exp(x[i])


def fast_exp(x):
    x = np.asarray(x, np.float32)
    out = np.empty_like(x)
    exp_of_each(x, out)
    return out


def test_fast_exp_is_exact_to_a_millionth():
    rng = np.random.default_rng(0)
    x = np.concatenate([np.linspace(-80, 0, 200_001), -(10 ** rng.uniform(-12, 1.9, 100_000))]).astype(np.float32)
    np.testing.assert_allclose(fast_exp(x), np.exp(x.astype(np.float64)), rtol=1e-6)


def test_fast_exp_of_zero_is_one_and_no_other_is_more():
    assert fast_exp([0.0, -0.0]).tolist() == [1, 1]
    assert fast_exp(-np.logspace(-30, 2, 10_000)).max() <= 1


def test_fast_exp_of_very_negative_values_is_tiny_but_finite():
    found = fast_exp([-87, -87.4, -88, -100, -1e4, -1e30, -np.inf])
    assert (found >= 0).all()
    assert (found < 2e-38).all()
    assert np.isfinite(found).all()


# ---- similarities


def similar(X, anchors, gamma, mean, missing, linear=0.0, reach=np.inf):
    Z = np.empty((len(X), len(mean)), np.float32)
    Z[:, : len(anchors)] = X @ anchors.T
    sizes = [np.einsum("ij,ij->i", A, A) for A in (X, anchors)]
    width, linear, most, reach = (np.float32(x) for x in (1 / gamma, linear, 2, reach))
    kernels.similarities(Z, X, *sizes, width, linear, most, mean, missing, reach)
    return Z


@pytest.mark.parametrize("linear", [0.0, 0.9])
@pytest.mark.parametrize(("n", "l", "d"), [(1, 1, 1), (40, 9, 3), (7, 130, 20)])
def test_similarities_and_linear_columns_agree_with_numpy(n, l, d, linear):
    rng = np.random.default_rng(n)
    X, anchors = rng.normal(size=(n, d)).astype(np.float32), rng.normal(size=(l, d)).astype(np.float32)
    mean, missing = rng.uniform(0, 0.5, l + d * (linear > 0)).astype(np.float32), np.arange(n) % 5 == 1
    distances = ((X[:, None].astype(float) - anchors) ** 2).sum(2)
    reach = np.median(distances.min(1)) + 1e-3
    found = similar(X, anchors, 2.0 * d, mean, missing, linear, reach)
    expected = np.exp(-distances / (2 * d))
    if linear:
        expected = np.hstack([expected, np.clip(linear * X, -2, 2)])
    expected -= mean
    far = distances.min(1) >= reach
    expected[missing | far] = 0
    assert n == 1 or far.any()
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=2e-6)
    np.testing.assert_array_equal(found[missing], 0)


def test_no_similarity_exceeds_one():
    """Rounding may put the squared distance of a row to itself below zero."""
    X = (1e3 * np.random.default_rng(0).normal(size=(50, 30))).astype(np.float32)
    sizes = np.einsum("ij,ij->i", X, X)
    assert (sizes[:, None] + sizes - 2 * (X @ X.T)).min() < -1
    found = similar(X, X, 10.0, np.zeros(50, np.float32), np.zeros(50, bool))
    assert found.max() == 1


# ---- moments


@pytest.mark.parametrize("root", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 2, 1000])
def test_column_moments_agree_with_numpy(root, dtype, n):
    X = np.random.default_rng(0).gamma(1, 3, size=(n, 4)).astype(dtype)
    found = np.full((3, 4), np.nan)
    kernels.column_moments(X, root, *found)
    x = (np.sqrt(X) if root else X).astype(np.float64)
    np.testing.assert_allclose(found[0], x.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found[1], n * moment(x, 2), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found[2], n * moment(x, 3), rtol=1e-9, atol=1e-9)


def test_column_moments_do_not_lose_a_small_spread_beside_a_large_mean():
    X = 1e8 + np.random.default_rng(0).normal(size=(500, 2))
    found = np.empty((3, 2))
    kernels.column_moments(X, False, *found)
    np.testing.assert_allclose(found[1] / 500, X.var(0), rtol=1e-9)


# ---- k-means


def test_highest_scores_agree_with_numpy():
    rng = np.random.default_rng(0)
    scores, offsets = rng.normal(size=(50, 12)).astype(np.float32), rng.normal(size=12).astype(np.float32)
    scores[3, 4:8] = offsets[4:8]  # all four are equal: the first one wins
    labels, totals = np.full((3, 50), -1, np.int32), np.ones(3)
    kernels.highest_scores(scores, offsets, labels, totals)
    left = (scores - offsets).reshape(50, 3, 4)
    np.testing.assert_array_equal(labels, left.argmax(2).T)
    np.testing.assert_allclose(totals, 1 + left.max(2).sum(0), rtol=1e-5)


@pytest.mark.parametrize("r", [1, 3, 7])
def test_the_smallest_entries_agree_with_numpy(r):
    table = np.random.default_rng(0).integers(6, size=(50, 7)).astype(np.float32)  # with ties
    places, values = np.empty((50, r), np.int32), np.empty((50, r), np.float32)
    kernels.smallest(table, places, values)
    expected = np.argsort(table, axis=1, kind="stable")[:, :r]
    np.testing.assert_array_equal(places, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(table, expected, axis=1))


def test_moved_rows_agree_with_numpy():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 5)).astype(np.float32)
    labels, sums, sizes = np.full((3, 60), -1, np.int32), np.zeros((3, 4, 5)), np.zeros((3, 4), np.int64)
    for fits in ([0, 1, 2], [2, 0], [1]):
        before, found = labels.copy(), rng.integers(4, size=(len(fits), 60)).astype(np.int32)
        kernels.move_rows(X, np.array(fits), found, labels, sums, sizes)
        before[fits] = found
        np.testing.assert_array_equal(labels, before)
        members = np.eye(4)[labels]  # (f, n, c)
        np.testing.assert_allclose(sums, np.einsum("fnc,nd->fcd", members, X), atol=1e-12)
        np.testing.assert_array_equal(sizes, members.sum(1))


# ---- flipped bits


@pytest.mark.parametrize("share", [0.0, 0.02, 1.0])
@pytest.mark.parametrize("n_bytes", [1, 3])
def test_flipped_bits_add_twice_their_rows(share, n_bytes):
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(90, 5)).astype(np.float32)
    old = rng.random((90, 8 * n_bytes)) < 0.5
    new = old ^ (rng.random(old.shape) < share)
    change = np.ones((8 * n_bytes, 5), np.float32)  # what is there is added to
    kernels.add_flipped(Z, np.packbits(old, axis=1), np.packbits(new, axis=1), change)
    expected = 1 + 2 * (new.astype(float) - old).T @ Z
    np.testing.assert_allclose(change, expected, atol=1e-4)


@pytest.mark.parametrize("bit", [0, 7, 8])
def test_each_bit_has_its_own_row_of_the_change(bit):
    Z = np.array([[1, 2, 3]], np.float32)
    none, one = np.zeros((1, 16), bool), np.arange(16)[None] == bit
    for old, new, sign in ((none, one, 2), (one, none, -2)):
        change = np.zeros((16, 3), np.float32)
        kernels.add_flipped(Z, np.packbits(old, axis=1), np.packbits(new, axis=1), change)
        expected = np.zeros((16, 3))
        expected[bit] = sign * Z[0]
        np.testing.assert_array_equal(change, expected)

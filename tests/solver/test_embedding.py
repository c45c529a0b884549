"""Raw rows -> rows that are compared with anchors: normalized and reduced to principal directions."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from bitmosaic.solver.embedding import (
    FAR,
    CenteredRows,
    Embedding,
    basis_rows,
    fit_embedding,
    normalization,
    principal_basis,
)


def independent_columns(variances, n, seed=0):
    """Rows whose columns have exactly these variances, mean zero and no correlation."""
    X = np.random.default_rng(seed).normal(size=(n, len(variances)))
    U = np.linalg.qr(X - X.mean(0))[0]
    return (U * np.sqrt(n * np.asarray(variances))).astype(np.float32)


def rotation(d, seed=1):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(d, d)))[0]


# ---- the basis


@pytest.mark.parametrize("rotated", [False, True])
def test_the_basis_damps_strong_directions_without_amplifying_weak_ones(rotated):
    variances = np.array([20.0, 4.0, 1.5, 1.2, 0.2, 0.1, 0.05, 0.02])
    X = independent_columns(variances, 500)
    R = rotation(8) if rotated else np.eye(8)
    basis = principal_basis((X @ R.T).astype(np.float32), 8, 0)
    assert basis.shape == (8, 8)
    assert basis.dtype == np.float32
    Y = (X @ R.T) @ basis
    np.testing.assert_allclose(Y.T @ Y / 500, np.diag(variances / np.sqrt(variances + variances.mean())), atol=1e-4)
    directions = basis / np.linalg.norm(basis, axis=0)
    np.testing.assert_allclose(np.abs(directions), np.abs(R), atol=1e-2)


@pytest.mark.parametrize("n_components", [3, 500])
def test_there_are_no_more_directions_than_asked_for_nor_than_columns(n_components):
    X = independent_columns(np.linspace(2, 1, 10), 400)
    basis = principal_basis(X, n_components, 0)
    k = min(n_components, 10)
    assert basis.shape == (10, k)
    variance = np.linspace(2, 1, 10)[:k]
    np.testing.assert_allclose(np.var(X @ basis, axis=0), variance / np.sqrt(variance + 1.5), rtol=1e-3)


def test_fewer_rows_than_columns_give_no_more_directions_than_rows():
    X = np.random.default_rng(0).normal(size=(6, 40)).astype(np.float32)
    basis = principal_basis(X, 20, 0)
    assert basis.shape == (40, 6)
    variance = np.linalg.svd(X, compute_uv=False) ** 2 / 6
    expected = variance / np.sqrt(variance + np.mean(X.astype(float) ** 2))
    np.testing.assert_allclose(np.mean((X @ basis) ** 2, axis=0), expected, rtol=1e-4)


@pytest.mark.parametrize("shape", [(50, 4), (0, 4)], ids=str)
def test_a_view_without_any_variance_has_one_direction_of_zeros(shape):
    basis = principal_basis(np.zeros(shape, np.float32), 3, 0)
    assert basis.dtype == np.float32
    np.testing.assert_array_equal(basis, np.zeros((shape[1], 1)))


def test_the_same_rows_and_seed_give_the_same_basis():
    X = np.random.default_rng(0).normal(size=(300, 60)).astype(np.float32)
    before = X.copy()
    np.testing.assert_array_equal(principal_basis(X, 9, 5), principal_basis(X, 9, 5))
    np.testing.assert_array_equal(X, before)


def test_directions_far_above_the_rest_are_those_of_the_exact_decomposition():
    """Wider than n_components, so that the randomized decomposition is used."""
    rng = np.random.default_rng(0)
    X = (10 * rng.normal(size=(400, 5)) @ rng.normal(size=(5, 200)) + rng.normal(size=(400, 200))).astype(np.float32)
    basis = principal_basis(X, 5, 0)
    V = np.linalg.svd(X.astype(float), full_matrices=False)[2][:5]
    directions = basis / np.linalg.norm(basis, axis=0)
    np.testing.assert_allclose(np.abs(V @ directions), np.eye(5), atol=1e-3)


@pytest.mark.parametrize("damped", [False, True])
def test_sparse_rows_have_the_basis_of_the_centered_dense_rows(damped):
    rng = np.random.default_rng(0)
    S = 10 * (rng.random((400, 5)) < 0.2) @ (rng.random((5, 200)) < 0.1) + (rng.random((400, 200)) < 0.05)
    S = S * rng.random(S.shape) + 1e6 * (np.arange(200) == 7)  # one column has a large mean
    dense = principal_basis((S - S.mean(0)).astype(np.float32), 5, 0, damped)
    sparse = principal_basis(CenteredRows(csr_array(S), S.mean(0)), 5, 0, damped)
    assert sparse.dtype == np.float32
    np.testing.assert_allclose(np.abs(sparse), np.abs(dense), atol=1e-3)


def test_sparse_rows_with_few_directions_have_a_finite_basis():
    S = np.eye(2, 50)[np.arange(40) % 2]
    basis = principal_basis(CenteredRows(csr_array(S), S.mean(0)), 10, 0)
    assert basis.shape == (50, 10)
    assert np.isfinite(basis).all()
    assert np.linalg.matrix_rank(basis) == 1
    assert not principal_basis(CenteredRows(csr_array((40, 50)), np.zeros(50)), 10, 0).any()


@pytest.mark.parametrize("scaling", ["standard", "root", "unit", "center"])
def test_sparse_rows_are_normalized_like_dense_ones(scaling):
    rng = np.random.default_rng(0)
    X = (rng.exponential(size=(30, 200)) * (rng.random((30, 200)) < 0.1)).astype(np.float32)
    X[3], X[5] = 0, np.nan
    factor = rng.random(200).astype(np.float32)
    plain = replace(normalization(rng.random(200), factor, scaling), basis=rng.normal(size=(200, 6)).astype(np.float32))
    checked = []
    rows, missing = replace(plain, sparse=True).normalize(X, checked.append)
    np.testing.assert_allclose(rows, plain.normalize(X)[0], rtol=1e-4, atol=1e-5)
    assert np.flatnonzero(missing).tolist() == [5]
    assert len(checked) == 1


# ---- embeddings with a basis


def reduced(rng, d=6, k=2, l=5, scaling="plain"):
    """An embedding with a basis, everything at random."""
    plain = normalization(rng.normal(size=d), rng.uniform(0.5, 2, d).astype(np.float32), scaling)
    plain = replace(plain, basis=rng.normal(size=(d, k)).astype(np.float32))
    return fit_embedding(plain, [rng.normal(size=(l, d)).astype(np.float32)], [], 1.0)


def test_an_embedding_without_anchors_can_normalize():
    offset, factor = np.array([1.0, -2.0]), np.array([2, 0.5], np.float32)
    plain = normalization(offset, factor)
    assert (plain.n_anchors, plain.width, plain.basis, plain.scaling) == (0, 2, None, "standard")
    rows, missing = plain.normalize(np.array([[2, 0], [np.nan, np.nan]], np.float32))
    np.testing.assert_array_equal(rows, [[2, 1], [0, 0]])
    np.testing.assert_array_equal(missing, [False, True])


@pytest.mark.parametrize("scaling", ["plain", "root", "unit"])
def test_rows_are_multiplied_by_the_basis_last(scaling):
    rng = np.random.default_rng(0)
    e, X = reduced(rng, scaling=scaling), rng.normal(size=(40, 6)).astype(np.float32)
    X[7] = np.nan
    rows, missing = e.normalize(X)
    x = np.copysign(np.sqrt(np.abs(X)), X) if scaling == "root" else X
    x = X / np.linalg.norm(X, axis=1, keepdims=True) if scaling == "unit" else x
    expected = ((x - e.offset) * e.factor) @ e.basis
    expected[7] = 0
    np.testing.assert_allclose(rows, expected, rtol=1e-5, atol=1e-5)
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(np.flatnonzero(missing), [7])
    assert (e.width, e.n_anchors) == (2, 5)


def test_anchors_and_kernel_width_are_those_of_reduced_rows():
    rng = np.random.default_rng(0)
    plain = replace(
        normalization(np.zeros(6), np.ones(6, np.float32)), basis=rng.normal(size=(6, 2)).astype(np.float32)
    )
    X = rng.normal(size=(50, 6)).astype(np.float32)
    own = np.full(40, -1)
    e = fit_embedding(plain, [X[:10]], [(X[10:], own)], 1.5, reach=0.9)
    identity = normalization(np.zeros(2), np.ones(2, np.float32))
    after = fit_embedding(identity, [X[:10] @ plain.basis], [(X[10:] @ plain.basis, own)], 1.5, reach=0.9)
    assert e.anchors.shape == (10, 2)
    np.testing.assert_allclose(e.anchors, after.anchors, rtol=1e-5, atol=1e-6)
    assert e.gamma == pytest.approx(after.gamma, rel=1e-5)
    np.testing.assert_allclose(e(X)[0], after(X @ plain.basis)[0], atol=1e-5)
    assert e.basis is plain.basis
    assert not e.mean.any()


def test_a_distant_reduced_row_is_similar_to_no_anchor():
    """Its square is still finite after the basis."""
    rng = np.random.default_rng(0)
    e = reduced(rng, d=300, k=128).centered(rng.uniform(0, 0.5, 5))
    with np.errstate(all="raise"):
        Z, _ = e(np.full((2, 300), [[3e38], [-3e38]], np.float32))
    np.testing.assert_allclose(Z, np.tile(-e.mean, (2, 1)), atol=1e-37)


def test_distant_values_are_clipped():
    plain = normalization(np.zeros(2), np.array([1, 1e30], np.float32))
    rows, _ = plain.normalize(np.array([[3e38, -3e38], [5, 0]], np.float32))
    np.testing.assert_allclose(rows, [[FAR, -FAR], [5, 0]], rtol=1e-6)


def test_the_memory_order_of_rows_does_not_matter():
    rng = np.random.default_rng(0)
    e, X = reduced(rng), rng.normal(size=(30, 6))
    for other in (np.asfortranarray(X), np.repeat(X, 2, axis=1)[:, ::2], X[::-1][::-1]):
        np.testing.assert_array_equal(e(other)[0], e(X)[0])


def test_with_silence_a_row_similar_to_no_anchor_is_zero():
    """Similarities of e⁻⁶ are kept, those of e⁻⁸ are not. The paper keeps all."""
    anchors, mean = np.array([[0.0], [1.0]], np.float32), np.full(2, 0.25, np.float32)
    rows = np.sqrt(np.array([[0.0], [6.0], [8.0]], np.float32)) * np.array([[1], [-1], [-1]], np.float32)
    plain = Embedding(np.zeros(1), np.ones(1, np.float32), None, anchors, 1.0, mean)
    assert (plain(rows)[0] != 0).all()
    Z, missing = replace(plain, silence=True)(rows)
    assert not missing.any()
    assert (Z[:2] != 0).all()
    np.testing.assert_array_equal(Z[2], 0)


def test_more_components_are_taken_from_more_rows():
    assert [basis_rows(k, 10**6) for k in (1, 32, 33, 128)] == [1024, 1024, 1056, 4096]
    assert basis_rows(128, 300) == 300

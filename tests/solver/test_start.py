"""Starts: projections of the right shape, reproducible from the seed, and good clusters."""

import numpy as np
import pytest

from bitmosaic import HSIC
from bitmosaic.io.threads import single_threaded_blas
from bitmosaic.solver import start
from bitmosaic.solver.blocks import Blocks
from bitmosaic.solver.embedding import fit_embedding, normalization
from bitmosaic.solver.start import (
    agreed_space,
    find_consensus,
    on_the_sphere,
    random_rotation,
    rotation_start,
    top_eigenvectors,
    whitener,
)
from bitmosaic.views import as_views


@pytest.fixture(autouse=True)
def one_blas_thread():
    with single_threaded_blas():
        yield


def blob_views(n=800, c=4, d=10, seed=0):
    """Well-separated blobs, seen as they are and through a smooth map."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % c
    X = (10 * rng.normal(size=(c, d))[y] + rng.normal(size=(n, d))).astype(np.float32)
    return [X, np.tanh(X / 5)], y


def centered_blocks(views, l=40, **how):
    embeddings = []
    for X in views:
        d = X.shape[1]
        blank = normalization(np.zeros(d), np.ones(d, np.float32))
        embeddings.append(fit_embedding(blank, [X[:l]], [(X[l : 2 * l], np.full(l, -1))], 1.0))
    blocks = Blocks(as_views(views), embeddings, **how)
    blocks.center([len(X) for X in views])
    return blocks


def consensus_of(blocks):
    return find_consensus(*blocks.joint_gram(), blocks.n_rows, [blocks.n_rows] * len(blocks.embeddings))


def embedded(blocks):
    """Z_v of all rows, in float64."""
    parts = [blocks.embedded(number) for number in range(len(blocks))]
    return [np.vstack([Zs[v] for Zs in parts]).astype(float) for v in range(len(blocks.embeddings))]


@pytest.mark.parametrize("K", [8, 128])  # 128 bits are more than two views with 40 anchors have directions
@pytest.mark.parametrize("m", [1, 2])
def test_a_rotation_start_has_one_projection_for_each_view_and_the_same_for_a_seed(K, m):
    grams = centered_blocks(blob_views()[0][:m]).grams()
    first, again, other = (rotation_start(grams, K, np.random.default_rng(seed)) for seed in (3, 3, 4))
    assert first.labels is None
    assert [P.shape for P in first.projections] == [(40, K)] * m
    assert all(P.dtype == np.float32 and np.isfinite(P).all() for P in first.projections)
    assert all(P.any(0).all() for P in first.projections)  # no bit without a projection
    for v in range(m):
        np.testing.assert_array_equal(first.projections[v], again.projections[v])
        assert not np.array_equal(first.projections[v], other.projections[v])


def signal_views(n=600, seed=0):
    """Three linear views of the same five variables, each with its own noise columns."""
    rng = np.random.default_rng(seed)
    T = rng.normal(size=(n, 5))
    return [np.hstack([T @ rng.normal(size=(5, 8)), rng.normal(size=(n, 8))]).astype(np.float32) for _ in range(3)]


def shares_of(views):
    return consensus_of(centered_blocks(views)).shares


def test_two_copies_get_half_a_share_each():
    views = signal_views()
    np.testing.assert_allclose(shares_of(views), 1, atol=0.1)
    np.testing.assert_allclose(shares_of([*views, views[0]]), [0.5, 1, 1, 0.5], atol=0.15)
    np.testing.assert_allclose(shares_of([views[0], 3 * views[0]]), 0.5, atol=0.01)


def test_a_useless_view_gets_a_small_share():
    views = signal_views()
    noise = np.random.default_rng(1).normal(size=(600, 16)).astype(np.float32)
    np.testing.assert_allclose(shares_of([*views, noise])[:3], shares_of(views), atol=0.01)
    assert shares_of([*views, noise])[3] < 0.1
    assert shares_of([*views, np.ones((600, 4), np.float32)])[3] == pytest.approx(0.01)


def test_single_views_and_views_without_agreement_get_a_full_share():
    rng = np.random.default_rng(0)
    assert shares_of(signal_views()[:1]) == pytest.approx([1])
    np.testing.assert_allclose(shares_of([np.ones((600, 2), np.float32)] * 2), 1)
    pair = shares_of([rng.normal(size=(600, 9)).astype(np.float32) for _ in range(2)])
    assert pair[0] == pytest.approx(pair[1])


def small_embedding(X):
    d = X.shape[1]
    return fit_embedding(normalization(np.zeros(d), np.ones(d, np.float32)), [X], [], 1.0)


def test_rows_on_the_sphere_have_length_1_and_rows_without_direction_stay():
    Y = on_the_sphere(np.array([[3.0, 4.0], [0.0, 0.0], [-1e-3, 0.0]], np.float32))
    np.testing.assert_allclose(Y, [[0.6, 0.8], [0, 0], [-1, 0]], rtol=1e-6)


@pytest.mark.parametrize(("n_rows", "ridge"), [(500, 0.1), (2000, 0.03), (20_000, 0.003)])
def test_a_whitener_keeps_the_strongest_directions_and_its_ridge_falls_with_the_rows(n_rows, ridge):
    rng = np.random.default_rng(0)
    w = np.sort(rng.gamma(1, size=250))[::-1]
    U = np.linalg.qr(rng.normal(size=(250, 250)))[0]
    W = whitener((U * w) @ U.T, n_rows)
    kept = w[: start.WHITENED]
    assert W.shape == (250, start.WHITENED)
    white = W.T @ (U * w) @ U.T @ W
    np.testing.assert_allclose(white, np.diag(np.sort(kept / (kept + ridge * kept.mean()))), atol=1e-9)


def test_the_ridge_of_a_view_follows_the_rows_that_have_it(monkeypatch):
    seen = []
    monkeypatch.setattr(start, "whitener", lambda gram, n_rows: seen.append(n_rows) or np.eye(len(gram)))
    find_consensus(np.eye(5), [slice(0, 2), slice(2, 5)], 5000, [5000, 50])
    assert seen == [5000, 50]


@pytest.mark.parametrize("shares", [[1.0, 1.0], [1.0, 0.25]])
def test_rows_spread_along_agreed_directions_by_their_agreement(shares):
    blocks, shares = centered_blocks(blob_views()[0]), np.array(shares)
    consensus = find_consensus(*blocks.joint_gram(), 800, [800, 800])
    scale = np.sqrt(np.repeat(shares, 40))
    agreement = np.linalg.eigvalsh(consensus.gram * np.outer(scale, scale))[::-1][:6]
    directions = agreed_space(consensus.gram, consensus.views, shares, 6, np.random.default_rng(0))
    Y = sum(Z @ W @ U for Z, W, U in zip(embedded(blocks), consensus.whiteners, directions, strict=True))
    expected = np.diag(agreement**1.5 / shares.sum() ** 2)
    order = np.argsort(-np.diag(Y.T @ Y))
    np.testing.assert_allclose((Y.T @ Y)[np.ix_(order, order)], expected, atol=1e-4 * expected.max())


@pytest.mark.parametrize("shape", [(3, 8), (8, 3)])
def test_a_random_rotation_keeps_lengths(shape):
    R = random_rotation(*shape, np.random.default_rng(0))
    assert R.shape == shape
    gram = R @ R.T if shape[0] <= shape[1] else R.T @ R
    np.testing.assert_allclose(gram, np.eye(min(shape)), atol=1e-12)


@pytest.mark.parametrize("count", [4, 40])
def test_top_eigenvectors_are_the_top_ones(count):
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(100, 40))
    w, U = top_eigenvectors(Z.T @ Z, count, rng)
    np.testing.assert_allclose(np.sort(w), np.linalg.eigvalsh(Z.T @ Z)[-count:], rtol=1e-8)
    np.testing.assert_allclose(Z.T @ Z @ U, U * w, atol=1e-6)


def test_the_first_bits_of_a_rotation_start_carry_the_same_variance():
    """Without the rotation the first bits would have nearly all of it."""
    blocks = centered_blocks(blob_views()[0][:1])
    (G,) = blocks.grams()
    (P,) = rotation_start([G], 32, np.random.default_rng(0)).projections
    variance = np.sort(np.einsum("ik,ij,jk->k", P, G, P))
    assert variance[-4:].sum() < 0.6 * variance.sum()
    assert np.linalg.eigvalsh(G)[-4:].sum() > 0.9 * np.trace(G)


# ---- through the estimator


def test_blobs_seen_through_two_smooth_maps_are_found():
    errors = []
    for seed in range(3):
        views, y = blob_views(seed=seed)
        model = HSIC(n_clusters=4, random_state=seed).fit(views)
        errors.append(
            sum((y[model.labels_ == j] != np.bincount(y[model.labels_ == j]).argmax()).sum() for j in range(4))
        )
        np.testing.assert_array_equal(model.predict(views), model.labels_)
    assert errors.count(0) >= 2
    assert max(errors) <= 1  # of 800: a sample on the edge of its blob

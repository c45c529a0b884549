"""Where Algorithm 1 begins: projections of the right shape, the same for the same seed, and good clusters."""

from itertools import pairwise

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from bitmosaic import HSIC
from bitmosaic.embedding import fit_embedding
from bitmosaic.solver.blocks import Blocks
from bitmosaic.solver.start import (
    consensus_start,
    joint_gram,
    on_the_sphere,
    plain_rows,
    random_rotation,
    rotation_start,
    separate_clusters,
    silhouette,
    telling_directions,
    top_eigenvectors,
    view_shares,
    whitened,
    whitener,
)
from bitmosaic.threads import single_threaded_blas


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


def centred_blocks(views, l=40):
    embeddings = []
    for X in views:
        d = X.shape[1]
        blank = np.zeros(d, np.float32), np.ones(d, np.float32)
        embeddings.append(fit_embedding(*blank, X[:l], [(X[l : 2 * l], np.full(l, -1))], 1.0))
    blocks = Blocks(views, embeddings)
    blocks.centre([len(X) for X in views])
    return blocks


def starts(kind, blocks, K, seed):
    rng = np.random.default_rng(seed)
    return (
        rotation_start(blocks.grams(), K, rng)
        if kind == "rotation"
        else consensus_start(blocks, K, n_clusters=4, n_init=3, rng=rng)
    )


@pytest.mark.parametrize("kind", ["rotation", "consensus"])
@pytest.mark.parametrize("K", [8, 32, 128])  # 128 bits are more than two views with 40 anchors have directions
@pytest.mark.parametrize("m", [1, 2])
def test_a_start_has_one_projection_for_each_view_and_the_same_for_a_seed(kind, K, m):
    blocks = centred_blocks(blob_views()[0][:m])
    start = starts(kind, blocks, K, seed=3)
    assert [P.shape for P in start.projections] == [(40, K)] * m
    assert all(P.dtype == np.float32 and np.isfinite(P).all() for P in start.projections)
    assert all(P.any(0).all() for P in start.projections)  # no bit without a projection
    again, other = starts(kind, blocks, K, seed=3), starts(kind, blocks, K, seed=4)
    for v in range(m):
        np.testing.assert_array_equal(start.projections[v], again.projections[v])
        assert not np.array_equal(start.projections[v], other.projections[v])
    if kind == "rotation":
        assert start.labels is None
    else:
        assert start.labels.shape == (800,)
        np.testing.assert_array_equal(start.labels, again.labels)


def test_the_consensus_start_finds_the_blobs():
    views, y = blob_views()
    start = consensus_start(centred_blocks(views), 32, n_clusters=4, n_init=3, rng=np.random.default_rng(0))
    assert adjusted_rand_score(y, start.labels) == 1


def test_the_consensus_weighs_directions_by_agreement():
    """Two views share one signal; each has a stronger one of its own. The first labels follow the shared one."""
    rng = np.random.default_rng(0)
    n = 600
    shared, own = rng.integers(2, size=n), rng.integers(2, size=(2, n))
    views = [
        np.column_stack([4 * shared, 12 * mine, rng.normal(size=n)]).astype(np.float32)
        + rng.normal(size=(n, 3)).astype(np.float32)
        for mine in own
    ]
    start = consensus_start(centred_blocks(views), 32, n_clusters=2, n_init=3, rng=np.random.default_rng(0))
    assert adjusted_rand_score(shared, start.labels) > 0.9


def signal_views(n=600, seed=0):
    """Three views of the same five numbers, in other words and with noise of their own."""
    rng = np.random.default_rng(seed)
    T = rng.normal(size=(n, 5))
    return [np.hstack([T @ rng.normal(size=(5, 8)), rng.normal(size=(n, 8))]).astype(np.float32) for _ in range(3)]


def shares_of(views):
    blocks = centred_blocks(views)
    joint, edges = joint_gram(blocks)
    slices = [slice(a, b) for a, b in pairwise(edges)]
    gram = whitened(joint, slices, [whitener(joint[s, s]) for s in slices])
    return view_shares(gram, slices, len(views[0]))


def test_two_copies_share_one_voice():
    views = signal_views()
    np.testing.assert_allclose(shares_of(views), 1, atol=0.1)
    np.testing.assert_allclose(shares_of([*views, views[0]]), [0.5, 1, 1, 0.5], atol=0.15)
    np.testing.assert_allclose(shares_of([views[0], 3 * views[0]]), 0.5, atol=0.01)


def test_a_useless_view_is_hardly_heard():
    views = signal_views()
    noise = np.random.default_rng(1).normal(size=(600, 16)).astype(np.float32)
    np.testing.assert_allclose(shares_of([*views, noise])[:3], shares_of(views), atol=0.01)
    assert shares_of([*views, noise])[3] < 0.1
    assert shares_of([*views, np.ones((600, 4), np.float32)])[3] == pytest.approx(0.01)


def test_a_view_by_itself_and_views_without_any_agreement_count_in_full():
    rng = np.random.default_rng(0)
    assert shares_of(signal_views()[:1]) == pytest.approx([1])
    np.testing.assert_allclose(shares_of([np.ones((600, 2), np.float32)] * 2), 1)
    pair = shares_of([rng.normal(size=(600, 9)).astype(np.float32) for _ in range(2)])
    assert pair[0] == pytest.approx(pair[1])


@pytest.mark.parametrize("distance", [10, 0.5])
def test_only_clusters_that_stand_apart_are_taken_from_the_plain_views(distance):
    rng = np.random.default_rng(0)
    y = np.arange(500) % 5
    views = [(distance * np.eye(5, d)[y] + rng.normal(size=(500, d))).astype(np.float32) for d in (8, 200)]
    views[1][:20] = np.nan
    plain = plain_rows(centred_blocks(views), rng)
    assert [X.shape for X in plain] == [(500, 8), (500, 64)]
    np.testing.assert_allclose([np.nanmean((X**2).sum(1)) for X in plain], 1, rtol=1e-5)
    labels = separate_clusters(plain, np.ones(2), 5, 5, rng)
    assert (labels is None) == (distance < 1)
    if labels is not None:
        assert adjusted_rand_score(y, labels) == 1


def test_one_cluster_or_too_few_rows_do_not_stand_apart():
    X = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    for n_clusters in (1, 6):
        assert separate_clusters([X], np.ones(1), n_clusters, 2, np.random.default_rng(0)) is None


def test_rows_on_the_sphere_have_length_1_and_rows_without_direction_stay():
    Y = on_the_sphere(np.array([[3.0, 4.0], [0.0, 0.0], [-1e-3, 0.0]], np.float32))
    np.testing.assert_allclose(Y, [[0.6, 0.8], [0, 0], [-1, 0]], rtol=1e-6)


def test_the_simplified_silhouette():
    X, means = np.array([[0.0], [1.0], [7.0]], np.float32), np.array([[0.0], [4.0], [8.0]], np.float32)
    assert silhouette(X, means, np.array([0, 0, 2])) == pytest.approx((1 + (3 - 1) / 3 + (3 - 1) / 3) / 3)


def test_telling_directions_are_ridge_regressions_of_the_indicators():
    blocks = centred_blocks(blob_views()[0])
    labels = np.arange(800) % 4
    Zs = [np.vstack([Z[v] for Z in blocks.sweep(lambda rows, Zs: Zs)]).astype(float) for v in range(2)]
    directions = telling_directions(blocks, [whitener(Z.T @ Z) for Z in Zs], labels, 4)
    H = np.eye(4)[labels] - 0.25
    for Z, T in zip(Zs, directions, strict=True):
        G = Z.T @ Z
        expected = np.linalg.solve(G + 0.1 * np.trace(G) / len(G) * np.eye(len(G)), Z.T @ H) / 2
        np.testing.assert_allclose(T, expected, rtol=1e-4, atol=1e-6)


def test_the_joint_gram_matrix_agrees_with_numpy():
    blocks = centred_blocks(blob_views()[0])
    gram, edges = joint_gram(blocks)
    Z = np.hstack([np.vstack([Zs[v] for Zs in blocks.sweep(lambda rows, Zs: Zs)]) for v in range(2)]).astype(float)
    np.testing.assert_allclose(gram, Z.T @ Z, atol=1e-3)
    np.testing.assert_array_equal(edges, [0, 40, 80])


@pytest.mark.parametrize("shape", [(5, 5), (3, 8), (8, 3)])
def test_a_random_rotation_keeps_lengths(shape):
    R = random_rotation(*shape, np.random.default_rng(0))
    assert R.shape == shape
    gram = R @ R.T if shape[0] <= shape[1] else R.T @ R
    np.testing.assert_allclose(gram, np.eye(min(shape)), atol=1e-12)


@pytest.mark.parametrize("count", [1, 4, 20, 40])
def test_top_eigenvectors_are_the_top_ones(count):
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(100, 40))
    w, U = top_eigenvectors(Z.T @ Z, count, rng)
    np.testing.assert_allclose(np.sort(w), np.linalg.eigvalsh(Z.T @ Z)[-count:], rtol=1e-8)
    np.testing.assert_allclose(Z.T @ Z @ U, U * w, atol=1e-6)


def test_the_first_bits_of_a_rotation_start_carry_the_same_variance():
    """Without the rotation the first bits would have nearly all of it."""
    blocks = centred_blocks(blob_views()[0][:1])
    (G,) = blocks.grams()
    (P,) = rotation_start([G], 32, np.random.default_rng(0)).projections
    variance = np.sort(np.einsum("ik,ij,jk->k", P, G, P))
    assert variance[-4:].sum() < 0.6 * variance.sum()
    assert np.linalg.eigvalsh(G)[-4:].sum() > 0.9 * np.trace(G)


# ---- through the estimator


def test_blobs_seen_through_two_smooth_maps_are_found():
    errors = []
    for seed in range(5):
        views, y = blob_views(seed=seed)
        model = HSIC(n_clusters=4, start="consensus", random_state=seed).fit(views)
        errors.append(
            sum((y[model.labels_ == j] != np.bincount(y[model.labels_ == j]).argmax()).sum() for j in range(4))
        )
        np.testing.assert_array_equal(model.predict(views), model.labels_)
    assert errors.count(0) >= 3
    assert max(errors) <= 1  # of 800: a sample on the edge of its blob


@pytest.mark.parametrize("start", ["rotation", "consensus"])
def test_more_bits_than_directions_work(start):
    views, y = blob_views(n=60)
    model = HSIC(n_clusters=4, n_bits=256, n_anchors=10, start=start, random_state=0).fit(views)
    assert model.codes_.shape == (60, 32)
    assert adjusted_rand_score(y, model.labels_) > 0.5

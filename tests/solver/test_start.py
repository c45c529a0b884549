"""Where Algorithm 1 begins: projections of the right shape, the same for the same seed, and good clusters."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from bitmosaic import HSIC
from bitmosaic.embedding import fit_embedding
from bitmosaic.solver.blocks import Blocks
from bitmosaic.solver.start import consensus_start, joint_gram, random_rotation, rotation_start, top_eigenvectors
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

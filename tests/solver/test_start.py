"""Starts: projections of the right shape, reproducible from the seed, and good clusters."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from bitmosaic import HSIC
from bitmosaic.io.threads import single_threaded_blas
from bitmosaic.solver import start
from bitmosaic.solver.blocks import Blocks
from bitmosaic.solver.embedding import fit_embedding, normalization
from bitmosaic.solver.start import (
    MOST_DIRECTIONS,
    PlainViews,
    agreed_directions,
    balanced,
    consensus_start,
    discriminating_directions,
    find_consensus,
    on_the_sphere,
    plain_sample,
    project,
    random_rotation,
    rotation_start,
    separate_clusters,
    silhouette,
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
        embeddings.append(fit_embedding(blank, X[:l], [(X[l : 2 * l], np.full(l, -1))], 1.0))
    blocks = Blocks(as_views(views), embeddings, **how)
    blocks.center([len(X) for X in views])
    return blocks


def consensus_of(blocks):
    return find_consensus(*blocks.joint_gram(), blocks.n_rows, [blocks.n_rows] * len(blocks.embeddings))


def consensus_start_of(blocks, K, n_clusters, rng, rows=None):
    rows = np.arange(blocks.n_rows) if rows is None else rows
    return consensus_start(blocks, rows, consensus_of(blocks), K, n_clusters, n_init=3, rng=rng)


def embedded(blocks):
    """Z_v of all rows, in float64."""
    parts = [blocks.embedded(number) for number in range(len(blocks))]
    return [np.vstack([Zs[v] for Zs in parts]).astype(float) for v in range(len(blocks.embeddings))]


def starts(kind, blocks, K, seed):
    rng = np.random.default_rng(seed)
    return (
        rotation_start(blocks.grams(), K, rng)
        if kind == "rotation"
        else consensus_start_of(blocks, K, n_clusters=4, rng=rng)
    )


@pytest.mark.parametrize("kind", ["rotation", "consensus"])
@pytest.mark.parametrize("K", [8, 128])  # 128 bits are more than two views with 40 anchors have directions
@pytest.mark.parametrize("m", [1, 2])
def test_a_start_has_one_projection_for_each_view_and_the_same_for_a_seed(kind, K, m):
    blocks = centered_blocks(blob_views()[0][:m])
    first = starts(kind, blocks, K, seed=3)
    assert [P.shape for P in first.projections] == [(40, K)] * m
    assert all(P.dtype == np.float32 and np.isfinite(P).all() for P in first.projections)
    assert all(P.any(0).all() for P in first.projections)  # no bit without a projection
    again, other = starts(kind, blocks, K, seed=3), starts(kind, blocks, K, seed=4)
    for v in range(m):
        np.testing.assert_array_equal(first.projections[v], again.projections[v])
        assert not np.array_equal(first.projections[v], other.projections[v])
    if kind == "rotation":
        assert first.labels is None
    else:
        assert first.labels.shape == (800,)
        np.testing.assert_array_equal(first.labels, again.labels)


def test_the_consensus_start_finds_the_blobs():
    views, y = blob_views()
    first = consensus_start_of(centered_blocks(views), 32, n_clusters=4, rng=np.random.default_rng(0))
    assert adjusted_rand_score(y, first.labels) == 1


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
    first = consensus_start_of(centered_blocks(views), 32, n_clusters=2, rng=np.random.default_rng(0))
    assert adjusted_rand_score(shared, first.labels) > 0.9


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


@pytest.mark.parametrize("distance", [10, 0.5])
def test_only_separated_clusters_are_taken_from_the_plain_views(distance):
    rng = np.random.default_rng(0)
    y = np.arange(500) % 5
    views = [(distance * np.eye(5, d)[y] + rng.normal(size=(500, d))).astype(np.float32) for d in (8, 200)]
    views[1][:20] = np.nan
    labels = separate_clusters(PlainViews(centered_blocks(views), rng), np.arange(500), np.ones(2), 5, 5, rng)
    assert (labels is None) == (distance < 1)
    if labels is not None:
        assert adjusted_rand_score(y, labels) == 1


def test_a_sample_decides_separation_and_all_rows_get_labels(monkeypatch):
    monkeypatch.setattr(start, "PLAIN_ROWS", 300)
    noise, y = np.random.default_rng(0), np.arange(2500) % 4
    views = [(10 * np.eye(4, d)[y] + noise.normal(size=(2500, d))).astype(np.float32) for d in (8, 200)]
    views[1][105:900:7] = np.nan
    asked = []

    class Watched(PlainViews):
        def view(self, v, rows):
            asked.append(rows)
            return super().view(v, rows)

    rng = np.random.default_rng(0)
    rows = np.arange(1, 2500, 3)
    labels = separate_clusters(Watched(centered_blocks(views), rng), rows, np.ones(2), 4, 5, rng)
    assert adjusted_rand_score(y[rows], labels) == 1
    assert [len(some) for some in asked] == [300, 300, 833, 833]
    assert set(asked[0]) < set(rows)
    np.testing.assert_array_equal(asked[0], np.unique(asked[0]))
    np.testing.assert_array_equal(asked[-1], rows)


def test_the_plain_sample_grows_with_the_clusters_and_is_never_more_than_the_rows():
    assert [plain_sample(k, 10**6) for k in (1, 200, 201, 1000)] == [2000, 2000, 2010, 10_000]
    assert plain_sample(1000, 7) == 7


@pytest.mark.parametrize("basis", [None, 70, 5], ids=lambda k: f"basis of {k} columns")
def test_plain_views_are_normalized_rows_and_wide_ones_are_projected(basis):
    """The width of a view is that of its reduced rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1500, 80)).astype(np.float32)
    X[1200], Y = np.nan, X[:, :1].copy()
    B = None if basis is None else rng.normal(size=(80, basis)).astype(np.float32)
    plain = replace(normalization(rng.normal(size=80), rng.uniform(1, 2, 80).astype(np.float32)), basis=B)
    blocks = Blocks(as_views([X, Y]), [fit_embedding(plain, X[:9], [], 1.0), small_embedding(Y[:9])])
    views = PlainViews(blocks, np.random.default_rng(1))
    rows = np.array([0, 3, 700, 1199, 1200, 1499])
    wide, narrow = views(rows)
    expected = (X[rows].astype(float) - plain.offset) * plain.factor
    expected = expected if B is None else expected @ B
    if basis != 5:
        R = views.maps[0]
        assert R.shape == (basis or 80, 64)
        expected = expected @ R.astype(float)
    assert views.maps[1] is None
    np.testing.assert_allclose(wide, expected, rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(np.isnan(wide).any(1), rows == 1200)
    np.testing.assert_array_equal(np.isnan(narrow), False)
    every = views(np.arange(1500))[0]
    np.testing.assert_allclose(every[rows], wide, rtol=1e-4, atol=1e-4)


def small_embedding(X):
    d = X.shape[1]
    return fit_embedding(normalization(np.zeros(d), np.ones(d, np.float32)), X, [], 1.0)


def test_balanced_views_have_a_mean_square_of_their_share():
    rng = np.random.default_rng(0)
    plain = [(size * rng.normal(size=(400, d))).astype(np.float32) for size, d in ((1e-3, 4), (50, 9), (0, 2))]
    plain[0][:100] = np.nan
    scales = balanced(plain, np.array([1, 0.25, 0.5]))
    squares = [np.nanmean((scale * X.astype(float)) ** 2) * X.shape[1] for scale, X in zip(scales, plain, strict=True)]
    np.testing.assert_allclose(squares, [1, 0.25, 0], rtol=1e-5)
    assert scales[2] == 1  # a view of zeros stays


def test_projected_rows_agree_with_numpy():
    blocks = centered_blocks(blob_views(n=2500)[0])
    rng = np.random.default_rng(0)
    directions = [rng.normal(size=(40, 3)) for _ in range(2)]
    every = sum(Z @ T for Z, T in zip(embedded(blocks), directions, strict=True))
    for rows in (np.arange(2500), np.array([0, 7, 1023, 1024, 2499]), np.arange(2100, 2200)):
        Y = project(blocks, rows, directions)
        assert Y.dtype == np.float32
        np.testing.assert_allclose(Y, every[rows], atol=1e-4)


def test_the_number_of_directions_is_limited(monkeypatch):
    asked, agreed = [], start.agreed_directions

    def watched(gram, views, whiteners, shares, count, rng):
        asked.append(count)
        return agreed(gram, views, whiteners, shares, count, rng)

    monkeypatch.setattr(start, "agreed_directions", watched)
    monkeypatch.setattr(start, "separate_clusters", lambda *args: None)
    blocks = centered_blocks([np.random.default_rng(0).normal(size=(400, 9)).astype(np.float32)])
    for n_clusters in (20, 150):
        consensus_start_of(blocks, 8, n_clusters, np.random.default_rng(0))
    assert asked == [100, MOST_DIRECTIONS]


def test_one_cluster_or_too_few_rows_are_not_separated():
    X = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    for n_clusters in (1, 6):
        rng = np.random.default_rng(0)
        plain_views = PlainViews(centered_blocks([X], l=3), rng)
        assert separate_clusters(plain_views, np.arange(6), np.ones(1), n_clusters, 2, rng) is None


def test_rows_on_the_sphere_have_length_1_and_rows_without_direction_stay():
    Y = on_the_sphere(np.array([[3.0, 4.0], [0.0, 0.0], [-1e-3, 0.0]], np.float32))
    np.testing.assert_allclose(Y, [[0.6, 0.8], [0, 0], [-1, 0]], rtol=1e-6)


def test_the_simplified_silhouette():
    X, means = np.array([[0.0], [1.0], [7.0]], np.float32), np.array([[0.0], [4.0], [8.0]], np.float32)
    assert silhouette(X, means, np.array([0, 0, 2])) == pytest.approx((1 + (3 - 1) / 3 + (3 - 1) / 3) / 3)


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
    directions = agreed_directions(
        consensus.gram, consensus.views, consensus.whiteners, shares, 6, np.random.default_rng(0)
    )
    Y = project(blocks, np.arange(800), directions)
    expected = np.diag(agreement**1.5 / shares.sum() ** 2)
    order = np.argsort(-np.diag(Y.T @ Y))
    np.testing.assert_allclose((Y.T @ Y)[np.ix_(order, order)], expected, atol=1e-4 * expected.max())


@pytest.mark.parametrize("rows", [np.arange(800), np.arange(0, 800, 5)], ids=["all rows", "some rows"])
def test_discriminating_directions_are_ridge_regressions_of_the_indicators(rows):
    blocks = centered_blocks(blob_views()[0])
    Zs = embedded(blocks)
    labels = np.arange(len(rows)) % 4
    directions = discriminating_directions(blocks, rows, [whitener(Z.T @ Z, 800) for Z in Zs], labels, 4)
    H = np.eye(4)[labels] - 0.25
    for Z, T in zip(Zs, directions, strict=True):
        G = Z.T @ Z
        expected = np.linalg.solve(G + 0.075 * np.trace(G) / len(G) * np.eye(len(G)), Z[rows].T @ H) / 2
        np.testing.assert_allclose(T, expected, rtol=1e-4, atol=1e-6)


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
        model = HSIC(n_clusters=4, start="consensus", random_state=seed).fit(views)
        errors.append(
            sum((y[model.labels_ == j] != np.bincount(y[model.labels_ == j]).argmax()).sum() for j in range(4))
        )
        np.testing.assert_array_equal(model.predict(views), model.labels_)
    assert errors.count(0) >= 2
    assert max(errors) <= 1  # of 800: a sample on the edge of its blob

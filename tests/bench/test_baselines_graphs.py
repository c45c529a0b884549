"""AMGL and MLAN: clusters that only a graph can separate, useless views, and the graphs themselves."""

import numpy as np
import pytest
from planted_views import TRUTH, VIEWS, blobs
from scipy.optimize import minimize
from scipy.sparse import block_diag, csr_array
from scipy.sparse.csgraph import connected_components
from scipy.sparse.csgraph import laplacian as reference
from scipy.spatial.distance import cdist

from bitmosaic.bench.baselines import make
from bitmosaic.bench.baselines.base import standardized
from bitmosaic.bench.baselines.graphs import (
    BLOCK,
    MLAN_MAX_ITER,
    adaptive_weights,
    candidates,
    common_embedding,
    first_rows,
    laplacian,
    nearest_rows,
    neighbor_graph,
    normalized_laplacian,
    smallest_eigenvectors,
    symmetric_graph,
    update_rows,
)
from bitmosaic.estimators.metrics import clustering_scores

METHODS = ("AMGL", "MLAN")
BLOBS = list(VIEWS.values())


def random_rows(n, d, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)


def rings(n=400, noise=0.06, seed=0):
    """Two views of two concentric rings, and the ring of each row."""
    rng = np.random.default_rng(seed)
    truth = np.arange(n) % 2
    views = []
    for _ in range(2):
        angle = rng.uniform(0, 2 * np.pi, n)
        circle = np.stack([np.cos(angle), np.sin(angle)], axis=1) * (1 + truth)[:, None]
        views.append((circle + noise * rng.standard_normal((n, 2))).astype(np.float32))
    return views, truth


def moons(n=400, noise=0.08, seed=0):
    """Two moons in two views with independent noise: neighbors along a moon are the same in both."""
    rng = np.random.default_rng(seed)
    truth, t = np.arange(n) % 2, rng.uniform(0, np.pi, n)
    moon = np.stack([np.cos(t) + truth, np.where(truth, 0.5 - np.sin(t), np.sin(t))], axis=1)
    return [(moon + noise * rng.standard_normal((n, 2))).astype(np.float32) for _ in range(2)], truth


def scores(method, views, truth, **settings):
    labels = make(method, len(np.unique(truth)), random_state=0, **settings).fit_predict(views)
    return clustering_scores(truth, labels)


@pytest.mark.parametrize("method", METHODS)
def test_moons_that_kmeans_cannot_separate_are_separated(method):
    views, truth = moons()
    assert scores("k-means", views, truth)["acc"] < 0.9
    assert scores(method, views, truth)["acc"] >= 0.98


@pytest.mark.parametrize("method", METHODS)
def test_rings_in_one_view_are_separated(method):
    views, truth = rings()
    assert scores(method, views[:1], truth)["acc"] == 1


@pytest.mark.parametrize("method", METHODS)
def test_a_useless_view_does_not_harm_the_others(method):
    useless = random_rows(len(TRUTH), 10, seed=5)
    assert scores(method, [useless], TRUTH)["nmi"] < 0.1
    assert scores(method, [*BLOBS, useless], TRUTH)["nmi"] >= 0.95


def test_amgl_takes_at_most_half_the_mean_size_of_a_cluster_as_neighbors():
    X = [random_rows(40, 3)]
    few, many = (make("AMGL", 4, random_state=0, n_neighbors=k).fit_predict(X) for k in (5, 1000))
    np.testing.assert_array_equal(few, many)


def test_the_objective_of_amgl_never_rises():
    method = make("AMGL", 5, random_state=0)
    method.fit_predict([random_rows(300, d, d) for d in (3, 6, 20)])
    objective = np.array(method.objective_)
    assert len(objective) > 3
    assert (np.diff(objective) <= 1e-9 * objective[:-1]).all()
    assert objective[-1] < objective[0]


def test_amgl_gives_a_useless_view_the_least_weight():
    L = [normalized_laplacian(neighbor_graph(X, 5)) for X in [*BLOBS, random_rows(len(TRUTH), 10)]]
    F, objective = common_embedding(L, 4, np.random.default_rng(0))
    traces = [np.trace(F.T @ L_v.toarray() @ F) for L_v in L]
    assert np.argmax(traces) == 3
    assert objective[-1] == pytest.approx(np.sqrt(traces).sum(), rel=1e-6)


def test_the_objective_of_mlan_never_rises_while_lambda_stays():
    near = candidates([random_rows(300, d, d) for d in (3, 6, 20)], 60)
    rng = np.random.default_rng(0)
    S, alpha = first_rows(near, 9)
    lam = 100 * float(alpha.mean())
    values = []
    for _ in range(8):
        S, value = update_rows(near, S, near.embedding(S, 5, rng), alpha, lam)
        values.append(value)
    assert (np.diff(values) <= 1e-6 * np.array(values[:-1])).all()
    assert values[-1] < 0.99 * values[0]


def test_mlan_cuts_a_connected_graph_into_exactly_as_many_parts_as_clusters():
    close, truth = blobs(n=300, spread=0.9, seed=2)
    views = list(close.values())
    near = candidates([standardized(X) for X in views], 100)
    assert near.parts(first_rows(near, 9)[0])[0] == 1
    method = make("MLAN", 4, random_state=0)
    labels = method.fit_predict(views)
    assert len(method.objective_) < MLAN_MAX_ITER  # it did not fall back to k-means
    assert clustering_scores(truth, labels)["nmi"] >= 0.95


def test_mlan_without_the_right_number_of_parts_takes_kmeans(monkeypatch):
    monkeypatch.setattr("bitmosaic.bench.baselines.graphs.MLAN_MAX_ITER", 1)
    labels = make("MLAN", 5, random_state=0).fit_predict([random_rows(200, 4)])
    assert len(np.unique(labels)) == 5


def test_mlan_takes_more_neighbors_where_the_graph_has_too_many_parts():
    rng = np.random.default_rng(0)
    crowds = np.arange(120) // 5  # tight groups of five rows: with 3 neighbors, no group is connected to another
    X = (np.repeat([0.0, 9.0], 60)[:, None] + rng.standard_normal((24, 3))[crowds]).astype(np.float32)
    X += 0.01 * random_rows(120, 3)
    near = candidates([X], 100)
    assert near.parts(first_rows(near, 3)[0])[0] > 2
    assert scores("MLAN", [X], np.arange(120) // 60, n_neighbors=3)["acc"] == 1


def test_candidates_do_not_change_the_result():
    rng = np.random.default_rng(4)
    truth = np.arange(400) % 4
    views = [3 * rng.standard_normal((4, d))[truth] + rng.standard_normal((400, d)) for d in (5, 9)]
    few, all_ = (make("MLAN", 4, random_state=0, n_candidates=m).fit_predict(views) for m in (60, 399))
    np.testing.assert_array_equal(few, all_)


def test_rows_of_mlan_agree_with_a_general_optimizer():
    views = [random_rows(15, 3), random_rows(15, 4, seed=1)]
    near = candidates(views, 14)
    before, alpha = first_rows(near, 4)
    F = np.linalg.qr(np.random.default_rng(0).standard_normal((15, 2)))[0]
    S, value = update_rows(near, before, F, alpha, lam=3.0)

    dense = symmetric_graph(near.rows, before).toarray()
    D = [cdist(X, X, "sqeuclidean") for X in views]
    w = [0.5 / np.sqrt((dense * D_v).sum()) for D_v in D]  # Σ s d is the same for S and (S + Sᵀ)/2
    d = sum(w_v * D_v for w_v, D_v in zip(w, D, strict=True)) + 3.0 * cdist(F, F, "sqeuclidean")
    for i in range(3):
        others, a = np.delete(np.arange(15), i), float(alpha[i, 0])
        best = minimize(
            lambda s, d_i=d[i, others], a=a: d_i @ s + a * s @ s,
            np.full(14, 1 / 14),
            bounds=[(0, 1)] * 14,
            constraints={"type": "eq", "fun": lambda s: s.sum() - 1},
            method="SLSQP",
            options={"ftol": 1e-12},
        )
        ours = np.zeros(15)
        np.add.at(ours, near.rows[i], S[i])
        np.testing.assert_allclose(ours[others], best.x, atol=1e-4)
    full = np.zeros((15, 15))
    np.add.at(full, (np.arange(15)[:, None], near.rows), S)
    L = laplacian(csr_array((full + full.T) / 2)).toarray()
    expected = sum(np.sqrt((full * D_v).sum()) for D_v in D)
    expected += (alpha * full**2).sum() + 2 * 3.0 * np.trace(F.T @ L @ F)
    assert value == pytest.approx(expected, rel=1e-5)


def test_nearest_rows_agree_with_all_distances():
    X = random_rows(BLOCK + 88, 7)  # more than a block
    D = cdist(X, X, "sqeuclidean")
    np.fill_diagonal(D, np.inf)
    neighbors, distances = nearest_rows(X, 6)
    np.testing.assert_array_equal(neighbors, np.argsort(D, axis=1)[:, :6])
    np.testing.assert_allclose(distances, np.sort(D, axis=1)[:, :6], rtol=1e-3, atol=1e-5)


def test_adaptive_weights_solve_their_problem():
    d = np.sort(np.random.default_rng(0).random((20, 6)), axis=1)  # k = 5
    s, alpha = adaptive_weights(d)
    np.testing.assert_allclose(s.sum(axis=1), 1)
    # KKT: d_j + 2α s_j is the same of all neighbors, and no larger than that of the next one, which has none
    level = d[:, :5] + 2 * alpha[:, None] * s
    np.testing.assert_allclose(level, np.repeat(d[:, 5:], 5, axis=1))


def test_equally_distant_neighbors_have_equal_weights():
    s, alpha = adaptive_weights(np.ones((2, 4)))
    np.testing.assert_allclose(s, 1 / 3)
    np.testing.assert_array_equal(alpha, 0)


def test_laplacians_agree_with_scipy():
    S = neighbor_graph(random_rows(50, 3), 4)
    np.testing.assert_allclose(laplacian(S).toarray(), reference(S.toarray()), atol=1e-12)
    np.testing.assert_allclose(normalized_laplacian(S).toarray(), reference(S.toarray(), normed=True), atol=1e-12)


@pytest.mark.parametrize("n", [60, 700])  # dense, Lanczos
def test_smallest_eigenvectors_agree_with_a_dense_solver(n):
    L = laplacian(neighbor_graph(random_rows(n, 3), 5))
    F = smallest_eigenvectors(L, 4, np.random.default_rng(0))
    values, vectors = np.linalg.eigh(L.toarray())
    np.testing.assert_allclose(np.diag(F.T @ L @ F), values[:4], atol=1e-7)
    np.testing.assert_allclose(np.linalg.svd(F.T @ vectors[:, :4])[1], 1, atol=1e-6)  # the same space


def test_eigenvectors_of_many_equal_parts_are_all_found():
    part = laplacian(neighbor_graph(random_rows(300, 3), 5))
    L = csr_array(block_diag([part] * 6))
    parts = connected_components(L)[0]
    F = smallest_eigenvectors(L, parts, np.random.default_rng(0))
    np.testing.assert_allclose(F.T @ F, np.eye(parts), atol=1e-9)
    assert abs(F.T @ L @ F).max() < 1e-9

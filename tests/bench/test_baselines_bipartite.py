"""LSC-K, Nyström, MVSC and LMVSC: spectral clustering by a few landmarks."""

import numpy as np
import pytest
from planted_views import NOISY, TRUTH, VIEWS
from scipy.linalg import subspace_angles
from scipy.optimize import minimize
from scipy.sparse import csr_array
from sklearn.metrics import adjusted_rand_score

from bitmosaic.bench.baselines import bipartite, make
from bitmosaic.bench.baselines.base import onto_simplex, standardized
from bitmosaic.bench.baselines.bipartite import mixtures, weighted_embedding
from bitmosaic.bench.baselines.single_view import features, normalized
from bitmosaic.estimators.metrics import clustering_scores

METHODS = ["LSC-K", "Nyström", "MVSC", "LMVSC"]
X = standardized(VIEWS["a"])


def rings(n=800, seed=0):
    """Two concentric rings, and the ring of each row."""
    rng = np.random.default_rng(seed)
    truth = np.arange(n) % 2
    radius, angle = 1 + 2 * truth + 0.1 * rng.standard_normal(n), rng.uniform(0, 2 * np.pi, n)
    return (radius * np.stack([np.cos(angle), np.sin(angle)])).T.astype(np.float32), truth


def noise(seed=0, n=600, d=12):
    return np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)


@pytest.mark.parametrize("method", ["LSC-K", "Nyström", "LMVSC"])
def test_views_that_each_separate_half_of_the_clusters_are_combined(method):
    truth = np.arange(400) % 4
    sides = 8 * np.eye(2, 6, dtype=np.float32)
    views = [sides[truth // 2] + noise(0, 400, 6), sides[truth % 2] + noise(1, 400, 6)]
    assert clustering_scores(truth, make(method, 4, random_state=0).fit_predict(views))["acc"] >= 0.95


@pytest.mark.parametrize(
    ("method", "settings"), [("LSC-K", {"n_landmarks": 200}), ("MVSC", {}), ("Nyström", {"gamma": 8})]
)
def test_two_rings_are_separated(method, settings):
    """k-means cannot separate them: both rings have the same center."""
    X, truth = rings()
    assert adjusted_rand_score(truth, make("k-means", 2, random_state=0).fit_predict(X)) < 0.1
    assert adjusted_rand_score(truth, make(method, 2, random_state=0, **settings).fit_predict(X)) > 0.99


def test_landmarks_of_separate_clusters_are_their_means():
    far = np.array([[0.0, 0], [100, 0], [0, 100]], np.float32)[np.arange(90) % 3] + noise(n=90, d=2)
    found = bipartite.landmarks(far, 30, np.random.default_rng(0), 20)
    start = far[np.random.default_rng(0).choice(90, 30, replace=False)]
    nearest = ((far[:, None] - found) ** 2).sum(-1).argmin(1)
    means = np.array([far[nearest == j].mean(0) for j in range(30)])
    np.testing.assert_allclose(found, means, atol=1e-3)
    assert not np.allclose(found, start)


def test_landmarks_of_many_rows_come_from_a_sample(monkeypatch):
    monkeypatch.setattr(bipartite, "LANDMARK_ROWS", 40)
    found = bipartite.landmarks(X, 40, np.random.default_rng(0), 5)
    assert (found[:, None] == X).all(-1).any(1).all()  # every sampled row is its own landmark


def test_similarities_agree_with_numpy(monkeypatch):
    monkeypatch.setattr(bipartite, "BLOCK", 77)
    U = X[:30] + 0.1
    D = np.sqrt(((X[:, None].astype(float) - U) ** 2).sum(-1))
    K = np.exp(-(D**2) / (2 * D.mean() ** 2))
    K[np.sort(D, axis=1)[:, [4]] < D] = 0
    Z = bipartite.similarities(X, U, 5)
    assert Z.nnz == 5 * len(X)
    np.testing.assert_allclose(Z.toarray(), K / K.sum(1, keepdims=True), atol=1e-5)


def test_embedding_of_the_small_matrix_is_that_of_the_graph_of_all_rows():
    Z = bipartite.by_degree(bipartite.similarities(X, X[:50] + 0.1, 5))
    W = (Z @ Z.T).toarray()  # (n, n), which the publication of LSC avoids
    np.testing.assert_allclose(W.sum(1), 1)
    U, V = bipartite.singular_vectors(Z, 6)
    np.testing.assert_allclose(U.T @ U, np.eye(6), atol=1e-8)
    np.testing.assert_allclose(V.T @ V, np.eye(6), atol=1e-8)
    expected = np.linalg.eigh(W)[1][:, -6:]
    assert subspace_angles(U, expected).max() < 1e-6
    sigma = np.linalg.svd(Z.toarray(), compute_uv=False)[:6]
    np.testing.assert_allclose(np.diag(U.T @ (Z @ V)), sigma, atol=1e-8)


def test_a_landmark_without_edges_stays_without():
    lonely = np.vstack([X[:20], np.full((1, X.shape[1]), 1e3, np.float32)])
    Z = bipartite.by_degree(bipartite.similarities(X, lonely, 3)).toarray()
    assert (Z[:, -1] == 0).all()
    assert np.isfinite(Z).all()


def test_nystroem_from_all_rows_is_spectral_clustering():
    gamma = 0.05
    S = np.exp(-gamma * ((X[:, None].astype(float) - X) ** 2).sum(-1))
    d = S.sum(1) ** -0.5
    expected = np.linalg.eigh(d[:, None] * S * d)[1][:, -4:]
    U, _ = bipartite.singular_vectors(normalized(features(X, X, gamma)), 4)
    assert subspace_angles(U.astype(float), expected).max() < 1e-3


def test_nystroem_from_some_rows_agrees_with_the_formula_of_the_publication():
    """R = A + A^{-1/2} B Bᵀ A^{-1/2}, V = [A; Bᵀ] A^{-1/2} U Λ^{-1/2}, with the sampled rows first."""
    l, gamma = 40, 0.5
    C = np.exp(-gamma * ((X[:, None].astype(float) - X[:l]) ** 2).sum(-1))
    A, B = C[:l], C[l:].T
    d = C @ np.linalg.solve(A, C.sum(0))
    A, B = A / np.sqrt(np.outer(d[:l], d[:l])), B / np.sqrt(np.outer(d[:l], d[l:]))
    values, E = np.linalg.eigh(A)
    root = E / np.sqrt(values) @ E.T
    values, vectors = np.linalg.eigh(A + root @ B @ B.T @ root)
    expected = np.vstack([A, B.T]) @ root @ vectors[:, -4:] / np.sqrt(values[-4:])
    U, _ = bipartite.singular_vectors(normalized(features(X, X[:l], gamma)), 4)
    np.testing.assert_allclose(expected.T @ expected, np.eye(4), atol=1e-6)
    assert subspace_angles(U.astype(float), expected).max() < 1e-3


def test_mvsc_objective_never_rises_and_is_what_the_laplacians_give():
    graphs = [
        bipartite.by_degree(bipartite.similarities(Y, Y[:60] + 0.1, 5)) for Y in (NOISY["a"], NOISY["b"], NOISY["c"])
    ]
    k, r = 4, 3.0
    U, alpha, objective = weighted_embedding(graphs, k, r)
    assert len(objective) > 2
    assert (np.diff(objective) <= 1e-12).all()
    assert alpha.sum() == pytest.approx(1)
    _, V = bipartite.singular_vectors(sum(a**r * Z for a, Z in zip(alpha, graphs, strict=True)), k)
    G = np.vstack([U, V]) / np.sqrt(2)
    total = 0.0
    for a, Z in zip(alpha, graphs, strict=True):
        n, p = Z.shape
        L = np.eye(n + p)
        L[:n, n:], L[n:, :n] = -Z.toarray(), -Z.toarray().T
        total += a**r * np.trace(G.T @ L @ G)
    assert objective[-1] == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("r", [1.5, 100, 2000])
def test_mvsc_finds_the_clusters_with_a_view_of_noise(r):
    method = make("MVSC", 4, random_state=0, r=r)
    assert clustering_scores(TRUTH, method.fit_predict([noise(), VIEWS["a"], VIEWS["b"]]))["acc"] >= 0.95


def test_mvsc_weights_are_optimal():
    """At the end, no other weights on the simplex give a lower objective for the same embedding."""
    method = make("MVSC", 4, random_state=0, r=2.5)
    method.fit_predict([VIEWS["a"], VIEWS["b"], noise()])
    w, r = method.weights_, method.r
    costs = w ** (1 - r)  # in proportion to tr(GᵀL_vG), as the weights are optimal for them
    others = np.random.default_rng(0).dirichlet(np.ones(3), 1000)
    assert (others**r @ costs >= w**r @ costs - 1e-12).all()
    assert w[2] == w.min()
    assert (np.diff(method.objective_) <= 1e-12).all()


def test_projection_onto_the_simplex_is_the_nearest_point_of_it():
    Y = 3 * np.random.default_rng(0).standard_normal((50, 8))
    Z = onto_simplex(Y)
    assert (Z >= 0).all()
    np.testing.assert_allclose(Z.sum(1), 1)
    # (y - z)·(s - z) ≤ 0 for every corner s, hence for all of the simplex
    assert ((Y - Z) - np.einsum("ij,ij->i", Y - Z, Z)[:, None] <= 1e-12).all()


@pytest.mark.parametrize("alpha", [0.1, 10.0])
def test_mixtures_of_anchors_agree_with_a_plain_solver(alpha):
    A = X[:15] + np.float32(0.1)
    Z = mixtures(X, A, alpha).toarray()
    np.testing.assert_allclose(Z.sum(1), 1, atol=1e-5)
    assert (Z >= 0).all()

    def cost(z, x):
        return ((x - z @ A) ** 2).sum() + alpha * (z**2).sum()

    for x, z in zip(X[20:26].astype(float), Z[20:26], strict=True):
        plain = minimize(
            cost,
            np.full(15, 1 / 15),
            args=(x,),
            bounds=[(0, 1)] * 15,
            constraints={"type": "eq", "fun": lambda z: z.sum() - 1},
            method="SLSQP",
            options={"ftol": 1e-12, "maxiter": 500},
        )
        assert plain.success
        assert cost(z, x) <= plain.fun + 1e-4 * X.shape[1]
        np.testing.assert_allclose(z, plain.x, atol=0.02)


def test_mixtures_do_not_depend_on_blocks(monkeypatch):
    whole = mixtures(X, X[:15], 1.0).toarray()
    monkeypatch.setattr("bitmosaic.bench.baselines.bipartite.BLOCK", 50)
    np.testing.assert_allclose(mixtures(X, X[:15], 1.0).toarray(), whole, atol=1e-4)


def test_the_constant_vector_is_left_out_only_if_the_graph_is_connected():
    U = np.arange(8.0).reshape(2, 4)
    apart, joined = csr_array(np.array([[1, 0, 0], [0, 1, 0]])), csr_array(np.array([[1, 0, 0], [1, 1, 0]]))
    np.testing.assert_array_equal(bipartite.without_constant(U, joined), U[:, 1:])  # the last landmark has no edges
    np.testing.assert_array_equal(bipartite.without_constant(U, apart), U[:, :-1])

"""The binary baselines find planted clusters, lower their objective, and agree with plain NumPy."""

from typing import Any

import numpy as np
import pytest
from planted_views import NOISY, TRUTH, VIEWS
from scipy.linalg import orthogonal_procrustes, solve
from scipy.spatial.distance import cdist

from bitmosaic.bench.baselines import binary, method_class
from bitmosaic.bench.baselines.base import concatenated, standardized
from bitmosaic.bench.baselines.binary import best_rotation
from bitmosaic.estimators.metrics import clustering_scores
from bitmosaic.hamming.codes import cluster_bit_sums_numpy, nearest_centers_numpy, unpack

BINARY = ["ITQ+bk-means", "CKM", "BMVC"]
JOINT = ["CKM", "BMVC"]
ONE_VIEW = VIEWS["a"]
SCALED = [standardized(X) for X in NOISY.values()]


def make(name, n_clusters, **settings) -> Any:
    return method_class(name)(n_clusters, **settings)


def fitted(name, views, n_clusters=4, seed=0, **settings):
    method = make(name, n_clusters, random_state=seed, **settings)
    return method, method.fit_predict(views)


def parts(name, views, seed=0, **settings):
    """The method, its embeddings and what `learn` returns, with codes and centroids in ±1."""
    method = make(name, 4, random_state=seed, **settings)
    codes, labels, centers, Ps = method.learn(views, np.random.default_rng(seed))
    Zs = method.embed(views, np.random.default_rng(seed))
    return method, Zs, codes, unpack(codes, np.float64), labels, centers, Ps


@pytest.mark.parametrize("name", BINARY)
def test_one_view_is_enough(name):
    assert clustering_scores(TRUTH, fitted(name, ONE_VIEW)[1])["acc"] >= 0.95


@pytest.mark.parametrize(
    ("name", "settings"), [("ITQ+bk-means", {}), ("CKM", {"tol": 0}), ("BMVC", {"tol": 0, "n_anchors": 40})]
)
def test_the_objective_falls_and_never_rises(name, settings):
    values = np.array(fitted(name, NOISY, **settings)[0].objective_)
    assert len(values) >= 8
    assert np.diff(values).max() <= 1e-6 * values[0]
    assert values[-1] < 0.97 * values[0]


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("n_bits", [16, 128])
def test_codes_and_their_sizes(name, n_bits):
    method, labels = fitted(name, NOISY, n_bits=n_bits)
    columns = 3 * 60 if name == "BMVC" else 39  # a tenth of the rows are anchors, in each view
    assert method.codes_.dtype == np.uint8
    assert method.codes_.shape == (600, n_bits // 8)
    assert method.sizes_ == {
        "data": 600 * n_bits // 8,
        "centroids": 4 * n_bits // 8,
        "projection": 4 * columns * n_bits,
    }
    assert labels.dtype == np.int32
    assert set(labels) == {0, 1, 2, 3}


@pytest.mark.parametrize("name", BINARY)
def test_all_bits_are_informative(name):
    """Also with more bits than columns."""
    shares = unpack(fitted(name, NOISY["b"], n_bits=64)[0].codes_).mean(axis=0)
    assert np.abs(shares).max() < 0.8


# ---- ITQ


def test_itq_rotates_the_corners_of_a_cube_back():
    rng = np.random.default_rng(0)
    corners = rng.choice([-1.0, 1.0], (500, 8))
    V = (corners @ np.linalg.qr(rng.standard_normal((8, 8)))[0]).astype(np.float32)
    losses = [best_rotation(V, 8, 50, np.random.default_rng(seed))[1] for seed in range(5)]
    assert min(loss[0] for loss in losses) > 200
    assert min(loss[-1] for loss in losses) < 0.01


@pytest.mark.parametrize("k", [5, 16])
def test_the_rotation_is_that_of_procrustes(k):
    V = np.random.default_rng(1).standard_normal((300, k)).astype(np.float32)
    R, losses = best_rotation(V, 16, 7, np.random.default_rng(2))
    before = best_rotation(V, 16, 6, np.random.default_rng(2))[0]
    B = np.where(V @ before >= 0, 1.0, -1.0)
    np.testing.assert_allclose(R @ R.T, np.eye(k), atol=1e-5)
    assert losses[-1] == pytest.approx(((B - V @ R) ** 2).sum(), rel=1e-5)
    if k == 16:
        np.testing.assert_allclose(R, orthogonal_procrustes(V, B)[0], atol=1e-3)


def test_itq_codes_lie_near_their_principal_components():
    X = concatenated(SCALED)
    components = np.linalg.svd(X.astype(np.float64), full_matrices=False)[2][:16].T
    method = make("ITQ+bk-means", 4, random_state=0, n_bits=16)
    _, _, _, (P,) = method.learn(SCALED, np.random.default_rng(0))
    np.testing.assert_allclose(P.T @ P, np.eye(16), atol=1e-5)
    kept = (X @ P).astype(np.float64).var(axis=0).sum()
    assert kept == pytest.approx((X @ components).var(axis=0).sum(), rel=0.005)


# ---- CKM and BMVC


@pytest.mark.parametrize(
    ("name", "settings"), [("CKM", {}), ("BMVC", {"n_anchors": 30, "coupling": 0.01, "balance": 2.0})]
)
def test_the_result_is_a_minimum_in_every_variable_and_the_objective_is_exact(name, settings):
    method, Zs, codes, B, labels, centers, Ps = parts(name, SCALED, max_iter=300, tol=0, **settings)
    assert len(method.objective_) < 300  # converged
    C = unpack(centers, np.float64)

    np.testing.assert_array_equal(labels, nearest_centers_numpy(codes, centers)[0])
    if name == "CKM":
        sums = cluster_bit_sums_numpy(codes, labels, 4)
        np.testing.assert_array_equal(C[sums != 0], np.sign(sums)[sums != 0])

    weights, losses = method.view_weights_**method.exponent, []
    for Z, P in zip(Zs, Ps, strict=True):
        Z = Z.astype(np.float64)
        A = (1 - method.variance_reward) * Z.T @ Z + method.ridge * np.eye(Z.shape[1])
        best = solve(A, Z.T @ B)
        np.testing.assert_allclose(P, best, atol=1e-3 * np.abs(best).max())
        fit = Z @ best
        losses.append(((B - fit) ** 2).sum() + method.ridge * (best**2).sum() - method.variance_reward * (fit**2).sum())
    vote = sum(w * Z @ P for w, Z, P in zip(weights, Zs, Ps, strict=True)) + method.coupling * C[labels]
    clear = np.abs(vote) > 1e-4 * np.abs(vote).max()
    np.testing.assert_array_equal(B[clear], np.sign(vote)[clear])

    clustering = ((B - C[labels]) ** 2).sum() + method.balance * (C.sum(axis=1) ** 2).sum()
    expected = weights @ losses + method.coupling * clustering
    assert method.objective_[-1] == pytest.approx(expected, rel=1e-5)


def test_coupling_pulls_codes_to_their_centroids():
    def scatter(coupling):
        *_, B, labels, centers, _ = parts("CKM", SCALED, coupling=coupling)
        return ((B - unpack(centers)[labels]) ** 2).mean()

    assert scatter(1.0) < 0.5 * scatter(0.001)


def test_blocks_of_rows_add_up(monkeypatch):
    Z = SCALED[0]
    monkeypatch.setattr(binary, "BLOCK", 70)
    for name in JOINT:
        np.testing.assert_allclose(make(name, 4).gram(Z), Z.T.astype(float) @ Z, rtol=1e-5, atol=1e-3)
    rows = binary.Rows([Z, SCALED[1]], n_threads=2)
    seen, (total, count) = rows.run(lambda Zs, own: (np.hstack([*Zs, own]), [Zs[0].sum(0), len(own)]), Z)
    np.testing.assert_array_equal(seen, np.hstack([Z, SCALED[1], Z]))
    np.testing.assert_allclose(total, Z.sum(0, dtype=float), atol=1e-3)
    assert count == len(Z)
    assert clustering_scores(TRUTH, fitted("BMVC", VIEWS)[1])["acc"] >= 0.98


def test_similarities_of_bmvc_agree_with_scipy():
    X, rng = SCALED[0].astype(np.float64), np.random.default_rng(0)
    anchors, probes = rng.choice(600, 50, replace=False), rng.choice(600, 200, replace=False)
    D = cdist(X, X[anchors])
    near = np.where(D == 0, np.inf, D)[probes].min(axis=1)
    Z = np.exp(-(D**2) / (2 * (2 * near.mean()) ** 2))
    np.testing.assert_allclose(binary.similarities(SCALED[0], anchors, probes), Z - Z.mean(axis=0), atol=1e-5)


def test_bmvc_trusts_a_view_of_noise_least():
    noise = np.random.default_rng(0).standard_normal((600, 10)).astype(np.float32)
    method, labels = fitted("BMVC", [*VIEWS.values(), noise], n_anchors=50)
    assert method.view_weights_.sum() == pytest.approx(1)
    assert method.view_weights_.argmin() == 3
    assert clustering_scores(TRUTH, labels)["acc"] >= 0.95

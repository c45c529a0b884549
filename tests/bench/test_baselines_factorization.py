"""MVKM, MultiNMF and OMVC: one assignment, or common coefficients, for all views."""

import numpy as np
import pytest
from planted_views import NOISY, TRUTH, VIEWS, blobs

from bitmosaic.bench.baselines import factorization, make
from bitmosaic.bench.baselines.base import nonnegative, standardized
from bitmosaic.estimators.metrics import clustering_scores

METHODS = ["MVKM", "MultiNMF", "OMVC"]
SMALL = {"MVKM": {}, "MultiNMF": {}, "OMVC": {"chunk_size": 150, "tol": 1e-4}}  # four chunks of the 600 rows


def fitted(name, views, seed=0, **settings):
    method = make(name, 4, random_state=seed, **(SMALL[name] | settings))
    return method, method.fit_predict(views)


def never_rises(values, rounding=1e-6):
    values = np.asarray(values)
    return len(values) > 1 and bool(np.all(np.diff(values) <= rounding * values[:-1]))


@pytest.mark.parametrize("name", METHODS)
def test_noisy_views_together_beat_the_average_one_alone(name):
    """On the mean of some data sets. MultiNMF does not beat the best single view, which is unknown without labels."""
    alone, together = [], []
    for views, truth in (blobs(n=200, spread=0.6, seed=seed) for seed in range(2)):
        alone += [clustering_scores(truth, fitted(name, X)[1])["nmi"] for X in views.values()]
        together.append(clustering_scores(truth, fitted(name, views)[1])["nmi"])
    assert np.mean(together) > np.mean(alone) + 0.1


@pytest.mark.parametrize("name", METHODS)
def test_the_objective_never_rises(name):
    method, _ = fitted(name, NOISY, **({"n_passes": 4} if name == "OMVC" else {"tol": 1e-9}))
    assert never_rises(method.objective_)
    assert method.objective_[-1] < method.objective_[0]


@pytest.mark.parametrize("name", METHODS)
def test_a_useless_view_does_no_harm(name):
    views = VIEWS | {"constant": np.full((len(TRUTH), 3), 7.0, np.float32)}
    assert clustering_scores(TRUTH, fitted(name, views)[1])["acc"] >= 0.95


# ---- MVKM


def l21(views, F, G):
    return np.array([np.linalg.norm(X.astype(np.float64) - f[G], axis=1).sum() for X, f in zip(views, F, strict=True)])


def test_mvkm_reports_the_objective_of_its_publication():
    views = [standardized(X) for X in NOISY.values()]
    method, G = fitted("MVKM", NOISY, gamma=3.0, max_iter=1)
    # After one round, rows had equal weights: centroids are the plain means of the assignment that k-means++ gave.
    start = factorization.centroids_at_start(views, 4, np.random.default_rng(0))
    before = sum(((X[:, None] - f) ** 2).sum(2) for X, f in zip(views, start, strict=True)).argmin(1)
    F = [np.stack([X[before == j].mean(0) for j in range(4)]) for X in views]
    np.testing.assert_array_equal(
        G, sum(((X[:, None] - f) ** 2).sum(2) for X, f in zip(views, F, strict=True)).argmin(1)
    )
    H = l21(views, F, G)
    alpha = (3 * H) ** (1 / (1 - 3.0)) / ((3 * H) ** (1 / (1 - 3.0))).sum()
    assert method.objective_ == pytest.approx([alpha**3 @ H], rel=1e-5)


def test_mvkm_centroids_are_weighted_means_and_stay_without_rows():
    rng = np.random.default_rng(0)
    X, weights, labels = rng.standard_normal((50, 3), np.float32), rng.random(50, np.float32), rng.integers(3, size=50)
    before = np.full((4, 3), 9, np.float32)
    expected = [np.average(X[labels == j], axis=0, weights=weights[labels == j]) for j in range(3)]
    np.testing.assert_allclose(
        factorization.means(X, labels, weights, before), [*expected, before[3]], rtol=1e-4, atol=1e-6
    )


def test_mvkm_view_weights_are_the_best_of_sum_one():
    H, gamma = np.array([3.0, 1.0, 7.0]), 2.5
    best = factorization.view_weights(H, gamma)
    others = np.random.default_rng(0).dirichlet(np.ones(3), size=20_000)
    assert best.sum() == pytest.approx(1)
    assert best**gamma @ H <= (others**gamma @ H).min()
    assert (others**gamma @ H).min() == pytest.approx(best**gamma @ H, rel=1e-2)
    np.testing.assert_array_equal(factorization.view_weights(np.array([0.0, 2.0, 0.0]), gamma), [0.5, 0, 0.5])


def test_mvkm_row_weights_move_the_mean_toward_the_median():
    rng = np.random.default_rng(0)
    X = np.r_[rng.normal(0, 1, 200), rng.normal(40, 1, 7)][:, None].astype(np.float32)
    one_cluster, weights, center = np.zeros(len(X), int), np.ones(len(X), np.float32), np.zeros((1, 1), np.float32)
    for _ in range(100):
        center = factorization.means(X, one_cluster, weights, center)
        weights = factorization.row_weights(np.abs(X - center)[:, 0])
    assert X.mean() > 1
    assert center[0, 0] == pytest.approx(np.median(X), abs=0.02)


def test_mvkm_row_weights_are_the_inverse_residuals_also_of_small_ones():
    residuals = np.array([0.25, 1e-3, 8.0], np.float32)
    np.testing.assert_allclose(factorization.row_weights(residuals), 1 / (2 * residuals), rtol=1e-6)
    assert np.isfinite(factorization.row_weights(np.zeros(3, np.float32))).all()


# ---- MultiNMF


def one_view(seed=0, k=3):
    rng = np.random.default_rng(seed)
    X = factorization.unit_total(nonnegative(NOISY["a"]))
    U, V = rng.random((X.shape[1], k), np.float32), rng.random((len(X), k), np.float32)
    return X, U, V / V.sum(), rng.random((len(X), k), np.float32) / V.sum()


def joint(X, U, V, V_star, lam):
    """‖X - V Uᵀ‖² + λ ‖V Q - V*‖², computed literally."""
    X, U, V = (M.astype(np.float64) for M in (X, U, V))
    return ((X - V @ U.T) ** 2).sum() + lam * ((V * U.sum(0) - V_star) ** 2).sum()


@pytest.mark.parametrize("lam", [0.0, 0.01, 1.0])
def test_multinmf_updates_lower_the_objective_of_a_view_and_normalizing_leaves_it(lam):
    X, U, V, V_star = one_view()
    values = [joint(X, U, V, V_star, lam)]
    for _ in range(40):
        U = factorization.updated_basis(X, U, V, V_star, lam)
        values.append(joint(X, U, V, V_star, lam))
        Q = U.sum(0)
        U, V = U / Q, V * Q
        assert joint(X, U, V, V_star, lam) == pytest.approx(values[-1], rel=1e-5)
        V = factorization.updated_coefficients(X @ U, U, V, V_star, lam)
        values.append(joint(X, U, V, V_star, lam))
    assert never_rises(values, rounding=1e-5)
    assert values[-1] < 0.9 * values[2]


def test_multinmf_rounds_of_a_view_are_update_normalize_update():
    X, U, V, V_star = one_view()
    basis = factorization.updated_basis(X, U, V, V_star, 0.01)
    Q = basis.sum(0)
    coefficients = factorization.updated_coefficients(X @ (basis / Q), basis / Q, V * Q, V_star, 0.01)
    found = factorization.factorize(X, U, V, V_star, 0.01, n_iter=1, tol=0)
    np.testing.assert_allclose(found[0], basis / Q, rtol=1e-5)
    np.testing.assert_allclose(found[1], coefficients, rtol=1e-5)


def test_multinmf_updates_are_the_gradients_halves():
    """U ∘ (minus part) / (plus part) of the gradient of the joint objective, which differences give."""
    X, U, V, V_star = (M.astype(np.float64) for M in one_view())
    for lam in (0.0, 0.5):
        plus = U @ (V.T @ V) + lam * U.sum(0) * (V**2).sum(0)
        assert_step_is(
            factorization.updated_basis(X, U, V, V_star, lam), U, plus, lambda M, w=lam: joint(X, M, V, V_star, w)
        )
    U /= U.sum(0)
    plus = V @ (U.T @ U) + 0.5 * V
    after = factorization.updated_coefficients(X @ U, U, V, V_star, 0.5)
    assert_step_is(after, V, plus, lambda M: joint(X, U, M, V_star, 0.5))


def assert_step_is(after, M, plus, objective):
    """after = M - M / plus ∘ gradient / 2, at some entries."""
    for i, j in [(0, 0), (3, 1), (7, 2)]:
        h = np.zeros_like(M)
        h[i, j] = 1e-4 * M[i, j]
        gradient = (objective(M + h) - objective(M - h)) / (2 * h[i, j])
        assert after[i, j] == pytest.approx(M[i, j] - M[i, j] / plus[i, j] * gradient / 2, rel=1e-4)


def test_multinmf_objective_from_gram_matrices_is_the_plain_one():
    X, U, V, V_star = one_view()
    U /= U.sum(0)
    found = factorization.total_objective([X, X], [U, U], [V, 2 * V], V_star, 0.3)
    assert found == pytest.approx(joint(X, U, V, V_star, 0.3) + joint(X, U, 2 * V, V_star, 0.3), rel=1e-5)


def test_multinmf_start_aligns_the_components_of_the_views():
    views = [factorization.unit_total(nonnegative(X)) for X in VIEWS.values()]
    U, V = factorization.start(views, 4, np.random.default_rng(0))
    for u, v in zip(U, V, strict=True):
        np.testing.assert_allclose(u.sum(0), 1, rtol=1e-5)
        correlations = np.corrcoef(V[0].T, v.T)[:4, 4:]
        np.testing.assert_array_equal(correlations.argmax(1), np.arange(4))


# ---- OMVC


def test_omvc_rows_only_get_better_and_reach_nonnegative_least_squares():
    from scipy.optimize import nnls

    rng = np.random.default_rng(0)
    K, targets = rng.random((20, 5)), rng.standard_normal((30, 20))
    H, C, M = K.T @ K, targets @ K, rng.random((30, 5), np.float32)
    for _ in range(300):
        after = factorization.lowered(M, H, C)
        assert (factorization.quadratic(after, H, C) <= factorization.quadratic(M, H, C)).all()
        assert (after >= 0).all()
        M = after
    np.testing.assert_allclose(M, [nnls(K, t)[0] for t in targets], atol=1e-3)


def test_omvc_takes_for_each_row_the_best_projected_step():
    rng = np.random.default_rng(1)
    K = rng.random((8, 4))
    H, C, M = K.T @ K, rng.standard_normal((200, 4)), rng.random((200, 4), np.float32)
    newton = M - np.linalg.solve(H, C.T).T
    steps = [s * newton for s in (0, 1, 0.5, 0.25, 0.125)] + [(M @ H - C) / np.trace(H)]
    values = np.stack([factorization.quadratic(np.maximum(M - step, 0), H, C) for step in steps])  # (steps, rows)
    np.testing.assert_allclose(factorization.quadratic(factorization.lowered(M, H, C), H, C), values.min(0), atol=1e-4)
    assert set(values.argmin(0)) >= {1, 2, 3, 5}  # several step lengths are needed


def test_omvc_coefficients_equal_the_consensus_for_a_high_alpha():
    views = [factorization.unit_total(nonnegative(X)) for X in VIEWS.values()]
    U, V = factorization.start(views, 4, np.random.default_rng(0))
    basis, V_star = factorization.Basis(U[0], 1e4, 0.0), V[1]
    basis.add(views[0], V[0])
    np.testing.assert_allclose(basis.update(views[0], V[0], V_star), V_star, rtol=1e-2, atol=1e-6)


def plain(views, bases, V, V_star):
    """The objective of OMVC, computed literally."""
    return sum(
        ((X - v.astype(np.float64) @ b.U.T) ** 2).sum() + b.alpha * ((v - V_star) ** 2).sum() + b.beta * np.abs(v).sum()
        for X, b, v in zip(views, bases, V, strict=True)
    )


def test_omvc_steps_on_a_chunk_lower_the_objective_of_all_rows_seen():
    views = [factorization.unit_total(nonnegative(X)) for X in NOISY.values()]
    U, _ = factorization.start([X[:100] for X in views], 4, np.random.default_rng(0))
    bases = [factorization.Basis(u, 0.01, 0.02 / X.size) for u, X in zip(U, views, strict=True)]
    chunks = [slice(0, 200), slice(200, 600)]
    V, V_star = np.empty((3, 600, 4), np.float32), np.empty((600, 4), np.float32)
    for rows in chunks:
        V[:, rows] = V_star[rows] = factorization.first_coefficients([X[rows] for X in views], bases)
    values = [plain(views, bases, V, V_star)]
    for _ in range(5):
        for rows in chunks:
            X = [x[rows] for x in views]
            V[:, rows], V_star[rows] = factorization.fit_chunk(bases, X, V[:, rows], V_star[rows], max_iter=1, tol=0)
            values.append(plain(views, bases, V, V_star))
    assert never_rises(values)
    assert values[-1] < 0.95 * values[0]
    size = sum(factorization.squared_norm(X) for X in views)
    assert size + sum(b.loss(v, V_star) for b, v in zip(bases, V, strict=True)) == pytest.approx(values[-1], rel=1e-5)
    for x, b, v in zip(views, bases, V, strict=True):
        np.testing.assert_allclose(b.A, v.T @ v, rtol=1e-4)
        np.testing.assert_allclose(b.B, x.T @ v, rtol=1e-4)

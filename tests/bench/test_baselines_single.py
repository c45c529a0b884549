"""The baselines for one view find planted clusters, and agree with plain NumPy and SciPy."""

import sys
from itertools import combinations

import numpy as np
import pytest
from planted_views import TRUTH, VIEWS, blobs
from scipy.spatial.distance import cdist, pdist

from bitmosaic.bench.baselines import make, single_view
from bitmosaic.bench.baselines.base import concatenated, nonnegative, standardized
from bitmosaic.errors import MissingExtraError
from bitmosaic.estimators.metrics import clustering_scores

X = concatenated([standardized(view) for view in VIEWS.values()])


def nmi(truth, labels):
    return clustering_scores(truth, labels)["nmi"]


def disc_in_a_ring(n=400):
    """Clusters that are not linearly separable."""
    rng = np.random.default_rng(0)
    truth, angle = rng.integers(2, size=n), rng.uniform(0, 2 * np.pi, n)
    circle = 3 * truth[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return (circle + 0.15 * rng.standard_normal((n, 2))).astype(np.float32), truth


def scatter_in_kernel_space(K, labels):
    """Σ_i ‖φ(x_i) - c‖² with exact centers, from the whole kernel matrix."""
    groups = [np.flatnonzero(labels == k) for k in np.unique(labels)]
    return np.trace(K) - sum(K[np.ix_(g, g)].sum() / len(g) for g in groups)


# ---- k-means


@pytest.mark.parametrize("name", ["k-means", "k-means++"])
def test_kmeans_ends_where_rows_have_their_nearest_mean(name):
    method = make(name, 4, random_state=0)
    labels = method.fit_predict(VIEWS)
    means = np.stack([X[labels == k].mean(0) for k in range(4)])
    D = cdist(X, means, "sqeuclidean")
    np.testing.assert_array_equal(labels, D.argmin(1))
    np.testing.assert_allclose(method.objective_, [D.min(1).sum()], rtol=1e-5)


def test_kmeans_reports_the_bytes_of_its_data():
    method = make("k-means", 4, random_state=0)
    method.fit_predict(VIEWS)
    assert method.sizes_ == {"data": 600 * 39 * 4, "centroids": 4 * 39 * 4}


def test_a_start_far_apart_ends_lower_than_random_rows():
    views, _ = blobs(n_clusters=12, spread=10.0)

    def mean_objective(name):
        methods = [make(name, 12, random_state=seed) for seed in range(10)]
        for method in methods:
            method.fit_predict(views)
        return np.mean([method.objective_[-1] for method in methods])

    assert mean_objective("k-means++") < 0.8 * mean_objective("k-means")


# ---- k-medoids


def test_medoids_are_the_best_of_all_triples():
    views, _ = blobs(n=40, n_clusters=3)
    method = make("k-medoids", 3, random_state=0)
    labels = method.fit_predict(views)
    rows = concatenated([standardized(view) for view in views.values()])
    D = cdist(rows, rows)
    best = min(combinations(range(40), 3), key=lambda medoids: D[:, medoids].min(1).sum())
    assert sorted(method.medoids_) == list(best)
    np.testing.assert_array_equal(labels, D[:, method.medoids_].argmin(1))
    # In float32 the distance of a medoid to itself is the root of a rounding error, which depends on the processor.
    np.testing.assert_allclose(method.objective_, [D[:, list(best)].min(1).sum()], rtol=1e-4)


def test_medoids_of_a_sample_serve_all_rows(monkeypatch):
    monkeypatch.setattr("bitmosaic.bench.baselines.single_view.RBF_BLOCK", 7)
    method = make("k-medoids", 4, random_state=0, n_sample=50)
    labels = method.fit_predict(VIEWS)
    np.testing.assert_array_equal(labels, cdist(X, X[method.medoids_]).argmin(1))
    assert nmi(TRUTH, labels) >= 0.95


def test_without_its_package_kmedoids_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "kmedoids", None)
    with pytest.raises(MissingExtraError, match=r"k-medoids needs kmedoids: pip install 'bitmosaic\[bench\]'"):
        make("k-medoids", 4).fit_predict(VIEWS)


# ---- kernels


def test_kernel_agrees_with_scipy_far_from_the_origin_and_in_blocks(monkeypatch):
    monkeypatch.setattr(single_view, "RBF_BLOCK", 7)
    rows = np.random.default_rng(0).standard_normal((60, 5)).astype(np.float32) + np.float32(1000)
    expected = np.exp(-0.3 * cdist(rows, rows[:9], "sqeuclidean"))
    K = single_view.rbf_kernel(rows, rows[:9], 0.3)
    assert K.dtype == np.float32
    np.testing.assert_allclose(K, expected, atol=1e-5)


def test_width_is_the_mean_squared_distance_of_pairs():
    rng = np.random.default_rng(0)
    assert single_view.mean_width(X, rng) == pytest.approx(1 / (pdist(X) ** 2).mean())
    assert single_view.mean_width(X, rng, n_sample=300) == pytest.approx(1 / (pdist(X) ** 2).mean(), rel=0.1)
    assert single_view.mean_width(np.ones((5, 2), np.float32), rng) == 1


@pytest.mark.parametrize("name", ["Ak-kmeans", "Nyström-features"])
def test_kernels_separate_a_disc_from_the_ring_around_it(name):
    rows, truth = disc_in_a_ring()
    for seed in range(5):
        labels = make(name, 2, random_state=seed, gamma=1.0, n_sample=100).fit_predict(rows)
        assert nmi(truth, labels) >= 0.95
    assert nmi(truth, make("k-means", 2, random_state=0).fit_predict(rows)) < 0.5


# ---- approximate kernel k-means


def test_the_objective_of_approximate_kernel_kmeans_never_rises():
    views, _ = blobs(spread=0.7, seed=1)  # no clear clusters: many iterations
    method = make("Ak-kmeans", 5, random_state=0, n_sample=60)
    method.fit_predict(views)
    assert len(method.objective_) > 5
    assert (np.diff(method.objective_) <= 1e-6 * method.objective_[0]).all()


def test_with_all_rows_sampled_it_is_kernel_kmeans():
    rows = blobs(n=200, spread=0.7, seed=1)[0]["c"]
    K = np.exp(-0.02 * cdist(rows, rows, "sqeuclidean"))
    expected = start = np.random.default_rng(0).integers(4, size=len(rows))
    for _ in range(100):
        U = np.eye(4)[expected] / np.bincount(expected)  # (n, k)
        expected = (np.diag(U.T @ K @ U) - 2 * K @ U).argmin(1)
    labels, objective = single_view.kernel_kmeans(K.astype(np.float32), K.astype(np.float32), start, 4)
    np.testing.assert_array_equal(labels, expected)
    assert objective[-1] == pytest.approx(scatter_in_kernel_space(K, expected), rel=1e-4)


def test_centers_are_the_nearest_combinations_of_the_sampled_rows():
    """The first objective, from the definition: least squares for each center in the span of the sample."""
    rows, _ = disc_in_a_ring(n=120)
    K = np.exp(-cdist(rows, rows, "sqeuclidean"))
    sampled, labels = np.arange(0, 120, 8), np.arange(120) % 3
    D = np.empty((120, 3))
    for k in range(3):
        mean = (labels == k) / (labels == k).sum()
        alpha = np.linalg.lstsq(K[np.ix_(sampled, sampled)], K[sampled] @ mean, rcond=None)[0]
        D[:, k] = 1 - 2 * K[:, sampled] @ alpha + alpha @ K[np.ix_(sampled, sampled)] @ alpha
    K_B = K[:, sampled].astype(np.float32)
    _, objective = single_view.kernel_kmeans(K_B, K_B[sampled], labels, 3)
    assert objective[0] == pytest.approx(D.min(1).sum(), rel=1e-4)


def test_a_center_without_rows_stays():
    K = np.ones((6, 6), np.float32)  # all rows are equal: the first cluster gets them all
    labels, objective = single_view.kernel_kmeans(K, K, np.arange(6) % 3, 3)
    np.testing.assert_array_equal(labels, 0)
    np.testing.assert_allclose(objective, 0, atol=1e-5)


# ---- Nyström features


def test_with_all_rows_sampled_features_have_the_distances_of_the_kernel():
    method = make("Nyström-features", 4, random_state=0, gamma=0.01, n_sample=600)
    labels = method.fit_predict(VIEWS)
    K = np.exp(-0.01 * cdist(X, X, "sqeuclidean"))
    assert method.objective_[-1] == pytest.approx(scatter_in_kernel_space(K, labels), rel=1e-3)


# ---- NMF


def test_the_error_of_nmf_is_close_to_that_of_the_best_unconstrained_factors():
    method = make("NMF", 4, random_state=0)
    method.fit_predict(VIEWS)
    s = np.linalg.svd(concatenated([nonnegative(view) for view in VIEWS.values()]), compute_uv=False)
    least = np.sqrt((s[4:] ** 2).sum())
    assert least <= method.objective_[-1] <= 1.05 * least


def test_nmf_does_not_depend_on_the_size_of_a_column():
    sizes = {name: 10.0 ** np.arange(rows.shape[1]) for name, rows in VIEWS.items() if name != "c"}
    scaled = {name: VIEWS[name] * size for name, size in sizes.items()}
    plain = {name: VIEWS[name] for name in sizes}
    np.testing.assert_array_equal(
        make("NMF", 4, random_state=1).fit_predict(scaled), make("NMF", 4, random_state=1).fit_predict(plain)
    )

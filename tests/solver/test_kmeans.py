"""k-means of the start: many fits at once agree with single fits and with scikit-learn."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from bitmosaic.io.threads import single_threaded_blas
from bitmosaic.solver import start as module
from bitmosaic.solver.start import kmeans, lloyd, nearest, seedings


@pytest.fixture(autouse=True)
def one_blas_thread():
    with single_threaded_blas():
        yield


def rows(n=3000, d=6, seed=0):
    """No clusters: every seeding ends elsewhere."""
    return np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)


def blobs(n=600, c=7, d=5, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(c, size=n)
    return (20 * rng.normal(size=(c, d))[y] + rng.normal(size=(n, d))).astype(np.float32), y


def test_fits_agree_with_scikit_learn_from_the_same_centers():
    X = rows()
    centers = seedings(X, 9, 4, np.random.default_rng(1))
    fits = lloyd(X, centers, 300, 2)
    for i, init in enumerate(centers):
        peer = KMeans(9, init=init, n_init=1, max_iter=300).fit(X)
        assert np.mean(peer.labels_ == fits.labels[i]) > 0.999  # a row on a border may go either way
        assert fits.inertia[i] == pytest.approx(peer.inertia_, rel=1e-5)
        np.testing.assert_allclose(fits.centers[i], peer.cluster_centers_, atol=1e-2)


def test_no_round_raises_the_inertia():
    X = rows()
    centers = seedings(X, 12, 3, np.random.default_rng(0))
    inertia = np.array([lloyd(X, centers, rounds, 1).inertia for rounds in range(12)])
    assert (np.diff(inertia, axis=0) <= 1e-6 * inertia[:-1]).all()
    assert (inertia[-1] < 0.9 * inertia[0]).all()


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 40), st.integers(0, 99))
def test_labels_are_those_of_the_nearest_centers(n_fits, n_clusters, n, seed):
    rng = np.random.default_rng(seed)
    X, centers = rng.normal(size=(n, 3)).astype(np.float32), rng.normal(size=(n_fits, n_clusters, 3))
    labels, nearness = nearest(X, centers.astype(np.float32), 1)
    distances = ((X[None, :, None] - centers[:, None]) ** 2).sum(3)  # (f, n, c)
    found = np.take_along_axis(distances, labels[..., None], 2)[..., 0]
    np.testing.assert_allclose(found, distances.min(2), atol=1e-5)
    np.testing.assert_allclose((X**2).sum() - 2 * nearness, distances.min(2).sum(1), rtol=1e-4, atol=1e-4)


def test_seeds_are_rows_and_reach_every_blob():
    X, y = blobs()
    centers = seedings(X, 7, 10, np.random.default_rng(0))
    owners = [[np.flatnonzero((center == X).all(1))[0] for center in fit] for fit in centers]
    assert all(len(set(y[of_fit])) == 7 for of_fit in owners)


@pytest.mark.parametrize("n", [3000, 7000])  # fitted to all rows at once, or to some of them first
def test_labels_do_not_depend_on_the_number_of_threads(n):
    found = [kmeans(rows(n), 9, 6, np.random.default_rng(5), n_threads) for n_threads in (1, 2, 3)]
    for labels in found[1:]:
        np.testing.assert_array_equal(labels, found[0])


@pytest.mark.parametrize("n", [600, 7000])
def test_blobs_are_found(n):
    X, y = blobs(n)
    assert adjusted_rand_score(y, kmeans(X, 7, 5, np.random.default_rng(0), 2)) == 1


def test_more_seedings_find_a_better_fit():
    X = rows()

    def inertia(n_init):
        labels = kmeans(X, 9, n_init, np.random.default_rng(5), 1)
        return sum(((X[labels == j] - X[labels == j].mean(0)) ** 2).sum() for j in range(9))

    assert inertia(6) < inertia(1)


def test_fewer_points_than_clusters_are_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (kmeans(np.zeros((9, 2), np.float32), 3, 2, np.random.default_rng(0), 1) == 0).all()
        X = np.repeat(np.eye(3, dtype=np.float32), 5, axis=0)
        assert adjusted_rand_score(np.arange(15) // 5, kmeans(X, 5, 4, np.random.default_rng(0), 1)) == 1


@pytest.mark.parametrize(
    ("n", "n_clusters", "expected"),
    [
        (4000, 10, [(4000, 20, 300)]),
        (12_000, 10, [(5000, 20, 50), (12_000, 4, 100)]),
        (12_000, 100, [(5000, 2, 50), (12_000, 1, 100)]),
        (30_000, 1500, [(7500, 1, 17), (30_000, 1, 4)]),
    ],
)
def test_many_clusters_have_fewer_fits_and_rounds(monkeypatch, n, n_clusters, expected):
    asked = []

    def watched(X, centers, max_iter, n_threads):
        asked.append((len(X), len(centers), max_iter))
        return lloyd(X, centers, 1, n_threads)

    monkeypatch.setattr(module, "lloyd", watched)
    monkeypatch.setattr(module, "seedings", lambda X, c, f, rng: np.stack([X[:c]] * f))
    kmeans(rows(n, 2), n_clusters, 20, np.random.default_rng(0), 1)
    assert asked == expected

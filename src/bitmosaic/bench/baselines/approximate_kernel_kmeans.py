"""Rows -> similarities to m sampled rows -> kernel k-means whose centres are combinations of these m."""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from sklearn.cluster import kmeans_plusplus

from bitmosaic.bench.baselines.base import Baseline, concatenated, integer_seed
from bitmosaic.bench.baselines.rbf import chosen_width, draw_rows, rbf_kernel

MAX_ITER = 300
TOLERANCE = 1e-6  # of the objective: an iteration that lowers it by less is the last
RANK_TOLERANCE = 1e-6  # of the largest eigenvalue of K̂: float32 similarities cannot tell less from zero


@dataclass(kw_only=True)
class ApproximateKernelKMeans(Baseline):
    """aKKm: R. Chitta, R. Jin, T. C. Havens, A. K. Jain, "Approximate kernel k-means: solution to large scale kernel
    clustering", KDD, 2011.

    Kernel k-means with centres c_k = Σ_j α_kj φ(x_j) over m sampled rows x_j only: of the kernel matrix, the columns of
    these rows are enough.

    Deviations: it starts from the nearest of rows drawn by k-means++ instead of random memberships, which end in worse
    optima (seen with labels, in favour of the method). Columns are standardised. The kernel is exp(-γ d²) with γ = 1 /
    the mean squared distance (the publication chooses a kernel for each data set). K̂ is inverted where its eigenvalues
    are not lost in rounding. A centre that loses all its rows stays where it is. It stops when the objective falls by
    less than a millionth too.
    """

    n_sample: int = 1000
    gamma: float | None = None

    def cluster(self, views: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
        X = concatenated(views)
        sampled = draw_rows(len(X), self.n_sample, self.n_clusters, rng)
        gamma = chosen_width(self.gamma, X, rng)
        K_B = rbf_kernel(X, X[sampled], gamma)  # (n, m)
        seeds, _ = kmeans_plusplus(X, self.n_clusters, random_state=integer_seed(rng))
        start = rbf_kernel(X, seeds, gamma).argmax(axis=1)
        labels, self.objective_ = kernel_kmeans(K_B, K_B[sampled], start, self.n_clusters)
        return labels


def kernel_kmeans(
    K_B: np.ndarray, K_hat: np.ndarray, labels: np.ndarray, n_clusters: int
) -> tuple[np.ndarray, list[float]]:
    """Labels (n,) and Σ_i ‖φ(x_i) - c_k(i)‖² after each iteration, for κ(x, x) = 1."""
    n, m = K_B.shape
    inverse = np.linalg.pinv(K_hat.astype(np.float64), rcond=RANK_TOLERANCE, hermitian=True)  # K̂⁻¹ (m, m)
    means = np.zeros((n_clusters, m))  # Û K_B, the mean similarities of a cluster
    objective: list[float] = []
    for _ in range(MAX_ITER):
        sizes = np.bincount(labels, minlength=n_clusters)
        U = csr_array((np.ones(n, np.float32), labels, np.arange(n + 1)), (n, n_clusters))
        means = np.where((sizes > 0)[:, None], (U.T @ K_B) / np.maximum(sizes, 1)[:, None], means)
        alpha = means @ inverse  # Û K_B K̂⁻¹ (k, m)
        D = K_B @ (-2 * alpha.T).astype(np.float32)
        D += np.einsum("km,km->k", alpha, means).astype(np.float32)  # αᵀ K̂ α: ‖φ(x) - c‖² - 1 (n, k)
        moved, labels = labels, D.argmin(axis=1)
        objective.append(float(1 + D.min(axis=1).mean(dtype=np.float64)) * n)
        if np.array_equal(moved, labels):
            break
        if len(objective) > 1 and objective[-2] - objective[-1] <= TOLERANCE * objective[-2]:
            break
    return labels, objective

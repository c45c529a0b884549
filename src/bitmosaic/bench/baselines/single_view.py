"""Baselines on all views side by side: k-means, k-medoids, approximate kernel k-means, Nyström."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import sklearn.cluster
from scipy.linalg import eigh
from scipy.sparse import csr_array
from sklearn.cluster import kmeans_plusplus
from sklearn.kernel_approximation import Nystroem

from bitmosaic.bench.baselines.base import Baseline, concatenated, integer_seed
from bitmosaic.bench.baselines.bipartite import BLOCK, embedded_clusters, singular_vectors, unit_rows
from bitmosaic.errors import import_extra
from bitmosaic.io.threads import row_ranges
from bitmosaic.solver.embedding import squared_distances, squares

# ---- Samples of rows and similarities exp(-γ d²), shared by the baselines that use samples.


RBF_BLOCK = 4096  # rows at a time


def rbf_kernel(X: np.ndarray, Y: np.ndarray, gamma: float) -> np.ndarray:
    """exp(-γ ‖x - y‖²) of all pairs of rows, float32, by matrix products of blocks."""
    shift = Y.mean(axis=0)  # avoids cancellation far from the origin
    Y = Y - shift
    Y_squares = squares(Y)  # (m,)
    K = np.empty((len(X), len(Y)), np.float32)
    for rows in row_ranges(len(X), RBF_BLOCK):
        D = squared_distances(X[rows] - shift, Y, Y_squares)
        D *= -gamma
        np.exp(D, out=K[rows])
    return K  # (n, m)


def mean_width(X: np.ndarray, rng: np.random.Generator, n_sample: int = 1000) -> float:
    """γ = 1 / the mean squared distance between sampled rows; 1 if all of them are equal."""
    sample = X[rng.choice(len(X), min(n_sample, len(X)), replace=False)].astype(np.float64)
    if len(sample) == 1:
        return 1.0
    mean_squared = 2 * sample.var(axis=0, ddof=1).sum()  # over all pairs of two rows, by expanding ‖x - y‖²
    return 1 / float(mean_squared) if mean_squared > 0 else 1.0


def chosen_width(gamma: float | None, X: np.ndarray, rng: np.random.Generator) -> float:
    """The given γ, or `mean_width` if it is None."""
    return mean_width(X, rng) if gamma is None else gamma


def draw_rows(n_rows: int, n_sample: int, n_clusters: int, rng: np.random.Generator) -> np.ndarray:
    """Sorted positions of the sampled rows, at least one per cluster."""
    return np.sort(rng.choice(n_rows, min(max(n_sample, n_clusters), n_rows), replace=False))


# ---- k-means, the reference method, from random rows and from k-means++.


def lloyd(
    X: np.ndarray, n_clusters: int, rng: np.random.Generator, init: Literal["random", "k-means++"], n_init: int = 1
) -> sklearn.cluster.KMeans:
    """scikit-learn's k-means with at most 300 iterations. X is centered in place during the fit."""
    model = sklearn.cluster.KMeans(
        n_clusters, init=init, n_init=n_init, copy_x=False, random_state=integer_seed(rng), algorithm="lloyd"
    )
    return model.fit(X)


@dataclass
class KMeans(Baseline):
    """k-means: S. P. Lloyd, "Least squares quantization in PCM", IEEE Transactions on Information Theory, 1982.

    From scikit-learn, on all views side by side, one start from random rows. Deviations: columns are standardized; a
    cluster that loses all its rows gets the row farthest from its centroid, so there are n_clusters clusters.

    After a fit: `objective_`, the final sum of squared distances (scikit-learn reports no others), and `sizes_`, bytes
    of the data and of the centroids.
    """

    init: ClassVar[Literal["random", "k-means++"]] = "random"

    def cluster(self, views: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
        X = concatenated(views)  # (n, Σ d_v)
        model = lloyd(X, self.n_clusters, rng, self.init)
        self.objective_ = [float(model.inertia_)]
        self.sizes_ = {"data": X.nbytes, "centroids": model.cluster_centers_.nbytes}
        return model.labels_


@dataclass
class KMeansPlusPlus(KMeans):
    """k-means++: D. Arthur, S. Vassilvitskii, "k-means++: The advantages of careful seeding", SODA, 2007.

    As `KMeans`, but each row of the start is drawn in proportion to its squared distance from the previous ones.
    Deviation: scikit-learn draws a few candidates each time and keeps the best, a variant that the authors also
    mention.
    """

    init: ClassVar[Literal["random", "k-means++"]] = "k-means++"


# ---- k-medoids: rows of the data are the centers of the clusters.


@dataclass(kw_only=True)
class KMedoids(Baseline):
    """k-medoids: E. Schubert, P. J. Rousseeuw, "Fast and eager k-medoids clustering", Information Systems, 2021.

    FasterPAM of the authors' package `kmedoids` on Euclidean distances, from random rows. The HSIC paper names H.-S.
    Park, C.-H. Jun, "A simple and fast algorithm for K-medoids clustering", Expert Systems with Applications, 2009:
    the same objective, which FasterPAM lowers further because it tries all swaps.

    Deviations: columns are standardized. With more than `n_sample` rows, the medoids are those of a random sample of
    that size (as in L. Kaufman, P. J. Rousseeuw, CLARA, 1986, but with one larger sample), and all rows are assigned to
    the nearest medoid.

    After a fit: `objective_`, the final sum of the distances of all rows to their medoids, and `medoids_`.
    """

    n_sample: int = 5000

    def cluster(self, views: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
        package = import_extra("kmedoids", "bench", "k-medoids")
        X = concatenated(views)
        sampled = draw_rows(len(X), self.n_sample, self.n_clusters, rng)
        found = package.fasterpam(
            distances(X[sampled], X[sampled]), self.n_clusters, random_state=integer_seed(rng), n_cpu=1
        )
        self.medoids_ = sampled[np.asarray(found.medoids, np.int64)]  # (k,) rows of X

        labels, total = np.empty(len(X), np.int32), 0.0
        for rows in row_ranges(len(X), RBF_BLOCK):
            D = distances(X[rows], X[self.medoids_])  # (block, k)
            labels[rows] = D.argmin(axis=1)
            total += float(D.min(axis=1).sum(dtype=np.float64))
        self.objective_ = [total]
        return labels


def distances(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """‖x - y‖ of all pairs of rows."""
    D = squared_distances(X, Y)
    return np.sqrt(D, out=D)


# ---- Approximate kernel k-means: similarities to m sampled rows -> kernel k-means with centers in their span.


MAX_ITER = 300
TOLERANCE = 1e-6  # relative decrease of the objective at which to stop
RANK_TOLERANCE = 1e-6  # relative to the largest eigenvalue of K̂: smaller ones are rounding errors of float32


@dataclass(kw_only=True)
class ApproximateKernelKMeans(Baseline):
    """aKKm: R. Chitta, R. Jin, T. C. Havens, A. K. Jain, "Approximate kernel k-means: solution to large scale kernel
    clustering", KDD, 2011.

    Kernel k-means with centers c_k = Σ_j α_kj φ(x_j) over m sampled rows x_j only: of the kernel matrix, the columns of
    these rows are enough.

    Deviations: the start assigns rows to the nearest of rows drawn by k-means++ instead of at random, which gives worse
    optima (chosen with labels, in favor of the method). Columns are standardized. The kernel is exp(-γ d²) with γ = 1 /
    the mean squared distance (the publication chooses a kernel for each data set). K̂ has a pseudo-inverse without
    eigenvalues that are rounding errors. A center that loses all its rows stays unchanged. Iterations also stop when
    the objective falls by less than a millionth.
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


# ---- Nyström: similarities to sampled rows -> spectral clustering, or features -> k-means.


TINY = np.finfo(np.float32).tiny


@dataclass(kw_only=True)
class NystroemSpectral(Baseline):
    """W.-Y. Chen, Y. Song, H. Bai, C.-J. Lin, E. Y. Chang: Parallel Spectral Clustering in Distributed Systems. TPAMI
    2011; the Nyström approximation with orthogonalization that it compares with (Fowlkes et al., TPAMI 2004).

    S ≈ C A⁻¹ Cᵀ with C (n, l) the similarities of all rows to l sampled rows and A (l, l) those among the sampled; the
    k first eigenvectors of D^{-1/2} S D^{-1/2}, rows scaled to length 1, then k-means.

    Deviations: columns are standardized; with F = C A^{-1/2}, the orthogonal eigenvectors are taken as left singular
    vectors of D^{-1/2} F, which equals the publication's A + A^{-1/2} B Bᵀ A^{-1/2} and does not need reordered
    rows; A^{-1/2} leaves out eigenvalues below float32 accuracy; γ is 1 / the mean squared distance unless given;
    1,000 sampled rows; the best of 10 starts of k-means.
    """

    n_samples: int = 1000
    gamma: float | None = None

    def cluster(self, views: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
        X = concatenated(views)
        gamma = chosen_width(self.gamma, X, rng)
        sampled = draw_rows(len(X), self.n_samples, self.n_clusters, rng)
        U, _ = singular_vectors(normalized(features(X, X[sampled], gamma)), self.n_clusters)  # (n, k)
        return embedded_clusters(unit_rows(U), self.n_clusters, rng)


def features(X: np.ndarray, sampled: np.ndarray, gamma: float) -> np.ndarray:
    """F = C E Λ^{-1/2} with A = E Λ Eᵀ: F Fᵀ ≈ S."""
    eigenvalues, E = eigh(rbf_kernel(sampled, sampled, gamma).astype(np.float64))
    present = eigenvalues > len(sampled) * np.finfo(np.float32).eps * eigenvalues[-1]
    M = (E[:, present] / np.sqrt(eigenvalues[present])).astype(np.float32)  # (l, rank)
    F = np.empty((len(X), M.shape[1]), np.float32)
    for rows in row_ranges(len(X), BLOCK):
        F[rows] = rbf_kernel(X[rows], sampled, gamma) @ M
    return F  # (n, rank)


def normalized(F: np.ndarray) -> np.ndarray:
    """D^{-1/2} F in place, D the row sums of F Fᵀ."""
    degrees = F @ F.sum(axis=0)  # (n,)
    F /= np.sqrt(np.maximum(degrees, TINY))[:, None]
    return F


@dataclass(kw_only=True)
class NystroemFeatures(Baseline):
    """Kernel k-means on Nyström features: S. Wang, A. Gittens, M. W. Mahoney, "Scalable kernel k-means clustering with
    Nyström approximation", JMLR, 2019; the features are those of C. Williams, M. Seeger, NIPS, 2000.

    scikit-learn's map from `n_sample` random rows, then one start of its k-means from k-means++. Deviations: columns
    are standardized; γ = 1 / the mean squared distance; all features are kept, not only the strongest.

    After a fit: `objective_`, the final sum of squared distances between features and centroids.
    """

    n_sample: int = 1000
    gamma: float | None = None

    def cluster(self, views: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
        X = concatenated(views)
        n_components = min(max(self.n_sample, self.n_clusters), len(X))
        gamma = chosen_width(self.gamma, X, rng)
        features = Nystroem(kernel="rbf", gamma=gamma, n_components=n_components, random_state=integer_seed(rng))
        model = lloyd(features.fit_transform(X), self.n_clusters, rng, "k-means++")
        self.objective_ = [float(model.inertia_)]
        return model.labels_

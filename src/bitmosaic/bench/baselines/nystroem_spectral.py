"""Nyström: all views side by side -> similarities to sampled rows -> orthogonal eigenvectors -> k-means."""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh

from bitmosaic.bench.baselines.base import Baseline, concatenated
from bitmosaic.bench.baselines.bipartite import BLOCK, embedded_clusters, singular_vectors, unit_rows
from bitmosaic.bench.baselines.rbf import mean_width, rbf_kernel
from bitmosaic.errors import ParameterError
from bitmosaic.threads import row_ranges

TINY = np.finfo(np.float32).tiny


@dataclass(kw_only=True)
class NystroemSpectral(Baseline):
    """W.-Y. Chen, Y. Song, H. Bai, C.-J. Lin, E. Y. Chang: Parallel Spectral Clustering in Distributed Systems. TPAMI
    2011; the Nyström approximation with orthogonalisation that it compares with (Fowlkes et al., TPAMI 2004).

    S ≈ C A⁻¹ Cᵀ with C (n, l) the similarities of all rows to l sampled rows and A (l, l) those among the sampled; the
    k first eigenvectors of D^{-1/2} S D^{-1/2}, rows scaled to length 1, then k-means.

    Deviations: columns are standardised; with F = C A^{-1/2}, the orthogonal eigenvectors are taken as left singular
    vectors of D^{-1/2} F, which is the same as the publication's A + A^{-1/2} B Bᵀ A^{-1/2} and needs no order of the
    rows; A^{-1/2} leaves out eigenvalues below float32's accuracy; γ is 1 / the mean squared distance unless given;
    1,000 sampled rows; the best of 10 starts of k-means.
    """

    n_samples: int = 1000
    gamma: float | None = None

    def cluster(self, views: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
        if self.n_samples < self.n_clusters:
            raise ParameterError(
                f"n_samples must be at least n_clusters; got {self.n_samples} for {self.n_clusters} clusters. "
                "Sample more rows."
            )
        if self.gamma is not None and self.gamma <= 0:
            raise ParameterError(f"gamma must be above 0; got {self.gamma}. Leave it out to take it from the data.")
        X = concatenated(views)
        gamma = mean_width(X, rng) if self.gamma is None else self.gamma
        sampled = np.sort(rng.choice(len(X), min(self.n_samples, len(X)), replace=False))
        U, _ = singular_vectors(normalised(features(X, X[sampled], gamma)), self.n_clusters)  # (n, k)
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


def normalised(F: np.ndarray) -> np.ndarray:
    """D^{-1/2} F in place, D the row sums of F Fᵀ."""
    degrees = F @ F.sum(axis=0)  # (n,)
    F /= np.sqrt(np.maximum(degrees, TINY))[:, None]
    return F

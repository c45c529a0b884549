"""LSC-K: all views side by side -> k-means landmarks -> bipartite graph -> spectral embedding -> k-means."""

from dataclasses import dataclass

import numpy as np

from bitmosaic.bench.baselines.base import Baseline, concatenated
from bitmosaic.bench.baselines.bipartite import (
    by_degree,
    embedded_clusters,
    landmark_count,
    landmarks,
    similarities,
    singular_vectors,
    unit_rows,
    without_constant,
)

LANDMARK_ITER = 5


@dataclass(kw_only=True)
class LSCK(Baseline):
    """X. Chen, D. Cai: Large Scale Spectral Clustering with Landmark-Based Representation. AAAI 2011.

    W = ẐẐᵀ with Ẑ = Z Λ^{-1/2}; Z holds the Gaussian similarities of each row to its nearest landmarks, which add up to
    1. The first eigenvectors of W are the left singular vectors of Ẑ. As in the authors' code, the very first, which is
    constant where all rows hang together, is left out, the next k are taken, and rows are scaled to length 1; k-means
    on these.

    Deviations: columns are standardised; where the graph falls into parts, its first vector is kept; the landmarks are
    the centers of 5 rounds of k-means on at most 10,000 rows drawn at random, not on all rows, so that 60,000 × 3,626
    stays affordable; 1,000 landmarks, at most half the rows; the bandwidth is the mean distance between rows and
    landmarks; the best of 10 starts of k-means at the end.
    """

    n_landmarks: int = 1000
    n_nearest: int = 5

    def cluster(self, views: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
        X = concatenated(views)
        p = landmark_count(self.n_landmarks, len(X), self.n_clusters)
        Z = similarities(X, landmarks(X, p, rng, LANDMARK_ITER), self.n_nearest)  # (n, p)
        U, _ = singular_vectors(by_degree(Z), self.n_clusters + 1)  # (n, k + 1)
        return embedded_clusters(unit_rows(without_constant(U, Z)), self.n_clusters, rng)

"""AMGL: a graph of each view -> the embedding that all graphs agree on, better graphs counting more -> k-means."""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from bitmosaic.bench.baselines.base import Baseline
from bitmosaic.bench.baselines.bipartite import embedded_clusters
from bitmosaic.bench.baselines.graphs import (
    checked_neighbors,
    neighbour_graph,
    normalised_laplacian,
    smallest_eigenvectors,
)

MAX_ITER, TOLERANCE = 100, 1e-8  # relative change of the objective
SMALLEST_TRACE = 1e-10  # of a view that the embedding fits exactly: its weight stays finite


@dataclass(kw_only=True)
class AMGL(Baseline):
    """F. Nie, J. Li, X. Li: Parameter-Free Auto-Weighted Multiple Graph Learning: A Framework for Multiview Clustering
    and Semi-Supervised Classification. IJCAI 2016.

    min Σ_v √tr(FᵀL_vF) over FᵀF = I: F is made of the c smallest eigenvectors of Σ α_v L_v, α_v = 1/(2√tr(FᵀL_vF)),
    in turn; k-means on the rows of F. L_v is the normalised Laplacian of the graph of k nearest neighbours with
    adaptive weights.

    Deviations: k = 20, but at most half the mean size of a cluster; the authors' code seems to leave it at 5, with
    which near-twins became clusters of their own on noisy pictures (seen with labels, in favour of the method); columns
    are standardised; eigenvectors by Lanczos on the sparse graphs, not of a dense matrix; weights are divided by their
    sum, which changes no eigenvector; the best of 10 starts of k-means at the end.
    """

    n_neighbors: int = 20

    def cluster(self, views: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
        n = len(views[0])
        k = checked_neighbors(min(self.n_neighbors, max(n // (2 * self.n_clusters), 1)), n)
        L = [normalised_laplacian(neighbour_graph(X, k)) for X in views]
        F, self.objective_ = common_embedding(L, self.n_clusters, rng)
        return embedded_clusters(F, self.n_clusters, rng)


def common_embedding(L: list[csr_array], c: int, rng: np.random.Generator) -> tuple[np.ndarray, list[float]]:
    """F (n, c), and Σ_v √tr(FᵀL_vF) after each iteration."""
    alpha = np.full(len(L), 1 / len(L))
    objective: list[float] = []
    for _ in range(MAX_ITER):
        F = smallest_eigenvectors(csr_array(sum(a * L_v for a, L_v in zip(alpha, L, strict=True))), c, rng)
        roots = np.sqrt([max(float(np.vdot(F, L_v @ F)), SMALLEST_TRACE) for L_v in L])  # (V,)
        objective.append(float(roots.sum()))
        if len(objective) > 1 and objective[-2] - objective[-1] <= TOLERANCE * objective[-2]:
            break
        alpha = 1 / (2 * roots)
        alpha /= alpha.sum()
    return F, objective

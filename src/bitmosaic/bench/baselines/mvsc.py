"""MVSC: common salient points -> one bipartite graph per view -> weights and embedding in turn -> k-means."""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

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
from bitmosaic.errors import ParameterError

LANDMARK_ITER = 30
MAX_ITER, TOLERANCE = 50, 1e-6


@dataclass(kw_only=True)
class MVSC(Baseline):
    """Y. Li, F. Nie, H. Huang, J. Huang: Large-Scale Multi-View Spectral Clustering via Bipartite Graph. AAAI 2015.

    min Σ_v α_v^r tr(Gᵀ L_v G) with GᵀG = I, Σ α_v = 1, α_v ≥ 0, by G and α in turn. L_v is the normalised Laplacian of
    the bipartite graph of view v between all rows and p salient points: the parts that belong to v of the centers of
    k-means on all views side by side. Hence G = [U; V]/√2 with the singular vectors of Σ_v α_v^r Ẑ_v. As in the
    authors' code, there are k + 1 of these, of which the first, constant where all rows hang together, is left out at
    the end, and rows are scaled to length 1; k-means on these.

    Deviations: columns are standardised; where the graph falls into parts, its first vector is kept; salient points
    from k-means on at most 10,000 rows, at most half as many as rows; r is 10^0.5 and not tuned with the true classes
    for each data set; the bandwidth is the mean distance between rows and salient points (in the authors' code, the
    mean squared one, and α comes from Ẑ_v alone); k-means at the end, the best of 10 starts, takes the rows' part U of
    G and leaves out the salient points.

    A view that agrees with the embedding gains weight and then decides the embedding: of views that each tell other
    clusters apart, one can take over, even where r is large.
    """

    n_landmarks: int = 400
    n_nearest: int = 5
    r: float = 10**0.5

    def cluster(self, views: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
        if self.r <= 1:
            raise ParameterError(f"r must be above 1; got {self.r}. At 1, one view would take all the weight.")
        X = concatenated(views)
        salient = landmarks(X, landmark_count(self.n_landmarks, len(X), self.n_clusters), rng, LANDMARK_ITER)  # (p, d)
        parts = np.split(salient, np.cumsum([view.shape[1] for view in views])[:-1], axis=1)
        graphs = [
            by_degree(similarities(view, np.ascontiguousarray(part), self.n_nearest))
            for view, part in zip(views, parts, strict=True)
        ]
        together = csr_array(sum(graphs, start=csr_array(graphs[0].shape)))
        U, self.weights_, self.objective_ = weighted_embedding(graphs, self.n_clusters + 1, self.r)
        return embedded_clusters(unit_rows(without_constant(U, together)), self.n_clusters, rng)


def weighted_embedding(graphs: list[csr_array], k: int, r: float) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """The rows' part of G (n, k), the weights α (V,), and the objective after each iteration."""
    alpha = np.full(len(graphs), 1 / len(graphs))
    objective: list[float] = []
    for _ in range(MAX_ITER):
        shares = (alpha / alpha.max()) ** r  # α^r up to a factor: it alone would underflow where r is large
        U, V = singular_vectors(sum(share * Z for share, Z in zip(shares, graphs, strict=True)), k)
        costs = np.array([k - np.einsum("ij,ij->", U, Z @ V) for Z in graphs])  # tr(GᵀL_vG)
        costs = np.maximum(costs, np.finfo(np.float32).eps)  # clusters that no edge of a view joins
        alpha = costs ** (1 / (1 - r))
        alpha /= alpha.sum()
        objective.append(float(alpha**r @ costs))
        if len(objective) > 1 and objective[-2] - objective[-1] <= TOLERANCE * objective[-2]:
            break
    return U, alpha, objective

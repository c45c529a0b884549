"""Views -> one common assignment of rows, which the centroids of each view fit in the L2,1 norm."""

from dataclasses import dataclass

import numpy as np

from bitmosaic.bench.baselines.base import Baseline, concatenated
from bitmosaic.embedding import squared_distances
from bitmosaic.errors import ParameterError
from bitmosaic.solver.kmeans import seedings

SEEDING_ROWS = 5000
NEAR, NEAREST = 1e-6, 1e-12  # of the mean residual; at all: a row nearer to its centroid has no higher weight
TINY = np.finfo(np.float64).tiny


@dataclass(kw_only=True)
class MVKM(Baseline):
    """X. Cai, F. Nie, H. Huang, "Multi-view k-means clustering on big data", IJCAI, 2013 (there: RMKMC).

    min Σ_v α_v^γ ‖X_v - G F_v‖_{2,1} over centroids F_v (k, d_v), an assignment G (n, k) with a single 1 in each row,
    and weights α ≥ 0 of sum 1. In each round, with row weights D_v = 1 / (2 ‖x - f‖): weighted means F_v, then the
    cheapest cluster of each row, then D_v, then α. `objective_` is the minimised sum after each round; it never rises.

    Deviations: the start is not any G but the nearest of k centroids that k-means++ draws from (up to 5,000) rows of
    the views side by side. The publication searches γ on a grid from 10^0.1 to 10^2 for each data set; here it is
    fixed in the middle. Columns are standardised. Constant views are left out: they fit exactly and would take all
    the weight. A cluster that loses all its rows keeps its centroids, and rows that are (almost) their centroid have a
    finite weight.
    """

    gamma: float = 10.0
    max_iter: int = 200
    tol: float = 1e-6  # relative fall of the objective at which it stops

    def cluster(self, views: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
        if not self.gamma > 1:
            raise ParameterError(f"gamma must be above 1; got {self.gamma}. The nearer to 1, the fewer views count.")
        views = [X for X in views if X.any()] or views[:1]
        F = centroids_at_start(views, self.n_clusters, rng)
        alpha = np.full(len(views), 1 / len(views))
        D = [np.ones(len(views[0]), np.float32) for _ in views]
        G, _ = assign(views, F, D)
        objective: list[float] = []
        for _ in range(self.max_iter):
            power = (alpha / alpha.max()) ** self.gamma  # only their ratios count, and α^γ may be less than floats hold
            weights = [np.float32(p) * d for p, d in zip(power, D, strict=True)]  # (n,) each
            F = [means(X, G, w, f) for X, w, f in zip(views, weights, F, strict=True)]
            G, residuals = assign(views, F, weights)
            D = [row_weights(r) for r in residuals]
            H = np.array([r.sum(dtype=np.float64) for r in residuals])  # ‖X_v - G F_v‖_{2,1}
            alpha = view_weights(H, self.gamma)
            objective.append(float(alpha**self.gamma @ H))
            if len(objective) > 1 and objective[-2] - objective[-1] <= self.tol * objective[-2]:
                break
        self.objective_ = objective
        return G


def centroids_at_start(views: list[np.ndarray], n_clusters: int, rng: np.random.Generator) -> list[np.ndarray]:
    n = len(views[0])
    sampled = np.sort(rng.choice(n, min(n, max(SEEDING_ROWS, n_clusters)), replace=False))
    F = seedings(concatenated([X[sampled] for X in views]), n_clusters, 1, rng)[0]  # (k, Σ d_v)
    return np.split(F, np.cumsum([X.shape[1] for X in views])[:-1], axis=1)


def means(X: np.ndarray, G: np.ndarray, weights: np.ndarray, before: np.ndarray) -> np.ndarray:
    """F = (Gᵀ D G)⁻¹ Gᵀ D X, for diagonal D; centroids without rows are as before."""
    DG = np.zeros((len(X), len(before)), np.float32)
    DG[np.arange(len(X)), G] = weights
    total = DG.sum(axis=0, dtype=np.float64)[:, None]
    found = (DG.T @ X) / np.maximum(total, TINY)
    return np.where(total > 0, found, before).astype(np.float32)  # (k, d)


def assign(
    views: list[np.ndarray], F: list[np.ndarray], weights: list[np.ndarray]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """The cluster of each row with the least Σ_v w_v ‖x_v - f_v‖², and ‖x_v - f_v‖ (n,) of each view there."""
    distances = [squared_distances(X, f) for X, f in zip(views, F, strict=True)]  # (n, k) each
    cost = sum(w[:, None] * d for w, d in zip(weights, distances, strict=True))
    G = np.argmin(cost, axis=1)
    return G, [np.sqrt(d[np.arange(len(G)), G]) for d in distances]


def row_weights(residuals: np.ndarray) -> np.ndarray:
    """D = 1 / (2 ‖x - f‖)"""
    least = max(NEAR * residuals.mean(dtype=np.float64), NEAREST)
    return 1 / (2 * np.maximum(residuals, np.float32(least)))


def view_weights(H: np.ndarray, gamma: float) -> np.ndarray:
    """The α of sum 1 that minimises Σ_v α_v^γ H_v: α_v ∝ H_v^(1/(1-γ)). Views that fit exactly share all of it."""
    if not H.all():
        return (H == 0) / np.sum(H == 0)
    powers = (H / H.min()) ** (1 / (1 - gamma))
    return powers / powers.sum()

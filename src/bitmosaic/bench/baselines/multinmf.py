"""Views ≥ 0 -> a factorisation of each, pulled towards common coefficients -> k-means on these."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from bitmosaic.bench.baselines.base import Baseline
from bitmosaic.embedding import squares
from bitmosaic.errors import ParameterError
from bitmosaic.solver.kmeans import kmeans

TINY = np.finfo(np.float32).tiny
START_ITER = 50
N_INIT = 10  # of k-means


@dataclass(kw_only=True)
class MultiNMF(Baseline):
    """J. Liu, C. Wang, J. Gao, J. Han, "Multi-view clustering via joint nonnegative matrix factorization", SDM, 2013.

    min Σ_v ‖X_v - V_v U_vᵀ‖² + λ ‖V_v Q_v - V*‖², Q_v = diag(column sums of U_v), over U_v (d_v, k), V_v (n, k),
    V* (n, k) ≥ 0, for views of total sum 1. In each round, for one view after the other: multiplicative
    updates of U_v, then of V_v; then V* is the mean of all V_v Q_v. Rows are clustered by k-means on V* (the
    publication's second way; its first is the largest entry of each row).

    `objective_` is the minimised sum after each round; it never rises. Before V_v is updated, U_v and V_v become
    U_v Q_v⁻¹ and V_v Q_v: that leaves the product, V_v Q_v and so the objective as they are (without Q_v in the
    objective, it would rise there), and afterwards Q_v = I.

    It starts from plain NMF of each view, of which the first starts at random and the others from the V of the view
    before, so that the same component means the same in all views, as in the authors' code.

    Deviations: λ = 0.001 instead of 0.01, with which V* outweighs wide views (seen with labels, in favour of the
    method). `inner_iter` updates of a view in each round, or fewer where it converges, instead of until it does. X is
    scaled column by column to [0, 1] first.
    """

    scaling: ClassVar[Literal["standard", "nonnegative"]] = "nonnegative"

    lam: float = 0.001
    max_iter: int = 30
    inner_iter: int = 10
    tol: float = 1e-4  # relative fall of the objective at which it stops

    def cluster(self, views: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
        if not self.lam > 0:
            raise ParameterError(f"lam must be positive; got {self.lam}. Without it, the views would not be joined.")
        views = [unit_total(X) for X in views]
        U, V = start(views, self.n_clusters, rng)
        V_star = np.mean(V, axis=0)  # here and below, Q_v = I
        objective: list[float] = []
        for _ in range(self.max_iter):
            for v, X in enumerate(views):
                U[v], V[v] = factorise(X, U[v], V[v], V_star, self.lam, self.inner_iter, self.tol)
            V_star = np.mean(V, axis=0)
            objective.append(total_objective(views, U, V, V_star, self.lam))
            if len(objective) > 1 and objective[-2] - objective[-1] <= self.tol * objective[-2]:
                break
        self.objective_ = objective
        return kmeans(V_star, self.n_clusters, N_INIT, rng, n_threads=1)


def unit_total(X: np.ndarray) -> np.ndarray:
    return X / np.float32(max(X.sum(dtype=np.float64), TINY))


def start(
    views: list[np.ndarray], n_clusters: int, rng: np.random.Generator
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """NMF of each view from the coefficients of the one before: U_v (d_v, k) with columns of sum 1, and V_v (n, k)."""
    V = [rng.random((len(views[0]), n_clusters), np.float32)]
    U = []
    for X in views:
        basis, coefficients = rng.random((X.shape[1], n_clusters), np.float32), V[-1]
        basis, coefficients = factorise(X, basis, coefficients, coefficients, 0.0, START_ITER, 0.0)
        U.append(basis)
        V.append(coefficients)
    return U, V[1:]


def factorise(
    X: np.ndarray, U: np.ndarray, V: np.ndarray, V_star: np.ndarray, lam: float, n_iter: int, tol: float
) -> tuple[np.ndarray, np.ndarray]:
    """U and V after up to n_iter updates of both for a fixed V*; fewer where the objective of the view hardly falls."""
    size, before = squared_norm(X), np.inf
    for _ in range(n_iter):
        U = updated_basis(X, U, V, V_star, lam)
        Q = U.sum(axis=0)  # (k,)
        U, V = U / np.maximum(Q, TINY), V * Q
        XU = X @ U
        V = updated_coefficients(XU, U, V, V_star, lam)
        if tol:
            now = view_objective(size, XU, U, V, V_star, lam)
            if before - now <= tol * now:
                break
            before = now
    return U, V


def updated_basis(X: np.ndarray, U: np.ndarray, V: np.ndarray, V_star: np.ndarray, lam: float) -> np.ndarray:
    """U ∘ (XᵀV + λ 1 (Σ_j V_jk V*_jk)) / (U VᵀV + λ 1 (Σ_i U_ik Σ_j V_jk²))"""
    VtV = V.T @ V  # (k, k)
    up = X.T @ V + np.float32(lam) * np.einsum("jk,jk->k", V, V_star)
    down = U @ VtV + np.float32(lam) * U.sum(axis=0) * np.diag(VtV)
    return U * up / np.maximum(down, TINY)  # (d, k)


def updated_coefficients(XU: np.ndarray, U: np.ndarray, V: np.ndarray, V_star: np.ndarray, lam: float) -> np.ndarray:
    """V ∘ (XU + λ V*) / (V UᵀU + λ V), for columns of U with sum 1"""
    weight = np.float32(lam)
    return V * (XU + weight * V_star) / np.maximum(V @ (U.T @ U) + weight * V, TINY)  # (n, k)


def view_objective(size: float, XU: np.ndarray, U: np.ndarray, V: np.ndarray, V_star: np.ndarray, lam: float) -> float:
    """‖X - V Uᵀ‖² + λ ‖V - V*‖² from ‖X‖² and Gram matrices, for columns of U with sum 1."""
    return (
        size
        - 2 * float(np.vdot(V.astype(np.float64), XU))
        + float(np.vdot(gram(V), gram(U)))
        + lam * squared_norm(V - V_star)
    )


def total_objective(
    views: list[np.ndarray], U: list[np.ndarray], V: list[np.ndarray], V_star: np.ndarray, lam: float
) -> float:
    return sum(view_objective(squared_norm(X), X @ u, u, v, V_star, lam) for X, u, v in zip(views, U, V, strict=True))


def gram(M: np.ndarray) -> np.ndarray:
    """MᵀM (k, k), in float64"""
    M = M.astype(np.float64)
    return M.T @ M


def squared_norm(M: np.ndarray) -> float:
    """‖M‖²"""
    return float(squares(M).sum(dtype=np.float64))

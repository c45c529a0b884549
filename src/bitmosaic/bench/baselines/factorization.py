"""Baselines that factorize the views: NMF, MVKM, MultiNMF, OMVC."""

import warnings
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import sklearn.decomposition
from sklearn.exceptions import ConvergenceWarning

from bitmosaic.bench.baselines.base import Baseline, concatenated, integer_seed
from bitmosaic.bench.baselines.single_view import lloyd
from bitmosaic.io.threads import row_ranges
from bitmosaic.solver.embedding import squared_distances, squares
from bitmosaic.solver.start import kmeans, seedings

# ---- NMF: nonnegative rows -> mixtures of k parts -> k-means on the coefficients.


MAX_ITER = 200
KMEANS_STARTS = 10


@dataclass
class NMF(Baseline):
    """NMF: D. D. Lee, H. S. Seung, "Learning the parts of objects by non-negative matrix factorization", Nature, 1999.

    X ≈ W H with n_clusters parts, from a random start; then k-means on W, as in the literature on image clustering
    (D. Cai, X. He, J. Han, T. S. Huang, "Graph regularized nonnegative matrix factorization for data representation",
    TPAMI, 2011), and as the HSIC paper suggests by calling NMF "disjoint". The alternative of the strongest part
    (W. Xu, X. Liu, Y. Gong, SIGIR, 2003) is designed for documents; on image features its scores are lower.

    Deviations: columns are between 0 and 1; scikit-learn lowers the same objective by coordinate descent instead of
    multiplicative updates, for at most 200 iterations; k-means is the best of 10 starts by k-means++.

    After a fit: `objective_`, the final ‖X - W H‖ (scikit-learn reports no others).
    """

    scaling: ClassVar[Literal["standard", "nonnegative"]] = "nonnegative"

    def cluster(self, views: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
        model = sklearn.decomposition.NMF(
            self.n_clusters, init="random", max_iter=MAX_ITER, random_state=integer_seed(rng)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the limit of iterations is intended
            W = model.fit_transform(concatenated(views))  # (n, k)
        self.objective_ = [float(model.reconstruction_err_)]
        W *= np.linalg.norm(model.components_, axis=1)  # scale to parts of norm 1; W H does not fix the scale
        return lloyd(W, self.n_clusters, rng, "k-means++", KMEANS_STARTS).labels_


# ---- MVKM: one common assignment of rows, with centroids of each view in the L2,1 norm.


SEEDING_ROWS = 5000
NEAR, NEAREST = 1e-6, 1e-12  # least residual, relative to the mean and absolute: bounds the weight of a row
MVKM_TINY = np.finfo(np.float64).tiny


@dataclass(kw_only=True)
class MVKM(Baseline):
    """X. Cai, F. Nie, H. Huang, "Multi-view k-means clustering on big data", IJCAI, 2013 (there: RMKMC).

    min Σ_v α_v^γ ‖X_v - G F_v‖_{2,1} over centroids F_v (k, d_v), an assignment G (n, k) with a single 1 in each row,
    and weights α ≥ 0 of sum 1. In each round, with row weights D_v = 1 / (2 ‖x - f‖): weighted means F_v, then the
    cheapest cluster of each row, then D_v, then α. `objective_` is the minimized sum after each round; it never rises.

    Deviations: the start is not a random G but the nearest of k centroids that k-means++ draws from (up to 5,000) rows
    of the views side by side. The publication searches γ on a grid from 10^0.1 to 10^2 for each data set; here it is
    fixed in the middle. Columns are standardized. Constant views are left out: they fit exactly and would get all the
    weight. A cluster that loses all its rows keeps its centroids, and rows (almost) equal to their centroid have a
    finite weight.
    """

    gamma: float = 10.0
    max_iter: int = 200
    tol: float = 1e-6  # relative decrease of the objective at which to stop

    def cluster(self, views: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
        views = [X for X in views if X.any()] or views[:1]
        F = centroids_at_start(views, self.n_clusters, rng)
        alpha = np.full(len(views), 1 / len(views))
        D = [np.ones(len(views[0]), np.float32) for _ in views]
        G, _ = assign(views, F, D)
        objective: list[float] = []
        for _ in range(self.max_iter):
            power = (alpha / alpha.max()) ** self.gamma  # only the ratios matter, and α^γ may underflow
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
    """F = (Gᵀ D G)⁻¹ Gᵀ D X, for diagonal D; centroids without rows are unchanged."""
    DG = np.zeros((len(X), len(before)), np.float32)
    DG[np.arange(len(X)), G] = weights
    total = DG.sum(axis=0, dtype=np.float64)[:, None]
    found = (DG.T @ X) / np.maximum(total, MVKM_TINY)
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
    """The α of sum 1 that minimizes Σ_v α_v^γ H_v: α_v ∝ H_v^(1/(1-γ)). Views that fit exactly share all the weight."""
    if not H.all():
        return (H == 0) / np.sum(H == 0)
    powers = (H / H.min()) ** (1 / (1 - gamma))
    return powers / powers.sum()


# ---- MultiNMF: nonnegative factorization of each view with common coefficients -> k-means on these.


TINY = np.finfo(np.float32).tiny
START_ITER = 50
N_INIT = 10  # of k-means


@dataclass(kw_only=True)
class MultiNMF(Baseline):
    """J. Liu, C. Wang, J. Gao, J. Han, "Multi-view clustering via joint nonnegative matrix factorization", SDM, 2013.

    min Σ_v ‖X_v - V_v U_vᵀ‖² + λ ‖V_v Q_v - V*‖², Q_v = diag(column sums of U_v), over U_v (d_v, k), V_v (n, k),
    V* (n, k) ≥ 0, for views of total sum 1. In each round, for one view after the other: multiplicative
    updates of U_v, then of V_v; then V* is the mean of all V_v Q_v. Rows are clustered by k-means on V* (the second
    method of the publication; its first is the largest entry of each row).

    `objective_` is the minimized sum after each round; it never rises. Before V_v is updated, U_v and V_v become
    U_v Q_v⁻¹ and V_v Q_v: this does not change the product, V_v Q_v and thus the objective (without Q_v in the
    objective, it would rise here), and afterwards Q_v = I.

    The start is plain NMF of each view. As in the authors' code, the first view starts at random and each other one
    from the V of the previous view, so that components correspond between views.

    Deviations: λ = 0.001 instead of 0.01, with which V* outweighs wide views (chosen with labels, in favor of the
    method). At most `inner_iter` updates of a view in each round, instead of updates until convergence. Columns of X
    are scaled to [0, 1] first.
    """

    scaling: ClassVar[Literal["standard", "nonnegative"]] = "nonnegative"

    lam: float = 0.001
    max_iter: int = 30
    inner_iter: int = 10
    tol: float = 1e-4  # relative fall of the objective at which it stops

    def cluster(self, views: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
        views = [unit_total(X) for X in views]
        U, V = start(views, self.n_clusters, rng)
        V_star = np.mean(V, axis=0)  # here and below, Q_v = I
        objective: list[float] = []
        for _ in range(self.max_iter):
            for v, X in enumerate(views):
                U[v], V[v] = factorize(X, U[v], V[v], V_star, self.lam, self.inner_iter, self.tol)
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
    """NMF of each view from the coefficients of the previous one: U_v (d_v, k), columns of sum 1, and V_v (n, k)."""
    V = [rng.random((len(views[0]), n_clusters), np.float32)]
    U = []
    for X in views:
        basis, coefficients = rng.random((X.shape[1], n_clusters), np.float32), V[-1]
        basis, coefficients = factorize(X, basis, coefficients, coefficients, 0.0, START_ITER, 0.0)
        U.append(basis)
        V.append(coefficients)
    return U, V[1:]


def factorize(
    X: np.ndarray, U: np.ndarray, V: np.ndarray, V_star: np.ndarray, lam: float, n_iter: int, tol: float
) -> tuple[np.ndarray, np.ndarray]:
    """U and V after up to n_iter updates of both for a fixed V*; stops early at a relative decrease below `tol`."""
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


# ---- OMVC: online nonnegative factorization of views with common coefficients -> k-means on these.


STEPS = 2.0 ** -np.arange(4)  # step lengths tried along Newton's direction
RIDGE = 1e-10  # relative to the trace


@dataclass(kw_only=True)
class OMVC(Baseline):
    """W. Shao, L. He, C.-T. Lu, P. S. Yu, "Online multi-view clustering with incomplete views", IEEE Big Data, 2016.

    min Σ_v ‖X_v - V_v U_vᵀ‖² + α ‖V_v - V*‖² + β_v ‖V_v‖₁ over U_v (d_v, k), V_v (n, k), V* (n, k) ≥ 0, for views of
    total sum 1. Chunks of rows are processed one after the other. V_v and V* of the chunk, and U_v, which depends on
    earlier rows only through A_v = VᵀV (k, k) and B_v = XᵀV (d_v, k), are updated alternately until convergence; U_v
    and V_v by projected gradients scaled with the inverse Hessian and a line search. Rows are clustered by k-means on
    V*.

    `objective_` is the minimized sum over all rows after each pass. It never rises, because later passes replace the
    part of a chunk in A_v and B_v: every row counts once, and every step lowers the whole sum.

    Deviations: columns are scaled to [0, 1], and negative columns are shifted (the authors clip); columns of U_v have
    sum 1 only at the start, not after every update. The weights of missing rows are left out, since no rows are
    missing. The authors' β = 1e-7 was for 2,000 rows of about 100 columns, whose mean entry is 5e-6 at total sum 1; so
    β_v is `beta` times the mean entry of the view, otherwise sparsity would increase with the number of rows until
    nothing is left. Rows are in random order, in larger chunks (500 instead of 50). U_v starts from NMF of the first
    chunk, as in `MultiNMF`, with columns of sum 1. The step length is searched separately for each row of U_v and V_v,
    as the objective is a sum over them; if no step along Newton's direction helps, a short one along the gradient does.
    """

    scaling: ClassVar[Literal["standard", "nonnegative"]] = "nonnegative"

    alpha: float = 0.01
    beta: float = 0.02
    chunk_size: int = 500
    n_passes: int = 2
    max_iter: int = 50  # for a chunk
    tol: float = 1e-5  # decrease of the objective, relative to ‖X‖² of the chunk, at which to go to the next chunk

    def cluster(self, views: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
        n, k = len(views[0]), self.n_clusters
        views = [unit_total(X) for X in views]
        order = rng.permutation(n)
        chunks = [order[rows] for rows in row_ranges(n, max(self.chunk_size, k))]
        U, _ = start([X[chunks[0]] for X in views], k, rng)
        bases = [Basis(u, self.alpha, self.beta / X.size) for u, X in zip(U, views, strict=True)]
        V, V_star = np.empty((len(views), n, k), np.float32), np.empty((n, k), np.float32)
        size = sum(squared_norm(X) for X in views)
        objective: list[float] = []
        for turn in range(self.n_passes):
            for rows in chunks:
                X = [x[rows] for x in views]
                if turn == 0:
                    V[:, rows] = V_star[rows] = first_coefficients(X, bases)
                V[:, rows], V_star[rows] = fit_chunk(bases, X, V[:, rows], V_star[rows], self.max_iter, self.tol)
            objective.append(size + sum(b.loss(v, V_star) for b, v in zip(bases, V, strict=True)))
        self.objective_ = objective
        return kmeans(V_star, k, N_INIT, rng, n_threads=1)


class Basis:
    """U (d, k) of one view, and the sums over all rows seen so far: A = VᵀV (k, k) and B = XᵀV (d, k)."""

    def __init__(self, U: np.ndarray, alpha: float, beta: float):
        self.U, self.alpha, self.beta = U, alpha, beta
        self.A, self.B = np.zeros((U.shape[1],) * 2), np.zeros(U.shape)

    def add(self, X: np.ndarray, V: np.ndarray, times: int = 1) -> None:
        self.A += times * gram(V)
        self.B += times * (X.T @ V)

    def update(self, X: np.ndarray, V: np.ndarray, V_star: np.ndarray) -> np.ndarray:
        """One step of U for all rows seen so far, and the V (m, k) of rows X after one step with that U."""
        self.U = lowered(self.U, self.A, self.B)
        H = gram(self.U) + self.alpha * np.eye(len(self.A))
        self.add(X, V, -1)
        V = lowered(V, H, X @ self.U + self.alpha * V_star - self.beta / 2)
        self.add(X, V)
        return V

    def loss(self, V: np.ndarray, V_star: np.ndarray) -> float:
        """The objective of the rows seen so far, without Σ ‖x‖² and without the penalties of rows not in V."""
        apart = squared_norm(V - V_star)
        fit = np.vdot(gram(self.U), self.A) - 2 * np.vdot(self.U, self.B)
        return float(fit + self.alpha * apart + self.beta * V.sum(dtype=np.float64))


def first_coefficients(X: list[np.ndarray], bases: list[Basis]) -> np.ndarray:
    """V (m, k) of new rows, the same in all views: one step toward least squares. The rows are added to the bases."""
    XU = np.sum([x @ b.U for x, b in zip(X, bases, strict=True)], axis=0)
    V = lowered(np.zeros_like(XU), np.sum([gram(b.U) for b in bases], axis=0), XU)
    for x, b in zip(X, bases, strict=True):
        b.add(x, V)
    return V


def fit_chunk(
    bases: list[Basis], X: list[np.ndarray], V: np.ndarray, V_star: np.ndarray, max_iter: int, tol: float
) -> tuple[np.ndarray, np.ndarray]:
    """V (views, m, k) and V* (m, k) of rows X after alternating steps with the bases, until convergence."""
    size = sum(squared_norm(x) for x in X)
    before = np.inf
    for _ in range(max_iter):
        V = np.stack([b.update(x, v, V_star) for b, x, v in zip(bases, X, V, strict=True)])
        V_star = V.mean(axis=0)
        now = sum(b.loss(v, V_star) for b, v in zip(bases, V, strict=True))
        if before - now <= tol * size:
            break
        before = now
    return V, V_star


def lowered(M: np.ndarray, H: np.ndarray, C: np.ndarray) -> np.ndarray:
    """Rows m ≥ 0 with a lower m H mᵀ / 2 - c mᵀ than those of M, each the best of a few projected steps."""
    k = len(H)
    gradient = M @ H - C
    ridge = RIDGE * np.trace(H) + np.finfo(np.float64).tiny  # H is singular if a component is zero
    newton = np.linalg.solve(H + ridge * np.eye(k), gradient.T).T
    lowest, value = M, quadratic(M, H, C)
    for step in [*(s * newton for s in STEPS), gradient / (np.trace(H) + ridge)]:  # Lipschitz: ‖H‖₂ ≤ tr H
        trial = np.maximum(M - step, 0).astype(np.float32)
        trial_value = quadratic(trial, H, C)
        lowest = np.where((trial_value < value)[:, None], trial, lowest)
        value = np.minimum(trial_value, value)
    return lowest


def quadratic(M: np.ndarray, H: np.ndarray, C: np.ndarray) -> np.ndarray:
    """m H mᵀ / 2 - c mᵀ of each row."""
    return np.einsum("ij,ij->i", M @ H / 2 - C, M)

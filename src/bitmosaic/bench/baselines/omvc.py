"""Views ≥ 0, some rows at a time -> a basis of each view and common coefficients of rows -> k-means on these."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from bitmosaic.bench.baselines.base import Baseline
from bitmosaic.bench.baselines.multinmf import N_INIT, gram, squared_norm, start, unit_total
from bitmosaic.errors import ParameterError
from bitmosaic.solver.kmeans import kmeans
from bitmosaic.threads import row_ranges

STEPS = 2.0 ** -np.arange(4)  # lengths that are tried along Newton's direction
RIDGE = 1e-10  # of the trace


@dataclass(kw_only=True)
class OMVC(Baseline):
    """W. Shao, L. He, C.-T. Lu, P. S. Yu, "Online multi-view clustering with incomplete views", IEEE Big Data, 2016.

    min Σ_v ‖X_v - V_v U_vᵀ‖² + α ‖V_v - V*‖² + β_v ‖V_v‖₁ over U_v (d_v, k), V_v (n, k), V* (n, k) ≥ 0, for views of
    total sum 1. Chunks of rows come one after the other: their V_v and V*, and U_v, which meets earlier rows only as
    A_v = VᵀV (k, k) and B_v = XᵀV (d_v, k), are updated in turn until the objective hardly falls, U_v and V_v by
    projected gradients scaled with the inverse Hessian and a line search. Rows are clustered by k-means on V*.

    `objective_` is the minimised sum over all rows after each pass. It never rises, for in later passes a chunk's part
    of A_v and B_v is replaced: every row counts once, and every step lowers the whole sum.

    Deviations: columns are scaled to [0, 1], and shifted where they are negative, where the authors clip; columns of
    U_v have sum 1 at the start only, not after every update. The weights of rows that a view lacks are left out, as all
    would be 1. The authors' β = 1e-7 was for 2,000 rows of about 100 columns, whose mean entry is 5e-6 at total sum 1;
    so β_v is `beta` times the mean entry of the view, or more rows would mean more sparseness until nothing is left.
    Rows come in random order, in larger chunks (500 instead of 50). U_v starts from NMF of the first chunk, as in
    `MultiNMF`, with columns of sum 1. The step is searched for each row of U_v and V_v by itself, as the objective is a
    sum over them; where no step along Newton's direction helps, a short one along the gradient does.
    """

    scaling: ClassVar[Literal["standard", "nonnegative"]] = "nonnegative"

    alpha: float = 0.01
    beta: float = 0.02
    chunk_size: int = 500
    n_passes: int = 2
    max_iter: int = 50  # for a chunk
    tol: float = 1e-5  # fall of the objective, relative to ‖X‖² of the chunk, at which the next chunk comes

    def cluster(self, views: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
        n, k = len(views[0]), self.n_clusters
        if self.chunk_size < k:
            raise ParameterError(f"chunk_size must be at least n_clusters={k}; got {self.chunk_size}. Raise it.")
        if self.n_passes < 1:
            raise ParameterError(f"n_passes must be at least 1; got {self.n_passes}. Take 2, for example.")
        if not (self.alpha > 0 and self.beta >= 0):
            raise ParameterError(
                f"alpha must be positive and beta not negative; got {self.alpha} and {self.beta}. "
                "Take 0.01 and 0.02, for example."
            )
        views = [unit_total(X) for X in views]
        order = rng.permutation(n)
        chunks = [order[rows] for rows in row_ranges(n, self.chunk_size)]
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
                V[:, rows], V_star[rows] = settle(bases, X, V[:, rows], V_star[rows], self.max_iter, self.tol)
            objective.append(size + sum(b.loss(v, V_star) for b, v in zip(bases, V, strict=True)))
        self.objective_ = objective
        return kmeans(V_star, k, N_INIT, rng, n_threads=1)


class Basis:
    """U (d, k) of one view, and all that it keeps of the rows that it has met: A = VᵀV (k, k) and B = XᵀV (d, k)."""

    def __init__(self, U: np.ndarray, alpha: float, beta: float):
        self.U, self.alpha, self.beta = U, alpha, beta
        self.A, self.B = np.zeros((U.shape[1],) * 2), np.zeros(U.shape)

    def meet(self, X: np.ndarray, V: np.ndarray, times: int = 1) -> None:
        self.A += times * gram(V)
        self.B += times * (X.T @ V)

    def update(self, X: np.ndarray, V: np.ndarray, V_star: np.ndarray) -> np.ndarray:
        """A step of U for all rows that it has met, and the V (m, k) of these rows after a step for that U."""
        self.U = lowered(self.U, self.A, self.B)
        H = gram(self.U) + self.alpha * np.eye(len(self.A))
        self.meet(X, V, -1)
        V = lowered(V, H, X @ self.U + self.alpha * V_star - self.beta / 2)
        self.meet(X, V)
        return V

    def loss(self, V: np.ndarray, V_star: np.ndarray) -> float:
        """The objective of the rows that were met, without Σ ‖x‖² and, where V are some of them, others' penalties."""
        apart = squared_norm(V - V_star)
        fit = np.vdot(gram(self.U), self.A) - 2 * np.vdot(self.U, self.B)
        return float(fit + self.alpha * apart + self.beta * V.sum(dtype=np.float64))


def first_coefficients(X: list[np.ndarray], bases: list[Basis]) -> np.ndarray:
    """V (m, k) for new rows, the same in all views: a step towards their least squares. They are met with it."""
    XU = np.sum([x @ b.U for x, b in zip(X, bases, strict=True)], axis=0)
    V = lowered(np.zeros_like(XU), np.sum([gram(b.U) for b in bases], axis=0), XU)
    for x, b in zip(X, bases, strict=True):
        b.meet(x, V)
    return V


def settle(
    bases: list[Basis], X: list[np.ndarray], V: np.ndarray, V_star: np.ndarray, max_iter: int, tol: float
) -> tuple[np.ndarray, np.ndarray]:
    """V (views, m, k) and V* (m, k) of rows X, after steps of these and of the bases until the loss hardly falls."""
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
    """Rows m ≥ 0 with a lower m H mᵀ / 2 - c mᵀ than those of M, each the best of a few projected steps from there."""
    k = len(H)
    gradient = M @ H - C
    ridge = RIDGE * np.trace(H) + np.finfo(np.float64).tiny  # where a component is gone, H is singular
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

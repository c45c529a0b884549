"""Literal Algorithm 1 in dense float64 NumPy: slow, and independent of the solver.

Z_v (N, l) dense, zero where a row lacks the view · B (N, K) in ±1 · Q (c, K) in ±1 · labels (N,) · λ2 stands for λ2/N.
"""

from dataclasses import dataclass, replace

import numpy as np

# ---- embedding


def kernel(X, anchors, gamma):
    """exp(-‖x - a‖²/γ), one sample and one anchor at a time."""
    Z = np.empty((len(X), len(anchors)))
    for i, x in enumerate(np.asarray(X, np.float64)):
        for j, a in enumerate(np.asarray(anchors, np.float64)):
            Z[i, j] = np.exp(-np.sum((x - a) ** 2) / gamma)
    return Z


def embed(X, anchors, gamma):
    """Centered over the rows that have the view, and zero for the others."""
    has = ~np.isnan(X).any(1)
    Z = np.zeros((len(X), len(anchors)))
    Z[has] = kernel(X[has], anchors, gamma)
    Z[has] -= Z[has].mean(0)
    return Z, has


# ---- the objective [eq. 9]


@dataclass(frozen=True)
class Problem:
    """The data and every constant of the objective."""

    Zs: list  # (N, l) for each view
    has: list  # (N,) bool for each view
    K: int
    K_S: int
    c: int
    lambda1: float
    lambda2: float  # λ2/N
    lambda3: float
    nu: float
    r: float
    l21: bool

    @property
    def N(self):
        return len(self.has[0])

    @property
    def m(self):
        return len(self.Zs)


@dataclass(frozen=True)
class State:
    """One value of every unknown."""

    B: np.ndarray
    Ps: list
    Q: np.ndarray
    labels: np.ndarray
    alpha: np.ndarray


def sgn(A):
    return np.where(A >= 0, 1.0, -1.0)


def fair(p):
    """N/N_v."""
    return np.array([p.N / has.sum() for has in p.has])


def w(p, alpha):
    """w_v = α_v^r · N/N_v"""
    return alpha**p.r * fair(p)


def h(p, B, P, v):
    """‖B - ZP‖² + λ1‖P‖² - (λ2/N)‖ZP‖², over the rows that have the view."""
    Z = p.Zs[v][p.has[v]]
    return (
        np.linalg.norm(B[p.has[v]] - Z @ P) ** 2
        + p.lambda1 * np.linalg.norm(P) ** 2
        - p.lambda2 * np.linalg.norm(Z @ P) ** 2
    )


def residual(B, Q, labels):
    F = np.eye(len(Q))[:, labels]  # (c, N) one-hot
    return B - (Q.T @ F).T


def bit_weights(p, B, Q, labels):
    """d_k = 1 / (2 sqrt(‖u_k‖² + 1)), or 1"""
    U = residual(B, Q, labels)
    if not p.l21:
        return np.ones(U.shape[1])
    return np.array([1 / (2 * np.sqrt(np.linalg.norm(u) ** 2 + 1)) for u in U.T])


def norm(p, B, Q, labels):
    U = residual(B, Q, labels)
    if not p.l21:
        return np.linalg.norm(U) ** 2
    return sum(np.sqrt(np.linalg.norm(u) ** 2 + 1) for u in U.T)


def imbalance(Q):
    """‖Qᵀ1‖²: Σ_j (Σ_k Q_jk)²"""
    return np.linalg.norm(np.asarray(Q, np.float64) @ np.ones(Q.shape[1])) ** 2


def grouping(p, B, Q, labels):
    return norm(p, B, Q, labels) + p.nu * imbalance(Q)


def coding(p, s):
    weights = w(p, s.alpha)
    return sum(weights[v] * h(p, s.B, s.Ps[v], v) for v in range(p.m))


def objective(p, s):
    return coding(p, s) + p.lambda3 * grouping(p, s.B, s.Q, s.labels)


# ---- steps


def shared_projection(p, B, alpha):
    """[eq. 12]"""
    I, weights = np.eye(p.Zs[0].shape[1]), w(p, alpha)
    A = (1 - p.lambda2) * sum(weights[v] * p.Zs[v].T @ p.Zs[v] for v in range(p.m))
    T = sum(weights[v] * p.Zs[v].T for v in range(p.m))
    return np.linalg.inv(A + p.lambda1 * weights.sum() * I) @ T @ B[:, : p.K_S]


def individual_projection(p, B, v):
    """[eq. 13]"""
    Z = p.Zs[v]
    return np.linalg.solve((1 - p.lambda2) * Z.T @ Z + p.lambda1 * np.eye(Z.shape[1]), Z.T @ B[:, p.K_S :])


def projections(p, B, alpha):
    own = [individual_projection(p, B, v) for v in range(p.m)]
    return [np.hstack([shared_projection(p, B, alpha), P]) for P in own] if p.K_S else own


def vote(p, s, D):
    """The argument of sgn    [eq. 18]"""
    weights = w(p, s.alpha)
    return sum(weights[v] * p.Zs[v] @ s.Ps[v] for v in range(p.m)) + p.lambda3 * s.Q[s.labels] @ D


def codes_loss(p, s, D):
    """Σ_v w_v ‖B - Z_v P_v‖² + λ3 tr(U D Uᵀ)    [eq. 15]"""
    weights, U = w(p, s.alpha), residual(s.B, s.Q, s.labels)
    fit = [np.linalg.norm((s.B - p.Zs[v] @ s.Ps[v])[p.has[v]]) ** 2 for v in range(p.m)]
    return weights @ fit + p.lambda3 * np.trace(U @ D @ U.T)


def sums(B, labels, c):
    return np.array([B[labels == j].sum(0) for j in range(c)])


def centroid_loss(B, Q, labels, d, nu):
    """-2 tr(B D (Q[labels])ᵀ) + ν ‖Qᵀ1‖²    [eq. 21]"""
    return -2 * np.trace(B @ np.diag(d) @ Q[labels].T) + nu * imbalance(Q)


def majority(B, Q, labels):
    """The best Q if ν = 0; a tied bit keeps its sign."""
    S = sums(B, labels, len(Q))
    return np.where(S == 0, Q, sgn(S))


def best_centroids(B, labels, c, d, nu):
    """The best of all Q: with p bits at +1 these are the p highest d_k S_jk, so every p is tried."""
    Q = np.empty((c, B.shape[1]))
    for j, gain in enumerate(sums(B, labels, c) * d):
        highest_first = np.argsort(-gain)
        tries = []
        for p in range(len(gain) + 1):
            q = -np.ones(len(gain))
            q[highest_first[:p]] = 1
            tries.append((-2 * gain @ q + nu * q.sum() ** 2, p, q))
        Q[j] = min(tries, key=lambda t: t[:2])[2]
    return Q


def distances(B, Q, d):
    """Σ_k d_k [b_k ≠ q_k], one pair at a time    [eq. 25]"""
    return np.array([[sum(d[b != q]) for q in Q] for b in B])


def view_weights(losses, r):
    """[eq. 28]"""
    powers = [loss ** (1 / (1 - r)) for loss in losses]
    return np.array(powers) / sum(powers)


# ---- Algorithm 1


def algorithm_1(p, first_Ps, first_labels, t, kappa, centroid_step=None):
    """Run until nothing changes or t iterations; returns the last state and (iteration, step, objective) of each step.

    `centroid_step(Q, S, d, ν)` does step 4 where ν > 0. An empty cluster is an error: choose the data so that none is.
    """
    B = sgn(sum(Z @ P for Z, P in zip(p.Zs, first_Ps, strict=True)))
    Q = sgn(sums(B, first_labels, p.c))
    s = State(B, first_Ps, Q, first_labels, np.full(p.m, 1 / p.m))
    history, before = [], np.inf

    def weights_now():
        return bit_weights(p, s.B, s.Q, s.labels)

    for iteration in range(1, t + 1):
        s = replace(s, Ps=projections(p, s.B, s.alpha))
        history.append((iteration, "P", objective(p, s)))
        old = s.B
        s = replace(s, B=sgn(vote(p, s, np.diag(weights_now()))))
        history.append((iteration, "B", objective(p, s)))
        for _ in range(kappa if p.lambda3 else 0):
            Q, labels = s.Q, s.labels
            if p.nu == 0:
                s = replace(s, Q=majority(s.B, s.Q, s.labels))
            else:
                s = replace(s, Q=centroid_step(s.Q, sums(s.B, s.labels, p.c), weights_now(), p.nu))
            history.append((iteration, "Q", objective(p, s)))
            s = replace(s, labels=distances(s.B, s.Q, weights_now()).argmin(1))
            assert len(np.unique(s.labels)) == p.c, "an empty cluster"
            history.append((iteration, "F", objective(p, s)))
            if np.array_equal(Q, s.Q) and np.array_equal(labels, s.labels):
                break
        losses = np.array([h(p, s.B, s.Ps[v], v) for v in range(p.m)])
        s = replace(s, alpha=view_weights(losses * fair(p), p.r))
        history.append((iteration, "α", objective(p, s)))
        if np.array_equal(s.B, old) or history[-1][2] >= before:
            break
        before = history[-1][2]
    s = replace(s, Ps=projections(p, s.B, s.alpha))
    history.append((iteration, "P", objective(p, s)))
    return s, history


# ---- problems to try


def random_problem(rng, *, n=30, l=5, K=8, K_S=0, c=3, m=2, missing=0.0, **constants):
    """A problem with unstructured data, and an unstructured state of it."""
    has = [rng.random(n) >= missing for _ in range(m)]
    for one in has:
        one[rng.integers(n)] = True
    has[0] = has[0] | ~np.any(has, axis=0)
    Zs = [rng.normal(size=(n, l)) * rng.uniform(0.1, 3) * one[:, None] for one in has]
    given = {"lambda1": 1e-2, "lambda2": 1e-3, "lambda3": 1.0, "nu": 0.0, "r": 5.0, "l21": True} | constants
    return Problem(Zs, has, K, K_S if m > 1 else 0, c, **given), random_state(rng, n, l, K, c, m)


def random_state(rng, n, l, K, c, m):
    signs = [sgn(rng.normal(size=(rows, K)) + rng.normal(size=K) / 2) for rows in (n, c)]
    Ps = [rng.normal(size=(l, K)) / l for _ in range(m)]
    return State(signs[0], Ps, signs[1], rng.integers(c, size=n), rng.dirichlet(np.full(m, 3.0)))

"""One pure function per equation of the paper. `docs/math.md` is the ledger: equation, formula, test, deviation.

Rows are samples. Z_v (N, l) embeddings · G_v = Z_vᵀZ_v (l, l) · B (N, K) codes in ±1 · P_v (l, K) projections ·
Q (c, K) centroids in ±1 · S (c, K) sums of the codes of each cluster · d (K,) bit weights ·
w_v = α_v^r · N/N_v.
The pass over the data is in `loop.py`: it only ever needs Z_vᵀB, so every step here is small.
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

# ---- projections


def regularized_factor(gram, ridge, variance_reward):
    """Cholesky factor of (1 - λ2/N) G + λ1 I.

    If rounding makes the matrix indefinite, the ridge grows until the factor exists.
    """
    A = (1 - variance_reward) * gram
    diagonal = np.einsum("ii->i", A)
    rounding = np.finfo(np.float32).eps * max(diagonal.mean(), np.finfo(np.float32).tiny)
    diagonal += ridge
    while True:
        try:
            return cho_factor(A, lower=True)
        except LinAlgError:
            diagonal += rounding
            rounding *= 10


def shared_projection(grams, ZtBs, weights, ridge, variance_reward):
    """P_S = ((1-λ2/N) Σ w_v G_v + λ1 Σ w_v I)⁻¹ Σ w_v Z_vᵀB_S    [eq. 12]"""
    G = sum(w * G_v for w, G_v in zip(weights, grams, strict=True))
    ZtB = sum(w * ZtB_v for w, ZtB_v in zip(weights, ZtBs, strict=True))
    return cho_solve(regularized_factor(G, ridge * sum(weights), variance_reward), ZtB)  # (l, K_S)


def individual_projection(gram_factor, ZtB):
    """P_I = ((1-λ2/N) G + λ1 I)⁻¹ ZᵀB_I    [eq. 13]"""
    return cho_solve(gram_factor, ZtB)  # (l, K_I)


# ---- codes


def vote(Zs, Ps, weights):
    """R = Σ w_v Z_v P_v / max w, the vote of the views on each bit    [eq. 18, first term]

    Only its sign matters. Division by the largest weight keeps it within float32 for any exponent r.
    """
    scaled = (weights / weights.max()).astype(np.float32)
    R = Zs[0] @ (scaled[0] * Ps[0])
    for Z, P, w in zip(Zs[1:], Ps[1:], scaled[1:], strict=True):
        R += Z @ (w * P)
    return R  # (n, K)


def centroid_pull(Q, d, coupling):
    """λ3 Q D; the row of its cluster is added to the vote of the views on a sample    [eq. 18, second term]"""
    return coupling * Q * d  # (c, K)


# ---- clusters


@dataclass(frozen=True)
class Frobenius:
    """Σ_k d_k ‖u_k‖² with fixed bit weights: the variant HSIC-F, and plain Hamming distance if d = 1."""

    bit_weights: np.ndarray  # (K,)

    def weights(self, squared):
        return self.bit_weights

    def value(self, squared):
        return float(self.bit_weights @ squared)


@dataclass(frozen=True)
class L21:
    """Σ_k ‖u_k‖₂, one norm per bit, minimized by reweighting; +1 under the root keeps d finite    [eq. 9]"""

    def weights(self, squared):
        """d_k = 1 / (2 ‖u_k‖)"""
        return 0.5 / np.sqrt(squared + 1)

    def value(self, squared):
        return float(np.sqrt(squared + 1).sum())


def squared_residuals(S, Q, n):
    """‖u_k‖² = ‖(B - Q[labels])_k‖² = 2 (N - Σ_j S_jk Q_jk), for each bit k."""
    return 2.0 * (n - np.einsum("jk,jk->k", S, Q.astype(np.float64)))  # (K,)


def centroid_loss(Q, S, d, balance):
    """L(Q) = -2 Σ_jk d_k S_jk Q_jk + ν Σ_j (Σ_k Q_jk)², a row for each cluster    [eq. 21]"""
    return -2 * ((S * d) * Q).sum(1) + balance * Q.sum(1, dtype=np.float64) ** 2  # (c,)


def centroids(Q, S, d, balance):
    """The Q in ±1 with the lowest L, by the proximal step Q ← sgn(Q - ∇L/η) with the best η    [eq. 20-21]

    Before the step, Q is the majority of each cluster (a tied bit keeps its sign), the minimum if ν = 0. A smaller η
    flips more of the bits in surplus, those with the weakest majority first. One sort tries every η at once, and the
    best one gives the exact minimum: no other Q with the same sum has a lower L.
    """
    pull = 2 * (S * d)  # (c, K), the linear part of -∇L
    Q = np.where(pull == 0, Q, np.where(pull > 0, 1, -1)).astype(np.int8)
    if balance == 0:
        return Q
    surplus = Q.sum(1, dtype=np.float64)[:, None]  # (c, 1)
    cost = np.where(np.sign(surplus) == Q, 2 * np.abs(pull), np.inf)  # of flipping a bit
    order = np.argsort(cost, axis=1, kind="stable")
    n_flips = np.arange(Q.shape[1] + 1)
    costs = np.concatenate([np.zeros_like(surplus), np.cumsum(np.take_along_axis(cost, order, 1), axis=1)], axis=1)
    best = (costs + balance * (np.abs(surplus) - 2 * n_flips) ** 2).argmin(1)  # (c,)
    flipped = np.zeros(Q.shape, bool)
    np.put_along_axis(flipped, order, n_flips[:-1] < best[:, None], axis=1)
    return np.where(flipped, -Q, Q)


FUSED_LENGTH = 0.5  # root mean square of the rows of F: few columns of F exceed 2, where they are cut


def rotation(FtB):
    """R (d, K) that minimizes ‖B - F R‖² where R Rᵀ is a multiple of I that gives F R the size of B: orthogonal
    Procrustes."""
    U, _, Vt = np.linalg.svd(FtB.astype(np.float64), full_matrices=False)
    return np.sqrt(FtB.shape[1]) / FUSED_LENGTH * (U @ Vt)


# ---- view weights and the objective


def projection_cost(gram, P, ridge, variance_reward):
    """(1 - λ2/N) ‖ZP‖² + λ1 ‖P‖²: the part of h that does not depend on the codes."""
    return (1 - variance_reward) * np.einsum("ij,ij->", P, gram @ P) + ridge * np.einsum("ij,ij->", P, P)


def view_loss(n_present, K, P, ZtB, cost):
    """h = ‖B - ZP‖² + λ1‖P‖² - (λ2/N)‖ZP‖² over the rows that have the view, from ZᵀB and the cost above    [eq. 9]"""
    return n_present * K - 2 * np.einsum("ij,ij->", P, ZtB) + cost


def view_weights(losses, exponent, lowest):
    """α_v = h_v^{1/(1-r)} / Σ h_v^{1/(1-r)}, the minimum of Σ α_v^r h_v where Σ α_v = 1    [eq. 28]

    A loss below `lowest` counts as `lowest`: the variance reward can make it negative, and a perfect fit would
    otherwise take all the weight.
    """
    h = np.maximum(losses, lowest)
    alpha = (h / h.min()) ** (1 / (1 - exponent))
    return alpha / alpha.sum()

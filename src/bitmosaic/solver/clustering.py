"""Packed codes -> clusters: steps 4 and 5 of Algorithm 1, alternated. HSIC and BinaryKMeans share it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bitmosaic.codes import cluster_bit_sums, hamming_distances, nearest_centers, pack, unpack
from bitmosaic.solver.steps import L21, Frobenius, centroids, squared_residuals

ROWS_FOR_SEEDING = 20_000  # k-means++ looks at a sample of this size, or of 50 per cluster


@dataclass(frozen=True)
class Clustering:
    """The state of a clustering of packed codes."""

    Q: np.ndarray  # (c, K) int8 in ±1
    labels: np.ndarray  # (n,) int32, the nearest centroid under `bit_weights`
    bit_weights: np.ndarray  # (K,), the D of the last assignment
    objective: float  # norm of B - Q[labels], plus ν Σ_j (Σ_k Q_jk)²
    n_iter: int
    converged: bool

    @property
    def centers(self):
        return pack(self.Q)  # (c, K/8) uint8


@dataclass(frozen=True)
class Problem:
    """What is to be clustered, and what a good clustering is."""

    codes: np.ndarray  # (n, K/8) uint8
    norm: L21 | Frobenius
    balance: float = 0.0  # ν
    sample_weight: np.ndarray | None = None
    n_threads: int = 1

    @property
    def total_weight(self):
        return len(self.codes) if self.sample_weight is None else self.sample_weight.sum()

    def sums(self, labels, n_clusters):
        return cluster_bit_sums(self.codes, labels, n_clusters, self.sample_weight, self.n_threads)

    @property
    def initial_weights(self):
        """D before there are any residuals: the same for every bit, unless the norm fixes it."""
        return self.norm.weights(np.full(8 * self.codes.shape[1], float(self.total_weight)))

    def nearest(self, Q, bit_weights):
        return nearest_centers(self.codes, pack(Q), plain_if_equal(bit_weights), self.n_threads)

    def objective(self, S, Q):
        squared = squared_residuals(S, Q, self.total_weight)
        return self.norm.value(squared) + self.balance_term(Q)

    def balance_term(self, Q):
        return self.balance * float((Q.sum(1, dtype=np.float64) ** 2).sum())


def plain_if_equal(bit_weights):
    """Equal weights order codes as plain Hamming distance does, which is faster and exact: None."""
    return None if (bit_weights == bit_weights[0]).all() else bit_weights


def assign(problem, Q, bit_weights):
    """Nearest centroid in the D-weighted Hamming distance, and no empty cluster    [eq. 25]

    An empty cluster takes the code that is farthest from its centroid. Each such move lowers the total distance, so
    this ends: with every cluster filled, or with every code on a centroid (fewer distinct codes than clusters).
    """
    labels, distances = problem.nearest(Q, bit_weights)
    while (empty := np.flatnonzero(np.bincount(labels, minlength=len(Q)) == 0)).size:
        far = _farthest_distinct(problem.codes, distances, len(empty))
        if not far.size:
            break
        Q = Q.copy()
        Q[empty[: far.size]] = unpack(problem.codes[far], np.int8)
        labels, distances = problem.nearest(Q, bit_weights)
    return Q, labels


def _farthest_distinct(codes, distances, count):
    """Up to `count` rows with different codes, the farthest first, none of them on its centroid."""
    order = np.lexsort((np.arange(len(distances)), -distances))
    rows: list[int] = []
    seen = set()
    for row in order:
        if len(rows) == count or distances[row] <= 0:
            break
        code = codes[row].tobytes()
        if code not in seen:
            seen.add(code)
            rows.append(row)
    return np.array(rows, np.int64)


def refine(problem, Q, max_iter, on_step: Callable[[str, float], None] | None = None, labels=None):
    """Alternate centroids and assignment from Q until nothing changes or `max_iter` is reached.

    Without `labels`, the first labels are the nearest centroids. `on_step` is told the objective after each step.
    """

    def weights(S, Q):
        return problem.norm.weights(squared_residuals(S, Q, problem.total_weight))

    d = problem.initial_weights
    if labels is None:
        Q, labels = assign(problem, Q, d)
    S = problem.sums(labels, len(Q))
    converged, n_iter = False, 0
    while not converged and n_iter < max_iter:
        n_iter += 1
        Q_new = centroids(Q, S, weights(S, Q), problem.balance)
        if on_step:
            on_step("Q", problem.objective(S, Q_new))
        d = weights(S, Q_new)
        Q_new, labels_new = assign(problem, Q_new, d)
        converged = np.array_equal(labels_new, labels) and np.array_equal(Q_new, Q)
        Q, labels = Q_new, labels_new
        S = problem.sums(labels, len(Q))
        if on_step:
            on_step("F", problem.objective(S, Q))
    return Clustering(Q, labels, d, problem.objective(S, Q), n_iter, converged)


def seed(problem, n_clusters, rng):
    """k-means++ in Hamming space, each time the best of a few candidates: centroids (c, K) int8.

    Hamming distance is a quarter of the squared distance of ±1 codes, so it is the sampling weight itself.
    """
    n = len(problem.codes)
    rows = max(ROWS_FOR_SEEDING, 50 * n_clusters)
    sample = np.arange(n) if n <= rows else np.sort(rng.choice(n, rows, replace=False))
    codes = problem.codes[sample]
    mass = np.ones(len(codes)) if problem.sample_weight is None else problem.sample_weight[sample]
    weights = plain_if_equal(problem.initial_weights)
    n_candidates = 2 + int(np.log(n_clusters))

    chosen = [_draw(mass, 1, rng)[0]]
    closest = hamming_distances(codes, codes[chosen], weights, problem.n_threads)[:, 0].astype(np.float64)
    while len(chosen) < n_clusters:
        candidates = _draw(mass * closest, n_candidates, rng)
        closer = hamming_distances(codes, codes[candidates], weights, problem.n_threads)
        closer = np.minimum(closer, closest[:, None])  # (n, n_candidates)
        best = int((mass @ closer).argmin())
        chosen.append(candidates[best])
        closest = closer[:, best]
    return unpack(codes[chosen], np.int8)


def _draw(mass, count, rng):
    """`count` indices with probability proportional to `mass`; uniform where there is no mass."""
    cumulative = np.cumsum(mass)
    if cumulative[-1] <= 0:
        return rng.integers(len(mass), size=count)
    return np.searchsorted(cumulative, rng.random(count) * cumulative[-1], side="right").clip(max=len(mass) - 1)


def best_of(problem, n_clusters, n_init, max_iter, rng):
    """The clustering with the lowest objective among `n_init` seeded runs."""
    runs = (refine(problem, seed(problem, n_clusters, rng), max_iter) for _ in range(n_init))
    return min(runs, key=lambda run: run.objective)

"""Packed codes -> clusters: steps 4 and 5 of Algorithm 1, alternated. Used by HSIC and BinaryKMeans."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bitmosaic.hamming.codes import (
    assign_codes,
    cluster_bit_sums,
    costs_with,
    hamming_distances,
    nearest_centers,
    pack,
    unpack,
)
from bitmosaic.io.threads import row_ranges
from bitmosaic.solver.steps import L21, Frobenius, centroids, squared_residuals

ROWS_AT_ONCE = 65_536  # in passes over all rows, to bound temporary memory
ROWS_FOR_SEEDING = 20_000  # size of the sample for k-means++, or 50 per cluster
MANY_CLUSTERS, ROUNDS = 2_000, 8  # above this number, seeds are chosen from codes drawn in a few rounds


@dataclass(frozen=True)
class Clustering:
    """The state of a clustering of packed codes."""

    Q: np.ndarray  # (c, K) int8 in ±1
    labels: Any  # (n,) int32: nearest centroid under `bit_weights`, or labels of the start
    S: np.ndarray  # (c, K), sums of the codes of each cluster
    sizes: np.ndarray | None  # (c,), None before the first assignment
    bit_weights: np.ndarray  # (K,), the D of the last assignment
    objective: float  # norm of B - Q[labels], plus ν Σ_j (Σ_k Q_jk)²
    n_iter: int
    converged: bool

    @property
    def centers(self):
        return pack(self.Q)  # (c, K/8) uint8


@dataclass(frozen=True)
class Step:
    """The result of assigning codes to their nearest centroids."""

    nearest: Any  # Assignment
    sizes: np.ndarray  # (c,) codes of each cluster
    S: np.ndarray  # (c, K)
    n_moved: int  # codes whose label changed

    @property
    def labels(self):
        return self.nearest.labels


@dataclass(frozen=True)
class Known:
    """Clusters that are known in advance."""

    Q: np.ndarray  # (c, K) int8 in ±1
    clusters: np.ndarray  # (c,) bool: whether the cluster is known
    rows: np.ndarray  # (n,) bool: rows with a known label


@dataclass(frozen=True)
class Problem:
    """Codes to cluster and the objective to minimize. Labels are in the order of the codes."""

    codes: Any  # (n, K/8) uint8
    norm: L21 | Frobenius
    balance: float = 0.0  # ν
    sample_weight: np.ndarray | None = None
    n_threads: int = 1
    rules: Any = None  # constraints on the labels: see `constrained`

    @property
    def total_weight(self):
        return len(self.codes) if self.sample_weight is None else self.sample_weight.sum()

    @property
    def initial_weights(self):
        """D before there are residuals: equal for all bits, unless the norm fixes it."""
        return self.norm.weights(np.full(8 * self.codes.shape[1], float(self.total_weight)))

    def weights(self, S, Q):
        """D for a clustering."""
        return self.norm.weights(squared_residuals(S, Q, self.total_weight))

    def objective(self, S, Q):
        return self.norm.value(squared_residuals(S, Q, self.total_weight)) + self.balance_term(Q)

    def balance_term(self, Q):
        return self.balance * float((Q.sum(1, dtype=np.float64) ** 2).sum())

    # ---- operations on the codes

    def take(self, rows):
        """The codes of some sorted rows."""
        return self.codes[rows]

    def sums(self, labels, n_clusters):
        """S (c, K): the sum of the ±1 codes of each cluster."""
        return cluster_bit_sums(self.codes, labels, n_clusters, self.sample_weight, self.n_threads)

    def step(self, Q, bit_weights, last=None, labels=None, S=None):
        """Assign every code to its nearest centroid. The `last` step, the previous labels and their S only save
        work."""
        nearest = assign_codes(self.codes, pack(Q), plain_if_equal(bit_weights), self.n_threads, last and last.nearest)
        pieces = list(row_ranges(len(self.codes), max(ROWS_AT_ONCE, 64 * len(Q))))
        sizes = np.sum([np.bincount(nearest.labels[rows], minlength=len(Q)) for rows in pieces], axis=0)
        if labels is None:
            return Step(nearest, sizes, self.sums(nearest.labels, len(Q)), len(self.codes))
        n_moved = sum(int(np.count_nonzero(nearest.labels[rows] != labels[rows])) for rows in pieces)
        return Step(nearest, sizes, self.sums_after(S, n_moved, labels, nearest.labels, pieces), n_moved)

    def sums_after(self, S, n_moved, before, labels, pieces):
        """S of `labels` from the previous S. Adds only the moved codes if there are few; exact because sums are
        integers."""
        if self.sample_weight is not None or 4 * n_moved > len(labels):
            return self.sums(labels, len(S))
        for rows in pieces if n_moved else ():
            moved = rows.start + np.flatnonzero(before[rows] != labels[rows])
            S = S + change_of_sums(self.codes[moved], before[moved], labels[moved], len(S), self.n_threads)
        return S

    def known(self, labels, n_clusters):
        """Known clusters from labels (n,), -1 where unknown. A centroid is the majority of its codes."""
        rows = np.flatnonzero(labels >= 0)
        values = labels[rows].astype(np.int32)
        S = cluster_bit_sums(self.take(rows), values, n_clusters, None, self.n_threads)
        clusters = np.bincount(values, minlength=n_clusters) > 0
        return Known(np.where(S >= 0, 1, -1).astype(np.int8), clusters, labels >= 0)

    def labels_with(self, Q, rows, values):
        """Labels that are `values` for some sorted rows and the nearest centroid for the others."""
        if len(rows) == len(self.codes):
            return values
        labels = nearest_centers(self.codes, pack(Q), plain_if_equal(self.initial_weights), self.n_threads)[0]
        labels[rows] = values
        return labels

    def farthest(self, nearest, count):
        """Up to `count` distinct codes, the farthest from their centroids first, none equal to its centroid."""
        return self.codes[farthest_distinct(self.codes, nearest.distances, count)]


def change_of_sums(codes, before, after, n_clusters, n_threads=1):
    """Change of S when codes move from one label to another."""
    came, left = (cluster_bit_sums(codes, labels, n_clusters, None, n_threads) for labels in (after, before))
    return came - left


def plain_if_equal(bit_weights):
    """None if all weights are equal: plain Hamming distance gives the same order, and is exact and faster."""
    return None if (bit_weights == bit_weights[0]).all() else bit_weights


def assign(problem, Q, bit_weights, last=None, labels=None, S=None):
    """Nearest centroid in the D-weighted Hamming distance, without empty clusters    [eq. 25]

    An empty cluster takes the code that is farthest from its centroid. Each such move lowers the total distance, so the
    loop ends: every cluster is filled, or every code equals a centroid (fewer distinct codes than clusters). The `last`
    step, the previous labels and their S save most of the work and do not change the result.
    """
    step = problem.step(Q, bit_weights, last, labels, S)
    while (empty := np.flatnonzero(step.sizes == 0)).size:
        far = problem.farthest(step.nearest, len(empty))
        if not len(far):
            break
        Q = Q.copy()
        Q[empty[: len(far)]] = unpack(far, np.int8)
        step = problem.step(Q, bit_weights, step, labels, S)
        if problem.rules is not None and (step.sizes == 0).sum() >= len(empty):
            break  # rules may prevent a code from moving
    return Q, step


def farthest_distinct(codes, distances, count):
    """Up to `count` rows with distinct codes, the farthest first, none equal to its centroid."""
    found = np.empty(0, np.int64)
    for some in row_ranges(len(codes), ROWS_AT_ONCE):
        if len(found) == count and distances[some].max() <= distances[found[-1]]:
            continue  # ties: lowest row
        rows = np.concatenate([found, np.arange(some.start, some.stop)])
        found = rows[_farthest_distinct(codes[rows], distances[rows], count)]
    return found


def _farthest_distinct(codes, distances, count):
    n, size = len(distances), 10 * count  # candidates to sort; more if there are too many duplicates
    found: dict[bytes, int] = {}
    while n and len(found) < count:
        size = min(size, n)
        lowest = np.partition(distances, n - size)[n - size]
        rows = np.flatnonzero((distances >= lowest) & (distances > 0))
        for row in rows[np.argsort(-distances[rows], kind="stable")]:
            if len(found) == count:
                break
            found.setdefault(codes[row].tobytes(), row)
        if size == n or lowest <= 0:
            break
        size *= 10
    return np.array(list(found.values()), np.int64)


def refine(problem, Q, max_iter, on_step: Callable[[str, float], None] | None = None, labels=None, S=None):
    """Alternate centroids and assignment from Q until nothing changes or `max_iter` is reached.

    Without `labels`, the first labels are the nearest centroids. S, if given, belongs to `labels`. `on_step` receives
    the objective after each step.
    """
    d, step = problem.initial_weights, None
    if labels is None:
        Q, step = assign(problem, Q, d)
        labels, S = step.labels, step.S
    elif S is None:
        S = problem.sums(labels, len(Q))
    converged, n_iter = False, 0
    while not converged and n_iter < max_iter:
        n_iter += 1
        Q_new = centroids(Q, S, problem.weights(S, Q), problem.balance)
        if on_step:
            on_step("Q", problem.objective(S, Q_new))
        d = problem.weights(S, Q_new)
        Q_new, step = assign(problem, Q_new, d, step, labels, S)
        # Without rules, a cluster stays empty only if every code equals a centroid, which is optimal.
        # Under rules a cluster may have to stay empty.
        stays_empty = not step.sizes.all() and (problem.rules is None or step.n_moved == 0)
        converged = (step.n_moved == 0 and np.array_equal(Q_new, Q)) or stays_empty
        Q, labels, S = Q_new, step.labels, step.S
        if on_step:
            on_step("F", problem.objective(S, Q))
    return Clustering(Q, labels, S, step and step.sizes, d, problem.objective(S, Q), n_iter, converged)


def seed(problem, n_clusters, rng, known=None):
    """k-means++ in Hamming space with several candidates per draw: centroids (c, K) int8.

    Hamming distance is a quarter of the squared distance of ±1 codes, so it is the sampling weight. `known` clusters
    start from their centroids. The others are drawn from rows that belong to no known cluster, as long as there are
    any.
    """
    n = len(problem.codes)
    rows = max(ROWS_FOR_SEEDING, 50 * n_clusters)
    sample = np.arange(n) if n <= rows else np.sort(rng.choice(n, rows, replace=False))
    codes = problem.take(sample)
    mass = np.ones(len(codes)) if problem.sample_weight is None else problem.sample_weight[sample]
    weights = plain_if_equal(problem.initial_weights)
    if n_clusters > MANY_CLUSTERS and known is None:
        codes, mass = _condense(codes, mass, n_clusters, weights, problem.n_threads, rng)
    n_candidates = 2 + int(np.log(n_clusters))

    def distances(row):
        return hamming_distances(codes, codes[[row]], weights, problem.n_threads)[:, 0].astype(np.float64)

    wanted = n_clusters
    if known is None:
        chosen = [_draw(mass, 1, rng)[0]]
        closest = distances(chosen[0])
    else:
        chosen, wanted = [], n_clusters - int(known.clusters.sum())
        closest = nearest_centers(codes, pack(known.Q[known.clusters]), weights, problem.n_threads)[1].astype(
            np.float64
        )
        fresh = mass * ~known.rows[sample]
        mass = fresh if (fresh * closest).any() else mass
    while len(chosen) < wanted:
        left = mass * closest
        if not left.any():  # every distinct code is chosen: the other seeds are duplicates
            chosen.extend(_draw(mass, wanted - len(chosen), rng))
            break
        candidates = _draw(left, n_candidates, rng)
        costs = costs_with(codes, codes[candidates], closest, mass, weights, problem.n_threads)
        chosen.append(candidates[int(costs.argmin())])
        closest = np.minimum(closest, distances(chosen[-1]))
    if known is None:
        return unpack(codes[chosen], np.int8)
    Q = known.Q.copy()
    Q[~known.clusters] = unpack(codes[np.array(chosen, np.int64)], np.int8)
    return Q


def _condense(codes, mass, n_clusters, weights, n_threads, rng):
    """A smaller weighted set of codes for many seeds, as in k-means||. Each round draws many codes at once, with
    probability proportional to the distance from the codes drawn before. A drawn code gets the mass of the codes
    nearest to it."""
    drawn = _draw(mass, 1, rng)
    owners, closest = nearest_centers(codes, codes[drawn], weights, n_threads)
    for _ in range(ROUNDS):
        more = np.unique(_draw(mass * closest, n_clusters // 2, rng))
        labels, distances = nearest_centers(codes, codes[more], weights, n_threads)
        owners = np.where(distances < closest, len(drawn) + labels, owners)
        closest = np.minimum(closest, distances)
        drawn = np.concatenate([drawn, more])
    return codes[drawn], np.bincount(owners, mass, minlength=len(drawn))


def _draw(mass, count, rng):
    """`count` indices with probability proportional to `mass`; uniform where there is no mass."""
    cumulative = np.cumsum(mass)
    if cumulative[-1] <= 0:
        return rng.integers(len(mass), size=count)
    return np.searchsorted(cumulative, rng.random(count) * cumulative[-1], side="right").clip(max=len(mass) - 1)


def best_of(problem, n_clusters, n_init, max_iter, rng, known=None):
    """The clustering with the lowest objective among `n_init` seeded runs; one run if all clusters are known."""
    n_init = 1 if known is not None and known.clusters.all() else n_init
    runs = (refine(problem, seed(problem, n_clusters, rng, known), max_iter) for _ in range(n_init))
    return min(runs, key=lambda run: run.objective)


# ---- New codes from a stream -> updated centers. A center is the majority of all codes ever assigned to it.


class Majority(NamedTuple):
    """Centers, with the sums and counts they are computed from."""

    centers: np.ndarray  # (c, K/8) uint8
    bit_sums: np.ndarray  # (c, K) int64, sums of the ±1 codes ever assigned
    counts: np.ndarray  # (c,) int64, number of these codes

    @classmethod
    def of(cls, centers, codes, labels, n_threads=1):
        """The state after a fit. The centers are not changed."""
        counts = np.bincount(labels, minlength=len(centers)).astype(np.int64)
        return cls(centers, cluster_bit_sums(codes, labels, len(centers), None, n_threads), counts)

    def with_codes(self, codes, labels, n_threads=1):
        """The state after more codes were assigned. A bit with as many ones as zeros keeps its value.

        These centers minimize the total distance to all codes ever assigned to them, so an update never raises it.
        """
        sums = self.bit_sums + cluster_bit_sums(codes, labels, len(self.centers), None, n_threads)
        counts = self.counts + np.bincount(labels, minlength=len(self.centers))
        signs = np.where(sums == 0, unpack(self.centers, np.int8), np.sign(sums))
        return Majority(pack(signs), sums, counts)

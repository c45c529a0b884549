"""Packed codes -> clusters that satisfy rules: step 5 of Algorithm 1 with constraints.

In each assignment free rows go to their nearest centers, then units (rows that move together) go to the cheapest
allowed cluster, then size limits are enforced. New labels are rejected if they do not lower the total distance, so
alternating centroids and assignment still descends. Fits without constraints do not use this module.
"""

from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from bitmosaic.hamming.codes import (
    Assignment,
    as_words,
    assign_codes,
    hamming_distances,
    in_pieces,
    nearest_centers,
    pack,
)
from bitmosaic.io.threads import row_ranges
from bitmosaic.solver.clustering import Problem, Step, best_of, plain_if_equal, refine, seed
from bitmosaic.solver.constrained import kernels

# ---- Codes -> nearby centers, with a minimum and a maximum number of codes in each cluster.
#
# This is a transportation problem. `within` solves it exactly: starting from the nearest centers, rows move along
# cheapest paths from clusters that are too large to clusters with free capacity (`kernels.meet_limits`). It also finds
# prices of full clusters, which are a good start for the next call. `within_greedy` is for larger problems: the rows
# that lose least move to the nearest center with capacity, round by round. It also meets the limits; its total
# distance is slightly above the lowest.


ROWS_PER_CLUSTER, SAMPLE_PER_CLUSTER = 1000, 50  # rows from which initial prices come from a sample, and its size
ROWS_AT_ONCE = 16_384  # rows whose differing bits are unpacked at once
STEPS = 16  # integer cost of a bit of mean weight; weighted distances are rounded to it


def within(codes, centers, bit_weights, constrained, low, high, labels, prices, n_threads=1):
    """Labels (n,) of codes (n, b) with low to high (c,) unconstrained rows in each cluster, and the prices (c,) of
    clusters in bits. `constrained` (n,) bool marks rows that keep their label; other `labels` are the nearest
    centers."""
    c, steps = len(centers), 1 if bit_weights is None else STEPS
    if not prices.any() and len(codes) >= ROWS_PER_CLUSTER * c:
        prices = sampled_prices(codes, centers, bit_weights, constrained, low, high, labels, n_threads)
    words, center_words, table = as_words(codes), as_words(centers), half_byte_costs(centers, bit_weights)
    whole = np.zeros(c + 1, np.int64)
    whole[:c] = np.rint(prices * steps)
    if whole.any() or steps > 1:  # nearest by rounded distance plus price
        near = np.empty(len(codes), np.int32)
        in_pieces(
            lambda rows: kernels.nearest_priced(words[rows], center_words, table, whole, near[rows]),
            len(codes),
            n_threads,
        )
        labels = np.where(constrained, labels, near)
    else:
        labels = labels.copy()
    members = np.empty(2 * len(codes) + 16 * c, np.int32)
    first, count, edges = np.empty(c + 1, np.int64), np.empty(c, np.int64), np.empty((2, c, c), np.int32)
    met = kernels.meet_limits(
        words, center_words, table, constrained, low, high, members, first, count, labels, whole, *edges
    )
    assert met, "size limits cannot be met"
    return labels, whole[:c] / steps


def sampled_prices(codes, centers, bit_weights, constrained, low, high, labels, n_threads):
    """Prices of clusters, estimated from every k-th row."""
    stride = len(codes) // (SAMPLE_PER_CLUSTER * len(centers))
    some, taken = slice(None, None, stride), ~constrained[::stride]
    share = taken.sum() / max((~constrained).sum(), 1)
    limits = np.floor(low * share).astype(np.int64), np.ceil(high * share).astype(np.int64) + 1
    none = np.zeros(len(centers))
    kept = np.ascontiguousarray(constrained[some])  # a strided array would compile the kernels a second time
    return within(codes[some], centers, bit_weights, kept, *limits, labels[some], none, n_threads)[1]


def half_byte_costs(centers, bit_weights):
    """Cost of each half-byte of a code for each center, the lower half of a byte first: (c, 2b, 16) int32."""
    if bit_weights is None:
        return np.empty((0, 0, 0), np.int32)
    weights = np.rint(bit_weights * (STEPS / bit_weights.mean())).astype(np.int32).reshape(-1, 2, 4)[:, ::-1]
    bits = np.unpackbits(centers, axis=1).reshape(len(centers), -1, 2, 4)[:, :, ::-1]  # (c, b, 2, 4)
    values = np.unpackbits(np.arange(16, dtype=np.uint8)[:, None], axis=1)[:, 4:]  # (16, 4)
    table = np.zeros((*bits.shape[:3], 16), np.int32)
    for k in range(4):
        table += (bits[..., k, None] != values[:, k]) * weights[..., k, None]
    return table.reshape(len(centers), -1, 16)


def within_greedy(codes, centers, bit_weights, constrained, low, high, labels, n_threads=1):
    """As `within`, approximately: first clusters that are too large lose rows, then clusters that are too small gain
    some."""
    labels = labels.copy()
    for too_small in (False, True):
        while True:
            count = np.bincount(labels[~constrained], minlength=len(centers))
            spare = np.maximum(count - (low if too_small else high), 0)
            wanted = np.maximum((low if too_small else high) - count, 0)
            if not (wanted if too_small else spare).any():
                break
            rows = np.flatnonzero((spare > 0)[labels] & ~constrained)
            takers = np.flatnonzero(wanted)
            found, far = nearest_centers(codes[rows], centers[takers], bit_weights, n_threads)
            own = own_distances(codes[rows], centers, bit_weights, labels[rows])
            rows, found = rows[order := np.argsort(far - own, kind="stable")], takers[found[order]]
            leave = rank_among_ties(labels[rows]) < spare[labels[rows]]
            rows, found = rows[leave], found[leave]
            enter = rank_among_ties(found) < wanted[found]
            labels[rows[enter]] = found[enter]
    return labels


def own_distances(codes, centers, bit_weights, labels):
    """Distance of each code to the center of its label: (n,) int32, or float32 with bit weights."""
    far = np.empty(len(codes), np.int32 if bit_weights is None else np.float32)
    for rows in row_ranges(len(codes), ROWS_AT_ONCE):
        differ = codes[rows] ^ centers[labels[rows]]
        if bit_weights is None:
            far[rows] = np.bitwise_count(differ).sum(1, dtype=np.int32)
        else:
            far[rows] = np.unpackbits(differ, axis=1) @ bit_weights.astype(np.float32)
    return far


def rank_among_ties(values):
    """Number of equal values before each value: (n,)."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    begins = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(values) else np.empty(0, np.int64)
    ranks = np.empty(len(values), np.int64)
    ranks[order] = np.arange(len(values)) - np.repeat(begins, np.diff(np.r_[begins, len(values)]))
    return ranks


EXACT_ALWAYS = 5_000_000  # rows × clusters up to which every assignment is exact
EXACT_FINAL, EXACT_CLUSTERS = 200_000_000, 2_000  # the same for the last assignment; the most clusters for an exact one
N_ROUGH, ROUGH_ITER = 3, 5  # seedings tried under size limits with many rows, and rounds of each
PASSES = 20  # of local search over the units
WEIGHTED_WORK = 4  # times the work of a plain pair, where bits have weights
PAIRS_AT_ONCE = 2**22  # distances computed at once


@dataclass(frozen=True)
class ConstrainedStep(Step):
    """Codes with their assigned centroids. `nearest` holds the constrained labels; distances are nonzero only for rows
    that may move."""

    unconstrained: Any  # Assignment that ignores the rules
    prices: np.ndarray  # (c,) dual prices of clusters with size limits


@dataclass(frozen=True)
class ConstrainedProblem(Problem):
    """A clustering problem with rules."""

    exact: bool | None = None  # whether sizes are met at the lowest cost; None: if that is fast

    @property
    def always_exact(self):
        """Whether every assignment meets the size limits at the lowest cost."""
        c = self.rules.n_clusters
        return (len(self.codes) * c <= EXACT_ALWAYS and c <= EXACT_CLUSTERS) if self.exact is None else self.exact

    def final_problem(self, bit_weights):
        """The problem for the last assignment if an exact solution is affordable there, else None."""
        c = self.rules.n_clusters
        work = len(self.codes) * c * (1 if plain_if_equal(bit_weights) is None else WEIGHTED_WORK)
        exact = work <= EXACT_FINAL and c <= EXACT_CLUSTERS
        return replace(self, exact=True) if exact and self.rules.limits_sizes and not self.always_exact else None

    def step(self, Q, bit_weights, last=None, labels=None, S=None):
        """As `Problem.step`, under the rules. The total distance is never larger than that of `labels`, which satisfy
        the rules."""
        centers, weights = pack(Q), plain_if_equal(bit_weights)
        nearest = assign_codes(self.codes, centers, weights, self.n_threads, last and last.unconstrained)
        prices = np.zeros(len(Q)) if last is None else last.prices
        before = self.rules.feasible_labels if labels is None else labels[self.rules.unit_rows[self.rules.starts[:-1]]]
        found, prices = self.constrained_labels(centers, weights, nearest.labels, before, prices)
        S_new = self.sums(found, len(Q))
        if labels is not None and not self.is_better(found, labels, Q, bit_weights, S_new, S):
            found, S_new = labels, S
        n_moved = len(found) if labels is None else int(np.count_nonzero(found != labels))
        far = own_distances(self.codes, centers, weights, found)
        far[self.rules.fixed_rows] = 0  # never used to fill an empty cluster
        kept = Assignment(centers, found, far)
        return ConstrainedStep(kept, np.bincount(found, minlength=len(Q)), S_new, n_moved, nearest, prices)

    def is_better(self, labels, before, Q, bit_weights, S, S_before):
        """Whether `labels` are closer to the centroids than `before`; or equally close and use fewer clusters. The
        unused cluster is then a duplicate that can be filled again."""
        gain = (bit_weights * (S - S_before) * Q).sum()
        return gain > 0 or (gain == 0 and len(np.unique(labels)) < len(np.unique(before)))

    def constrained_labels(self, centers, weights, nearest, before, prices):
        """Labels (n,) that satisfy the rules, and prices of clusters. `before` (u,) are labels of the units that
        satisfy them."""
        r, labels, c = self.rules, nearest.copy(), len(centers)
        costs = self.unit_costs(centers, weights)
        scale = 1.0 if weights is None else weights.mean()
        units = self.assign_units(costs, prices * scale, before)
        r.write_labels(units, labels)
        if not r.limits_sizes:
            return labels, prices
        constrained = r.constrained
        for again in (r.n_units > 0, False):
            load = r.fixed_load() + np.bincount(units, r.unit_sizes, c).astype(np.int64)
            limits = np.maximum(r.min_size - load, 0), r.max_size - load
            if not self.always_exact:
                return within_greedy(self.codes, centers, weights, constrained, *limits, labels, self.n_threads), prices
            found, prices = within(self.codes, centers, weights, constrained, *limits, labels, prices, self.n_threads)
            if not again or np.array_equal(moved := self.assign_units(costs, prices * scale, units), units):
                break
            units = moved  # prices rose where other rows had to leave
            r.write_labels(units, labels)
        return found, prices

    def unit_costs(self, centers, weights):
        """Total distance of the rows of each unit to each center: (u, c) float32."""
        r = self.rules
        costs = np.zeros((r.n_units, len(centers)), np.float32)
        owners = np.repeat(np.arange(r.n_units), r.unit_sizes)
        for some in row_ranges(len(r.unit_rows), max(1, PAIRS_AT_ONCE // len(centers))):
            rows = r.unit_rows[some]
            far = hamming_distances(self.codes[rows], centers, weights, self.n_threads).astype(np.float32)
            if self.sample_weight is not None:
                far *= self.sample_weight[rows, None].astype(np.float32)
            first, last = owners[some][0], owners[some][-1]
            begins = np.searchsorted(owners[some], np.arange(first, last + 1))
            costs[first : last + 1] += np.add.reduceat(far, begins, axis=0)
        return costs

    def assign_units(self, costs, prices, before):
        """Clusters of the units: the cheaper of two local optima. One starts from the previous clusters, the other from
        a greedy assignment in order of decreasing regret."""
        r, n_units = self.rules, self.rules.n_units
        if not n_units:
            return before
        free = r.n_rows - len(r.fixed_rows) - len(r.unit_rows)
        total, every = costs + (r.unit_sizes[:, None] * prices).astype(np.float32), np.arange(n_units)
        links = r.link_starts, r.links, r.forbidden_starts, r.forbidden
        parts = r.unit_sizes, *links, total, r.min_size, r.max_size, free
        best = before.copy()
        load = r.fixed_load() + np.bincount(best, r.unit_sizes, r.n_clusters).astype(np.int64)
        kernels.improve_units(*parts, load, best, PASSES)
        greedy, load = np.empty(n_units, np.int32), r.fixed_load()
        if kernels.assign_greedily(np.argsort(-regret(total), kind="stable"), *parts, load, greedy):
            kernels.improve_units(*parts, load, greedy, PASSES)
            # Ties go to the greedy labels, which are lowest: a duplicate cluster becomes empty and is filled again.
            if total[every, greedy].sum(dtype=np.float64) <= total[every, best].sum(dtype=np.float64):
                return greedy
        return best

    def labels_with(self, Q, rows, values):
        """As `Problem.labels_with`; fixed rows and units satisfy the rules, size limits are ignored."""
        labels = super().labels_with(Q, rows, values).copy()
        costs = self.unit_costs(pack(Q), plain_if_equal(self.initial_weights))
        self.rules.write_labels(self.assign_units(costs, np.zeros(len(Q)), self.rules.feasible_labels), labels)
        return labels


def regret(costs):
    """Extra cost of the second cheapest cluster of each unit: (u,)."""
    if costs.shape[1] == 1:
        return np.zeros(len(costs))
    two = np.partition(costs, 1, axis=1)[:, :2]
    return two[:, 1] - two[:, 0]


def with_rules(rules, problem):
    """The problem with rules. Unchanged if `rules` is None."""
    if rules is None:
        return problem
    return ConstrainedProblem(
        problem.codes, problem.norm, problem.balance, problem.sample_weight, problem.n_threads, rules
    )


def best_seeding(problem, n_clusters, n_init, max_iter, rng, known=None):
    """The best of several seedings, or of one that starts from `known` labels (n,), -1 where unknown.

    Rules may also provide labels to start from. With size limits, the best centroids without the limits compete with
    the seedings for a few rounds in which sizes are met approximately. The best candidate is then refined.
    """
    rules = problem.rules
    if known is None and rules is not None:
        known = rules.initial_labels()
    elif known is not None:
        n_init = 1
    start = problem.known(known, n_clusters) if known is not None and (known >= 0).any() else None
    if rules is None or not rules.limits_sizes:
        return best_of(problem, n_clusters, n_init, max_iter, rng, start)
    loose = best_of(with_rules(rules.without_sizes(), without_rules(problem)), n_clusters, n_init, max_iter, rng, start)
    n_rough = min(n_init, N_ROUGH) if len(problem.codes) * n_clusters > EXACT_ALWAYS else n_init
    starts = chain([loose.Q], (seed(problem, n_clusters, rng, start) for _ in range(n_rough)))
    quick = replace(problem, exact=False)
    rough = (refine(quick, Q, min(max_iter, ROUGH_ITER)) for Q in starts)
    return refine(problem, min(rough, key=lambda run: run.objective).Q, max_iter)


def without_rules(problem):
    """The problem without rules."""
    return Problem(problem.codes, problem.norm, problem.balance, problem.sample_weight, problem.n_threads)


def with_final_sizes(problem, clustering):
    """The clustering after an exact last assignment under size limits, if the earlier ones were approximate."""
    last = problem.final_problem(clustering.bit_weights) if isinstance(problem, ConstrainedProblem) else None
    if last is None:
        return clustering
    step = last.step(clustering.Q, clustering.bit_weights, None, clustering.labels, clustering.S)
    objective = problem.objective(step.S, clustering.Q)
    return replace(clustering, labels=step.labels, S=step.S, sizes=step.sizes, objective=objective)

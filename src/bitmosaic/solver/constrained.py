"""Packed codes -> clusters that obey rules: step 5 of Algorithm 1 under constraints.

In each assignment free rows go to their nearest centers, then units (rows that move as one) to where they are cheapest
and allowed, then size limits are met. The labels before are kept where that would not lower the total distance, so
centroids and assignment in turn still descend. A fit without constraints never comes here.
"""

from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from bitmosaic.codes import hamming_distances, pack
from bitmosaic.pruning import Assignment, assign_codes
from bitmosaic.solver import link_kernels, sizes
from bitmosaic.solver.clustering import Problem, Step, best_of, plain_if_equal, refine, seed
from bitmosaic.threads import row_ranges

EXACT_ALWAYS = 5_000_000  # rows × clusters up to which sizes are met at the lowest cost in every assignment
EXACT_AT_LAST, EXACT_CLUSTERS = 200_000_000, 2_000  # and so many in the last one; with at most so many clusters
N_ROUGH, ROUGH_ITER = 3, 5  # seedings of many rows that are tried under size limits, and rounds of each
PASSES = 20  # over the units, to find them better places
WEIGHTED_WORK = 4  # of a pair where bits have weights, or more
PAIRS_AT_ONCE = 2**22  # distances of rows of units


@dataclass(frozen=True)
class ConstrainedStep(Step):
    """Codes with the centroids they go to; `nearest` has these labels, and distances only of rows that may be moved."""

    unconstrained: Any  # Assignment: without the rules
    prices: np.ndarray  # (c,) of clusters with limited sizes


@dataclass(frozen=True)
class ConstrainedProblem(Problem):
    """A clustering that must obey rules."""

    exact: bool | None = None  # whether sizes are met at the lowest cost; None: where that is fast

    @property
    def in_one_go(self):
        """Whether every assignment is at the lowest cost that size limits allow."""
        c = self.rules.n_clusters
        return (len(self.codes) * c <= EXACT_ALWAYS and c <= EXACT_CLUSTERS) if self.exact is None else self.exact

    def at_last(self, bit_weights):
        """The problem of the last assignment, where that is worth more work; else None."""
        c = self.rules.n_clusters
        work = len(self.codes) * c * (1 if plain_if_equal(bit_weights) is None else WEIGHTED_WORK)
        exact = work <= EXACT_AT_LAST and c <= EXACT_CLUSTERS
        return replace(self, exact=True) if exact and self.rules.limits_sizes and not self.in_one_go else None

    def step(self, Q, bit_weights, last=None, labels=None, S=None):
        """As for any problem, under the rules; never of a larger total distance than the `labels`, which obey them."""
        centers, weights = pack(Q), plain_if_equal(bit_weights)
        nearest = assign_codes(self.codes, centers, weights, self.n_threads, last and last.unconstrained)
        prices = np.zeros(len(Q)) if last is None else last.prices
        before = self.rules.witness if labels is None else labels[self.rules.unit_rows[self.rules.starts[:-1]]]
        found, prices = self.obeying(centers, weights, nearest.labels, before, prices)
        S_new = self.sums(found, len(Q))
        if labels is not None and not self.is_better(found, labels, Q, bit_weights, S_new, S):
            found, S_new = labels, S
        n_moved = len(found) if labels is None else int(np.count_nonzero(found != labels))
        far = sizes.own_distances(self.codes, centers, weights, found)
        far[self.rules.fixed_rows] = 0  # no cluster is filled with them
        kept = Assignment(centers, found, far)
        return ConstrainedStep(kept, np.bincount(found, minlength=len(Q)), S_new, n_moved, nearest, prices)

    def is_better(self, labels, before, Q, bit_weights, S, S_before):
        """Whether labels are nearer to the centroids than those before; or as near, and leave a cluster to be used
        anew, which is the copy of another."""
        gain = (bit_weights * (S - S_before) * Q).sum()
        return gain > 0 or (gain == 0 and len(np.unique(labels)) < len(np.unique(before)))

    def obeying(self, centers, weights, nearest, before, prices):
        """Labels (n,) that obey the rules, and prices of clusters; `before` are labels (u,) of the units that do."""
        r, labels, c = self.rules, nearest.copy(), len(centers)
        costs = self.unit_costs(centers, weights)
        scale = 1.0 if weights is None else weights.mean()
        units = self.units(costs, prices * scale, before)
        r.spread_over_rows(units, labels)
        if not r.limits_sizes:
            return labels, prices
        bound = r.bound
        for again in (r.n_units > 0, False):
            load = r.fixed_load() + np.bincount(units, r.unit_sizes, c).astype(np.int64)
            limits = np.maximum(r.min_size - load, 0), r.max_size - load
            if not self.in_one_go:
                return sizes.in_rounds(self.codes, centers, weights, bound, *limits, labels, self.n_threads), prices
            found, prices = sizes.within(self.codes, centers, weights, bound, *limits, labels, prices, self.n_threads)
            if not again or np.array_equal(moved := self.units(costs, prices * scale, units), units):
                break
            units = moved  # dearer where rows of others had to go
            r.spread_over_rows(units, labels)
        return found, prices

    def unit_costs(self, centers, weights):
        """The total distance of the rows of each unit to each center: (u, c) float32."""
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

    def units(self, costs, prices, before):
        """Clusters of the units: the cheaper of two local optima, from the clusters before, and from each in its turn,
        the one that has most to lose first."""
        r, n_units = self.rules, self.rules.n_units
        if not n_units:
            return before
        free = r.n_rows - len(r.fixed_rows) - len(r.unit_rows)
        total, every = costs + (r.unit_sizes[:, None] * prices).astype(np.float32), np.arange(n_units)
        links = r.link_starts, r.links, r.bar_starts, r.bars
        parts = r.unit_sizes, *links, total, r.min_size, r.max_size, free
        best = before.copy()
        load = r.fixed_load() + np.bincount(best, r.unit_sizes, r.n_clusters).astype(np.int64)
        link_kernels.settle(*parts, load, best, PASSES)
        greedy, load = np.empty(n_units, np.int32), r.fixed_load()
        if link_kernels.place_in_order(np.argsort(-regret(total), kind="stable"), *parts, load, greedy):
            link_kernels.settle(*parts, load, greedy, PASSES)
            # Of two that are as good, the one with the lowest labels: a copy of another cluster is left, and used anew.
            if total[every, greedy].sum(dtype=np.float64) <= total[every, best].sum(dtype=np.float64):
                return greedy
        return best

    def labels_with(self, Q, rows, values):
        """As for any problem; what the rules speak of, and no size limits, obeys them."""
        labels = super().labels_with(Q, rows, values).copy()
        costs = self.unit_costs(pack(Q), plain_if_equal(self.initial_weights))
        self.rules.spread_over_rows(self.units(costs, np.zeros(len(Q)), self.rules.witness), labels)
        return labels


def regret(costs):
    """How much more the second cheapest place of each unit costs: (u,)."""
    if costs.shape[1] == 1:
        return np.zeros(len(costs))
    two = np.partition(costs, 1, axis=1)[:, :2]
    return two[:, 1] - two[:, 0]


def under(rules, problem):
    """The problem with rules, or as it is where there are none."""
    if rules is None:
        return problem
    return ConstrainedProblem(
        problem.codes, problem.norm, problem.balance, problem.sample_weight, problem.n_threads, rules
    )


def best_seeding(problem, n_clusters, n_init, max_iter, rng, known=None):
    """The best of some seedings; of one where labels (n,) are `known`, -1 for others, which is where clusters begin.

    Rules too may say where. Under limits of the sizes, centroids that are best without them are tried beside seedings:
    for a few rounds, with sizes met quickly; the best of these goes on.
    """
    rules = problem.rules
    if known is None and rules is not None:
        known = rules.first_labels()
    elif known is not None:
        n_init = 1
    told = problem.known(known, n_clusters) if known is not None and (known >= 0).any() else None
    if rules is None or not rules.limits_sizes:
        return best_of(problem, n_clusters, n_init, max_iter, rng, told)
    loose = best_of(under(rules.without_sizes(), as_plain(problem)), n_clusters, n_init, max_iter, rng, told)
    n_rough = min(n_init, N_ROUGH) if len(problem.codes) * n_clusters > EXACT_ALWAYS else n_init
    starts = chain([loose.Q], (seed(problem, n_clusters, rng, told) for _ in range(n_rough)))
    quick = replace(problem, exact=False)
    rough = (refine(quick, Q, min(max_iter, ROUGH_ITER)) for Q in starts)
    return refine(problem, min(rough, key=lambda run: run.objective).Q, max_iter)


def as_plain(problem):
    """The problem without rules."""
    return Problem(problem.codes, problem.norm, problem.balance, problem.sample_weight, problem.n_threads)


def finished(problem, clustering):
    """The clustering, its last assignment at the lowest cost that size limits allow, where that was too slow before."""
    last = problem.at_last(clustering.bit_weights) if isinstance(problem, ConstrainedProblem) else None
    if last is None:
        return clustering
    step = last.step(clustering.Q, clustering.bit_weights, None, clustering.labels, clustering.S)
    objective = problem.objective(step.S, clustering.Q)
    return replace(clustering, labels=step.labels, S=step.S, sizes=step.sizes, objective=objective)

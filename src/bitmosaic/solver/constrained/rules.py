"""Constraints in the form the solver uses: fixed rows, units of rows that move together, and size limits."""

import hashlib
import heapq
from dataclasses import dataclass, replace

import numpy as np

from bitmosaic.errors import ConstraintError
from bitmosaic.solver.constrained import kernels


@dataclass(frozen=True)
class Rules:
    """Consistent constraints. A unit is a must-link group, or a single row with cannot-link pairs. Fixed rows belong to
    no unit."""

    n_rows: int
    n_clusters: int
    fixed_rows: np.ndarray  # (f,) int64, sorted
    fixed_labels: np.ndarray  # (f,) int32
    unit_rows: np.ndarray  # (r,) int64, unit by unit
    starts: np.ndarray  # (u + 1,) int64, start of each unit in unit_rows
    link_starts: np.ndarray  # (u + 1,) int64
    links: np.ndarray  # int32: units that unit u must be separate from, from link_starts[u] on
    forbidden_starts: np.ndarray  # (u + 1,) int64
    forbidden: np.ndarray  # int32: clusters where a cannot-link partner is fixed, from forbidden_starts[u] on
    min_size: int  # 0: no limit
    max_size: int  # n_rows: no limit
    feasible_labels: np.ndarray  # (u,) int32: clusters of the units that satisfy all rules

    @property
    def n_units(self):
        return len(self.starts) - 1

    @property
    def unit_sizes(self):
        return np.diff(self.starts)

    @property
    def limits_sizes(self):
        return self.min_size > 0 or self.max_size < self.n_rows

    @property
    def constrained(self):
        """Whether each row is fixed or belongs to a unit: (n,) bool."""
        constrained = np.zeros(self.n_rows, bool)
        constrained[self.fixed_rows] = constrained[self.unit_rows] = True
        return constrained

    @property
    def n_bytes(self):
        """Extra memory for clustering all rows: labels with and without the rules, distances of the units to every
        cluster, and with size limits the table of moves between clusters."""
        rows = self.n_rows * (40 + 64 * self.limits_sizes) + 64 * len(self.unit_rows)
        return rows + self.n_clusters * (16 * self.n_units + 8 * self.n_clusters * self.limits_sizes)

    def signature(self):
        """A hash that identifies these rules."""
        return hashlib.sha256(repr([np.asarray(value).tolist() for value in vars(self).values()]).encode()).hexdigest()

    def fixed_load(self):
        """Number of fixed rows in each cluster: (c,) int64."""
        return np.bincount(self.fixed_labels, minlength=self.n_clusters)

    def write_labels(self, unit_labels, labels):
        """Write the clusters of fixed rows and of units into labels (n,)."""
        labels[self.fixed_rows] = self.fixed_labels
        labels[self.unit_rows] = np.repeat(unit_labels, self.unit_sizes)

    def initial_labels(self):
        """Labels to start from: (n,) int32, -1 where unknown. Taken from the fixed rows. Without fixed rows, must-link
        groups of three or more rows that all exclude each other get a cluster each."""
        labels = np.full(self.n_rows, -1, np.int32)
        labels[self.fixed_rows] = self.fixed_labels
        if len(self.fixed_rows) or not len(self.links):
            return labels
        chosen: list[int] = []
        for unit in np.argsort(-self.unit_sizes, kind="stable").tolist():
            if self.starts[unit + 1] - self.starts[unit] < 3 or len(chosen) == self.n_clusters:
                break
            if np.isin(chosen, self.links[self.link_starts[unit] : self.link_starts[unit + 1]]).all():
                labels[self.unit_rows[self.starts[unit] : self.starts[unit + 1]]] = len(chosen)
                chosen.append(unit)
        return labels

    def without_sizes(self):
        """The same rules without size limits. None if there are no other rules."""
        if not self.n_units and not len(self.fixed_rows):
            return None
        return replace(self, min_size=0, max_size=self.n_rows)

    def subset(self, rows):
        """The same rules for some sorted rows only, renumbered from 0, without size limits."""
        where = np.full(self.n_rows, -1, np.int64)
        where[rows] = np.arange(len(rows))
        fixed = where[self.fixed_rows]
        units = np.repeat(np.arange(self.n_units), self.unit_sizes)
        there = where[self.unit_rows] >= 0
        sizes = np.bincount(units[there], minlength=self.n_units)
        owners = np.repeat(np.arange(self.n_units), np.diff(self.link_starts))
        linked = (sizes[owners] > 0) & (sizes[self.links] > 0)
        n_links = np.bincount(owners[linked], minlength=self.n_units)
        n_forbidden = np.diff(self.forbidden_starts)
        kept = (sizes > 1) | ((sizes == 1) & (n_links + n_forbidden > 0))  # a single row without links is free
        number = np.cumsum(kept) - 1
        return replace(
            self,
            n_rows=len(rows),
            fixed_rows=fixed[fixed >= 0],
            fixed_labels=self.fixed_labels[fixed >= 0],
            unit_rows=where[self.unit_rows[there & kept[units]]],
            starts=offsets(sizes[kept]),
            link_starts=offsets(n_links[kept]),
            links=number[self.links[linked]].astype(np.int32),
            forbidden_starts=offsets(n_forbidden[kept]),
            forbidden=self.forbidden[np.repeat(kept, n_forbidden)],
            min_size=0,
            max_size=len(rows),
            feasible_labels=self.feasible_labels[kept],
        )


def offsets(sizes):
    """Start of each of several consecutive parts, then the end of the last one: int64."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


# ---- Check before any computation that the units can be assigned to clusters without breaking a rule.
#
# This includes graph coloring and packing, so there is no fast exact method. A greedy pass assigns each unit to the
# first cluster that fits. If it fails, further attempts assign the most constrained unit first, with random ties; units
# that had no cluster left come first in the next attempt.


ATTEMPTS, MAX_WORK = 100, 3_000_000  # attempts, and units and links visited by all of them (about ten seconds)
MAX_LISTED = 12  # row numbers in a message


def with_feasible_labels(rules):
    """The rules with clusters of the units that satisfy them. Raises ConstraintError if none are found."""
    labels, load = np.empty(rules.n_units, np.int32), rules.fixed_load()
    free = rules.n_rows - len(rules.fixed_rows) - len(rules.unit_rows)
    limits = rules.min_size, rules.max_size, free
    n_links = np.diff(rules.link_starts)
    largest_first = np.lexsort((-n_links, -rules.unit_sizes)) if rules.limits_sizes else np.argsort(-n_links)
    costs = np.zeros((rules.n_units, rules.n_clusters), np.float32)
    parts = (rules.unit_sizes, rules.link_starts, rules.links, rules.forbidden_starts, rules.forbidden)
    if kernels.assign_greedily(largest_first, *parts, costs, *limits, load, labels):
        return replace(rules, feasible_labels=labels)
    failures, rng = np.zeros(rules.n_units, np.int64), np.random.default_rng(0)
    for _ in range(max(1, min(ATTEMPTS, MAX_WORK // (rules.n_units + len(rules.links))))):
        found = attempt(rules, free, failures, rng)
        if found is not None:
            return replace(rules, feasible_labels=found)
    raise infeasible_error(rules, failures.argmax())


def attempt(rules, free, failures, rng):
    """Clusters (u,) of the units, or None. A unit without an allowed cluster is counted in failures (u,)."""
    u, c, sizes, load = rules.n_units, rules.n_clusters, rules.unit_sizes, rules.fixed_load()
    allowed = np.ones((u, c), bool)
    allowed[np.repeat(np.arange(u), np.diff(rules.forbidden_starts)), rules.forbidden] = False
    n_allowed, ties = allowed.sum(1), rng.random(u)
    prefer_full = rng.random() < 0.5  # full clusters first, which packs; or empty ones, which reaches min_size

    def priority(unit):
        size = -int(sizes[unit]) if rules.limits_sizes else 0
        return (-int(failures[unit]), size, int(n_allowed[unit]), ties[unit], unit)

    labels, queue = np.full(u, -1, np.int32), [priority(unit) for unit in range(u)]
    heapq.heapify(queue)
    while queue:
        unit = heapq.heappop(queue)[-1]
        if labels[unit] >= 0:
            continue
        open_ = np.flatnonzero(allowed[unit] & (load + sizes[unit] <= rules.max_size))
        if not len(open_):
            failures[unit] += 1
            return None
        open_ = rng.permutation(open_)
        to = open_[np.argmax(load[open_]) if prefer_full else np.argmin(load[open_])]
        labels[unit] = to
        load[to] += sizes[unit]
        for other in rules.links[rules.link_starts[unit] : rules.link_starts[unit + 1]]:
            if labels[other] < 0 and allowed[other, to]:
                allowed[other, to] = False
                n_allowed[other] -= 1
                heapq.heappush(queue, priority(other))  # the earlier entry is skipped later
    return labels if np.maximum(rules.min_size - load, 0).sum() <= free else None


def infeasible_error(rules, unit):
    """The error for rules that were not met. `unit` is the one that most often had no cluster left."""
    clique = greedy_clique(rules, unit)
    if len(clique) > rules.n_clusters:
        rows = [int(rules.unit_rows[rules.starts[u]]) for u in clique]
        return ConstraintError(
            f"cannot_link needs {len(clique)} clusters because rows {format_rows(rows)} must all be in different ones, "
            f"got n_clusters={rules.n_clusters}. Raise n_clusters or remove some of these links."
        )
    size = "" if not rules.limits_sizes else f", min_size={rules.min_size} and max_size={rules.max_size}"
    rows = rules.unit_rows[rules.starts[unit] : rules.starts[unit + 1]].tolist()
    others = int(rules.link_starts[unit + 1] - rules.link_starts[unit])
    forbidden = int(rules.forbidden_starts[unit + 1] - rules.forbidden_starts[unit])
    return ConstraintError(
        f"Found no way to meet the constraints with {rules.n_clusters} clusters{size}. The most constrained is "
        f"{'row' if len(rows) == 1 else 'the group of rows'} {format_rows(rows)}: it cannot be with {others} other "
        f"groups or rows, and fixed rows exclude it from {forbidden} clusters. "
        "Remove some constraints or raise n_clusters."
    )


def greedy_clique(rules, unit):
    """Units that must all be in different clusters, including `unit`. Each step adds the unit with the most links."""

    def linked(u):
        return set(rules.links[rules.link_starts[u] : rules.link_starts[u + 1]].tolist())

    clique, candidates = [int(unit)], linked(unit)
    while candidates:
        best = max(sorted(candidates), key=lambda u: len(candidates & linked(u)))
        clique.append(best)
        candidates &= linked(best)
    return clique


def format_rows(rows):
    """Row numbers for a message, shortened if there are many."""
    some = ", ".join(map(str, rows[:MAX_LISTED]))
    return some if len(rows) <= MAX_LISTED else f"{some}, … ({len(rows)} in all)"

"""Constraints in the form the solver uses: fixed rows, units of rows that move together, and size limits."""

import hashlib
from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

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
    def constrained_rows(self):
        return np.union1d(self.fixed_rows, self.unit_rows)

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
# First a greedy pass assigns each unit to the first cluster that fits. If that fails, a backtracking search finds a
# feasible assignment, proves that there is none, or gives up after a fixed amount of work.


MAX_CHECKS = 500_000_000  # checks of a unit or a cluster: a few seconds
MAX_PAIRS = 100_000_000  # units × clusters that the search can track
MAX_LISTED = 12  # row numbers in a message


def with_feasible_labels(rules):
    """The rules with clusters of the units that satisfy them. Raises ConstraintError if none are found."""
    labels, load = np.empty(rules.n_units, np.int32), rules.fixed_load()
    free = rules.n_rows - len(rules.fixed_rows) - len(rules.unit_rows)
    limits = rules.min_size, rules.max_size, free
    n_links = np.diff(rules.link_starts)
    largest_first = np.lexsort((-n_links, -rules.unit_sizes)) if rules.limits_sizes else np.argsort(-n_links)
    costs = np.broadcast_to(np.float32(0), (rules.n_units, rules.n_clusters))
    parts = (rules.unit_sizes, rules.link_starts, rules.links, rules.forbidden_starts, rules.forbidden)
    if kernels.assign_greedily(largest_first, *parts, costs, *limits, load, labels):
        return replace(rules, feasible_labels=labels)
    if rules.limits_sizes:
        return replace(rules, feasible_labels=search(rules, np.arange(rules.n_units), free))
    for units in components(rules):  # without size limits, components are independent
        labels[units] = search(rules, units, free)
    return replace(rules, feasible_labels=labels)


def search(rules, units, free):
    """Feasible clusters of some sorted units. Units linked to them must be included."""
    if len(units) * rules.n_clusters > MAX_PAIRS:
        raise ConstraintError(
            f"Found no assignment of {len(units)} groups and linked rows to {rules.n_clusters} clusters, and the "
            "problem is too large for an exhaustive search. Remove some links or widen the size limits."
        )
    number = np.zeros(rules.n_units, np.int32)
    number[units] = np.arange(len(units))
    links, link_starts = take_units(rules.links, rules.link_starts, units)
    forbidden, forbidden_starts = take_units(rules.forbidden, rules.forbidden_starts, units)
    labels, failures = np.empty(len(units), np.int32), np.empty(len(units), np.int64)
    found = kernels.find_feasible(
        rules.unit_sizes[units],
        link_starts,
        number[links],
        forbidden_starts,
        forbidden,
        rules.min_size,
        rules.max_size,
        free,
        rules.fixed_load(),
        MAX_CHECKS,
        labels,
        failures,
    )
    if found != 1:
        raise infeasible_error(rules, units[failures.argmax()] if failures.any() else units[0], proven=found == 0)
    return labels


def take_units(values, starts, units):
    """The values of some units only, and the start of each unit in them."""
    counts = np.diff(starts)[units]
    first = np.repeat(starts[units] - offsets(counts)[:-1], counts)
    return values[first + np.arange(len(first))], offsets(counts)


def components(rules):
    """Connected components of the cannot-link graph, each as sorted units."""
    shape = (rules.n_units, rules.n_units)
    graph = csr_array((np.ones(len(rules.links), np.int8), rules.links, rules.link_starts), shape=shape)
    number = connected_components(graph, directed=False)[1]
    order = np.argsort(number, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(number[order])) + 1)


def infeasible_error(rules, unit, proven):
    """The error for rules that cannot be met. `unit` is the one that most often had no cluster left."""
    clique = greedy_clique(rules, unit)
    if len(clique) > rules.n_clusters:
        rows = [int(rules.unit_rows[rules.starts[u]]) for u in clique]
        return ConstraintError(
            f"cannot_link needs {len(clique)} clusters because rows {format_rows(rows)} must all be in different ones, "
            f"got n_clusters={rules.n_clusters}. Raise n_clusters or remove some of these links."
        )
    what = "The constraints cannot be met" if proven else "Found no way to meet the constraints (one may exist)"
    size = "" if not rules.limits_sizes else f" with min_size={rules.min_size} and max_size={rules.max_size}"
    rows = rules.unit_rows[rules.starts[unit] : rules.starts[unit + 1]].tolist()
    others = int(rules.link_starts[unit + 1] - rules.link_starts[unit])
    forbidden = int(rules.forbidden_starts[unit + 1] - rules.forbidden_starts[unit])
    return ConstraintError(
        f"{what} with {rules.n_clusters} clusters{size}. The most constrained is "
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

"""Is there any arrangement of the units that meets every rule? Asked once, before anything is computed.

First each unit in its turn goes where it fits. Where that fails, a search goes back and forth: it finds an arrangement,
or shows that there is none, or gives up after a fixed amount of work.
"""

from dataclasses import replace

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from bitmosaic.errors import ConstraintError
from bitmosaic.solver import link_kernels
from bitmosaic.solver.rules import edges

BUDGET = 500_000_000  # looks at a unit or a cluster: some seconds
MOST_PLACES = 100_000_000  # units × clusters of which the search keeps an account
NAMED = 12  # rows that a message names


def with_witness(rules):
    """The rules, and clusters of the units that meet them. A ConstraintError where none are found."""
    labels, load = np.empty(rules.n_units, np.int32), rules.fixed_load()
    free = rules.n_rows - len(rules.fixed_rows) - len(rules.unit_rows)
    limits = rules.min_size, rules.max_size, free
    n_links = np.diff(rules.link_starts)
    largest_first = np.lexsort((-n_links, -rules.unit_sizes)) if rules.limits_sizes else np.argsort(-n_links)
    costs = np.broadcast_to(np.float32(0), (rules.n_units, rules.n_clusters))
    parts = (rules.unit_sizes, rules.link_starts, rules.links, rules.bar_starts, rules.bars)
    if link_kernels.place_in_order(largest_first, *parts, costs, *limits, load, labels):
        return replace(rules, witness=labels)
    if rules.limits_sizes:
        return replace(rules, witness=searched(rules, np.arange(rules.n_units), free))
    for units in components(rules):  # without limits, those that no link connects do not concern each other
        labels[units] = searched(rules, units, free)
    return replace(rules, witness=labels)


def searched(rules, units, free):
    """Clusters of some sorted units, to which all units they are linked with belong."""
    if len(units) * rules.n_clusters > MOST_PLACES:
        raise ConstraintError(
            f"No arrangement of {len(units)} groups and linked rows in {rules.n_clusters} clusters was found, and they "
            "are too many to look for one thoroughly. Leave out some links, or widen the limits of the sizes."
        )
    number = np.zeros(rules.n_units, np.int32)
    number[units] = np.arange(len(units))
    links, link_starts = of_some(rules.links, rules.link_starts, units)
    bars, bar_starts = of_some(rules.bars, rules.bar_starts, units)
    labels, stuck = np.empty(len(units), np.int32), np.empty(len(units), np.int64)
    found = link_kernels.arrange(
        rules.unit_sizes[units],
        link_starts,
        number[links],
        bar_starts,
        bars,
        rules.min_size,
        rules.max_size,
        free,
        rules.fixed_load(),
        BUDGET,
        labels,
        stuck,
    )
    if found != 1:
        raise no_arrangement(rules, units[stuck.argmax()] if stuck.any() else units[0], proven=found == 0)
    return labels


def of_some(values, starts, units):
    """Consecutive values of some units alone, and where those of each begin."""
    counts = np.diff(starts)[units]
    first = np.repeat(starts[units] - edges(counts)[:-1], counts)
    return values[first + np.arange(len(first))], edges(counts)


def components(rules):
    """Sorted units that links connect, for each connected set with more than one or with a bar."""
    shape = (rules.n_units, rules.n_units)
    graph = csr_array((np.ones(len(rules.links), np.int8), rules.links, rules.link_starts), shape=shape)
    number = connected_components(graph, directed=False)[1]
    order = np.argsort(number, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(number[order])) + 1)


def no_arrangement(rules, unit, proven):
    """The error for rules that cannot be met, where `unit` found no place most often."""
    clique = grown_clique(rules, unit)
    if len(clique) > rules.n_clusters:
        rows = [int(rules.unit_rows[rules.starts[u]]) for u in clique]
        return ConstraintError(
            f"cannot_link asks for {len(clique)} clusters, as rows {listed(rows)} must all be apart from each other; "
            f"there are {rules.n_clusters}. Raise n_clusters, or leave out some of these links."
        )
    what = "There is no arrangement" if proven else "No arrangement was found (there may be one)"
    size = "" if not rules.limits_sizes else f" with min_size={rules.min_size} and max_size={rules.max_size}"
    rows = rules.unit_rows[rules.starts[unit] : rules.starts[unit + 1]].tolist()
    others = int(rules.link_starts[unit + 1] - rules.link_starts[unit])
    bars = int(rules.bar_starts[unit + 1] - rules.bar_starts[unit])
    return ConstraintError(
        f"{what} of all links and fixed rows in {rules.n_clusters} clusters{size}; the hardest to place is "
        f"{'row' if len(rows) == 1 else 'the group of rows'} {listed(rows)}, cannot-linked with {others} other groups "
        f"or rows and barred from {bars} clusters by fixed ones. Leave out some constraints, or raise n_clusters."
    )


def grown_clique(rules, unit):
    """Units that must all be apart, with `unit` among them: each time the one with the most links is added."""

    def linked(u):
        return set(rules.links[rules.link_starts[u] : rules.link_starts[u + 1]].tolist())

    clique, candidates = [int(unit)], linked(unit)
    while candidates:
        best = max(sorted(candidates), key=lambda u: len(candidates & linked(u)))
        clique.append(best)
        candidates &= linked(best)
    return clique


def listed(rows):
    """Row numbers for a message, the first few of many."""
    some = ", ".join(map(str, rows[:NAMED]))
    return some if len(rows) <= NAMED else f"{some}, … ({len(rows)} in all)"

"""What a user knows of some clusters: rows that belong together or apart, rows whose cluster is known, and sizes.

`Constraints` is the door: `checked` refuses what contradicts itself, and gives the rules that the solver takes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from bitmosaic.errors import ConstraintError
from bitmosaic.npy import array_of
from bitmosaic.solver.arrange import listed, with_witness
from bitmosaic.solver.rules import Rules, edges

_FIXED = "fixed must give a whole number, that of a cluster, for each row"


@dataclass(frozen=True)
class Constraints:
    """What the clusters of a fit must obey, exactly. Rows and clusters are numbered from 0.

    must_link : pairs or groups of rows that are in one cluster. Groups that share a row are one group.
    cannot_link : pairs of rows that are in different clusters.
    fixed : {row: cluster}, or (n,) integers with -1 for rows that are free.
    min_size, max_size : rows that every cluster has at least, and at most.
    """

    must_link: Iterable[Sequence[int]] = field(default=())
    cannot_link: Iterable[Sequence[int]] = field(default=())
    fixed: Mapping[int, int] | Sequence[int] | np.ndarray | None = None
    min_size: int | None = None
    max_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("must_link", "cannot_link"):  # an iterator would serve one fit only
            links = getattr(self, name)
            if not isinstance(links, np.ndarray) and isinstance(links, Iterable):
                object.__setattr__(self, name, tuple(links))

    def checked(self, n_rows: int, n_clusters: int) -> Rules | None:
        """The rules for so many rows and clusters; None where nothing is asked for. A ConstraintError says what cannot
        be met, and why."""
        together, member_of = groups_of(self.must_link, n_rows)
        apart = pairs_of(self.cannot_link, n_rows)
        fixed_rows, fixed_labels = fixed_of(self.fixed, n_rows, n_clusters)
        low, high = sizes_of(self.min_size, self.max_size, n_rows, n_clusters)

        # Every row that is spoken of has a number, and every group of them, alone or not, a unit.
        rows = np.unique(np.concatenate([together, apart.ravel(), fixed_rows]))
        unit_of = np.arange(len(rows)) + len(together)
        unit_of[np.searchsorted(rows, together)] = member_of
        unit_of = np.unique(unit_of, return_inverse=True)[1]
        n_units = int(unit_of.max(initial=-1)) + 1
        sizes = np.bincount(unit_of, minlength=n_units)
        by_unit = np.argsort(unit_of, kind="stable")
        starts = edges(sizes)

        def rows_of(unit):
            return rows[by_unit[starts[unit] : starts[unit + 1]]].tolist()

        if n_units and sizes.max() > high:
            group = rows_of(sizes.argmax())
            raise ConstraintError(
                f"A must-link group must fit into a cluster; the one of rows {listed(group)} has {len(group)} rows and "
                f"max_size is {high}. Raise max_size, or leave out some of its links."
            )
        label = self._labels_of_units(n_units, unit_of[np.searchsorted(rows, fixed_rows)], fixed_rows, fixed_labels)
        load = np.bincount(label[label >= 0], sizes[label >= 0], n_clusters).astype(int)
        if load.max(initial=0) > high:
            raise ConstraintError(
                f"The rows that are fixed to a cluster, with what is linked to them, must fit into it; cluster "
                f"{load.argmax()} has {load.max()} and max_size is {high}. Raise max_size, or fix fewer."
            )
        if (lacking := int(np.maximum(low - load, 0).sum())) > (others := n_rows - load.sum()):
            raise ConstraintError(
                f"Rows that are not fixed must be enough to bring every cluster to min_size={low}; {lacking} are "
                f"needed and there are {others}. Lower min_size, or fix fewer."
            )
        a, b = unit_of[np.searchsorted(rows, apart)].T
        if (same := a == b).any():
            first, second = apart[same.argmax()].tolist()
            raise ConstraintError(
                f"Rows cannot be linked and apart; rows {first} and {second} are in one must-link group "
                f"({listed(rows_of(a[same.argmax()]))}) and in cannot_link. Leave out one of the two."
            )
        if (same := (label[a] >= 0) & (label[a] == label[b])).any():
            first, second = apart[same.argmax()].tolist()
            raise ConstraintError(
                f"Rows that cannot be together must not be fixed to one cluster; rows {first} and {second} are in "
                f"cannot_link, and both belong to cluster {label[a[same.argmax()]]} by `fixed` (or by a link to a row "
                "that is). Leave out one of these."
            )
        if not len(rows) and low <= 0 and high >= n_rows:
            return None

        settled = label[unit_of] >= 0
        free = label < 0
        free_a, free_b = np.concatenate([a, b]), np.concatenate([b, a])  # each link from both sides
        links = np.unique(np.stack([free_a, free_b], 1)[free[free_a] & free[free_b]], axis=0)
        barred = free[free_a] & ~free[free_b]
        bars = np.unique(np.stack([free_a[barred], label[free_b[barred]]], 1), axis=0)
        n_links = np.bincount(links[:, 0], minlength=n_units)
        n_bars = np.bincount(bars[:, 0], minlength=n_units)
        kept = free & ((sizes > 1) | (n_links + n_bars > 0))
        number = np.cumsum(kept) - 1
        rules = Rules(
            n_rows=n_rows,
            n_clusters=n_clusters,
            fixed_rows=rows[settled],
            fixed_labels=label[unit_of[settled]].astype(np.int32),
            unit_rows=rows[by_unit[kept[unit_of[by_unit]]]],
            starts=edges(sizes[kept]),
            link_starts=edges(n_links[kept]),
            links=number[links[:, 1]].astype(np.int32),
            bar_starts=edges(n_bars[kept]),
            bars=bars[:, 1].astype(np.int32),
            min_size=low,
            max_size=high,
            witness=np.empty(0, np.int32),
        )
        return with_witness(rules)

    def _labels_of_units(self, n_units, units, fixed_rows, fixed_labels):
        """The cluster that each unit is fixed to, -1 where it is free: (u,)."""
        label, by = np.full(n_units, -1), np.full(n_units, -1)
        label[units[::-1]], by[units[::-1]] = fixed_labels[::-1], fixed_rows[::-1]
        if (other := label[units] != fixed_labels).any():
            k = int(other.argmax())
            raise ConstraintError(
                f"A must-link group is in one cluster; its rows {by[units[k]]} and {fixed_rows[k]} are fixed to "
                f"clusters {label[units[k]]} and {fixed_labels[k]}. Leave out the link, or one of these."
            )
        return label


def sizes_of(min_size, max_size, n_rows, n_clusters):
    """Limits that can be met: 0 and n_rows are none."""
    for name, size in (("min_size", min_size), ("max_size", max_size)):
        if size is not None and (not isinstance(size, Integral) or isinstance(size, bool | np.bool_) or size < 0):
            raise ConstraintError(f"{name} must be a whole number of rows, or None; got {size!r}.")
    low, high = int(min_size or 0), n_rows if max_size is None else min(int(max_size), n_rows)
    if low > high:
        raise ConstraintError(f"min_size must not be above max_size; got {low} and {max_size}.")
    if low * n_clusters > n_rows:
        raise ConstraintError(
            f"min_size times the number of clusters must not be above the number of rows; {low} × {n_clusters} is "
            f"above {n_rows}. Lower min_size to {n_rows // n_clusters} or less, or lower n_clusters."
        )
    if high * n_clusters < n_rows:
        raise ConstraintError(
            f"max_size times the number of clusters must not be below the number of rows; {high} × {n_clusters} is "
            f"below {n_rows}. Raise max_size to {-(-n_rows // n_clusters)} or more, or raise n_clusters."
        )
    return low, high


def groups_of(groups, n_rows):
    """Rows (k,) that are linked with others, each once, and the group (k,) of each."""
    parts = [row_numbers("must_link", group, n_rows) for group in as_groups("must_link", groups)]
    parts = [part for part in parts if len(part)]
    if not parts:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    flat = np.concatenate(parts)
    rows, ends = np.unique(flat, return_inverse=True)
    firsts = np.repeat(ends[edges(list(map(len, parts)))[:-1]], list(map(len, parts)))
    graph = coo_array((np.ones(len(ends), np.int8), (firsts, ends)), shape=(len(rows), len(rows)))
    return rows, connected_components(graph, directed=False)[1].astype(np.int64)


def pairs_of(pairs, n_rows):
    """(p, 2) int64, of different rows."""
    found = [row_numbers("cannot_link", pair, n_rows) for pair in as_groups("cannot_link", pairs)]
    for pair in found:
        if len(pair) != 2 or pair[0] == pair[1]:
            raise ConstraintError(
                f"cannot_link must hold pairs of different rows; got {listed(pair.tolist())}. "
                "For a group of which no two are together, give every pair."
            )
    return np.array(found, np.int64).reshape(-1, 2)


def as_groups(name, groups):
    """A list of sequences, at the least."""
    if isinstance(groups, np.ndarray) and groups.ndim == 2:
        return list(groups)
    no_list = isinstance(groups, str | bytes | Mapping) or (isinstance(groups, np.ndarray) and not groups.ndim)
    if no_list or not isinstance(groups, Iterable):
        raise ConstraintError(f"{name} must hold pairs of rows; got {type(groups).__name__}.")
    return list(groups)


def row_numbers(name, group, n_rows):
    """int64, of rows that exist."""
    try:
        rows = np.asarray(group)
    except ValueError:
        rows = np.empty((0, 0))
    if rows.ndim != 1 or (rows.dtype.kind not in "iu" and rows.size):
        raise ConstraintError(f"{name} must hold pairs of row numbers; got {group!r}.")
    if rows.size and (rows.min() < 0 or rows.max() >= n_rows):
        wrong = rows.min() if rows.min() < 0 else rows.max()
        raise ConstraintError(f"{name} must hold rows from 0 to {n_rows - 1}; got {wrong}.")
    return rows.astype(np.int64)


def fixed_of(fixed: Any, n_rows, n_clusters):
    """Sorted rows, and the cluster of each."""
    if fixed is None:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if isinstance(fixed, Mapping):
        rows, labels = (
            row_numbers("fixed", list(fixed), n_rows),
            array_of(list(fixed.values()), _FIXED, ConstraintError),
        )
    else:
        labels = array_of(fixed, _FIXED, ConstraintError)
        if labels.shape != (n_rows,):
            raise ConstraintError(
                f"fixed must be a dict of row -> cluster, or have a cluster (or -1) for each of {n_rows} rows; got "
                f"shape {labels.shape}."
            )
        rows = np.arange(n_rows)
    if labels.ndim != 1 or (labels.dtype.kind not in "iu" and labels.size):
        raise ConstraintError(f"fixed must give whole numbers of clusters; got {labels.dtype}.")
    known = labels != -1
    rows, labels = rows[known], labels[known].astype(np.int64)
    if len(rows) and (labels.min() < 0 or labels.max() >= n_clusters):
        wrong = (labels < 0) | (labels >= n_clusters)
        raise ConstraintError(
            f"fixed must name clusters from 0 to {n_clusters - 1} (or -1 for none); row {rows[wrong.argmax()]} has "
            f"{labels[wrong.argmax()]}."
        )
    order = np.argsort(rows, kind="stable")
    return rows[order], labels[order]

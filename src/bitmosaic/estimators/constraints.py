"""Constraints on clusters: must-link, cannot-link, fixed rows and size limits.

`Constraints.checked` validates them and returns the rules for the solver.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from bitmosaic.errors import ConstraintError, InvalidDataError, ParameterError
from bitmosaic.solver.constrained.rules import Rules, format_rows, offsets, with_feasible_labels


@dataclass(frozen=True)
class Constraints:
    """Constraints that the labels of a fit meet exactly. Rows and clusters are numbered from 0.

    Parameters
    ----------
    must_link : iterable of pairs or groups of rows
        The rows of a group are in one cluster. Groups that share a row are merged.
    cannot_link : iterable of pairs of rows
        The two rows of a pair are in different clusters.
    fixed : dict of row -> cluster, or (n,) int, or None
        Known clusters of some rows. In an array, -1 marks rows without one.
    min_size : int or None
        Smallest number of rows in every cluster.
    max_size : int or None
        Largest number of rows in every cluster.
    """

    must_link: Iterable[Sequence[int]] = field(default=())
    cannot_link: Iterable[Sequence[int]] = field(default=())
    fixed: Mapping[int, int] | Sequence[int] | np.ndarray | None = None
    min_size: int | None = None
    max_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("must_link", "cannot_link"):  # an iterator could be read only once
            links = getattr(self, name)
            if not isinstance(links, np.ndarray) and isinstance(links, Iterable):
                object.__setattr__(self, name, tuple(links))

    def checked(self, n_rows: int, n_clusters: int) -> Rules | None:
        """Return the rules for `n_rows` rows and `n_clusters` clusters, or None if there are no constraints.

        Raises a ConstraintError, with the rows, if the constraints cannot be met.
        """
        together, member_of = groups_of(self.must_link, n_rows)
        apart = pairs_of(self.cannot_link, n_rows)
        fixed_rows, fixed_labels = fixed_of(self.fixed, n_rows, n_clusters)
        low, high = sizes_of(self.min_size, self.max_size, n_rows, n_clusters)

        # A unit is a must-link group, or a single row that appears in another constraint.
        rows = np.unique(np.concatenate([together, apart.ravel(), fixed_rows]))
        unit_of = np.arange(len(rows)) + len(together)
        unit_of[np.searchsorted(rows, together)] = member_of
        unit_of = np.unique(unit_of, return_inverse=True)[1]
        n_units = int(unit_of.max(initial=-1)) + 1
        sizes = np.bincount(unit_of, minlength=n_units)
        by_unit = np.argsort(unit_of, kind="stable")
        starts = offsets(sizes)

        def rows_of(unit):
            return rows[by_unit[starts[unit] : starts[unit + 1]]].tolist()

        if n_units and sizes.max() > high:
            group = rows_of(sizes.argmax())
            raise ConstraintError(
                f"A must-link group must fit into a cluster; the one of rows {format_rows(group)} has {len(group)} "
                f"rows and max_size is {high}. Raise max_size, or remove some of its links."
            )
        label = self._labels_of_units(n_units, unit_of[np.searchsorted(rows, fixed_rows)], fixed_rows, fixed_labels)
        load = np.bincount(label[label >= 0], sizes[label >= 0], n_clusters).astype(int)
        if load.max(initial=0) > high:
            raise ConstraintError(
                f"The rows fixed to a cluster and the rows linked to them must fit into it; cluster "
                f"{load.argmax()} has {load.max()} and max_size is {high}. Raise max_size, or fix fewer rows."
            )
        if (lacking := int(np.maximum(low - load, 0).sum())) > (others := n_rows - load.sum()):
            raise ConstraintError(
                f"Too few rows are free to fill every cluster to min_size={low}; {lacking} are "
                f"needed and there are {others}. Lower min_size, or fix fewer rows."
            )
        a, b = unit_of[np.searchsorted(rows, apart)].T
        if (same := a == b).any():
            first, second = apart[same.argmax()].tolist()
            raise ConstraintError(
                f"must_link and cannot_link contradict each other; rows {first} and {second} are in one must-link "
                f"group ({format_rows(rows_of(a[same.argmax()]))}) and in cannot_link. Remove one of the two."
            )
        if (same := (label[a] >= 0) & (label[a] == label[b])).any():
            first, second = apart[same.argmax()].tolist()
            raise ConstraintError(
                f"cannot_link and fixed contradict each other; rows {first} and {second} are in "
                f"cannot_link, and both belong to cluster {label[a[same.argmax()]]} by `fixed` (or by a link to a "
                "fixed row). Remove one of these."
            )
        if not len(rows) and low <= 0 and high >= n_rows:
            return None

        settled = label[unit_of] >= 0
        free = label < 0
        free_a, free_b = np.concatenate([a, b]), np.concatenate([b, a])  # each link in both directions
        links = np.unique(np.stack([free_a, free_b], 1)[free[free_a] & free[free_b]], axis=0)
        barred = free[free_a] & ~free[free_b]
        forbidden = np.unique(np.stack([free_a[barred], label[free_b[barred]]], 1), axis=0)
        n_links = np.bincount(links[:, 0], minlength=n_units)
        n_forbidden = np.bincount(forbidden[:, 0], minlength=n_units)
        kept = free & ((sizes > 1) | (n_links + n_forbidden > 0))
        number = np.cumsum(kept) - 1
        rules = Rules(
            n_rows=n_rows,
            n_clusters=n_clusters,
            fixed_rows=rows[settled],
            fixed_labels=label[unit_of[settled]].astype(np.int32),
            unit_rows=rows[by_unit[kept[unit_of[by_unit]]]],
            starts=offsets(sizes[kept]),
            link_starts=offsets(n_links[kept]),
            links=number[links[:, 1]].astype(np.int32),
            forbidden_starts=offsets(n_forbidden[kept]),
            forbidden=forbidden[:, 1].astype(np.int32),
            min_size=low,
            max_size=high,
            feasible_labels=np.empty(0, np.int32),
        )
        return with_feasible_labels(rules)

    def _labels_of_units(self, n_units, units, fixed_rows, fixed_labels):
        """Return the cluster that each unit is fixed to, -1 if it is free: (u,)."""
        label, by = np.full(n_units, -1), np.full(n_units, -1)
        label[units[::-1]], by[units[::-1]] = fixed_labels[::-1], fixed_rows[::-1]
        if (other := label[units] != fixed_labels).any():
            k = int(other.argmax())
            raise ConstraintError(
                f"must_link and fixed contradict each other; linked rows {by[units[k]]} and {fixed_rows[k]} are fixed "
                f"to clusters {label[units[k]]} and {fixed_labels[k]}. Remove the link, or one of these."
            )
        return label


def sizes_of(min_size, max_size, n_rows, n_clusters):
    """Return the size limits as numbers; 0 and n_rows mean no limit."""
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
    """Return the linked rows (k,), each once, and the group (k,) of each."""
    parts = [row_numbers("must_link", group, n_rows) for group in as_groups("must_link", groups)]
    parts = [part for part in parts if len(part)]
    if not parts:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    flat = np.concatenate(parts)
    rows, ends = np.unique(flat, return_inverse=True)
    firsts = np.repeat(ends[offsets(list(map(len, parts)))[:-1]], list(map(len, parts)))
    graph = coo_array((np.ones(len(ends), np.int8), (firsts, ends)), shape=(len(rows), len(rows)))
    return rows, connected_components(graph, directed=False)[1].astype(np.int64)


def pairs_of(pairs, n_rows):
    """Return the pairs as (p, 2) int64."""
    found = [row_numbers("cannot_link", pair, n_rows) for pair in as_groups("cannot_link", pairs)]
    for pair in found:
        if len(pair) != 2 or pair[0] == pair[1]:
            raise ConstraintError(
                f"cannot_link must hold pairs of different rows; got {format_rows(pair.tolist())}. "
                "To separate more than two rows, list every pair of them."
            )
    return np.array(found, np.int64).reshape(-1, 2)


def as_groups(name, groups):
    """Return the groups as a list. Raises an error if they are not a list or array."""
    try:
        return list(groups)
    except TypeError:
        raise ConstraintError(f"{name} must hold pairs of rows; got {type(groups).__name__}.") from None


def row_numbers(name, group, n_rows):
    """Return one group as int64, after checking that its rows exist."""
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
    """Return the fixed rows, sorted, and the cluster of each."""
    if fixed is None:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if isinstance(fixed, Mapping):
        rows, labels = (
            row_numbers("fixed", list(fixed), n_rows),
            np.asarray(list(fixed.values())),
        )
    else:
        labels = np.asarray(fixed)
        if labels.shape != (n_rows,):
            raise ConstraintError(
                f"fixed must be a dict of row -> cluster, or have a cluster (or -1) for each of {n_rows} rows; got "
                f"shape {labels.shape}."
            )
        rows = np.arange(n_rows)
    if labels.ndim != 1 or (labels.dtype.kind not in "iu" and labels.size):
        raise ConstraintError(f"fixed must have whole numbers of clusters; got {labels.dtype}.")
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


# ---- used by the estimators


@dataclass(frozen=True)
class Prior:
    """Constraints and initial labels of a fit, after validation."""

    rules: Rules | None = None
    labels: np.ndarray | None = None  # (n,) int32 initial labels, -1 where unknown
    signature: str = ""


def check_prior(constraints, init_labels, n_rows, n_clusters, on_cluster):
    """Validate constraints and initial labels; n_clusters is None if the fit selects it."""
    if constraints is None and init_labels is None:
        return Prior()
    if n_clusters is None:
        raise ParameterError(
            "constraints and init_labels need a number of clusters; got n_clusters='auto'. Set a number."
        )
    rules = rules_for(constraints, n_rows, n_clusters, on_cluster)
    labels = None if init_labels is None else checked_labels(init_labels, n_rows, n_clusters)
    if labels is not None and on_cluster:
        raise ParameterError(
            "init_labels need views on this machine; got Dask arrays. Load the views, or remove init_labels."
        )
    signature = hashlib.sha256()
    if rules is not None:
        signature.update(rules.signature().encode())
    if labels is not None:
        signature.update(labels.data)
    return Prior(rules, labels, "" if rules is None and labels is None else signature.hexdigest())


def rules_for(constraints, n_rows, n_clusters, on_cluster=False):
    """Return the rules of an estimator's `constraints`, or None if there are none."""
    if constraints is None:
        return None
    if not isinstance(constraints, Constraints):
        raise ConstraintError(
            f"constraints must be a bitmosaic.Constraints; got {type(constraints).__name__}. "
            "Example: Constraints(must_link=[(0, 1)])."
        )
    if on_cluster:
        raise ConstraintError(
            "Constraints need data on this machine; got Dask arrays. Load the data, or remove the constraints."
        )
    return constraints.checked(n_rows, n_clusters)


def checked_labels(labels, n_rows, n_clusters):
    """Return the labels as (n,) int32 from -1 to n_clusters - 1, or None if all are -1."""
    labels = np.asarray(labels)
    if labels.shape != (n_rows,) or labels.dtype.kind not in "iu":
        raise InvalidDataError(
            f"init_labels must be a whole number for each of {n_rows} rows, -1 where unknown; got {labels.dtype} "
            f"of shape {labels.shape}."
        )
    if labels.min() < -1 or labels.max() >= n_clusters:
        wrong = labels.min() if labels.min() < -1 else labels.max()
        raise InvalidDataError(f"init_labels must be from -1 to n_clusters - 1 = {n_clusters - 1}; got {wrong}.")
    return labels.astype(np.int32) if labels.max() >= 0 else None

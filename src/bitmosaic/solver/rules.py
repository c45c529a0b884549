"""What a clustering must obey, in the form the solver takes: settled rows, units that move as one, and size limits."""

import hashlib
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Rules:
    """Constraints that do not contradict each other. A unit is a group of rows, or one row, that must be apart from
    others; rows whose cluster is fixed are in no unit."""

    n_rows: int
    n_clusters: int
    fixed_rows: np.ndarray  # (f,) int64, sorted
    fixed_labels: np.ndarray  # (f,) int32
    unit_rows: np.ndarray  # (r,) int64, of one unit after the other
    starts: np.ndarray  # (u + 1,) int64, of the units in it
    link_starts: np.ndarray  # (u + 1,) int64
    links: np.ndarray  # units that a unit must be apart from, those of each from its link start on: int32
    bar_starts: np.ndarray  # (u + 1,) int64
    bars: np.ndarray  # clusters that a unit must not be in, as rows are fixed there: int32
    min_size: int  # 0: no limit
    max_size: int  # n_rows: no limit
    witness: np.ndarray  # (u,) int32: clusters of the units that meet all of it

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
    def bound(self):
        """Whether a row is fixed, or in a unit: (n,) bool."""
        bound = np.zeros(self.n_rows, bool)
        bound[self.fixed_rows] = bound[self.unit_rows] = True
        return bound

    @property
    def bound_rows(self):
        return np.union1d(self.fixed_rows, self.unit_rows)

    @property
    def n_bytes(self):
        """What a clustering of all rows takes more: labels with and without the rules, distances to every cluster of
        the units, and with limits what is known of the ways between clusters."""
        rows = self.n_rows * (40 + 64 * self.limits_sizes) + 64 * len(self.unit_rows)
        return rows + self.n_clusters * (16 * self.n_units + 8 * self.n_clusters * self.limits_sizes)

    def digest(self):
        """The same for the same rules, to know them again."""
        return hashlib.sha256(repr([np.asarray(value).tolist() for value in vars(self).values()]).encode()).hexdigest()

    def fixed_load(self):
        """Fixed rows of each cluster: (c,) int64."""
        return np.bincount(self.fixed_labels, minlength=self.n_clusters)

    def spread_over_rows(self, unit_labels, labels):
        """Write the clusters of fixed rows and of units into labels (n,)."""
        labels[self.fixed_rows] = self.fixed_labels
        labels[self.unit_rows] = np.repeat(unit_labels, self.unit_sizes)

    def first_labels(self):
        """Where clusters may begin: (n,) int32, -1 where nothing is known. Fixed rows say it; where there are none,
        groups of three or more that are all apart from each other are in clusters of their own."""
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
        """The same without limits of the sizes; None where nothing else is asked for."""
        if not self.n_units and not len(self.fixed_rows):
            return None
        return replace(self, min_size=0, max_size=self.n_rows)

    def among(self, rows):
        """The same for some sorted rows alone, which are then numbered from 0; without limits of the sizes."""
        where = np.full(self.n_rows, -1, np.int64)
        where[rows] = np.arange(len(rows))
        fixed = where[self.fixed_rows]
        units = np.repeat(np.arange(self.n_units), self.unit_sizes)
        there = where[self.unit_rows] >= 0
        sizes = np.bincount(units[there], minlength=self.n_units)
        owners = np.repeat(np.arange(self.n_units), np.diff(self.link_starts))
        linked = (sizes[owners] > 0) & (sizes[self.links] > 0)
        n_links = np.bincount(owners[linked], minlength=self.n_units)
        n_bars = np.diff(self.bar_starts)
        kept = (sizes > 1) | ((sizes == 1) & (n_links + n_bars > 0))  # a single row without links is free
        number = np.cumsum(kept) - 1
        return replace(
            self,
            n_rows=len(rows),
            fixed_rows=fixed[fixed >= 0],
            fixed_labels=self.fixed_labels[fixed >= 0],
            unit_rows=where[self.unit_rows[there & kept[units]]],
            starts=edges(sizes[kept]),
            link_starts=edges(n_links[kept]),
            links=number[self.links[linked]].astype(np.int32),
            bar_starts=edges(n_bars[kept]),
            bars=self.bars[np.repeat(kept, n_bars)],
            min_size=0,
            max_size=len(rows),
            witness=self.witness[kept],
        )


def edges(sizes):
    """Where each of some consecutive parts begins, and where the last one ends: int64."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

"""Clusters before and after a refit -> which is which: old numbers stay on the clusters they belong to.

A number goes on in the new cluster that holds at least half of its pictures; or at least a fifth of them, if these are
at least half of the new cluster, or if each is the other's largest part. Otherwise the pictures do not say where it is.
Where several clusters could take a number, or several numbers want a cluster, the matching that lets most pictures keep
their number decides.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import min_weight_full_bipartite_matching

from bitmosaic.errors import InvalidDataError, ParameterError

MOST, PART = 0.5, 0.2  # the share that makes a cluster's identity, and the one from which on a part is worth a word
NEW_ROW = -1

Event = Literal["kept", "split", "merged", "born", "died"]


@dataclass(frozen=True)
class Change:
    """What happened to the cluster of one number."""

    number: int
    name: str | None
    event: Event
    came_from: tuple[int, ...]  # old clusters that make a fifth or more of the pictures it has from before, most first
    went_to: tuple[int, ...]  # new clusters that hold a fifth or more of its old pictures, most first
    size_before: int
    size_after: int
    pictures_kept: int  # in the cluster of this number before and after
    pictures_new: int  # not there before
    overlap: float  # pictures kept, of all old ones that were or are in it

    def as_dict(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "name": self.name,
            "event": self.event,
            "from": list(self.came_from),
            "to": list(self.went_to),
            "size_before": self.size_before,
            "size_after": self.size_after,
            "pictures_kept": self.pictures_kept,
            "pictures_new": self.pictures_new,
            "overlap": round(self.overlap, 4),
        }

    def sentence(self) -> str:
        """The same for a person."""
        name = f" ({self.name})" if self.name else ""
        return f"Cluster {self.number}{name} {self._happened()}."

    def _happened(self) -> str:
        others = tuple(number for number in self.came_from if number != self.number)
        away = tuple(number for number in self.went_to if number != self.number)
        stayed = f"{self.pictures_kept:,} of {_pictures(self.size_before)} stayed"
        now = f"{self.size_after:,} now"
        match self.event:
            case "kept":
                new = f", {self.pictures_new:,} of them new" * bool(self.pictures_new)
                moved = self.size_after - self.pictures_kept - self.pictures_new
                return f"was kept: {stayed}, {now}{new}" + f", {moved:,} from other clusters" * bool(moved)
            case "split" if not self.size_before:
                return f"was split off from {_listed(others)}: {_pictures(self.size_after)}"
            case "split":
                return f"was split: {stayed}, others went to {_listed(away)}"
            case "merged" if not self.size_after:
                return f"was merged into {_listed(away)}: {_pictures(self.size_before)}"
            case "merged":
                return f"was merged with {_listed(others)}: {_pictures(self.size_after)} now"
            case "born" if others:
                return (
                    f"was born: {_pictures(self.size_after)}, {self.pictures_new:,} of them new, "
                    f"others from {_listed(others)}"
                )
            case "born":
                return f"was born: {_pictures(self.size_after)}, {self.pictures_new:,} of them new"
        went = f"went to {_listed(away)}" if away else "are scattered"
        return f"died: its {_pictures(self.size_before)} {went}"


@dataclass(frozen=True)
class Lineage:
    """The number of each new center, and what happened to each cluster, by number."""

    numbers: np.ndarray  # (n_centers,) int64
    next_number: int  # the lowest that was never used
    changes: tuple[Change, ...]

    @property
    def counts(self) -> dict[str, int]:
        """How many clusters were kept, split, merged, born, and died."""
        counts = Counter(change.event for change in self.changes)
        return {event: counts[event] for event in ("kept", "split", "merged", "born", "died")}

    def table(self) -> list[dict[str, Any]]:
        return [change.as_dict() for change in self.changes]

    def sentences(self) -> list[str]:
        return [change.sentence() for change in self.changes]


def match_clusters(
    old: Any,
    new: Any,
    *,
    next_number: int | None = None,
    n_centers: int | None = None,
    names: Mapping[int, str] | None = None,
) -> Lineage:
    """Give the new centers the numbers of the old clusters they go on from, and fresh numbers to the others.

    old: (n,) the number of each picture's cluster before, -1 for a picture that was not there.
    new: (n,) the index of each picture's center now.
    next_number: fresh numbers begin here; numbers of clusters that are long gone are not to come back.
    n_centers: how many centers there are, if the last ones may have no picture. A center without one gets a fresh
        number, and nothing is said of it.
    """
    old, new = _whole_numbers(old, "old", NEW_ROW), _whole_numbers(new, "new", 0)
    if len(old) != len(new):
        raise InvalidDataError(f"old and new must tell of the same pictures; got {len(old):,} and {len(new):,}.")
    n_centers = max(int(new.max(initial=-1)) + 1, n_centers or 0)
    shared = old != NEW_ROW
    known, before = np.unique(old[shared], return_inverse=True)
    first = int(known[-1]) + 1 if len(known) else 0
    next_number = first if next_number is None else next_number
    if next_number < first:
        raise ParameterError(f"A fresh number is one that was never used; {next_number} is below {first}.")
    pairs = coo_array((np.ones(len(before), np.int64), (before, new[shared])), shape=(len(known), n_centers))
    overlaps = _Overlaps(csr_array(pairs), np.bincount(new, minlength=n_centers), known)
    goes_on_as = overlaps.matching()  # (n_old,) the center of each old cluster, or -1
    numbers = np.full(n_centers, -1, np.int64)
    numbers[goes_on_as[goes_on_as >= 0]] = known[goes_on_as >= 0]
    fresh = numbers < 0
    numbers[fresh] = next_number + np.arange(fresh.sum())
    changes = overlaps.changes(goes_on_as, numbers, names or {})
    return Lineage(numbers, next_number + int(fresh.sum()), tuple(sorted(changes, key=lambda change: change.number)))


class _Overlaps:
    """How many pictures each old and new cluster share, with the shares on either side."""

    def __init__(self, table: csr_array, sizes_after: np.ndarray, known: np.ndarray):
        table.sum_duplicates()
        self.known, self.shape = known, table.shape
        self.sizes_before, self.sizes_after = table.sum(axis=1), sizes_after  # (n_old,), (n_new,)
        self.from_before = table.sum(axis=0)  # (n_new,) pictures of a new cluster that were there before
        pairs = table.tocoo()
        self.row, self.column, self.count = pairs.row, pairs.col, pairs.data
        self.of_old = self.count / self.sizes_before[self.row]
        self.of_new = self.count / self.sizes_after[self.column]  # of all its pictures
        self.of_shared = self.count / self.from_before[self.column]  # of those that were there before

    def matching(self) -> np.ndarray:
        """The center in which each old cluster goes on, or -1: most pictures keep their number.

        An old cluster may as well match a stand-in. SciPy wants no weight of 0, so each is one more than it counts.
        Among equals the pairs that share more of all their pictures win: together these parts are below one picture.
        """
        n_old, n_new = self.shape
        most_of_old, most_of_new = np.zeros(n_old, np.int64), np.zeros(n_new, np.int64)
        np.maximum.at(most_of_old, self.row, self.count)
        np.maximum.at(most_of_new, self.column, self.count)
        largest = (self.count == most_of_old[self.row]) & (self.count == most_of_new[self.column])
        fit = (self.of_old >= MOST) | ((self.of_old >= PART) & ((self.of_new >= MOST) | largest))
        row, column, count = self.row[fit], self.column[fit], self.count[fit]
        either = self.sizes_before[row] + self.sizes_after[column] - count
        stand_in = np.arange(n_old)
        gain = np.concatenate([1 + count + count / either / (2 * n_old), np.ones(n_old)])
        ends = np.concatenate([row, stand_in]), np.concatenate([column, n_new + stand_in])
        found = np.full(n_old, -1, np.int64)
        if n_old:
            weights = csr_array((gain, ends), shape=(n_old, n_new + n_old))
            rows, columns = min_weight_full_bipartite_matching(weights, maximize=True)
            found[rows] = np.where(columns < n_new, columns, -1)
        return found

    def changes(self, goes_on_as: np.ndarray, numbers: np.ndarray, names: Mapping[int, str]) -> list[Change]:
        n_old, n_new = self.shape
        kept = np.zeros(n_old, np.int64)
        same = goes_on_as[self.row] == self.column
        kept[self.row[same]] = self.count[same]
        sources = self._lists(self.column, self.row, self.of_shared >= PART, n_new)
        targets = self._lists(self.row, self.column, self.of_old >= PART, n_old)
        # A neighbour that gave or took a few pictures did not merge or split: the larger part must have gone that way.
        joins = (self.of_shared >= PART) & (self.of_old >= MOST)
        pieces = (self.of_old >= PART) & (self.of_new >= MOST)
        is_merged = np.bincount(self.column[joins], minlength=n_new) >= 2
        is_split = np.bincount(self.row[pieces], minlength=n_old) >= 2
        was_merged = np.bincount(self.row[joins & is_merged[self.column]], minlength=n_old) > 0
        is_piece = np.bincount(self.column[pieces & is_split[self.row]], minlength=n_new) > 0
        came_on = np.full(n_new, -1, np.int64)
        came_on[goes_on_as[goes_on_as >= 0]] = np.flatnonzero(goes_on_as >= 0)

        def change(i: int, j: int) -> Change:
            """Of the old cluster i that is the new cluster j; either may be none, -1."""
            event: Event
            if j < 0:
                event = "merged" if was_merged[i] else "split" if is_split[i] else "died"
            elif i < 0:
                event = "merged" if is_merged[j] else "split" if is_piece[j] else "born"
            else:
                event = "merged" if is_merged[j] else "split" if is_split[i] else "kept"
            number = int(self.known[i] if i >= 0 else numbers[j])
            n_before, n_after = int(self.sizes_before[i]) if i >= 0 else 0, int(self.sizes_after[j]) if j >= 0 else 0
            n_kept, n_old_rows = int(kept[i]) if i >= 0 else 0, int(self.from_before[j]) if j >= 0 else 0
            return Change(
                number,
                names.get(number),
                event,
                tuple(int(self.known[source]) for source in sources[j]) if j >= 0 else (),
                tuple(int(numbers[target]) for target in targets[i]) if i >= 0 else (),
                n_before,
                n_after,
                n_kept,
                n_after - n_old_rows,
                n_kept / max(n_before + n_old_rows - n_kept, 1),
            )

        there = [change(int(came_on[j]), j) for j in np.flatnonzero(self.sizes_after).tolist()]
        return there + [change(i, -1) for i in np.flatnonzero(goes_on_as < 0).tolist()]

    def _lists(self, owner: np.ndarray, other: np.ndarray, worth: np.ndarray, n_owners: int) -> list[list[int]]:
        """The partners of each cluster that are worth a word, most pictures first."""
        lists: list[list[int]] = [[] for _ in range(n_owners)]
        chosen = np.flatnonzero(worth)
        for pair in chosen[np.lexsort((other[chosen], -self.count[chosen]))].tolist():
            lists[owner[pair]].append(int(other[pair]))
        return lists


def _whole_numbers(values: Any, name: str, lowest: int) -> np.ndarray:
    values = np.asarray(values)
    if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
        raise InvalidDataError(
            f"{name} must be whole numbers, one for each picture; got {values.dtype} {values.shape}."
        )
    values = values.astype(np.int64)
    if values.size and values.min() < lowest:
        raise InvalidDataError(f"{name} must be {lowest} or more; got {values.min()}.")
    return values


def _pictures(count: int) -> str:
    return f"{count:,} picture{'' if count == 1 else 's'}"


def _listed(numbers: tuple[int, ...]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}" if first else last

"""Learn the codes and clusters of a run again, from all its images. Numbers, names and manual edits are kept.

The new files are made in a hidden folder of the run and are published together at the end. An interrupted refit is
resumed by the same call. The edit log before each refit, and the lineage of each, are kept in history/.
"""

import csv
import hashlib
import io
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

import numpy as np
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import min_weight_full_bipartite_matching

from bitmosaic.errors import BitmosaicError, ParameterError
from bitmosaic.estimators.constraints import Constraints
from bitmosaic.estimators.hsic import HSIC
from bitmosaic.hamming.codes import nearest_centers
from bitmosaic.images import Progress, quiet
from bitmosaic.io.files import (
    announce,
    copy_whole,
    locked,
    make_folder,
    remove,
    remove_unfinished,
    write_whole,
    writing,
)
from bitmosaic.io.read import load_npy
from bitmosaic.pipeline.stages import fit_model, fit_stage, sheets_stage, tables_stage
from bitmosaic.run.edits import FILE as EDITS
from bitmosaic.run.edits import Edited, EditLog, in_force, new_log
from bitmosaic.run.folder import ADDITIONS, REFIT, RENEWED, AnyRun, Run, as_run, publish_refit
from bitmosaic.run.images import RunImages
from bitmosaic.run.manifest import STAGES, Manifest
from bitmosaic.run.tables import write_column
from bitmosaic.solver.n_clusters import ClusterCounts

# ---- Match the clusters after a refit with those before it, so that clusters keep their numbers.
#
# A new cluster can keep the number of an old cluster if it holds at least half of its images; or at least a fifth, if
# these are at least half of the new cluster, or if each is the other's largest part. If several pairs are possible,
# the matching with the most images that keep their number is used. An old cluster without a match loses its number.


MOST, PART = 0.5, 0.2  # the share that identifies a cluster, and the smallest share that is reported
NEW_ROW = -1

Event = Literal["kept", "split", "merged", "born", "died"]


@dataclass(frozen=True)
class Change:
    """What happened to the cluster of one number."""

    number: int
    name: str | None
    event: Event
    came_from: tuple[int, ...]  # old clusters with a fifth or more of its old images, the largest first
    went_to: tuple[int, ...]  # new clusters with a fifth or more of its former images, the largest first
    size_before: int
    size_after: int
    images_kept: int  # in the cluster of this number before and after
    images_new: int  # not in the run before
    overlap: float  # images kept, as a share of all old images that were or are in it

    def as_dict(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "name": self.name,
            "event": self.event,
            "from": list(self.came_from),
            "to": list(self.went_to),
            "size_before": self.size_before,
            "size_after": self.size_after,
            "images_kept": self.images_kept,
            "images_new": self.images_new,
            "overlap": round(self.overlap, 4),
        }

    def sentence(self) -> str:
        """The change as a sentence for the user."""
        name = f" ({self.name})" if self.name else ""
        return f"Cluster {self.number}{name} {self._happened()}."

    def _happened(self) -> str:
        others = tuple(number for number in self.came_from if number != self.number)
        away = tuple(number for number in self.went_to if number != self.number)
        stayed = f"{self.images_kept:,} of {_images(self.size_before)} stayed"
        now = f"{self.size_after:,} now"
        match self.event:
            case "kept":
                new = f", {self.images_new:,} of them new" * bool(self.images_new)
                moved = self.size_after - self.images_kept - self.images_new
                return f"was kept: {stayed}, {now}{new}" + f", {moved:,} from other clusters" * bool(moved)
            case "split" if not self.size_before:
                return f"was split off from {_listed(others)}: {_images(self.size_after)}"
            case "split":
                return f"was split: {stayed}, others went to {_listed(away)}"
            case "merged" if not self.size_after:
                return f"was merged into {_listed(away)}: {_images(self.size_before)}"
            case "merged":
                return f"was merged with {_listed(others)}: {_images(self.size_after)} now"
            case "born" if others:
                return (
                    f"was born: {_images(self.size_after)}, {self.images_new:,} of them new, "
                    f"others from {_listed(others)}"
                )
            case "born":
                return f"was born: {_images(self.size_after)}, {self.images_new:,} of them new"
        went = f"went to {_listed(away)}" if away else "are scattered"
        return f"died: its {_images(self.size_before)} {went}"


@dataclass(frozen=True)
class Lineage:
    """The cluster number of each new center, and the change of each cluster, by number."""

    numbers: np.ndarray  # (n_centers,) int64
    next_number: int  # the lowest that was never used
    changes: tuple[Change, ...]

    @property
    def counts(self) -> dict[str, int]:
        """The number of clusters that were kept, split, merged, born, and died."""
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
    """Give the new centers the numbers of the old clusters they match, and fresh numbers to the others.

    old: (n,) the cluster number of each image before; -1 for an image that was not in the run.
    new: (n,) the index of the center of each image after.
    next_number: the first fresh number. Numbers of clusters that no longer exist are not used again.
    n_centers: the number of centers, if the last ones may have no image. A center without images gets a fresh number
        and is not reported.
    """
    old, new = np.asarray(old, np.int64), np.asarray(new, np.int64)
    n_centers = max(int(new.max(initial=-1)) + 1, n_centers or 0)
    shared = old != NEW_ROW
    known, before = np.unique(old[shared], return_inverse=True)
    first = int(known[-1]) + 1 if len(known) else 0
    next_number = first if next_number is None else next_number
    pairs = coo_array((np.ones(len(before), np.int64), (before, new[shared])), shape=(len(known), n_centers))
    overlaps = _Overlaps(csr_array(pairs), np.bincount(new, minlength=n_centers), known)
    continued_by = overlaps.matching()  # (n_old,) the center of each old cluster, or -1
    numbers = np.full(n_centers, -1, np.int64)
    numbers[continued_by[continued_by >= 0]] = known[continued_by >= 0]
    fresh = numbers < 0
    numbers[fresh] = next_number + np.arange(fresh.sum())
    changes = overlaps.changes(continued_by, numbers, names or {})
    return Lineage(numbers, next_number + int(fresh.sum()), tuple(sorted(changes, key=lambda change: change.number)))


class _Overlaps:
    """The number of images that each old and new cluster share, with the shares of either."""

    def __init__(self, table: csr_array, sizes_after: np.ndarray, known: np.ndarray):
        table.sum_duplicates()
        self.known, self.shape = known, table.shape
        self.sizes_before, self.sizes_after = table.sum(axis=1), sizes_after  # (n_old,), (n_new,)
        self.from_before = table.sum(axis=0)  # (n_new,) old images of each new cluster
        pairs = table.tocoo()
        self.row, self.column, self.count = pairs.row, pairs.col, pairs.data
        self.of_old = self.count / self.sizes_before[self.row]
        self.of_new = self.count / self.sizes_after[self.column]  # of all its images
        self.of_shared = self.count / self.from_before[self.column]  # of its old images

    def matching(self) -> np.ndarray:
        """The center that continues each old cluster, or -1. The matching maximizes the images that keep their number.

        A stand-in column for each old cluster means "no match". SciPy needs weights above 0: 1 is added to each count.
        Ties are broken by the shared part of all images of a pair; these terms sum to less than one image.
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

    def changes(self, continued_by: np.ndarray, numbers: np.ndarray, names: Mapping[int, str]) -> list[Change]:
        n_old, n_new = self.shape
        kept = np.zeros(n_old, np.int64)
        same = continued_by[self.row] == self.column
        kept[self.row[same]] = self.count[same]
        sources = self._lists(self.column, self.row, self.of_shared >= PART, n_new)
        targets = self._lists(self.row, self.column, self.of_old >= PART, n_old)
        # A few exchanged images are not a merge or a split: the larger part must have moved.
        joins = (self.of_shared >= PART) & (self.of_old >= MOST)
        pieces = (self.of_old >= PART) & (self.of_new >= MOST)
        is_merged = np.bincount(self.column[joins], minlength=n_new) >= 2
        is_split = np.bincount(self.row[pieces], minlength=n_old) >= 2
        was_merged = np.bincount(self.row[joins & is_merged[self.column]], minlength=n_old) > 0
        is_piece = np.bincount(self.column[pieces & is_split[self.row]], minlength=n_new) > 0
        continues = np.full(n_new, -1, np.int64)
        continues[continued_by[continued_by >= 0]] = np.flatnonzero(continued_by >= 0)

        def change(i: int, j: int) -> Change:
            """The change of old cluster i, which is new cluster j; -1: none."""
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

        there = [change(int(continues[j]), j) for j in np.flatnonzero(self.sizes_after).tolist()]
        return there + [change(i, -1) for i in np.flatnonzero(continued_by < 0).tolist()]

    def _lists(self, owner: np.ndarray, other: np.ndarray, worth: np.ndarray, n_owners: int) -> list[list[int]]:
        """The partners of each cluster that are reported, the most shared images first."""
        lists: list[list[int]] = [[] for _ in range(n_owners)]
        chosen = np.flatnonzero(worth)
        for pair in chosen[np.lexsort((other[chosen], -self.count[chosen]))].tolist():
            lists[owner[pair]].append(int(other[pair]))
        return lists


def _images(count: int) -> str:
    return f"{count:,} image{'' if count == 1 else 's'}"


def _listed(numbers: tuple[int, ...]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}" if first else last


PINNED, LINEAGE, HISTORY = "pinned.npy", "lineage.csv", "history"


@dataclass(frozen=True)
class Refitted:
    """The result of a refit."""

    run: Run
    lineage: Lineage
    pinned: int  # images that were moved by hand, and stay in their clusters


def refit(
    run: AnyRun,
    *,
    n_clusters: int | str | None = None,
    fresh: bool = False,
    seed: int | None = None,
    memory_limit: str | int | None = None,
    n_threads: int | None = None,
    progress: Progress = quiet,
) -> Refitted:
    """Learn codes and clusters of all images of a run again, additions included.

    The fit starts from the present clusters, unless `fresh`. New clusters get the numbers and names of the old clusters
    with which they share most images (see `match_clusters`). Clusters merged by hand stay merged. Images moved by hand
    stay in their clusters. `n_clusters`: None for the present number, another number, or "auto".
    """
    run = as_run(run)
    with locked(run.folder), locked(run.folder / ADDITIONS):  # no edits and no additions meanwhile
        publish_refit(run.folder)
        run = Run(run.folder)
        run.require(STAGES[-1])
        remove_unfinished(run.folder)
        before = Before.of(run)
        request = {
            "clusters": n_clusters,
            "fresh": fresh,
            "seed": run.manifest.arguments.get("seed", 0) if seed is None else seed,
            "additions": len(run.additions),
            "of": before.signature,
        }
        successor = _successor(run, request)
        fit_stage(successor, partial(_fit, successor, before, request, memory_limit, n_threads, progress))
        lineage, ids = _lineage(before, successor.model, None if fresh else n_clusters)
        successor.manifest.ids, successor.manifest.next_number = ids.tolist(), lineage.next_number
        successor.manifest.refits = [*run.manifest.refits, _entry(before, lineage)]
        tables_stage(successor, successor.views)
        names = {number: name for number, name in before.names.items() if number in ids}
        _write_edits_and_history(successor, before, names, lineage)
        sheets_stage(successor, successor.views, RunImages(successor, None, progress), progress)
        announce(successor.folder, RENEWED)
        publish_refit(run.folder)
    return Refitted(Run(run.folder), lineage, len(before.pinned))


# ---- the clusters before the refit


@dataclass(frozen=True)
class Before:
    """The clusters of a run before the refit, edits included. A cluster made by hand has images, but no center yet."""

    run: Run
    center_of: np.ndarray  # (n,) the center of each image
    numbers: np.ndarray  # (c,) the cluster number of each center
    labels: np.ndarray  # (n,) the cluster number of each image
    pinned: np.ndarray  # (p,) rows that were moved by hand, ascending
    names: dict[int, str]
    next_number: int

    @classmethod
    def of(cls, run: Run) -> "Before":
        labels, fitted = np.asarray(run.column("labels")), np.asarray(run.fitted_column("labels"))
        log = EditLog(run.folder, labels, run.next_number, fitted)
        entries = log.entries()
        edited = log.replay(entries)
        ids = Edited(run.ids.copy(), log.n_clusters)
        for edit in in_force(entries):
            if edit["do"] == "merge":
                ids.apply(edit)
        moved = [edit["rows"] for edit in in_force(entries) if edit["do"] == "move"]
        pinned = np.unique(np.concatenate([read_pinned(run), *(np.array(rows, np.int64) for rows in moved)]))
        numbers = np.concatenate(
            [ids.labels, np.setdiff1d(edited.labels, ids.labels)]
        )  # the last ones were made by hand
        center_of = _centers_of(run, edited.labels, numbers)
        used, center_of = np.unique(center_of, return_inverse=True)  # a cluster may have lost all its images
        return cls(run, center_of, numbers[used], edited.labels, pinned, edited.names, edited.n_numbers)

    @property
    def signature(self) -> list[Any]:
        """Changes if the clusters are edited after a refit was begun."""
        content = hashlib.sha256(self.center_of.tobytes() + self.numbers.tobytes() + self.pinned.tobytes())
        return [content.hexdigest(), sorted(self.names.items())]


def _centers_of(run: Run, labels: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The center of each image: the one with the number of its cluster, or the nearest of several."""
    known, first, counts = np.unique(numbers, return_index=True, return_counts=True)
    centers = first[np.searchsorted(known, labels)]
    codes, weights = run.column("codes"), run.model.bit_weights_
    for number in known[counts > 1]:
        rows, these = np.flatnonzero(labels == number), np.flatnonzero(numbers == number)
        centers[rows] = these[nearest_centers(codes[rows], run.centers[these], weights)[0]]
    return centers


def read_pinned(run: Run) -> np.ndarray:
    """The images that were moved by hand before the last refit."""
    path = run.folder / PINNED
    return load_npy(path) if path.exists() else np.empty(0, np.int64)


# ---- the run after the refit


def _successor(run: Run, request: dict[str, Any]) -> Run:
    """The run after the refit, in the hidden folder: new, or resumed if the same refit was interrupted."""
    folder = run.folder / REFIT
    request = json.loads(json.dumps(request))
    with writing(folder):
        try:
            successor = Run(folder, of=run)
            if successor.manifest.request == request:
                successor.forget_lost_stages()
                return successor
        except BitmosaicError:
            pass
        remove(folder)  # leftovers of another refit would be published with this one
        folder.mkdir()
    old = run.manifest
    Manifest(
        bitmosaic=old.bitmosaic,
        begun=old.begun,
        arguments=old.arguments,
        seconds={stage: seconds for stage, seconds in old.seconds.items() if stage == "extract"},
        python=old.python,
        packages=old.packages,
        bytes={stage: sizes for stage, sizes in old.bytes.items() if stage == "extract"},
        images=old.images,
        skipped=old.skipped,
        views_folder=old.views_folder,
        absorbed=len(run.additions),
        refits=old.refits,
        request=request,
    ).write(folder)
    return Run(folder, of=run)


def _fit(
    successor: Run,
    before: Before,
    request: dict[str, Any],
    memory_limit: str | int | None,
    n_threads: int | None,
    progress: Progress,
) -> tuple[HSIC, ClusterCounts | None]:
    options = before.run.model.get_params() | {"random_state": request["seed"]}
    options |= {"memory_limit": memory_limit, "n_threads": n_threads}
    views, counts = successor.views, None
    wanted = request["clusters"]
    if wanted == "auto":
        found = fit_model(successor, HSIC(**options | {"n_clusters": "auto"}), views, progress, keep_checkpoint=False)
        wanted, counts = found.n_clusters_, found.cluster_counts_
    init, fixed, _, n_centers = _start(before, wanted)
    model = HSIC(**options | {"n_clusters": n_centers})
    constraints = Constraints(fixed=fixed) if fixed else None
    init_labels = None if request["fresh"] else init
    return fit_model(successor, model, views, progress, constraints=constraints, init_labels=init_labels), counts


def _start(before: Before, wanted: int | None) -> tuple[np.ndarray, dict[int, int], np.ndarray, int]:
    """The initial center of each image (-1: not known), the images that must stay there, the old centers that are
    kept, and the number of centers.

    With fewer clusters than before, the smallest are dropped, but none that holds an image moved by hand.
    """
    clusters, number_of = np.unique(before.numbers, return_inverse=True)  # of each center
    wanted = len(clusters) if wanted is None else wanted
    held = np.unique(number_of[before.center_of[before.pinned]])
    if wanted < max(len(held), 1):
        raise ParameterError(
            f"n_clusters must be at least {max(len(held), 1)}, because {len(held)} clusters hold images moved by hand; "
            f"got {wanted}."
        )
    sizes = np.bincount(number_of[before.center_of], minlength=len(clusters)).astype(float)
    sizes[held] = np.inf
    stays = np.zeros(len(clusters), bool)
    stays[np.argsort(-sizes, kind="stable")[:wanted]] = True
    kept = np.flatnonzero(stays[number_of])
    place = np.full(len(before.numbers), -1, np.int64)
    place[kept] = np.arange(len(kept))
    init = place[before.center_of]
    fixed = dict(zip(before.pinned.tolist(), init[before.pinned].tolist(), strict=True))
    new = np.arange(before.run.n_fitted, before.run.n_images)
    init[np.setdiff1d(new, before.pinned)] = -1
    return init, fixed, kept, len(kept) + max(wanted - len(clusters), 0)


# ---- lineage


def _lineage(before: Before, model: HSIC, wanted: int | str | None) -> tuple[Lineage, np.ndarray]:
    """The lineage of the clusters, and the cluster number of each new center; `wanted` clusters, if given.

    Centers are matched first: all that continue centers of one cluster (it may have been merged by hand) become one
    cluster. Images added since the last fit are ignored, unless they were moved by hand.
    """
    learned = np.arange(len(before.labels)) < before.run.n_fitted
    learned[before.pinned] = True
    n_old, n_centers = len(before.numbers), model.n_clusters_
    matched = match_clusters(
        np.where(learned, before.center_of, NEW_ROW), model.labels_, next_number=n_old, n_centers=n_centers
    ).numbers
    if isinstance(wanted, int):  # meet this number: centers that started in one cluster stay one cluster
        kept = _start(before, wanted)[2]
        matched = np.concatenate([kept, n_old + np.arange(n_centers - len(kept))])
    key = np.where(matched < n_old, before.numbers[np.minimum(matched, n_old - 1)], before.next_number + matched)
    _, group = np.unique(key, return_inverse=True)
    lineage = match_clusters(
        np.where(learned, before.labels, NEW_ROW),
        group[model.labels_],
        next_number=before.next_number,
        n_centers=int(group.max()) + 1,
        names=before.names,
    )
    return lineage, lineage.numbers[group]


def _write_edits_and_history(successor: Run, before: Before, names: dict[int, str], lineage: Lineage) -> None:
    """Write names and pinned images of the new run; copy the old edit log and the lineage into the history."""
    run = before.run
    # Also written without names: its head prevents edits of the old clusters.
    write_whole(successor.folder / EDITS, new_log(np.asarray(successor.fitted_column("labels")), names))
    if len(before.pinned):
        write_column(successor.folder / PINNED, before.pinned)
    table = lineage_csv(lineage)
    write_whole(successor.folder / LINEAGE, table)
    place = run.folder / HISTORY / f"{run.n_refits + 1:04d}"
    with writing(place):
        make_folder(place)  # it will have the only copy of the old edits
    write_whole(place / LINEAGE, table)
    if (run.folder / EDITS).exists():
        copy_whole(run.folder / EDITS, place / EDITS)


def _entry(before: Before, lineage: Lineage) -> dict[str, Any]:
    """The entry of a refit in the manifest."""
    return {"at": datetime.now(UTC).isoformat(timespec="seconds"), "images": len(before.labels)} | lineage.counts


def lineage_csv(lineage: Lineage) -> bytes:
    """One row for each cluster, before or after. Several numbers in one field are joined by spaces."""
    text = io.StringIO(newline="")
    rows = lineage.table()
    writer = csv.DictWriter(text, [*(rows[0] if rows else ()), "sentence"])
    writer.writeheader()
    for row, sentence in zip(rows, lineage.sentences(), strict=True):
        joined = {key: " ".join(map(str, value)) if isinstance(value, list) else value for key, value in row.items()}
        writer.writerow(joined | {"sentence": sentence})
    return text.getvalue().encode()

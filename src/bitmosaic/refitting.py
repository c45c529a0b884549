"""A run that has grown and was edited -> the same run, learned anew: numbers, names and what was done by hand stay.

The new files are made in a hidden folder of the run and take their places together at the end; a refit that was stopped
goes on. What was before (the log of edits and the lineage of each refit) is in history/.
"""

import csv
import hashlib
import io
import json
import time
import warnings
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from bitmosaic.additions import FOLDER
from bitmosaic.codes import nearest_centers
from bitmosaic.constraints import Constraints
from bitmosaic.edits import FILE as EDITS
from bitmosaic.edits import Edited, EditLog, in_force, new_log
from bitmosaic.errors import BitmosaicError, FileFormatError, InvalidDataError, ParameterError, StaleCheckpointError
from bitmosaic.files import (
    copy_whole,
    locked,
    make_folder,
    refuse_links,
    remove,
    remove_unfinished,
    write_whole,
    writing,
)
from bitmosaic.hsic import HSIC
from bitmosaic.images import Progress, quiet
from bitmosaic.lineage import NEW_ROW, Lineage, match_clusters
from bitmosaic.npy import load_npy
from bitmosaic.publishing import announce
from bitmosaic.results import draw_clusters, write_counts, write_results
from bitmosaic.run import CHECKPOINT, REFIT, RENEWED, AnyRun, Run, as_run, settle
from bitmosaic.run_manifest import HIGHEST, read_manifest
from bitmosaic.run_pictures import RunPictures

PINNED, LINEAGE, HISTORY = "pinned.npy", "lineage.csv", "history"


@dataclass(frozen=True)
class Refitted:
    """What came of a refit."""

    run: Run
    lineage: Lineage
    pinned: int  # pictures that stay where people have put them


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
    """Learn codes and clusters of all pictures of a run again, those that were added included.

    Clusters begin from the present ones, unless `fresh`, and have their numbers and names by the pictures they share
    with them. Clusters that people have merged stay one, and pictures that they have moved stay there. `n_clusters`:
    as many as there are, another number, or "auto".
    """
    run = as_run(run)
    with locked(run.folder), locked(run.folder / FOLDER):  # nobody edits, and nobody adds pictures
        settle(run.folder)
        run = Run(run.folder)
        if not run.complete:
            raise InvalidDataError(f"A finished run is refitted; the one in {run.folder} was stopped. Finish it first.")
        remove_unfinished(run.folder)
        for place in (REFIT, HISTORY):
            refuse_links(run.folder / place)
        before = Before.of(run)
        request = {
            "clusters": n_clusters,
            "fresh": fresh,
            "seed": run.manifest["arguments"].get("seed", 0) if seed is None else seed,
            "additions": len(run.additions),
            "of": before.imprint,
        }
        successor = Successor.of(run, request)
        if not successor.done("fit"):
            start = time.perf_counter()
            model, facts = _fit(successor, before, request, memory_limit, n_threads, progress)
            model.save(successor.folder / "model.safetensors")
            successor.finish("fit", time.perf_counter() - start, **facts)
        start = time.perf_counter()
        lineage, ids = _lineage(before, successor.fitted_model)
        successor.manifest |= {"ids": ids.tolist(), "next_number": lineage.next_number}
        names = {number: name for number, name in before.names.items() if number in ids}
        facts = write_results(successor, successor.views)
        successor.finish("tables", time.perf_counter() - start, **facts)
        _write_what_people_did(successor, before, names, lineage)
        if not successor.done("pictures"):
            start = time.perf_counter()
            pictures = RunPictures(successor, None, progress)
            sheets = draw_clusters(successor, successor.views, pictures, progress) if pictures.available else 0
            successor.finish("pictures", time.perf_counter() - start, sheets=sheets)
        remove(successor.folder / CHECKPOINT, gently=True)
        announce(successor.folder, RENEWED)
        settle(run.folder)
    return Refitted(Run(run.folder), lineage, len(before.pinned))


# ---- what is there


@dataclass(frozen=True)
class Before:
    """The clusters of a run as they are, edits included. A center that people made by hand has pictures only."""

    run: Run
    center_of: np.ndarray  # (n,) the center to which each picture belongs
    numbers: np.ndarray  # (c,) the number of each center
    labels: np.ndarray  # (n,) numbers of all pictures
    pinned: np.ndarray  # (p,) rows that people have put where they are, ascending
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
        numbers = np.concatenate([ids.labels, np.setdiff1d(edited.labels, ids.labels)])  # the last are made by hand
        center_of = _centers_of(run, edited.labels, numbers)
        used, center_of = np.unique(center_of, return_inverse=True)  # a cluster may have lost all its pictures
        return cls(run, center_of, numbers[used], edited.labels, pinned, edited.names, edited.n_numbers)

    @property
    def imprint(self) -> list[Any]:
        """Enough to see that edits were made since a refit was begun."""
        digest = hashlib.sha256(self.center_of.tobytes() + self.numbers.tobytes() + self.pinned.tobytes())
        return [digest.hexdigest(), sorted(self.names.items())]


def _centers_of(run: Run, labels: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The center of each picture: the one with the number of its cluster, of several the nearest."""
    known, first, counts = np.unique(numbers, return_index=True, return_counts=True)
    centers = first[np.searchsorted(known, labels)]
    codes, weights = run.column("codes"), run.model.bit_weights_
    for number in known[counts > 1]:
        rows, these = np.flatnonzero(labels == number), np.flatnonzero(numbers == number)
        centers[rows] = these[nearest_centers(codes[rows], run.model.cluster_centers_[these], weights)[0]]
    return centers


def read_pinned(run: Run) -> np.ndarray:
    """The pictures that people had put where they are before the last refit."""
    path = run.folder / PINNED
    if not path.exists():
        return np.empty(0, np.int64)
    rows = load_npy(path)
    if rows.dtype != np.int64 or rows.ndim != 1 or (len(rows) and not 0 <= rows.min() <= rows.max() < run.n_images):
        raise FileFormatError(f"{path} must hold numbers of pictures of the run, and does not. Remove it.")
    return rows


# ---- what is to come


class Successor(Run):
    """The run to come. Its files grow in the hidden folder; pictures and features are those of the present one."""

    def __init__(self, run: Run, manifest: dict[str, Any]):
        self.run, self.folder, self.manifest = run, run.folder / REFIT, manifest
        self.additions = run.additions

    @classmethod
    def of(cls, run: Run, request: dict[str, Any]) -> "Successor":
        """Begun anew, or as far as it was when the same refit was stopped."""
        folder = run.folder / REFIT
        request = json.loads(json.dumps(request))
        with writing(folder):
            try:
                manifest = read_manifest(folder)
                if manifest.get("request") != request:
                    raise InvalidDataError("another refit")
            except BitmosaicError:
                remove(folder)  # what stayed of another refit would appear with this one
                manifest = _begun(run, request)
            folder.mkdir(exist_ok=True)
        successor = cls(run, manifest)
        successor._forget_what_is_gone()
        return successor

    @property
    def views_folder(self) -> Path:
        return self.run.views_folder

    def _require_current(self) -> None:
        """Nobody else writes here."""

    def _bytes(self, stage: str) -> dict[str, int]:
        return self.run._bytes(stage) if stage == "extract" else super()._bytes(stage)


def _begun(run: Run, request: dict[str, Any]) -> dict[str, Any]:
    """The manifest of a run with its pictures and nothing learned from them yet."""
    dropped = ("ids", "next_number", "sizes", "mean_distances", "scores", "how_many", "sheets", "view_weights")
    manifest = {key: value for key, value in run.manifest.items() if key not in dropped}
    kept = {
        key: {"extract": value["extract"]} if "extract" in value else {}
        for key, value in manifest.items()
        if key in ("seconds", "bytes")
    }
    return manifest | kept | {"absorbed": len(run.additions), "request": request}


def _fit(
    successor: Run,
    before: Before,
    request: dict[str, Any],
    memory_limit: str | int | None,
    n_threads: int | None,
    progress: Progress,
) -> tuple[HSIC, dict[str, Any]]:
    options = before.run.fitted_model.get_params() | {"random_state": request["seed"]}
    options |= {"memory_limit": memory_limit, "n_threads": n_threads}
    views, facts = successor.views, {}

    def report(done: int, total: int) -> None:
        progress("learning codes and clusters", done, total)

    wanted = request["clusters"]
    if wanted == "auto":
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The number of clusters is not clear")  # the chart says it
            found = HSIC(**options | {"n_clusters": "auto"}).fit(views, progress=report)
        wanted, facts["how_many"] = found.n_clusters_, write_counts(successor, found.cluster_counts_)
    init, fixed, n_centers = _start(before, wanted)
    model = HSIC(**options | {"n_clusters": n_centers})
    constraints = Constraints(fixed=fixed) if fixed else None
    start = {"constraints": constraints, "init_labels": None if request["fresh"] else init}
    checkpoint = successor.folder / CHECKPOINT
    try:
        model.fit(views, progress=report, checkpoint=checkpoint, **start)
    except StaleCheckpointError:  # after an upgrade, on another processor, or damaged
        remove(checkpoint)
        model.fit(views, progress=report, checkpoint=checkpoint, **start)
    weights = dict(zip(model.view_names_, model.view_weights_.round(4).tolist(), strict=True))
    return model, facts | {"view_weights": weights, "iterations": model.n_iter_}


def _start(before: Before, wanted: int | None) -> tuple[np.ndarray, dict[int, int], int]:
    """Where each picture begins, -1 for those that nobody knows yet; which must stay there; and how many centers.

    With fewer clusters than before the smallest give up their centers, but none that holds a picture put there by hand.
    """
    clusters, number_of = np.unique(before.numbers, return_inverse=True)  # of each center
    wanted = len(clusters) if wanted is None else wanted
    held = np.unique(number_of[before.center_of[before.pinned]])
    if wanted < max(len(held), 1):
        raise ParameterError(
            f"Pictures that were moved by hand stay in their clusters, which are {len(held)}; a refit with so few "
            "clusters cannot keep them. Ask for more."
        )
    if before.next_number + wanted > HIGHEST:
        raise FileFormatError(f"Numbers of clusters are below {HIGHEST}; those of {before.run.folder} are used up.")
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
    return init, fixed, len(kept) + max(wanted - len(clusters), 0)


# ---- which is which


def _lineage(before: Before, model: HSIC) -> tuple[Lineage, np.ndarray]:
    """What became of each cluster, and the number of each new center.

    Centers are matched first: those that go on from centers of one cluster, which people may have merged, are one.
    Pictures that were added since say nothing of where a cluster was, but those that people have put into one.
    """
    learned = np.arange(len(before.labels)) < before.run.n_fitted
    learned[before.pinned] = True
    n_old, n_centers = len(before.numbers), model.n_clusters_
    matched = match_clusters(
        np.where(learned, before.center_of, NEW_ROW), model.labels_, next_number=n_old, n_centers=n_centers
    ).numbers
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


def _write_what_people_did(successor: Run, before: Before, names: dict[int, str], lineage: Lineage) -> None:
    """Names and pins for the run to come; the log of edits so far, and the lineage, into the history."""
    run = before.run
    # Also without names: who looks at the old clusters still, and edits them, is told by its head.
    write_whole(successor.folder / EDITS, new_log(np.asarray(successor.fitted_column("labels")), names))
    if len(before.pinned):
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, before.pinned, allow_pickle=False)
        write_whole(successor.folder / PINNED, buffer.getvalue())
    table = lineage_csv(lineage)
    write_whole(successor.folder / LINEAGE, table)
    refits = run.manifest.get("refits", [])
    place = run.folder / HISTORY / f"{len(refits) + 1:04d}"
    with writing(place):
        make_folder(place)  # soon it has the only copy of the old edits
    write_whole(place / LINEAGE, table)
    if (run.folder / EDITS).exists():
        copy_whole(run.folder / EDITS, place / EDITS)
    said = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "images": len(before.labels)} | lineage.counts
    successor.manifest["refits"] = [*refits, said]


def lineage_csv(lineage: Lineage) -> bytes:
    """A line for each cluster, before or after; several numbers in one field are joined by spaces."""
    text = io.StringIO(newline="")
    rows = lineage.table()
    writer = csv.DictWriter(text, [*(rows[0] if rows else ()), "sentence"])
    writer.writeheader()
    for row, sentence in zip(rows, lineage.sentences(), strict=True):
        joined = {key: " ".join(map(str, value)) if isinstance(value, list) else value for key, value in row.items()}
        writer.writerow(joined | {"sentence": sentence})
    return text.getvalue().encode()

"""The stages shared by `cluster`, `fit` and `refit`: fit the model, write the tables, draw the contact sheets.

Also the true labels of the images, by which the tables stage and `evaluate` score the clusters.
"""

import csv
import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bitmosaic.errors import FileFormatError, InvalidDataError, MissingFileError, StaleCheckpointError
from bitmosaic.estimators.hsic import HSIC
from bitmosaic.estimators.metrics import clustering_scores
from bitmosaic.images import Progress, display_path, folder_name
from bitmosaic.io.files import remove, whole_file, writing
from bitmosaic.io.read import load_npy
from bitmosaic.io.threads import available_threads
from bitmosaic.run.folder import CHECKPOINT, MODEL, Run
from bitmosaic.run.images import RunImages
from bitmosaic.run.sheets import TILE, contact_sheet, how_many_chart, overview
from bitmosaic.run.tables import image_table, write_tables
from bitmosaic.solver.model import distances_to_own
from bitmosaic.solver.n_clusters import ClusterCounts
from bitmosaic.views import Views
from bitmosaic.views.views import as_labels

N_CENTRAL, N_FAR, N_OVERVIEW, MAX_SHEETS = 60, 12, 12, 200


def write_counts(run: Run, counts: ClusterCounts) -> dict[str, Any]:
    """Draw the chart of the cluster counts that were tried. Returns the facts for the manifest."""
    with whole_file(run.folder / "how-many.png") as file:
        how_many_chart(counts).save(file, "PNG")
    return counts.as_json() | {"clear": counts.clear, "words": str(counts)}


def write_results(run: Run, views: Views) -> dict[str, Any]:
    """Write the tables and columns of all images. Returns the facts for the manifest."""
    model = run.model
    if len(model.labels_) != views.n_rows:
        raise InvalidDataError(
            f"{run.folder / MODEL} was fitted to {len(model.labels_)} images, but the views have {views.n_rows}. "
            "Remove the file, and run the same command again."
        )
    centers, weights, n_threads = model.cluster_centers_, model.bit_weights_, available_threads(model.n_threads)
    distance, margin = distances_to_own(model.codes_, model.labels_, centers, weights, n_threads, run.ids)
    labels = run.ids[model.labels_].astype(np.int32)
    run.write_columns(codes=model.codes_, labels=labels, distances=distance)
    paths = [display_path(path) for path in views.paths or map(str, range(views.n_rows))]
    columns = image_table(path=paths, cluster=labels, distance=distance, margin=margin, label=views.labels)
    write_tables(run.folder, columns)
    sizes = np.bincount(labels, minlength=int(run.ids.max()) + 1)
    spread = np.bincount(labels, distance, minlength=len(sizes)) / np.maximum(sizes, 1)
    facts: dict[str, Any] = {"sizes": sizes.tolist(), "mean_distances": spread.round(3).tolist()}
    if views.labels is not None:
        facts["scores"] = scores_of(views.labels, labels)
    return facts


def draw_clusters(run: Run, views: Views, images: RunImages, progress: Progress) -> int:
    """Draw the overview, and a contact sheet of each of the largest clusters. Returns the number of sheets."""
    labels, distances = run.column("labels"), run.column("distances")
    sizes = np.array(run.manifest.sizes)
    chosen = []
    for cluster_number in np.argsort(-sizes, kind="stable")[: min(MAX_SHEETS, np.count_nonzero(sizes))]:
        members = np.flatnonzero(labels == cluster_number)
        members = members[np.argsort(distances[members], kind="stable")]
        near = members[:N_CENTRAL]
        chosen.append((int(cluster_number), members, near, members[len(near) :][-N_FAR:]))
    rows = {int(row) for _, _, near, far in chosen for row in (*near, *far)}
    shown = images.thumbnails(rows, TILE, progress)

    with writing(run.folder):
        (run.folder / "clusters").mkdir(exist_ok=True)
    lines = []
    for number, (cluster_number, members, near, far) in enumerate(chosen):
        name, facts = describe(cluster_number, members, distances, views.labels)
        central = [shown[row] for row in near if row in shown]
        sheet = contact_sheet(name, facts, central, [shown[row] for row in far if row in shown])
        with whole_file(run.folder / "clusters" / f"{cluster_number:04d}.jpg") as file:
            sheet.save(file, "JPEG", quality=88)
        lines.append((name, facts, central[:N_OVERVIEW]))
        progress("drawing clusters", number + 1, len(chosen))
    title = f"{len(labels):,} images in {int((sizes > 0).sum())} clusters, the largest first"
    with whole_file(run.folder / "overview.png") as file:
        overview(title, lines).save(file, "PNG")
    return len(chosen)


def describe(number: int, members: np.ndarray, distances: np.ndarray, labels: np.ndarray | None) -> tuple[str, str]:
    """The title of a cluster, and a line of facts."""
    facts = f"{len(members):,} images, {np.mean(distances[members]) if len(members) else 0:.0f} bits off center"
    if labels is None or not len(members):
        return f"Cluster {number}", facts
    names, counts = np.unique(labels[members], return_counts=True)
    best = counts.argmax()
    return f"Cluster {number}: {names[best]} ({counts[best] / len(members):.0%})", facts


def fit_stage(run: Run, fit: Callable[[], tuple[HSIC, ClusterCounts | None]]) -> None:
    """Fit a model and save it. `fit` also returns the cluster counts that were tried, if any."""
    if not run.done("fit"):
        with run.stage("fit") as facts:
            model, counts = fit()
            model.labels_, model.codes_ = np.asarray(model.labels_), np.asarray(model.codes_)  # may be Dask arrays
            model.save(run.folder / MODEL)
            run.model = model
            weights = model.view_weights_.round(4).tolist()
            facts |= {"view_weights": dict(zip(model.view_names_, weights, strict=True)), "iterations": model.n_iter_}
            if counts is not None:
                facts["how_many"] = write_counts(run, counts)
    remove(run.folder / CHECKPOINT, ignore_errors=True)


def fit_model(
    run: Run, model: HSIC, views: Any, progress: Progress, keep_checkpoint: bool = True, **start: Any
) -> HSIC:
    """Fit, by default with a checkpoint in the run folder. A stale checkpoint is removed."""
    checkpoint = run.folder / CHECKPOINT
    fit = partial(model.fit, views, progress=partial(progress, "learning codes and clusters"), **start)
    with warnings.catch_warnings():  # it is in the manifest and in the chart
        warnings.filterwarnings("ignore", "The number of clusters is not clear")
        try:
            return fit(checkpoint=checkpoint if keep_checkpoint else None)
        except StaleCheckpointError:  # after an upgrade, on another processor, or damaged
            remove(checkpoint)
            return fit(checkpoint=checkpoint)


def tables_stage(run: Run, views: Views) -> None:
    """Write the tables of every image."""
    if not run.done("tables"):
        with run.stage("tables") as facts:
            facts |= write_results(run, views)


def sheets_stage(run: Run, views: Views, images: RunImages, progress: Progress) -> None:
    """Draw the contact sheets and the overview, if the images can be found."""
    if not run.done("sheets"):
        with run.stage("sheets") as facts:
            facts["sheets"] = draw_clusters(run, views, images, progress) if images.available else 0


# ---- true labels: from folder names, a file, or an array


def true_labels(run: Run, labels: Any) -> np.ndarray:
    """True labels by row. `labels` is "folder", a .csv or .npy file, or an array in the order of the rows."""
    if isinstance(labels, str) and labels == "folder":
        names = [folder_name(path) for path in run.paths]
        if len({*names} - {""}) < 2:
            raise InvalidDataError(
                "Labels from folders need images in several folders; those of this run are in one or none. "
                "Pass a file with labels."
            )
        return np.array(names)
    if not isinstance(labels, str | bytes | os.PathLike):
        return _for_each_row(as_labels(labels), run, "the array")
    path = Path(os.fsdecode(labels))
    if not path.is_file():
        raise MissingFileError(f"Labels must be 'folder', a .csv or a .npy file; there is no file {path}.")
    try:
        values = _labels_from_csv(run, path) if path.suffix == ".csv" else as_labels(load_npy(path))
    except InvalidDataError:
        raise
    except (ValueError, OSError, csv.Error) as error:
        raise FileFormatError(
            f"Labels must be 'folder', a .csv or a .npy file; {path} cannot be read ({error})."
        ) from error
    return _for_each_row(values, run, path)


def scores_of(truth: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Scores of the images that have a true label. An image outside of any folder has the label "", which is none."""
    rows = truth != "" if truth.dtype.kind == "U" else np.ones(len(truth), bool)
    return clustering_scores(truth[rows], np.asarray(labels)[rows])


def _for_each_row(values: np.ndarray, run: Run, where: Any) -> np.ndarray:
    if len(values) != len(run.paths):
        raise InvalidDataError(
            f"There must be one label for each of {len(run.paths)} images; {where} has {len(values)}."
        )
    return values


def _labels_from_csv(run: Run, path: Path) -> np.ndarray:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if not {"path", "label"} <= set(reader.fieldnames or ()):
            raise InvalidDataError(f"{path} must have the columns path and label; it has {reader.fieldnames}.")
        known = {row["path"]: row["label"] for row in reader}
    names = [display_path(p) for p in run.paths]
    missing = [name for name in names if name not in known]
    if missing:
        raise InvalidDataError(
            f"{path} must have a label for every image; {len(missing)} lack one, such as {missing[0]}."
        )
    return np.array([known[name] for name in names])

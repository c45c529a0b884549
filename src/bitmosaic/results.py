"""A fitted run -> what people look at: tables of every picture, contact sheets, an overview."""

from typing import Any

import numpy as np

from bitmosaic.errors import InvalidDataError
from bitmosaic.files import whole_file, writing
from bitmosaic.images import Progress, display_path
from bitmosaic.metrics import clustering_scores
from bitmosaic.run import Run, write_tables
from bitmosaic.run_pictures import RunPictures
from bitmosaic.sheets import TILE, contact_sheet, how_many_chart, overview
from bitmosaic.solver.how_many import ClusterCounts
from bitmosaic.views import Views

N_CENTRAL, N_FAR, N_OVERVIEW, MAX_SHEETS = 60, 12, 12, 200


def write_counts(run: Run, counts: ClusterCounts) -> dict[str, Any]:
    """A chart of the numbers of clusters that were tried; returns what the manifest says of them."""
    with whole_file(run.folder / "how-many.png") as file:
        how_many_chart(counts).save(file, "PNG")
    return counts.as_json() | {"clear": counts.clear, "words": str(counts)}


def write_results(run: Run, table: Views) -> dict[str, Any]:
    """Tables of every image and its cluster; returns what the manifest says of them."""
    _check_model(run, table)
    model = run.fitted_model
    distance, margin = model.distances_to_own(model.codes_, model.labels_, run.ids)
    labels = run.ids[model.labels_].astype(np.int32)
    run.write_columns(codes=model.codes_, labels=labels, distances=distance)
    columns = {
        "path": [display_path(path) for path in table.paths or map(str, range(table.n_rows))],
        "cluster": labels,
        "distance": distance,
        "margin": margin,
    }
    sizes = np.bincount(labels, minlength=int(run.ids.max()) + 1)
    spread = np.bincount(labels, distance, minlength=len(sizes)) / np.maximum(sizes, 1)
    facts: dict[str, Any] = {
        "sizes": sizes.tolist(),
        "mean_distances": spread.round(3).tolist(),
    }
    if table.labels is not None:
        columns["label"] = table.labels
        facts["scores"] = clustering_scores(table.labels, labels)
    write_tables(run.folder, columns)
    return facts


def _check_model(run: Run, table: Views) -> None:
    """The model that is there is the one that this run has fitted to these rows."""
    weights = dict(zip(run.fitted_model.view_names_, run.fitted_model.view_weights_.round(4).tolist(), strict=True))
    if len(run.fitted_model.labels_) != table.n_rows or weights != run.manifest["view_weights"]:
        raise InvalidDataError(
            f"A run goes on with the model it has fitted; {run.folder / 'model.safetensors'} is another, or the views "
            "have changed. Remove the file, and the same command fits again."
        )


def draw_clusters(run: Run, table: Views, pictures: RunPictures, progress: Progress) -> int:
    """The overview, and a contact sheet for each of the largest clusters; returns how many sheets."""
    labels, distances = run.column("labels"), run.column("distances")
    sizes = np.array(run.manifest["sizes"])
    chosen = []
    for cluster_number in np.argsort(-sizes, kind="stable")[: min(MAX_SHEETS, np.count_nonzero(sizes))]:
        members = np.flatnonzero(labels == cluster_number)
        members = members[np.argsort(distances[members], kind="stable")]
        near = members[:N_CENTRAL]
        chosen.append((int(cluster_number), members, near, members[len(near) :][-N_FAR:]))
    rows = {int(row) for _, _, near, far in chosen for row in (*near, *far)}
    shown = pictures.thumbnails(rows, TILE, progress)

    with writing(run.folder):
        (run.folder / "clusters").mkdir(exist_ok=True)
    lines = []
    for number, (cluster_number, members, near, far) in enumerate(chosen):
        name, facts = describe(cluster_number, members, distances, table.labels)
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
    """Two lines of text for a cluster."""
    facts = f"{len(members):,} images, {np.mean(distances[members]) if len(members) else 0:.0f} bits off center"
    if labels is None or not len(members):
        return f"Cluster {number}", facts
    names, counts = np.unique(labels[members], return_counts=True)
    best = counts.argmax()
    return f"Cluster {number}: {names[best]} ({counts[best] / len(members):.0%})", facts

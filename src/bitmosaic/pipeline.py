"""READ FIRST: images -> features -> codes -> clusters -> run, as a few calls."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bitmosaic.errors import InvalidDataError, MissingFileError
from bitmosaic.extraction import DEFAULT_VIEWS, RECIPE, SKIPPED, ViewSpec, extract_views, usual_side, view_specs
from bitmosaic.features import extract as extract_features
from bitmosaic.files import whole_file, write_whole
from bitmosaic.hsic import HSIC
from bitmosaic.images import display_path, open_images
from bitmosaic.metrics import clustering_scores
from bitmosaic.run import Run, write_tables
from bitmosaic.sheets import contact_sheet, overview
from bitmosaic.views import Views, read_views

N_CENTRAL, N_FAR, N_OVERVIEW, MAX_SHEETS = 60, 12, 12, 200

Progress = Callable[[str, int, int], None]


def quiet(stage: str, done: int, total: int) -> None:
    """Progress that nobody looks at."""


def cluster(
    src: Any,
    out: Any,
    n_clusters: int,
    *,
    views: Sequence[str | ViewSpec] = DEFAULT_VIEWS,
    mirror: bool = False,
    labels: str | None = None,
    max_side: int | None = None,
    seed: int = 0,
    memory_limit: str | int | None = None,
    n_threads: int | None = None,
    strict: bool = False,
    progress: Progress = quiet,
) -> Run:
    """Pictures -> a run folder. A run that was stopped goes on where it was; a finished one is returned as it is."""
    specs = view_specs(views, mirror)
    max_side = max_side or usual_side(specs)
    source = open_images(src)
    arguments = {
        "source": display_path(str(Path(source.name).resolve())),
        "clusters": n_clusters,
        "views": [spec.recipe() for spec in specs],
        "labels": labels,
        "max_side": max_side,
        "seed": seed,
    }
    run = Run.begin(out, arguments)
    if run.complete:
        return run
    start = time.perf_counter()
    table = extract_views(
        source,
        run.folder / "views",
        specs,
        labels=labels,
        max_side=max_side,
        n_threads=n_threads,
        strict=strict,
        progress=lambda done, total: progress("extracting features", done, total),
    )
    skipped = (run.folder / "views" / SKIPPED).read_bytes()
    write_whole(run.folder / SKIPPED, skipped)
    if not run.done("extract"):
        run.finish("extract", time.perf_counter() - start, images=table.n_rows, skipped=len(source) - table.n_rows)
    return _cluster_views(run, table, source, n_clusters, seed, memory_limit, n_threads, progress)


def fit(
    views_folder: Any,
    out: Any,
    n_clusters: int,
    *,
    seed: int = 0,
    memory_limit: str | int | None = None,
    n_threads: int | None = None,
    progress: Progress = quiet,
) -> Run:
    """A views folder (or any file that `read_views` reads) -> a run folder. Pictures are drawn if they can be found."""
    table = read_views(views_folder)
    where = str(Path(views_folder).resolve())
    run = Run.begin(out, {"views_folder": where, "clusters": n_clusters, "seed": seed})
    if run.complete:
        return run
    if not run.done("extract"):
        run.finish("extract", 0.0, images=table.n_rows, skipped=0, views_folder=where)
    return _cluster_views(run, table, find_source(Path(where)), n_clusters, seed, memory_limit, n_threads, progress)


def find_source(views_folder: Path):
    """The pictures behind a views folder, None if they are not known or not there any more."""
    try:
        return open_images(json.loads((views_folder / RECIPE).read_text())["source"])
    except (OSError, ValueError, KeyError, NotADirectoryError):
        return None


def _cluster_views(run, table, source, n_clusters, seed, memory_limit, n_threads, progress):
    if not run.done("fit"):
        start = time.perf_counter()
        model = HSIC(n_clusters, memory_limit=memory_limit, n_threads=n_threads, random_state=seed)
        model.fit(table, progress=lambda done, total: progress("learning codes and clusters", done, total))
        model.save(run.folder / "model.safetensors")
        weights = dict(zip(model.view_names_, model.view_weights_.round(4).tolist(), strict=True))
        run.finish("fit", time.perf_counter() - start, view_weights=weights, iterations=model.n_iter_)
    if not run.done("tables"):
        start = time.perf_counter()
        facts = write_results(run, table)
        run.finish("tables", time.perf_counter() - start, **facts)
    if not run.done("pictures"):
        start = time.perf_counter()
        drawn = draw_clusters(run, table, source, progress) if source is not None else 0
        run.finish("pictures", time.perf_counter() - start, sheets=drawn)
    return run


def write_results(run: Run, table: Views) -> dict[str, Any]:
    """Tables of every image and its cluster; returns what the manifest says of them."""
    labels, distance, margin = run.model._model.nearest_two(run.model.codes_)
    run.write_columns(codes=run.model.codes_, labels=labels, distances=distance)
    columns = {
        "path": [display_path(path) for path in run.paths],
        "cluster": labels,
        "distance": distance,
        "margin": margin,
    }
    sizes = np.bincount(labels, minlength=run.model.n_clusters)
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


def draw_clusters(run: Run, table: Views, source, progress: Progress) -> int:
    """The overview, and a contact sheet for each of the largest clusters; returns how many sheets."""
    labels, distances = run.column("labels"), run.column("distances")
    position = {path: i for i, path in enumerate(source.paths)}
    sizes = np.array(run.manifest["sizes"])
    chosen = []
    for cluster_number in np.argsort(-sizes, kind="stable")[:MAX_SHEETS]:
        members = np.flatnonzero(labels == cluster_number)
        members = members[np.argsort(distances[members], kind="stable")]
        near = members[:N_CENTRAL]
        chosen.append((int(cluster_number), members, near, members[len(near) :][-N_FAR:]))
    rows = {int(row) for _, _, near, far in chosen for row in (*near, *far)}
    positions = {row: position[run.paths[row]] for row in rows if run.paths[row] in position}
    images = source.read_many(positions.values(), max_side=256)
    shown = {row: images[p] for row, p in positions.items() if p in images}

    (run.folder / "clusters").mkdir(exist_ok=True)
    lines = []
    for number, (cluster_number, members, near, far) in enumerate(chosen):
        name, facts = describe(cluster_number, members, distances, table.labels)
        pictures = [shown[row] for row in near if row in shown]
        sheet = contact_sheet(name, facts, pictures, [shown[row] for row in far if row in shown])
        with whole_file(run.folder / "clusters" / f"{cluster_number:04d}.jpg") as file:
            sheet.save(file, "JPEG", quality=88)
        lines.append((name, facts, pictures[:N_OVERVIEW]))
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
    return f"Cluster {number}: {names[best]} {counts[best] / len(members):.0%}", facts


def predict(
    run: Run, src: Any, *, n_threads: int | None = None, strict: bool = False, progress: Progress = quiet
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """New pictures into the clusters of a run: a table (path, cluster, distance, margin, confidence), and the skipped.

    The confidence is 1 - distance / distance of the second cluster: 0 where two are equally near, 1 on a center.
    """
    recipe = run_recipe(run)
    specs = [ViewSpec(view["name"], view["extractor"], view["options"]) for view in recipe["views"]]
    source = open_images(src)
    extractors = [spec.open() for spec in specs]
    parts, paths, skipped = [], [], []
    for batch in source.batches(1024, 0, recipe["max_side"], n_threads, strict):
        skipped += [(s.path, s.cause) for _, s in batch.skipped]
        if len(batch.positions):
            features = extract_features(extractors, batch.images, n_threads)
            parts.append(run.model.nearest({s.name: f for s, f in zip(specs, features, strict=True)}))
            paths += [display_path(source.paths[i]) for i in batch.positions]
        progress("predicting", len(paths) + len(skipped), len(source))
    if not parts:
        raise InvalidDataError(f"At least one picture must be readable; none of {len(source)} was: {skipped[0][1]}.")
    labels, distance, margin = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    second = distance + margin
    confidence = np.where(second > 0, margin / np.maximum(second, 1e-9), 0).astype(np.float32)
    return {
        "path": paths,
        "cluster": labels,
        "distance": distance,
        "margin": margin,
        "confidence": confidence,
    }, skipped


def run_recipe(run: Run) -> dict[str, Any]:
    """How the features of a run were made."""
    path = run.views_folder / RECIPE
    if not path.is_file():
        raise MissingFileError(
            f"New pictures need the extractors of the run; {run.folder} was fitted on features of unknown making. "
            "Use HSIC.load(…).predict on features made in the same way."
        )
    return json.loads(path.read_text())


def evaluate(run: Run, labels: Any = "folder") -> dict[str, float]:
    """Scores of a run against true labels: "folder", a CSV with the columns path and label, or a .npy in row order."""
    return clustering_scores(true_labels(run, labels), run.column("labels"))


def true_labels(run: Run, labels: Any) -> np.ndarray:
    if isinstance(labels, str) and labels == "folder":
        if run.views.paths is None:
            raise InvalidDataError("Labels from folders need the paths of the images, and this run has none.")
        return np.array([Path(path).parent.name for path in run.paths])
    path = Path(labels)
    if not path.is_file():
        raise MissingFileError(f"Labels are 'folder', a .csv or a .npy file; there is no file {path}.")
    if path.suffix == ".csv":
        return _labels_from_csv(run, path)
    values = np.load(path, allow_pickle=False)
    if len(values) != len(run.paths):
        raise InvalidDataError(
            f"There must be one label for each of {len(run.paths)} images; {path} has {len(values)}."
        )
    return values


def _labels_from_csv(run: Run, path: Path) -> np.ndarray:
    import csv

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

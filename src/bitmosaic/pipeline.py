"""READ FIRST: images -> features -> codes -> clusters -> run, as a few calls."""

import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bitmosaic.adding import Added, add_to, growing, run_recipe
from bitmosaic.errors import InvalidDataError, StaleCheckpointError
from bitmosaic.estimate import Estimate
from bitmosaic.extraction import (
    BATCH,
    DEFAULT_VIEWS,
    RECIPE,
    SKIPPED,
    ViewSpec,
    as_json,
    check_labels,
    extract_views,
    fingerprint,
    skipped_csv,
    source_name,
    usual_side,
    view_specs,
)
from bitmosaic.features import extract as extract_features
from bitmosaic.files import copy_whole, locked, remove, remove_unfinished, write_whole, writing
from bitmosaic.hsic import HSIC
from bitmosaic.images import ImageSource, Progress, display_path, open_images, quiet
from bitmosaic.metrics import clustering_scores
from bitmosaic.places import as_path, check_output, refuse_special
from bitmosaic.refitting import refit as refit
from bitmosaic.results import draw_clusters, write_counts, write_results
from bitmosaic.run import CHECKPOINT, TABLE_WRITERS, AnyRun, Run, as_run, write_tables
from bitmosaic.run_pictures import RunPictures
from bitmosaic.scale.views import dask_views
from bitmosaic.true_labels import true_labels
from bitmosaic.views import Views, read_views, views_fingerprint
from bitmosaic.worker_extraction import extract_on_workers

if TYPE_CHECKING:
    from distributed import Client

PREDICTIONS = "predictions"


def cluster(
    src: Any,
    out: Any,
    n_clusters: int | str,
    *,
    views: Sequence[str | ViewSpec] = DEFAULT_VIEWS,
    mirror: bool = True,
    labels: str | None = None,
    max_side: int | None = None,
    seed: int = 0,
    memory_limit: str | int | None = None,
    n_threads: int | None = None,
    strict: bool = False,
    progress: Progress = quiet,
    client: "Client | None" = None,
) -> Run:
    """Pictures -> a run folder. A run that was stopped goes on where it was; a finished one is returned as it is.

    `n_clusters` is a number, or "auto".
    Hand-made features are blind to left and right: say `mirror=False` where these matter, as in text and digits.
    With the `client` of a Dask cluster, its workers extract, encode and cluster; they must see `src` and `out`.
    """
    specs = view_specs(views, mirror)
    max_side = max_side or usual_side(specs)
    source = open_images(src, progress)
    check_labels(source, labels)
    model = HSIC(n_clusters, memory_limit=memory_limit, n_threads=n_threads, random_state=seed)
    widths = [spec.open().width for spec in specs]
    model.check(len(source), widths, n_here=None if client is None else 0)
    arguments = {
        "source": source_name(source),
        "pictures": len(source),
        "fingerprint": fingerprint(source),
        "clusters": n_clusters,
        "views": [spec.recipe() for spec in specs],
        "labels": labels,
        "max_side": max_side,
        "seed": seed,
    }
    with Run.at_work(out, as_json(arguments)) as run:
        if not run.complete:
            start = time.perf_counter()
            table = extract(
                source,
                run.folder / "views",
                specs,
                labels=labels,
                max_side=max_side,
                n_threads=n_threads,
                strict=strict,
                progress=progress,
                client=client,
            )
            copy_whole(run.folder / "views" / SKIPPED, run.folder / SKIPPED)
            if not run.done("extract"):
                skipped = len(source) - table.n_rows
                run.finish("extract", time.perf_counter() - start, images=table.n_rows, skipped=skipped)
            _cluster_views(run, table, RunPictures(run, source), model, progress, client)
    if strict and run.manifest["skipped"]:
        raise InvalidDataError(
            f"With strict, every picture must be readable; {run.manifest['skipped']} of this run are not. "
            f"{run.folder / SKIPPED} has the causes."
        )
    return run


def extract(
    src: Any,
    out: Any,
    views: Sequence[str | ViewSpec] = DEFAULT_VIEWS,
    *,
    mirror: bool = True,
    labels: str | None = None,
    max_side: int | None = None,
    n_threads: int | None = None,
    strict: bool = False,
    progress: Progress = quiet,
    client: "Client | None" = None,
) -> Views:
    """Pictures -> a views folder, here or on the workers of a cluster: the same features either way."""
    here = partial(extract_views, n_threads=n_threads)
    how = here if client is None else partial(extract_on_workers, client)
    return how(src, out, views, mirror=mirror, labels=labels, max_side=max_side, strict=strict, progress=progress)


def fit(
    views_folder: Any,
    out: Any,
    n_clusters: int | str,
    *,
    seed: int = 0,
    memory_limit: str | int | None = None,
    n_threads: int | None = None,
    progress: Progress = quiet,
    client: "Client | None" = None,
) -> Run:
    """A views folder (or any file that `read_views` reads) -> a run folder. Pictures are drawn if they can be found.

    With the `client` of a Dask cluster, its workers read the views, by the same path, and do the work.
    """
    where = find_views(views_folder)
    table = read_views(where)
    model = HSIC(n_clusters, memory_limit=memory_limit, n_threads=n_threads, random_state=seed)
    model.check(table.n_rows, table.widths, n_here=None if client is None else 0)
    shape = [table.n_rows, *table.widths]
    made_of = {"views_folder": str(where), "shape": shape, "fingerprint": views_fingerprint(where)}
    arguments = made_of | {"clusters": n_clusters, "seed": seed}
    with Run.at_work(out, arguments) as run:
        if not run.complete:
            if not run.done("extract"):
                run.finish("extract", 0.0, images=table.n_rows, skipped=0, views_folder=str(where))
            _cluster_views(run, table, RunPictures(run, None, progress), model, progress, client)
    return run


def plan(
    views_folder: Any,
    n_clusters: int | str,
    *,
    preset: str = "default",
    memory_limit: str | int | None = None,
    n_threads: int | None = None,
) -> Estimate:
    """What `fit` would take: time, memory and disk, from a calibration of a few seconds."""
    table = read_views(find_views(views_folder))
    model = HSIC(n_clusters, preset=preset, memory_limit=memory_limit, n_threads=n_threads)
    return model.estimate(table.n_rows, dict(zip(table.names, table.widths, strict=True)))


def find_views(path: Any) -> Path:
    """The views folder of a run folder; any other path as it is."""
    where = Path(os.path.realpath(as_path(path, "Views")))  # Path.resolve fails where a link leads to itself
    return where / "views" if (where / "views" / RECIPE).is_file() else where


def _cluster_views(run, table, pictures, model, progress, client):
    if not run.done("fit"):
        start = time.perf_counter()
        views = table if client is None else dask_views(run.views_folder)
        with warnings.catch_warnings():  # the manifest and the chart say it
            warnings.filterwarnings("ignore", "The number of clusters is not clear")
            fit_on = partial(model.fit, views, progress=partial(progress, "learning codes and clusters"))
            try:
                fit_on(checkpoint=run.folder / CHECKPOINT if client is None else None)
            except StaleCheckpointError:  # after an upgrade, on another processor, or damaged
                remove(run.folder / CHECKPOINT)
                fit_on(checkpoint=run.folder / CHECKPOINT)
        model.save(run.folder / "model.safetensors")
        weights = dict(zip(model.view_names_, model.view_weights_.round(4).tolist(), strict=True))
        facts = {"view_weights": weights, "iterations": model.n_iter_}
        if model.cluster_counts_ is not None:
            facts["how_many"] = write_counts(run, model.cluster_counts_)
        run.finish("fit", time.perf_counter() - start, **facts)
    remove(run.folder / CHECKPOINT, gently=True)
    if not run.done("tables"):
        start = time.perf_counter()
        facts = write_results(run, table)
        run.finish("tables", time.perf_counter() - start, **facts)
    if not run.done("pictures"):
        start = time.perf_counter()
        drawn = draw_clusters(run, table, pictures, progress) if pictures.available else 0
        run.finish("pictures", time.perf_counter() - start, sheets=drawn)


def add(
    run: AnyRun,
    src: Any,
    *,
    update: bool = False,
    n_threads: int | None = None,
    strict: bool = False,
    progress: Progress = quiet,
) -> Added:
    """New pictures into a finished run: encoded and assigned in one pass, those it has already recognised.

    `src` is a source of pictures, or views with the names and columns of the run's. The run's own files are not
    rewritten: each addition is a folder of its own, and an `add` that was stopped goes on where it was. `update` moves
    each center to the majority of all codes that were ever assigned to it; pictures keep the cluster they have.
    """
    with growing(as_run(run)) as run:
        return add_to(run, src, update, n_threads, strict, progress)


def predict(
    run: AnyRun,
    src: Any,
    out: Any = None,
    *,
    n_threads: int | None = None,
    strict: bool = False,
    progress: Progress = quiet,
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """New pictures into the clusters of a run: a table (path, cluster, distance, margin, confidence), and the skipped.

    The confidence is 1 - distance / distance of the second cluster: 0 where two are equally near, 1 on a center.
    With a folder `out`, both are written there, as predictions.csv and .parquet and as skipped.csv.
    """
    run = as_run(run)
    if out is None:
        return _predict(run, src, n_threads, strict, progress)
    out = as_path(out, "A folder for predictions")
    if (out / "manifest.json").exists():
        raise InvalidDataError(f"Predictions go into a folder without a run or views; {out} has some. Choose another.")
    check_output(out, run.folder, is_folder=True)
    names = (*(f"{PREDICTIONS}.{kind}" for kind in TABLE_WRITERS), SKIPPED)
    for name in names:
        refuse_special(out / name)
    with locked(out):
        remove_unfinished(out, below=False)
        table, skipped = _predict(run, src, n_threads, strict, progress)
        with writing(out):  # so that those of other pictures do not stand beside new ones
            for name in names:
                (out / name).unlink(missing_ok=True)
        write_tables(out, table, PREDICTIONS)
        write_whole(out / SKIPPED, skipped_csv(skipped))
    return table, skipped


def _predict(
    run: Run, src: Any, n_threads: int | None, strict: bool, progress: Progress
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    encoded = encode_pictures(run, src, "predicting", n_threads, strict, progress)
    labels, distance, margin = run.nearest_of_codes(encoded.codes)
    second = distance + margin
    confidence = np.where(second > 0, margin / np.maximum(second, 1e-9), 0).astype(np.float32)
    return {
        "path": encoded.names,
        "cluster": labels,
        "distance": distance,
        "margin": margin,
        "confidence": confidence,
    }, encoded.skipped


@dataclass(frozen=True)
class Encoded:
    """Pictures as the codes of a run's model."""

    source: ImageSource
    positions: list[int]  # of those that could be read, in the source
    codes: np.ndarray  # (n, b) uint8
    skipped: list[tuple[str, str]]  # paths and causes

    @property
    def names(self) -> list[str]:
        """Printable paths."""
        return [display_path(self.source.paths[i]) for i in self.positions]


def encode_pictures(run: Run, src: Any, stage: str, n_threads: int | None, strict: bool, progress: Progress) -> Encoded:
    """New pictures, encoded as those of the run were."""
    specs, max_side = run_views(run)
    source = open_images(src, progress)
    extractors = [spec.open() for spec in specs]
    codes: list[np.ndarray] = []
    positions: list[int] = []
    skipped: list[tuple[str, str]] = []
    for batch in source.batches(BATCH, 0, max_side, n_threads, strict):
        skipped += [(s.path, s.cause) for _, s in batch.skipped]
        if len(batch.positions):
            features = extract_features(extractors, batch.images, n_threads)
            codes.append(run.model.transform({s.name: f for s, f in zip(specs, features, strict=True)}))
            positions += batch.positions.tolist()
        progress(stage, len(positions) + len(skipped), len(source))
    if not codes:
        raise InvalidDataError(f"At least one picture must be readable; none of {len(source)} was: {skipped[0][1]}.")
    return Encoded(source, positions, np.concatenate(codes), skipped)


def run_views(run: Run) -> tuple[list[ViewSpec], int]:
    """The views of a run, checked to be made as they were, and the size of their pictures."""
    recipe = run_recipe(run)
    specs = [ViewSpec.again(view) for view in recipe["views"]]
    return specs, recipe["max_side"]


def evaluate(run: AnyRun, labels: Any = "folder") -> dict[str, float]:
    """Scores of a run against true labels: "folder", a CSV with the columns path and label, or a .npy in row order.

    Or labels in memory: an array or a list in row order.
    """
    run = as_run(run)
    return clustering_scores(true_labels(run, labels), run.column("labels"))

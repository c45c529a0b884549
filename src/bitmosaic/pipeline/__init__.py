"""READ FIRST: images -> features -> codes -> clusters -> a run folder.

Make a run:
    cluster          images -> run: `extract`, then fit, tables and contact sheets
    extract          images -> views folder (features)
    fit              views folder -> run, without images
    plan             the time, memory and disk that `fit` will need

Use a run:
    predict          the clusters of new images
    evaluate         scores against true labels
    search           the nearest images of a query
    find_duplicates, find_outliers, draw_sample   curate its images

Let a run grow:
    add              new images into its clusters
    refit            learn codes and clusters again, from all images
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bitmosaic.errors import InvalidDataError
from bitmosaic.estimators.dask import dask_views
from bitmosaic.estimators.estimate import Estimate
from bitmosaic.estimators.hsic import HSIC
from bitmosaic.images import Progress, quiet
from bitmosaic.io.files import (
    check_output,
    copy_whole,
    locked,
    refuse_special,
    remove_unfinished,
    write_whole,
    writing,
)
from bitmosaic.pipeline.adding import Added, add
from bitmosaic.pipeline.curation import draw_sample, find_outliers
from bitmosaic.pipeline.duplicates import find_duplicates
from bitmosaic.pipeline.extraction import (
    DEFAULT_VIEWS,
    SKIPPED,
    Extraction,
    ExtractOptions,
    ViewSpec,
    as_json,
    encode_images,
    skipped_csv,
)
from bitmosaic.pipeline.extraction_workers import extract_on_workers
from bitmosaic.pipeline.refitting import refit
from bitmosaic.pipeline.searching import search
from bitmosaic.pipeline.stages import fit_model, fit_stage, scores_of, sheets_stage, tables_stage, true_labels
from bitmosaic.run.folder import AnyRun, Run, as_run
from bitmosaic.run.images import RunImages
from bitmosaic.run.tables import image_table, table_names, write_tables
from bitmosaic.solver.n_clusters import ClusterCounts
from bitmosaic.solver.train import memory_needs
from bitmosaic.views import Views, read_views, views_signature
from bitmosaic.views.folder import RECIPE

if TYPE_CHECKING:
    from distributed import Client

__all__ = [
    "DEFAULT_VIEWS",
    "Added",
    "Progress",
    "Run",
    "ViewSpec",
    "add",
    "cluster",
    "draw_sample",
    "evaluate",
    "extract",
    "find_duplicates",
    "find_outliers",
    "find_views",
    "fit",
    "plan",
    "predict",
    "quiet",
    "read_views",
    "refit",
    "search",
]

PREDICTIONS = "predictions"


# ---- make a run


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
    """Cluster images into a run folder. An interrupted run is resumed; a finished one is returned as it is.

    `n_clusters` is a number, or "auto".
    Hand-made features ignore left and right: use `mirror=False` where these matter, as in text and digits.
    With the `client` of a Dask cluster, its workers extract, encode and cluster; they need access to `src` and `out`.
    """
    folder = Path(out)
    folder = folder if client is None else folder.absolute()
    options = ExtractOptions(views, mirror, labels, max_side, n_threads, strict)
    job = Extraction.prepare(src, folder / "views", options, progress)
    model = HSIC(n_clusters, memory_limit=memory_limit, n_threads=n_threads, random_state=seed)
    widths = [spec.open().width for spec in options.specs]
    _check_model(model, len(job.source), widths, client)
    with Run.at_work(folder, as_json(job.recipe | {"clusters": n_clusters, "seed": seed})) as run:
        if not run.complete:
            start = time.perf_counter()
            features = _extract(job, client, progress)
            copy_whole(job.out / SKIPPED, run.folder / SKIPPED)
            if not run.done("extract"):
                with run.stage("extract", start) as facts:
                    facts |= {"images": features.n_rows, "skipped": len(job.source) - features.n_rows}
            _cluster_views(run, features, RunImages(run, job.source), model, progress, client)
    if strict and run.manifest.skipped:
        raise InvalidDataError(
            f"With strict, every image must be readable; {run.manifest.skipped} of this run are not. "
            f"Their causes are in {run.folder / SKIPPED}."
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
    """Extract features of images into a views folder, here or on Dask workers, with the same result."""
    options = ExtractOptions(views, mirror, labels, max_side, n_threads, strict)
    return _extract(Extraction.prepare(src, out, options, progress), client, progress)


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
    """Cluster a views folder, or any file that `read_views` reads, into a run folder.

    Contact sheets are drawn if the images can be found.
    With the `client` of a Dask cluster, its workers read the views, by the same path, and do the work.
    """
    where = find_views(views_folder)
    views = read_views(where)
    model = HSIC(n_clusters, memory_limit=memory_limit, n_threads=n_threads, random_state=seed)
    _check_model(model, views.n_rows, views.widths, client)
    shape = [views.n_rows, *views.widths]
    made_of = {"views_folder": str(where), "shape": shape, "fingerprint": views_signature(where)}
    arguments = made_of | {"clusters": n_clusters, "seed": seed}
    with Run.at_work(out, arguments) as run:
        if not run.complete:
            if not run.done("extract"):
                with run.stage("extract") as facts:
                    facts |= {"images": views.n_rows, "views_folder": str(where)}
            _cluster_views(run, views, RunImages(run, None, progress), model, progress, client)
    return run


def plan(
    views_folder: Any,
    n_clusters: int | str,
    *,
    preset: str = "default",
    memory_limit: str | int | None = None,
    n_threads: int | None = None,
) -> Estimate:
    """Estimate the time, memory and disk that `fit` will need, from a calibration of a few seconds."""
    views = read_views(find_views(views_folder))
    model = HSIC(n_clusters, preset=preset, memory_limit=memory_limit, n_threads=n_threads)
    return model.estimate(views.n_rows, dict(zip(views.names, views.widths, strict=True)))


def find_views(path: Any) -> Path:
    """The views folder of a run folder; any other path as it is."""
    where = Path(os.path.realpath(path))  # Path.resolve fails where a link leads to itself
    return where / "views" if (where / "views" / RECIPE).is_file() else where


def _check_model(model: HSIC, n_rows: int, widths: Sequence[int], client: "Client | None") -> None:
    """Refuse bad parameters and a memory limit that is too low, before anything is computed."""
    options = model.check(n_rows)
    n_here = n_rows if client is None else 0  # on a cluster, the workers hold the rows
    memory_needs(widths, options, n_here).plan(options.memory_limit, options.n_threads)


def _extract(job: Extraction, client: "Client | None", progress: Progress) -> Views:
    return job.run(job.batches, progress) if client is None else extract_on_workers(client, job, progress)


def _cluster_views(
    run: Run, views: Views, images: RunImages, model: HSIC, progress: Progress, client: "Client | None"
) -> None:
    """The stages after the extraction."""

    def fitted() -> tuple[HSIC, ClusterCounts | None]:
        to_fit = views if client is None else dask_views(run.views_folder)
        fit_model(run, model, to_fit, progress, keep_checkpoint=client is None)
        return model, model.cluster_counts_

    fit_stage(run, fitted)
    tables_stage(run, views)
    sheets_stage(run, views, images, progress)


# ---- use a run


def predict(
    run: AnyRun,
    src: Any,
    out: Any = None,
    *,
    n_threads: int | None = None,
    strict: bool = False,
    progress: Progress = quiet,
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Assign new images to the clusters of a run.

    Returns a table (path, cluster, distance, margin, confidence), and the skipped images with their causes.
    The confidence is 1 - distance / distance of the second cluster: 0 for two equally near clusters, 1 on a center.
    With a folder `out`, both are written there, as predictions.csv and .parquet and as skipped.csv.
    """
    run = as_run(run)
    if out is None:
        return _predict(run, src, n_threads, strict, progress)
    out = Path(out)
    if (out / "manifest.json").exists():
        raise InvalidDataError(f"Predictions go into a folder without a run or views; {out} has some. Choose another.")
    check_output(out, run.folder, is_folder=True)
    with locked(out):
        remove_unfinished(out, below=False)
        table, skipped = _predict(run, src, n_threads, strict, progress)
        with writing(out):  # if this is interrupted, no old table may remain beside a new one
            for name in (*table_names(PREDICTIONS), SKIPPED):
                refuse_special(out / name)
                (out / name).unlink(missing_ok=True)
        write_tables(out, table, PREDICTIONS)
        write_whole(out / SKIPPED, skipped_csv(skipped))
    return table, skipped


def _predict(
    run: Run, src: Any, n_threads: int | None, strict: bool, progress: Progress
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    encoded = encode_images(run, src, "predicting", n_threads, strict, progress)
    labels, distance, margin = run.nearest_of_codes(encoded.codes)
    second = distance + margin
    confidence = np.where(second > 0, margin / np.maximum(second, 1e-9), 0).astype(np.float32)
    table = image_table(path=encoded.names, cluster=labels, distance=distance, margin=margin, confidence=confidence)
    return table, encoded.skipped


def evaluate(run: AnyRun, labels: Any = "folder") -> dict[str, float]:
    """Score a run against true labels.

    `labels`: "folder", a CSV with the columns path and label, a .npy in row order, or an array or list in row order.
    """
    run = as_run(run)
    return scores_of(true_labels(run, labels), run.column("labels"))

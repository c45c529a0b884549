"""From images to clusters: cluster, extract, fit, predict, evaluate, info, demo."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bitmosaic.cli.grow import additions_as_json, print_additions
from bitmosaic.cli.options import (
    Clusters,
    ExtractionOptions,
    FitOptions,
    Json,
    Memory,
    RunFolder,
    Scheduler,
    Source,
    Strict,
    Threads,
    Workers,
    given,
    takes,
)
from bitmosaic.cli.terminal import counted, progress_bars, say, say_fields


@takes(ExtractionOptions, FitOptions)
def cluster(
    src: Source,
    clusters: Clusters,
    out: Annotated[Path, typer.Option(help="The run folder. An interrupted run in it is resumed.")] = Path("run"),
    *,
    scheduler: Scheduler = None,
    workers: Workers = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Cluster images: features, codes, clusters, tables and contact sheets in a run folder."""
    from bitmosaic import pipeline
    from bitmosaic.cli.dask_client import connected

    with progress_bars() as progress, connected(scheduler, workers) as client:
        run = pipeline.cluster(src, out, clusters, **given(options), progress=progress, client=client)
    print_run(run, as_json)


@takes(ExtractionOptions)
def extract(
    src: Source,
    out: Annotated[Path, typer.Option(help="The views folder. An interrupted extraction in it is resumed.")],
    *,
    scheduler: Scheduler = None,
    workers: Workers = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Extract features of images into a views folder."""
    from bitmosaic import pipeline
    from bitmosaic.cli.dask_client import connected

    with progress_bars() as progress, connected(scheduler, workers) as client:
        views = pipeline.extract(src, out, **given(options), progress=progress, client=client)
    widths = dict(zip(views.names, views.widths, strict=True))
    if as_json:
        typer.echo(json.dumps({"views": widths, "images": views.n_rows, "folder": str(out)}))
        return
    say(f"{counted(views.n_rows, 'image')}, views: {', '.join(f'{name} ({width})' for name, width in widths.items())}")
    say(f"Next: bitmosaic fit {out} --clusters K --out run")


@takes(FitOptions)
def fit(
    views: Annotated[Path, typer.Argument(help="A views folder, or a .npz, .mat, HDF5 or Parquet file of views.")],
    clusters: Clusters,
    out: Annotated[Path, typer.Option(help="The run folder. An interrupted run in it is resumed.")] = Path("run"),
    *,
    scheduler: Scheduler = None,
    workers: Workers = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Cluster views: codes, clusters, tables and contact sheets in a run folder."""
    from bitmosaic import pipeline
    from bitmosaic.cli.dask_client import connected

    with progress_bars() as progress, connected(scheduler, workers) as client:
        run = pipeline.fit(views, out, clusters, **given(options), progress=progress, client=client)
    print_run(run, as_json)


def predict(
    run: RunFolder,
    src: Source,
    out: Annotated[
        Path | None,
        typer.Option(help="Write predictions.csv and .parquet into this folder.", show_default="print them"),
    ] = None,
    threads: Threads = None,
    strict: Strict = False,
    as_json: Json = False,
) -> None:
    """Assign new images to the clusters of a run, with a confidence from 0 to 1. The run does not change."""
    from bitmosaic import pipeline
    from bitmosaic.run.folder import Run

    with progress_bars(resumes=False) as progress:
        table, skipped = pipeline.predict(Run(run), src, out, n_threads=threads, strict=strict, progress=progress)
    keys = ("path", "cluster", "distance", "margin", "confidence")
    rows = zip(table["path"], *(table[name].tolist() for name in keys[1:]), strict=True)
    if as_json:
        predictions = [dict(zip(keys, row, strict=True)) for row in rows]
        causes = [{"path": path, "cause": cause} for path, cause in skipped]
        typer.echo(json.dumps({"predictions": predictions, "skipped": causes}))
        return
    if out:
        say(f"Clusters of {counted(len(table['path']), 'new image')}: {out / 'predictions.csv'} (and .parquet)")
    else:
        say_fields("cluster", "confidence", "path")
        for path, number, _, _, confidence in rows:
            say_fields(number, f"{confidence:.2f}", path)
    for path, cause in skipped:
        say(f"skipped {path}: {cause}", fg="yellow", err=True)


def evaluate(
    run: RunFolder,
    labels: Annotated[
        str, typer.Option(help="'folder', a .csv with the columns path and label, or a .npy.")
    ] = "folder",
    as_json: Json = False,
) -> None:
    """Score the clusters of a run against true labels."""
    from bitmosaic import pipeline
    from bitmosaic.run.folder import Run

    scores = pipeline.evaluate(Run(run), labels)
    typer.echo(json.dumps(scores) if as_json else _scores_line(scores))


def info(
    path: Annotated[
        Path | None,
        typer.Argument(help="A run folder, or with --plan a views folder or file."),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Estimate the time, memory and disk space of a fit of these views.")
    ] = False,
    clusters: Annotated[int, typer.Option("--clusters", "-c", min=1, help="With --plan: number of clusters.")] = 10,
    preset: Annotated[str, typer.Option(help="With --plan: default or fast, as in HSIC(preset=…).")] = "default",
    memory_limit: Memory = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Show what a run folder holds, estimate a fit (--plan), or show this installation.

    A plan times the solver for a few seconds on random data of the same size. It does not include the time to read
    the views from a cold disk.
    """
    from bitmosaic.errors import ParameterError

    if plan:
        from bitmosaic import pipeline

        if path is None:
            raise ParameterError("--plan needs views. Usage: bitmosaic info VIEWS --plan --clusters K")
        estimate = pipeline.plan(path, clusters, preset=preset, memory_limit=memory_limit, n_threads=threads)
        typer.echo(json.dumps(estimate.as_json()) if as_json else str(estimate))
        return
    if path is not None and path.is_file():
        raise ParameterError(f"info needs a run folder; {path} is a file. For a file of views, add --plan.")
    if path is not None:
        from bitmosaic.run.folder import Run

        print_run(Run(path), as_json)
        return
    import platform

    from bitmosaic import __version__
    from bitmosaic.features import extractor_names
    from bitmosaic.io.threads import available_threads

    facts = {
        "bitmosaic": __version__,
        "python": platform.python_version(),
        "threads": available_threads(),
        "extractors": extractor_names(),
    }
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        for name, value in facts.items():
            typer.echo(f"{name:12}{', '.join(value) if isinstance(value, list) else value}")


def demo(
    out: Annotated[Path, typer.Option(help="The folder for the images and the run.")] = Path("bitmosaic-demo"),
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
) -> None:
    """Cluster the handwritten digits that come with scikit-learn, from image files to a run folder."""
    from bitmosaic.pipeline.demo import run_demo

    with progress_bars() as progress:
        run = run_demo(out, seed, progress)
    features = 4 * run.manifest.images * sum(run.views.widths)
    print_run(run, as_json=False)
    typer.echo(f"{run.model.codes_.nbytes / 1000:.0f} kB of codes replace {features / 1e6:.0f} MB of features.")
    say(f"Next: bitmosaic predict {run.folder} IMAGES, or bitmosaic cluster IMAGES --clusters 10")


def _scores_line(scores: dict[str, float]) -> str:
    names = {"acc": "ACC", "nmi": "NMI", "purity": "purity", "f_score": "F-score"}
    return "   ".join(f"{name} {scores[key]:.3f}" for key, name in names.items())


def print_run(run: Any, as_json: bool) -> None:
    """Print a summary of a run, finished or not."""
    from bitmosaic.estimators.estimate import in_time

    manifest = run.manifest
    if as_json:
        about = {"folder": str(run.folder), "complete": run.complete}
        typer.echo(json.dumps(about | manifest.as_json() | additions_as_json(run)))
        return
    seconds = ", ".join(f"{stage} {in_time(value)}" for stage, value in manifest.seconds.items())
    images = run.n_fitted if run.complete else manifest.images
    n_clusters = len(set(run.ids.tolist())) if run.complete else manifest.arguments["clusters"]
    say(f"{images:,} images, {n_clusters} clusters" + (f"; time: {seconds}" if seconds else ""))
    if not run.complete:
        say("The run was interrupted. Run the same command again to resume.")
        return
    if manifest.how_many:
        say(f"Number of clusters: {manifest.how_many['words']}, see {run.folder / 'how-many.png'}")
    if manifest.skipped:
        say(f"Skipped {counted(manifest.skipped, 'unreadable image')}: {run.folder / 'skipped.csv'}")
    weights = ", ".join(f"{name} {weight:.2f}" for name, weight in manifest.view_weights.items())
    say(f"View weights: {weights}")
    if manifest.scores:
        say(f"Against the true labels: {_scores_line(manifest.scores)}")
    if manifest.sheets:
        say(f"Overview: {run.folder / 'overview.png'}; contact sheets: {run.folder / 'clusters'}")
    say(f"Cluster of every image: {run.folder / 'clusters.csv'} (and .parquet)")
    print_additions(run)
    say(f"Explore and edit: bitmosaic explore {run.folder}")

"""The command line: a command parses, calls and prints. Heavy imports stay inside the commands."""

import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bitmosaic import curation_commands as curation
from bitmosaic import growth_commands as growth
from bitmosaic import refit_commands, search_commands
from bitmosaic.bench.living_commands import bench
from bitmosaic.cli_options import (
    Clusters,
    Labels,
    MaxSide,
    Memory,
    Mirror,
    Scheduler,
    Seed,
    Source,
    Strict,
    Threads,
    ViewNames,
    Workers,
)
from bitmosaic.explorer import commands as explorer
from bitmosaic.explorer.commands import Json, RunFolder, say

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Cluster millions of images on one ordinary machine: every image becomes 16 bytes.",
)
app.add_typer(bench, name="bench")


def main() -> None:
    """Run a command; what the user can cause ends in one line and exit code 1."""
    from bitmosaic.errors import BitmosaicError

    for stream in (sys.stdout, sys.stderr):  # letters that a terminal does not have are no reason to stop
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # workers import nothing from the current folder: others may fill it
    try:
        app()
    except (BitmosaicError, OSError, MemoryError) as error:
        from bitmosaic.images import printable

        typer.secho(f"Error: {printable(_in_words(error))}", fg="red", err=True)
        sys.exit(1)


def _in_words(error: Exception) -> str:
    from bitmosaic.errors import BitmosaicError

    if isinstance(error, BitmosaicError):
        return re.sub(r"\[Errno -?\d+\] ", "", str(error))  # numbers of the system, in the causes of some
    if isinstance(error, OSError):
        where = "A file" if error.filename is None else os.fsdecode(error.filename)
        cause = error.strerror or error
        return f"{where} cannot be read or written ({cause}). Check the path, its permissions and the room on the disk."
    return "There must be enough memory; it did not suffice. Free some, or set a smaller --memory-limit."


def _show_version(wanted: bool) -> None:
    if wanted:
        from bitmosaic import __version__

        typer.echo(f"bitmosaic {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def cluster(
    src: Source,
    clusters: Clusters,
    out: Annotated[Path, typer.Option(help="The run folder. A run that was stopped there goes on.")] = Path("run"),
    view: ViewNames = None,
    mirror: Mirror = True,
    labels: Labels = None,
    max_side: MaxSide = None,
    seed: Seed = 0,
    memory_limit: Memory = None,
    threads: Threads = None,
    strict: Strict = False,
    scheduler: Scheduler = None,
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """Pictures -> clusters to look at: features, codes, clusters, tables and contact sheets in a run folder."""
    from bitmosaic import pipeline
    from bitmosaic.scale.cluster import connected
    from bitmosaic.terminal import progress_bars

    with progress_bars() as progress, connected(scheduler, workers) as client:
        run = pipeline.cluster(
            src,
            out,
            clusters,
            views=view or pipeline.DEFAULT_VIEWS,
            mirror=mirror,
            labels=labels,
            max_side=max_side,
            seed=seed,
            memory_limit=memory_limit,
            n_threads=threads,
            strict=strict,
            progress=progress,
            client=client,
        )
    _print_run(run, as_json)


@app.command()
def extract(
    src: Source,
    out: Annotated[Path, typer.Option(help="The views folder. An extraction that was stopped there goes on.")],
    view: ViewNames = None,
    mirror: Mirror = True,
    labels: Labels = None,
    max_side: MaxSide = None,
    threads: Threads = None,
    strict: Strict = False,
    scheduler: Scheduler = None,
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """Pictures -> a views folder: one .npy of features per view, or with a cluster Parquet parts of all views."""
    from bitmosaic import pipeline
    from bitmosaic.scale.cluster import connected
    from bitmosaic.terminal import progress_bars

    with progress_bars() as progress, connected(scheduler, workers) as client:
        views = pipeline.extract(
            src,
            out,
            view or pipeline.DEFAULT_VIEWS,
            mirror=mirror,
            labels=labels,
            max_side=max_side,
            n_threads=threads,
            strict=strict,
            progress=progress,
            client=client,
        )
    widths = dict(zip(views.names, views.widths, strict=True))
    if as_json:
        typer.echo(json.dumps({"views": widths, "images": views.n_rows, "folder": str(out)}))
        return
    say(f"{views.n_rows:,} images, views: {', '.join(f'{name} ({width})' for name, width in widths.items())}")
    say(f"Next: bitmosaic fit {out} --clusters K --out run")


@app.command()
def fit(
    views: Annotated[Path, typer.Argument(help="A views folder, or a .npz, .mat, HDF5 or Parquet file of views.")],
    clusters: Clusters,
    out: Annotated[Path, typer.Option(help="The run folder.")] = Path("run"),
    seed: Seed = 0,
    memory_limit: Memory = None,
    threads: Threads = None,
    scheduler: Scheduler = None,
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """A views folder -> a run folder with codes and clusters."""
    from bitmosaic import pipeline
    from bitmosaic.scale.cluster import connected
    from bitmosaic.terminal import progress_bars

    with progress_bars() as progress, connected(scheduler, workers) as client:
        run = pipeline.fit(
            views,
            out,
            clusters,
            seed=seed,
            memory_limit=memory_limit,
            n_threads=threads,
            progress=progress,
            client=client,
        )
    _print_run(run, as_json)


@app.command()
def predict(
    run: RunFolder,
    src: Source,
    out: Annotated[Path | None, typer.Option(help="Write predictions.csv and .parquet into this folder.")] = None,
    threads: Threads = None,
    strict: Strict = False,
    as_json: Json = False,
) -> None:
    """New pictures into the clusters of a run, with a confidence from 0 to 1."""
    from bitmosaic import pipeline
    from bitmosaic.images import printable
    from bitmosaic.run import Run
    from bitmosaic.terminal import progress_bars

    with progress_bars(goes_on=False) as progress:
        table, skipped = pipeline.predict(Run(run), src, out, n_threads=threads, strict=strict, progress=progress)
    keys = ("path", "cluster", "distance", "margin", "confidence")
    rows = zip(table["path"], *(table[name].tolist() for name in keys[1:]), strict=True)
    if as_json:
        missed = [{"path": path, "cause": cause} for path, cause in skipped]
        typer.echo(json.dumps({"predictions": [dict(zip(keys, row, strict=True)) for row in rows], "skipped": missed}))
        return
    if out:
        say(f"{len(table['path']):,} pictures in {out / 'predictions.csv'} and .parquet")
    else:
        typer.echo("cluster\tconfidence\tpath")
        for path, number, _, _, confidence in rows:
            typer.echo(f"{number}\t{confidence:.2f}\t{printable(path)}")
    for path, cause in skipped:
        say(f"skipped {path}: {cause}", fg="yellow", err=True)


@app.command()
def evaluate(
    run: RunFolder,
    labels: Annotated[
        str, typer.Option(help="'folder', a .csv with the columns path and label, or a .npy.")
    ] = "folder",
    as_json: Json = False,
) -> None:
    """Scores of a run against true labels."""
    from bitmosaic import pipeline
    from bitmosaic.run import Run

    scores = pipeline.evaluate(Run(run), labels)
    typer.echo(json.dumps(scores) if as_json else _scores_line(scores))


@app.command()
def info(
    path: Annotated[
        Path | None,
        typer.Argument(help="A run folder; with --plan, a views folder or file. Without it, this installation."),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="How long a fit of these views will take, and how much memory and disk.")
    ] = False,
    clusters: Annotated[
        int | None, typer.Option("--clusters", "-c", min=1, help="With --plan: how many clusters. [default: 10]")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="With --plan: default or fast, as in HSIC(preset=…). [default: default]")
    ] = None,
    memory_limit: Memory = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """What a run folder holds, what a fit will take (--plan), or what this installation can do.

    A plan times the solver for a few seconds on random rows of the same widths: let the machine be as busy as it will
    be. Reading views that are not in the system's cache yet comes on top.
    """
    from bitmosaic.errors import ParameterError

    if plan:
        _print_plan(path, clusters or 10, preset or "default", memory_limit, threads, as_json)
        return
    if (clusters, preset, memory_limit, threads) != (None,) * 4:
        raise ParameterError("--clusters, --preset, --memory-limit and --threads go with --plan, which is missing.")
    if path is not None and path.is_file():
        raise ParameterError(f"info tells of run folders; {path} is a file. For views, add --plan.")
    if path is not None:
        from bitmosaic.run import Run

        _print_run(Run(path), as_json)
        return
    import platform

    from bitmosaic import __version__
    from bitmosaic.features import extractor_names
    from bitmosaic.threads import available_threads

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


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The folder for the pictures and the run.")] = Path("bitmosaic-demo"),
    seed: Seed = 0,
) -> None:
    """Cluster the handwritten digits that come with scikit-learn, from picture files to a run folder."""
    from bitmosaic.demo import run_demo
    from bitmosaic.terminal import progress_bars

    with progress_bars() as progress:
        run = run_demo(out, seed, progress)
    features = 4 * run.manifest["images"] * sum(run.views.widths)
    _print_run(run, as_json=False)
    typer.echo(f"{run.model.codes_.nbytes / 1000:.0f} kB of codes stand for {features / 1e6:.0f} MB of features.")
    say(f"Next: bitmosaic predict {run.folder} PICTURES, or bitmosaic cluster PICTURES --clusters 10")


for command in (
    explorer.explore,
    explorer.report,
    explorer.export,
    growth.add,
    refit_commands.refit,
    search_commands.search,
    curation.duplicates,
    curation.outliers,
    curation.sample,
):
    app.command()(command)


def _print_plan(
    path: Path | None, clusters: int, preset: str, memory_limit: str | None, threads: int | None, as_json: bool
) -> None:
    from bitmosaic import pipeline
    from bitmosaic.errors import ParameterError

    if path is None:
        raise ParameterError("A plan needs views; no path was given. Write: bitmosaic info VIEWS --plan --clusters K")
    estimate = pipeline.plan(path, clusters, preset=preset, memory_limit=memory_limit, n_threads=threads)
    typer.echo(json.dumps(estimate.as_json()) if as_json else str(estimate))


def _scores_line(scores: dict[str, float]) -> str:
    names = {"acc": "ACC", "nmi": "NMI", "purity": "purity", "f_score": "F-score"}
    return "   ".join(f"{name} {scores[key]:.3f}" for key, name in names.items())


def _print_run(run: Any, as_json: bool) -> None:
    from bitmosaic.terminal import clock

    manifest = run.manifest
    if as_json:
        typer.echo(json.dumps({"folder": str(run.folder), "complete": run.complete} | manifest | growth.facts(run)))
        return
    seconds = ", ".join(f"{stage} {clock(value)}" for stage, value in manifest["seconds"].items())
    images = run.n_fitted if run.complete else manifest.get("images", 0)
    numbers = len(set(run.ids.tolist())) if run.complete else manifest["arguments"]["clusters"]
    say(f"{images:,} images, {numbers} clusters; took: {seconds or 'nothing yet'}")
    if not run.complete:
        say("The run was stopped; the same command goes on where it was.")
        return
    if "how_many" in manifest:
        say(f"How many clusters: {manifest['how_many']['words']}, see {run.folder / 'how-many.png'}")
    if manifest.get("skipped"):
        say(f"{manifest['skipped']:,} pictures could not be read: {run.folder / 'skipped.csv'}")
    weights = ", ".join(f"{name} {weight:.2f}" for name, weight in manifest["view_weights"].items())
    say(f"View weights: {weights}")
    if "scores" in manifest:
        say(f"Against the true labels: {_scores_line(manifest['scores'])}")
    if manifest.get("sheets"):
        say(f"Look at {run.folder / 'overview.png'} and the sheets in {run.folder / 'clusters'}")
    say(f"Every image with its cluster: {run.folder / 'clusters.csv'} (and .parquet)")
    growth.print_additions(run)
    say(f"Look closer, name and mend: bitmosaic explore {run.folder}")

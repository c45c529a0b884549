"""A run that grows: add, refit."""

import json
from typing import Annotated, Any

import typer

from bitmosaic.cli.options import Json, Memory, RunFolder, Strict, Threads, count_or_auto
from bitmosaic.cli.terminal import counted, progress_bars, say

MAX_CLUSTERS, MAX_ADDITIONS, MAX_CHANGES = 12, 5, 20  # listed lines

New = Annotated[
    str,
    typer.Argument(
        help="New images: a folder, a list (.txt), an archive or a .npy file; or a views folder or file with the views "
        "of the run."
    ),
]


def add(
    run: RunFolder,
    src: New,
    update: Annotated[
        bool, typer.Option("--update", help="Move each center to the majority of all codes assigned to it so far.")
    ] = False,
    threads: Threads = None,
    strict: Strict = False,
    as_json: Json = False,
) -> None:
    """Add new images to the clusters of a run. Images that the run already has are skipped.

    Run the same command again to resume an interrupted addition. Names and edits made in the explorer stay, and apply
    to the new images.
    """
    from bitmosaic import pipeline
    from bitmosaic.run.folder import Run

    with progress_bars() as progress:
        added = pipeline.add(Run(run), src, update=update, n_threads=threads, strict=strict, progress=progress)
    if as_json:
        counts = {"images": added.images, "known": added.known, "skipped": added.skipped}
        where = {"folder": None if added.folder is None else str(added.folder)}
        drift = {"drift": None if added.drift is None else added.drift.as_json()}
        recognizes = {"recognizes": added.recognizes, "total": added.run.n_images}
        typer.echo(json.dumps(where | counts | {"sizes": added.sizes} | drift | recognizes))
        return
    _print_added(added)


def _print_added(added: Any) -> None:
    run = added.run
    head = f"Added {counted(added.images, 'image')}, {added.known:,} already in the run, {added.skipped:,} unreadable"
    say(f"{head}; the run now has {run.n_images:,} images")
    if not added.recognizes:
        say("This run has no content hashes. Images it had before the first addition are not recognized.")
    if added.folder is None:
        say("No new images. The run is unchanged.")
        return
    largest = sorted(added.sizes.items(), key=lambda entry: (-entry[1], entry[0]))
    listed = ", ".join(f"{number} ({size:,})" for number, size in largest[:MAX_CLUSTERS])
    more = f" and {len(largest) - MAX_CLUSTERS:,} more" if len(largest) > MAX_CLUSTERS else ""
    say(f"Clusters: {listed}{more}")
    say(f"Drift: {added.drift}")
    say(f"Clusters of the new images: {added.folder / 'clusters.csv'} (and .parquet)")
    if added.drift.refit_due:
        say(f"Cluster all images again: bitmosaic refit {run.folder}")
    say(f"Export all images with your edits: bitmosaic export {run.folder} all.csv")


def refit(
    run: RunFolder,
    clusters: Annotated[
        Any,
        typer.Option(
            "--clusters",
            "-c",
            parser=count_or_auto,
            metavar="K|auto",
            help="Number of clusters, or auto: the number with the best silhouette on held-out rows.",
            show_default="the same number",
        ),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start from scratch, not from the current clusters.")] = False,
    seed: Annotated[int | None, typer.Option(help="Random seed.", show_default="the seed of the run")] = None,
    memory_limit: Memory = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Cluster all images of a run again, additions included. Clusters keep their numbers and names.

    Clusters merged by hand stay merged, and images moved by hand stay where they are. lineage.csv lists which clusters
    were kept, split, merged, born or died. The run changes only when everything is done.
    """
    from bitmosaic import pipeline
    from bitmosaic.run.folder import Run

    with progress_bars() as progress:
        made = pipeline.refit(
            Run(run),
            n_clusters=clusters,
            fresh=fresh,
            seed=seed,
            memory_limit=memory_limit,
            n_threads=threads,
            progress=progress,
        )
    counts = made.lineage.counts
    if as_json:
        facts = {"images": made.run.n_images, "pinned": made.pinned, "events": counts, "lineage": made.lineage.table()}
        typer.echo(json.dumps(facts))
        return
    events = ", ".join(f"{count} {event}" for event, count in counts.items() if count)
    say(f"{made.run.n_images:,} images; clusters: {events}")
    changed = sorted(made.lineage.changes, key=lambda change: change.event == "kept")
    for change in changed[:MAX_CHANGES]:
        say(f"  {change.sentence()}")
    if len(changed) > MAX_CHANGES:
        say(f"  … and {len(changed) - MAX_CHANGES} more")
    if made.pinned:
        say(f"{counted(made.pinned, 'image')} moved by hand stay where they are.")
    say(f"Changes of every cluster: {made.run.folder / 'lineage.csv'}")
    say(f"Explore and edit: bitmosaic explore {made.run.folder}")


def additions_as_json(run: Any) -> dict[str, Any]:
    """The part of `info --json` about additions."""
    if not run.complete or not run.additions:
        return {}
    from bitmosaic.pipeline.adding import drift_of

    keys = ("at", "source", "images", "known", "skipped", "updated")
    additions = [{key: getattr(addition.manifest, key) for key in keys} for addition in run.additions]
    drift = drift_of(run)
    return {"additions": additions, "total": run.n_images, "drift": drift and drift.as_json()}


def print_additions(run: Any) -> None:
    """The part of `info` about additions and refits, if there are any."""
    from bitmosaic.run.manifest import REFIT

    if refits := run.manifest.refits:
        events = ", ".join(f"{refits[-1][event]} {event}" for event in REFIT[1:] if refits[-1][event])
        say(f"Refits: {len(refits)}, the last on {refits[-1]['at'][:10]}: {events}; see {run.folder / 'lineage.csv'}")
    if not run.unlearned:
        return
    from bitmosaic.pipeline.adding import drift_of

    say(f"Added since: {counted(run.n_images - run.n_fitted, 'image')}, {run.n_images:,} in total")
    for addition in run.unlearned[-MAX_ADDITIONS:]:
        manifest = addition.manifest
        images = counted(manifest.images, "image")
        say(f"  {addition.folder.name}  {manifest.at[:10]}  {images} from {manifest.source}")
    if drift := drift_of(run):
        say(f"Drift: {drift}")

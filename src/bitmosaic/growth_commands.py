"""The commands of a run that grows. Heavy imports stay inside."""

import json
from typing import Annotated, Any

import typer

from bitmosaic.cli_options import Cores, Strict
from bitmosaic.explorer.commands import Json, RunFolder, say
from bitmosaic.run_manifest import REFIT

MOST_CLUSTERS, MOST_ADDITIONS = 12, 5  # that are listed

New = Annotated[
    str,
    typer.Argument(
        help="New pictures: a folder, a list (.txt), an archive or a .npy; or a views folder or file with the views of "
        "the run."
    ),
]


def add(
    run: RunFolder,
    src: New,
    update: Annotated[
        bool, typer.Option("--update", help="Let the centers follow: the majority of all codes ever assigned to each.")
    ] = False,
    threads: Cores = None,
    strict: Strict = False,
    as_json: Json = False,
) -> None:
    """New pictures into the clusters of a run, to stay there: only they are read, and known ones are recognised.

    An addition that was stopped goes on with the same command. Names and edits made in the explorer stay, and hold for
    the new pictures, too.
    """
    from bitmosaic import pipeline
    from bitmosaic.run import Run
    from bitmosaic.terminal import progress_bars

    with progress_bars() as progress:
        added = pipeline.add(Run(run), src, update=update, n_threads=threads, strict=strict, progress=progress)
    if as_json:
        counts = {"images": added.images, "known": added.known, "skipped": added.skipped}
        where = {"folder": None if added.folder is None else str(added.folder)}
        drift = {"drift": None if added.drift is None else added.drift.as_json()}
        recognises = {"recognises": added.recognises, "total": added.run.n_images}
        typer.echo(json.dumps(where | counts | {"sizes": added.sizes} | drift | recognises))
        return
    _print_added(added)


def _print_added(added: Any) -> None:
    run = added.run
    head = f"{_pictures(added.images)} added, {added.known:,} known already, {added.skipped:,} could not be read"
    say(f"{head}; the run has {run.n_images:,} now")
    if not added.recognises:
        say("The features of this run were made without digests: pictures that it has from the start look new.")
    if added.folder is None:
        say("Nothing was new, and nothing was changed.")
        return
    largest = sorted(added.sizes.items(), key=lambda entry: (-entry[1], entry[0]))
    listed = ", ".join(f"{number} ({size:,})" for number, size in largest[:MOST_CLUSTERS])
    more = f" and {len(largest) - MOST_CLUSTERS:,} more" if len(largest) > MOST_CLUSTERS else ""
    say(f"Into clusters: {listed}{more}")
    say(f"Drift: {added.drift}")
    say(f"The new pictures with their clusters: {added.folder / 'clusters.csv'} (and .parquet)")
    if added.drift.refit_due:
        say(f"Learn again from everything: bitmosaic refit {run.folder}")
    say(f"All pictures, with your edits: bitmosaic export {run.folder} all.csv")


def facts(run: Any) -> dict[str, Any]:
    """What `info --json` says of additions."""
    if not run.complete or not run.additions:
        return {}
    from bitmosaic.drift import drift_of

    keys = ("at", "source", "images", "known", "skipped", "updated")
    additions = [{key: addition.manifest[key] for key in keys} for addition in run.additions]
    drift = drift_of(run)
    return {"additions": additions, "total": run.n_images, "drift": drift and drift.as_json()}


def print_additions(run: Any) -> None:
    """What `info` says of additions; nothing where there are none."""
    if refits := run.manifest.get("refits"):
        events = ", ".join(f"{refits[-1][event]} {event}" for event in REFIT[1:] if refits[-1][event])
        say(f"Refits: {len(refits)}, the last on {refits[-1]['at'][:10]}: {events}; see {run.folder / 'lineage.csv'}")
    if not run.unlearned:
        return
    from bitmosaic.drift import drift_of

    say(f"Added since: {_pictures(run.n_images - run.n_fitted)}, {run.n_images:,} in all (bitmosaic export has them)")
    for addition in run.unlearned[-MOST_ADDITIONS:]:
        manifest = addition.manifest
        say(f"  {addition.folder.name}  {manifest['at'][:10]}  {_pictures(manifest['images'])} of {manifest['source']}")
    if drift := drift_of(run):
        say(f"Drift: {drift}")


def _pictures(count: int) -> str:
    return f"{count:,} picture{'' if count == 1 else 's'}"

"""The command that learns a run anew."""

import json
from typing import Annotated, Any

import typer

from bitmosaic.cli_options import Cores, Memory, count_or_auto
from bitmosaic.explorer.commands import Json, RunFolder, say

MOST_LINES = 20


def refit(
    run: RunFolder,
    clusters: Annotated[
        Any,
        typer.Option(
            "--clusters", "-c", parser=count_or_auto, metavar="K|auto", help="How many clusters. [default: as many]"
        ),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Do not begin from the clusters that there are.")] = False,
    seed: Annotated[int | None, typer.Option(help="Same seed, same clusters. [default: the run's]")] = None,
    memory_limit: Memory = None,
    threads: Cores = None,
    as_json: Json = False,
) -> None:
    """Learn a run again from all its pictures, those added since included; clusters keep their numbers and names.

    Clusters that were merged by hand stay one, and pictures that were moved stay where they are. lineage.csv says which
    clusters were kept, split, merged, born, or died. The run is the old one until everything is done.
    """
    from bitmosaic import pipeline
    from bitmosaic.run import Run
    from bitmosaic.terminal import progress_bars

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
    for change in changed[:MOST_LINES]:
        say(f"  {change.sentence()}")
    if len(changed) > MOST_LINES:
        say(f"  … and {len(changed) - MOST_LINES} more")
    if made.pinned:
        say(f"{made.pinned:,} pictures stay where they were put by hand.")
    say(f"Every cluster's story: {made.run.folder / 'lineage.csv'}; look at it: bitmosaic explore {made.run.folder}")

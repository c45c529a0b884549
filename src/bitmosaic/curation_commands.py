"""The commands that curate: duplicates, outliers, sample. They write lists, links and sheets, and delete nothing."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bitmosaic.cli_options import Cores
from bitmosaic.explorer.commands import Json, Pictures, RunFolder, say

Sheet = Annotated[Path | None, typer.Option(help="A .png to look at.")]
FEW_GROUPS, FEW_COPIES = 10, 4  # that are printed where no file is asked for


def duplicates(
    run: RunFolder,
    radius: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=127,
            help="Bits of 128 in which the fingerprints of copies may differ (codes: --by features). [default: 12]",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="WAY",
            help="pictures: their fingerprints. features: the codes and features of the run, which also find slightly "
            "cropped copies, and pictures that only look alike. both. [default: pictures, or features without them]",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="FILE.csv, FILE.parquet, or a new folder for a folder of links per group.")
    ] = None,
    sheet: Sheet = None,
    source: Pictures = None,
    threads: Cores = None,
    as_json: Json = False,
) -> None:
    """Groups of near-duplicates, each with the copy to keep: the largest, the sharpest, or the first.

    Copies that were resized, recompressed or toned are found. Nothing is deleted. Fingerprints of
    the pictures are computed once, and kept in the run folder.
    """
    from dataclasses import asdict

    from bitmosaic.curation import find_duplicates, outputs
    from bitmosaic.explorer.snapshot import finished_run
    from bitmosaic.terminal import progress_bars

    outputs.check_outputs(run, out, sheet, outputs.TABLES)
    whole = finished_run(run)
    with progress_bars(goes_on=False) as progress:
        found = find_duplicates(whole, radius, by, source, threads, progress)
        made = outputs.write_duplicates(whole, found, out, source, progress) if out else None
        if sheet:
            outputs.draw_duplicates(whole, found, sheet, source, progress)
    if as_json:
        groups = [[asdict(copy) for copy in group] for group in found.groups]
        facts = {"by": found.way, "radius": found.radius, "groups": groups}
        typer.echo(json.dumps(facts | _links(made)))
        return
    within = f"within {found.radius} bits"
    how = {
        "pictures": f"fingerprints {within}",
        "features": f"codes {within} and features",
        "both": f"fingerprints {within}, or features",
    }[found.way]
    head = f"{len(found.groups):,} groups of near-duplicates, {found.n_others:,} pictures beside those to keep"
    say(f"{head} (by {how})")
    if not out:
        _print_groups(found)
    _print_written(out, sheet, made)


def _print_groups(found: Any) -> None:
    for number, group in enumerate(found.groups[:FEW_GROUPS]):
        for copy in group[:FEW_COPIES]:
            size = f"{copy.width}×{copy.height}" if copy.width else "?"
            action = "keep" if copy is group[0] else "copy"
            _say_fields(number, action, f"{copy.distance} bits", size, copy.reason, copy.path)
        if len(group) > FEW_COPIES:
            _say_fields(number, f"… and {len(group) - FEW_COPIES:,} more")
    if len(found.groups) > FEW_GROUPS:
        say(f"… and {len(found.groups) - FEW_GROUPS:,} more groups. All of them: --out FILE.csv, or --sheet FILE.png")


def outliers(
    run: RunFolder,
    n: Annotated[int, typer.Option("-n", min=1, help="How many.")] = 100,
    out: Annotated[
        Path | None,
        typer.Option(help="FILE.csv, FILE.parquet, FILE.txt (the paths), or a new folder for links."),
    ] = None,
    sheet: Sheet = None,
    source: Pictures = None,
    as_json: Json = False,
) -> None:
    """The pictures that fit their cluster least, by the clusters as edited in the explorer."""
    from bitmosaic.curation import find_outliers, outputs
    from bitmosaic.explorer.snapshot import finished_run
    from bitmosaic.terminal import progress_bars

    outputs.check_outputs(run, out, sheet, (*outputs.TABLES, outputs.LIST))
    chosen = find_outliers(finished_run(run), n)
    with progress_bars(goes_on=False) as progress:
        made = outputs.write_chosen(chosen, out, source, progress) if out else None
        if sheet:
            outputs.draw_outliers(chosen, sheet, source, progress)
    _print_chosen(chosen, "outliers", out, sheet, made, as_json)


def sample(
    run: RunFolder,
    n: Annotated[int, typer.Option("-n", min=1, help="How many.")] = 1000,
    out: Annotated[
        Path | None,
        typer.Option(help="FILE.txt (the paths), FILE.csv, FILE.parquet, or a new folder for links."),
    ] = None,
    sheet: Sheet = None,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same sample.")] = 0,
    source: Pictures = None,
    threads: Cores = None,
    as_json: Json = False,
) -> None:
    """A diverse subset for labelling: balanced over the clusters as edited, spread inside each.

    Every cluster gives as many pictures, but a small one gives what it has. The first lines are the most central
    picture of each cluster, then the second of each, and so on: any beginning of the list is a sample, too.
    """
    from bitmosaic.curation import draw_sample, outputs
    from bitmosaic.explorer.snapshot import finished_run
    from bitmosaic.terminal import progress_bars

    outputs.check_outputs(run, out, sheet, (*outputs.TABLES, outputs.LIST))
    chosen = draw_sample(finished_run(run), n, seed, threads)
    with progress_bars(goes_on=False) as progress:
        made = outputs.write_chosen(chosen, out, source, progress) if out else None
        if sheet:
            outputs.draw_chosen(chosen, sheet, source, progress)
    _print_chosen(chosen, "pictures", out, sheet, made, as_json)


def _print_chosen(chosen: Any, what: str, out: Path | None, sheet: Path | None, made: Any, as_json: bool) -> None:
    table = chosen.table()
    lines = list(zip(*table.values(), strict=True))
    if as_json:
        typer.echo(json.dumps({what: [dict(zip(table, line, strict=True)) for line in lines]} | _links(made)))
        return
    if out is None and sheet is None:
        _say_fields(*table)
        for line in lines:
            _say_fields(*line)
        return
    say(f"{len(lines):,} {what} of {len(chosen.clusters.labels):,} in {len(chosen.clusters.numbers)} clusters")
    _print_written(out, sheet, made)


def _say_fields(*fields: Any) -> None:
    """One line, tabs between; names may hold anything."""
    from bitmosaic.images import printable

    typer.echo("\t".join("" if field is None else printable(str(field)) for field in fields))


def _links(made: Any) -> dict[str, int]:
    return {} if made is None else {key: made.facts[key] for key in ("links", "copies", "missing") if key in made.facts}


def _print_written(out: Path | None, sheet: Path | None, made: Any) -> None:
    if out is not None:
        say(f"wrote {out}" if made is None else f"wrote {out}: {made.words}")
        for note in made.notes if made is not None else ():
            say(note)
    if sheet is not None:
        say(f"wrote {sheet}")

"""Search and curate the images of a run: search, duplicates, outliers, sample. Nothing is deleted."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bitmosaic.cli.options import Images, Json, RunFolder, Threads
from bitmosaic.cli.terminal import counted, progress_bars, say, say_fields


def search(
    run: RunFolder,
    what: Annotated[
        str,
        typer.Argument(
            help="An image; a folder, list (.txt) or archive of images; the path of an image in the run; or codes: a "
            "text file with one hexadecimal code per line, or a .npy file."
        ),
    ],
    k: Annotated[int | None, typer.Option("-k", min=1, help="Number of results per query.", show_default="20")] = None,
    radius: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="BITS",
            help="Find all images within this Hamming distance, instead of -k.",
            show_default="no radius",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write a table: FILE.csv or FILE.parquet.", show_default="print it")
    ] = None,
    sheet: Annotated[
        Path | None, typer.Option(help="Draw the queries and results: FILE.png or FILE.jpg.", show_default="no sheet")
    ] = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Find the images of a run that are nearest to other images, by the Hamming distance of their codes.

    The search is exact. An image given by its path in the run is not among its own results.
    """
    from bitmosaic.errors import ParameterError
    from bitmosaic.pipeline import searching
    from bitmosaic.pipeline.curation import TABLES, check_outputs, save_sheet
    from bitmosaic.run.folder import Run
    from bitmosaic.run.tables import save_table

    if k is not None and radius is not None:
        raise ParameterError("Give either -k or --radius, not both.")
    check_outputs(run, out, sheet, TABLES, links=False)
    with progress_bars(resumes=False) as progress:
        found = searching.search(Run(run), what, k or searching.K, radius, n_threads=threads, progress=progress)
        table = found.table()
        if out is not None:
            save_table(out, table)
        if sheet is not None:
            save_sheet(found.sheet(progress), sheet)
    _print(found, table, as_json, out is not None)
    if not as_json:
        _print_written(out, sheet, None)
    for path, cause in found.queries.skipped:
        say(f"skipped {path}: {cause}", fg="yellow", err=True)


def _print(found: Any, table: dict[str, Any], as_json: bool, written: bool) -> None:
    names = table.get("name", [None] * len(table["path"]))
    columns = (table["row"].tolist(), table["path"], table["distance"].tolist(), table["cluster"].tolist(), names)
    keys = ("row", "path", "distance", "cluster", "name")
    lines = [dict(zip(keys, line, strict=True)) for line in zip(*columns, strict=True)]
    ends = [sum(map(len, found.rows[: i + 1])) for i in range(len(found.rows))]
    parts = [lines[end - len(rows) : end] for rows, end in zip(found.rows, ends, strict=True)]
    if as_json:
        queries = zip(found.queries.names, found.queries.codes, parts, strict=True)
        skipped = [{"path": path, "cause": cause} for path, cause in found.queries.skipped]
        answers = [{"query": name, "code": code.tobytes().hex(), "found": part} for name, code, part in queries]
        typer.echo(json.dumps({"queries": answers, "skipped": skipped}))
        return
    if written:
        say(f"{counted(len(lines), 'result')} for {len(parts):,} {'query' if len(parts) == 1 else 'queries'}")
        return
    for name, part in zip(found.queries.names, parts, strict=True):
        say(f"{name}: {counted(len(part), 'result')}", bold=True)
        if part:
            say(f"{'bits':>5}  {'cluster':<7}  path")
        for line in part:
            cluster = f"{line['cluster']} {line['name']}" if line["name"] else f"{line['cluster']}"
            say(f"{line['distance']:5}  {cluster:<7}  {line['path']}")


# ---- curate


Sheet = Annotated[
    Path | None, typer.Option(help="Draw a contact sheet: FILE.png or FILE.jpg.", show_default="no sheet")
]
MAX_GROUPS, MAX_COPIES = 10, 4  # printed lines without --out


def duplicates(
    run: RunFolder,
    radius: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=127,
            help="Bits of 128 by which the perceptual hashes of duplicates may differ (or codes, with --by features).",
            show_default="12",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="WAY",
            help="images: compare perceptual hashes. features: compare codes and features, which also finds slightly "
            "cropped copies and images that only look alike. both: use both.",
            show_default="images, or features if the run has no images",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="FILE.csv, FILE.parquet, or a new folder with a folder of links per group.", show_default="print them"
        ),
    ] = None,
    sheet: Sheet = None,
    source: Images = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Find groups of near-duplicates, each with the copy to keep: the largest, the sharpest, or the first.

    Finds copies that were resized, recompressed or changed in tone. Nothing is deleted. Perceptual hashes are computed
    once and stored in the run folder.
    """
    from dataclasses import asdict

    from bitmosaic.pipeline.curation import TABLES, check_outputs
    from bitmosaic.pipeline.duplicates import draw_duplicates, find_duplicates, write_duplicates
    from bitmosaic.run.folder import Run

    check_outputs(run, out, sheet, TABLES)
    opened = Run(run)
    with progress_bars(resumes=False) as progress:
        found = find_duplicates(opened, radius, by, source, threads, progress)
        made = write_duplicates(opened, found, out, source, progress) if out else None
        if sheet:
            draw_duplicates(opened, found, sheet, source, progress)
    if as_json:
        groups = [[asdict(copy) for copy in group] for group in found.groups]
        facts = {"by": found.way, "radius": found.radius, "groups": groups}
        typer.echo(json.dumps(facts | _links(made)))
        return
    within = f"within {found.radius} bits"
    how = {
        "images": f"perceptual hashes {within}",
        "features": f"codes {within} and features",
        "both": f"perceptual hashes {within}, or features",
    }[found.way]
    n_groups, n_others = counted(len(found.groups), "group"), counted(found.n_others, "image")
    say(f"{n_groups} of near-duplicates, {n_others} besides those to keep (by {how})")
    if not out:
        _print_groups(found)
    _print_written(out, sheet, made)


def _print_groups(found: Any) -> None:
    for number, group in enumerate(found.groups[:MAX_GROUPS]):
        for copy in group[:MAX_COPIES]:
            size = f"{copy.width}×{copy.height}" if copy.width else "?"
            action = "keep" if copy is group[0] else "copy"
            say_fields(number, action, f"{copy.distance} bits", size, copy.reason, copy.path)
        if len(group) > MAX_COPIES:
            say_fields(number, f"… and {len(group) - MAX_COPIES:,} more")
    if len(found.groups) > MAX_GROUPS:
        say(f"… and {len(found.groups) - MAX_GROUPS:,} more groups. All of them: --out FILE.csv, or --sheet FILE.png")


def outliers(
    run: RunFolder,
    n: Annotated[int, typer.Option("-n", min=1, help="Number of images.")] = 100,
    out: Annotated[
        Path | None,
        typer.Option(
            help="FILE.csv, FILE.parquet, FILE.txt (paths), or a new folder for links.", show_default="print them"
        ),
    ] = None,
    sheet: Sheet = None,
    source: Images = None,
    as_json: Json = False,
) -> None:
    """List the images farthest from their cluster center. Clusters are those edited in the explorer."""
    from bitmosaic.pipeline import curation as curate

    curate.check_outputs(run, out, sheet, (*curate.TABLES, curate.LIST))
    chosen = curate.find_outliers(run, n)
    with progress_bars(resumes=False) as progress:
        made = curate.write_chosen(chosen, out, source, progress) if out else None
        if sheet:
            curate.draw_outliers(chosen, sheet, source, progress)
    _print_chosen(chosen, "outliers", out, sheet, made, as_json)


def sample(
    run: RunFolder,
    n: Annotated[int, typer.Option("-n", min=1, help="Number of images.")] = 1000,
    out: Annotated[
        Path | None,
        typer.Option(
            help="FILE.txt (paths), FILE.csv, FILE.parquet, or a new folder for links.", show_default="print them"
        ),
    ] = None,
    sheet: Sheet = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed. The same seed gives the same sample.")] = 0,
    source: Images = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Draw a diverse subset for labeling: balanced over the clusters as edited, spread inside each.

    Every cluster gives the same number of images, or all if it has fewer. The list starts with the most central image
    of each cluster, then the second of each, and so on: the first n lines are a sample of n images.
    """
    from bitmosaic.pipeline import curation as curate

    curate.check_outputs(run, out, sheet, (*curate.TABLES, curate.LIST))
    chosen = curate.draw_sample(run, n, seed, threads)
    with progress_bars(resumes=False) as progress:
        made = curate.write_chosen(chosen, out, source, progress) if out else None
        if sheet:
            curate.draw_chosen(chosen, sheet, source, progress)
    _print_chosen(chosen, "images", out, sheet, made, as_json)


def _print_chosen(chosen: Any, what: str, out: Path | None, sheet: Path | None, made: Any, as_json: bool) -> None:
    table = chosen.table()
    lines = list(zip(*table.values(), strict=True))
    if as_json:
        typer.echo(json.dumps({what: [dict(zip(table, line, strict=True)) for line in lines]} | _links(made)))
        return
    if out is None and sheet is None:
        say_fields(*table)
        for line in lines:
            say_fields(*line)
        return
    say(f"{len(lines):,} {what} of {len(chosen.clusters.labels):,} in {len(chosen.clusters.numbers)} clusters")
    _print_written(out, sheet, made)


def _links(made: Any) -> dict[str, int]:
    return {} if made is None else {key: made.facts[key] for key in ("links", "copies", "missing") if key in made.facts}


def _print_written(out: Path | None, sheet: Path | None, made: Any) -> None:
    if out is not None:
        say(f"Wrote {out}" if made is None else f"Wrote {out}: {made.words}")
        for note in made.notes if made is not None else ():
            say(note)
    if sheet is not None:
        say(f"Wrote {sheet}")

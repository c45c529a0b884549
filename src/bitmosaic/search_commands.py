"""The command that looks for pictures in a run: search. Heavy imports stay inside."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bitmosaic.cli_options import Cores
from bitmosaic.explorer.commands import Json, RunFolder, say


def search(
    run: RunFolder,
    what: Annotated[
        str,
        typer.Argument(
            help="A picture, a folder, list (.txt) or archive of pictures; the path of a picture as the run has it; "
            "or codes: a text file with one in hexadecimal digits on each line, or a .npy file."
        ),
    ],
    k: Annotated[int | None, typer.Option("-k", min=1, help="How many for each query. [default: 20]")] = None,
    radius: Annotated[
        int | None, typer.Option(min=0, metavar="BITS", help="All that differ in at most so many bits, instead of -k.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write a table, FILE.csv or FILE.parquet.")] = None,
    sheet: Annotated[Path | None, typer.Option(help="Draw the queries and what was found, FILE.png or .jpg.")] = None,
    threads: Cores = None,
    as_json: Json = False,
) -> None:
    """The pictures of a run that are nearest to others, in bits of Hamming distance.

    Exact: the same as comparing all codes. A picture that was asked for by its path in the run is not found itself.
    """
    from bitmosaic import searching
    from bitmosaic.errors import ParameterError
    from bitmosaic.files import result_file
    from bitmosaic.places import check_output
    from bitmosaic.run import TABLE_WRITERS, Run
    from bitmosaic.terminal import progress_bars

    if k is not None and radius is not None:
        raise ParameterError("-k and --radius exclude each other: take the nearest, or all within a radius.")
    kind = _kind("--out", out, TABLE_WRITERS)
    picture = _kind("--sheet", sheet, {"png": "PNG", "jpg": "JPEG", "jpeg": "JPEG"})
    for place in (out, sheet):
        if place is not None:
            check_output(place, run)
    with progress_bars(goes_on=False) as progress:
        found = searching.search(Run(run), what, k or searching.K, radius, n_threads=threads, progress=progress)
        table = found.table()
        if out is not None:
            with result_file(out) as file:
                TABLE_WRITERS[kind](file, table)
        if sheet is not None:
            drawn = found.sheet(progress)
            with result_file(sheet) as file:
                drawn.save(file, "PNG" if picture == "png" else "JPEG")
    _print(found, table, as_json, out is not None)
    for written in (out, sheet):
        if written is not None and not as_json:
            say(f"wrote {written}")
    for path, cause in found.queries.skipped:
        say(f"skipped {path}: {cause}", fg="yellow", err=True)


def _kind(option: str, path: Path | None, kinds: dict[str, Any]) -> str:
    """The suffix of a path, one of those that can be written."""
    from bitmosaic.errors import ParameterError

    suffix = "" if path is None else path.suffix.lower().removeprefix(".")
    if path is not None and suffix not in kinds:
        raise ParameterError(
            f"{option} takes a file named {' or '.join(f'*.{kind}' for kind in kinds)}; got {path.name}."
        )
    return suffix


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
        told = [{"query": name, "code": code.tobytes().hex(), "found": part} for name, code, part in queries]
        typer.echo(json.dumps({"queries": told, "skipped": skipped}))
        return
    if written:
        say(f"{len(lines):,} pictures for {len(parts):,} {'query' if len(parts) == 1 else 'queries'}")
        return
    for name, part in zip(found.queries.names, parts, strict=True):
        say(f"{name}: {'nothing that near' if not part else 'bits, cluster, path'}", bold=True)
        for line in part:
            cluster = f"{line['cluster']} {line['name']}" if line["name"] else f"{line['cluster']}"
            say(f"{line['distance']:5}  {cluster:<6}  {line['path']}")

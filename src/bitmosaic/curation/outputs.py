"""Duplicates, outliers and samples -> a table, a list of paths, a folder of links, or a sheet to look at."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bitmosaic.curation.chosen import Chosen
from bitmosaic.curation.duplicates import Duplicates
from bitmosaic.errors import InvalidDataError, MissingFileError, ParameterError
from bitmosaic.exports.kind import Exported
from bitmosaic.exports.links import short_names, write_links
from bitmosaic.exports.tables import save_table
from bitmosaic.files import result_file
from bitmosaic.images import Progress, quiet
from bitmosaic.places import check_output
from bitmosaic.run import TABLE_WRITERS, Run
from bitmosaic.run_pictures import RunPictures
from bitmosaic.sheets import TILE, contact_sheet, group_sheet, overview

TABLES = tuple(f".{kind}" for kind in TABLE_WRITERS)
LIST = ".txt"
MOST_ON_SHEET, COLUMNS = 60, 12  # lines, and pictures of a line
MOST_GROUPS, MOST_COPIES = 200, 10


def check_outputs(run_folder: Path, out: Path | None, sheet: Path | None, files: tuple[str, ...]) -> None:
    """Refuse at once what would fail only after the work: the kind of a file, its folder, a folder that is taken."""
    if sheet is not None and sheet.suffix.lower() != ".png":
        raise ParameterError(f"A sheet is a .png; got {sheet.name}.")
    kinds = f"{', '.join(files)}, or a new folder for links"
    if out is not None and is_file(out, files):
        if out.is_dir():
            raise ParameterError(f"What is written is {kinds}; {out} is a folder with the name of a file.")
    elif out is not None:
        if out.suffix and not out.is_dir():
            raise ParameterError(f"What is written is {kinds}; got {out.name}.")
        if out.exists() and not (out.is_dir() and not any(out.iterdir())):
            raise InvalidDataError(f"Links go into a folder of their own; {out} holds other things. Choose another.")
    for path in (out, sheet):
        if path is not None:
            check_output(path, run_folder, is_folder=not is_file(path, (*files, ".png")))
    for path in (out if out is not None and is_file(out, files) else None, sheet):
        if path is not None and not path.absolute().parent.is_dir():
            raise MissingFileError(f"A file goes into a folder that is there; there is none at {path.parent}.")


def is_file(out: Path, files: tuple[str, ...]) -> bool:
    return out.suffix.lower() in files


# ---- tables, lists and links


def write_duplicates(
    run: Run, found: Duplicates, out: Path, source: Any = None, progress: Progress = quiet
) -> Exported | None:
    """A table, or a folder for each group with its pictures, the one to keep first: "1 keep …", "2 …"."""
    if is_file(out, TABLES):
        save_table(found.table(), out)
        return None
    paths = [copy.path for group in found.groups for copy in group]
    names, width = iter(short_names(paths)), max(4, len(str(len(found.groups))))
    entries = []
    for number, group in enumerate(found.groups):
        digits = len(str(len(group)))
        for place, copy in enumerate(group, 1):
            mark = "keep " if place == 1 else ""
            entries.append((copy.row, f"{number:0{width}d}", f"{place:0{digits}d} {mark}{next(names)}"))
    return write_links(out, entries, RunPictures(run, source, progress), progress, duplicates=len(found.groups))


def write_chosen(chosen: Chosen, out: Path, source: Any = None, progress: Progress = quiet) -> Exported | None:
    """A table, a list of paths that other commands read, or a folder of links in the order of the rows."""
    run = chosen.clusters.pictures.run
    if is_file(out, TABLES):
        save_table(chosen.table(), out)
        return None
    if is_file(out, (LIST,)):
        pictures = RunPictures(run, source, progress)
        lines = [pictures.place(row) or run.paths[row] for row in chosen.rows.tolist()]
        end = list_end(lines)
        with result_file(out) as file:
            file.write("".join(line + end for line in lines).encode("utf-8", "surrogateescape"))
        return None if end == "\n" else Exported({}, "NUL bytes end its paths, since a name has a line break")
    names = short_names(chosen.clusters.pictures.paths)
    digits = len(str(len(chosen.rows)))
    entries = [(row, "", f"{i:0{digits}d} {names[row]}") for i, row in enumerate(chosen.rows.tolist(), 1)]
    return write_links(out, entries, RunPictures(run, source, progress), progress, edits=chosen.clusters.version)


def list_end(paths: Iterable[str]) -> str:
    """What ends each path of a list: a NUL where a newline would cut a name; `read_list` takes both."""
    return "\0" if any("\n" in path or path.endswith("\r") for path in paths) else "\n"


# ---- sheets


def draw_duplicates(run: Run, found: Duplicates, sheet: Path, source: Any = None, progress: Progress = quiet) -> None:
    """The first groups, the picture to keep first and framed."""
    shown = found.groups[:MOST_GROUPS]
    rows = [copy.row for group in shown for copy in group[:MOST_COPIES]]
    images = _pictures(run, source, progress).thumbnails(rows, TILE, progress)
    groups = []
    for number, group in enumerate(shown):
        far = max(copy.distance for copy in group)
        more = f", {len(group)} in all" if len(group) > MOST_COPIES else ""
        tiles = [images[copy.row] for copy in group[:MOST_COPIES] if copy.row in images]
        if tiles:
            groups.append((f"{number}: {group[0].reason}, {far} bits{more}", tiles))
    first = f", the first {len(shown)}" if len(shown) < len(found.groups) else ""
    _save(group_sheet(f"{len(found.groups):,} groups of near-duplicates{first}; keep the framed one", groups), sheet)


def draw_outliers(chosen: Chosen, sheet: Path, source: Any = None, progress: Progress = quiet) -> None:
    rows = chosen.rows[: MOST_ON_SHEET * COLUMNS].tolist()
    run = chosen.clusters.pictures.run
    images = _pictures(run, source, progress).thumbnails(rows, TILE, progress)
    title = f"{len(chosen.rows):,} outliers of {len(chosen.clusters.labels):,} pictures"
    words = "the least usual for its cluster first"
    _save(contact_sheet(title, words, [images[row] for row in rows if row in images], []), sheet)


def draw_chosen(chosen: Chosen, sheet: Path, source: Any = None, progress: Progress = quiet) -> None:
    """A line for each cluster with the first of its pictures that were chosen."""
    clusters = chosen.clusters
    numbers = clusters.labels[chosen.rows]
    lines_of = {number: chosen.rows[numbers == number] for number in clusters.numbers if (numbers == number).any()}
    shown = dict(list(lines_of.items())[:MOST_ON_SHEET])
    wanted = [row for rows in shown.values() for row in rows[:COLUMNS].tolist()]
    images = _pictures(clusters.pictures.run, source, progress).thumbnails(wanted, TILE, progress)
    lines = [
        (
            clusters.title(number),
            f"{len(rows):,} of {clusters.sizes[number]:,} pictures",
            [images[row] for row in rows[:COLUMNS].tolist() if row in images],
        )
        for number, rows in shown.items()
    ]
    _save(overview(f"A sample of {len(chosen.rows):,} of {len(clusters.labels):,} pictures", lines, COLUMNS), sheet)


def _pictures(run: Run, source: Any, progress: Progress) -> RunPictures:
    pictures = RunPictures(run, source, progress)
    if not pictures.available:
        raise MissingFileError(
            f"A sheet needs pictures; those of {run.folder} are not where they were, or there never were any. "
            "Say where they are: --source PICTURES."
        )
    return pictures


def _save(sheet: Any, path: Path) -> None:
    with result_file(path) as file:
        sheet.save(file, "PNG")

"""Run -> selected images: outliers of the edited clusters, or a sample to label. Written as tables, links or sheets."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bitmosaic.errors import InvalidDataError, MissingFileError, ParameterError
from bitmosaic.hamming.sampling import diverse_sample
from bitmosaic.images import Progress, quiet
from bitmosaic.io.files import check_output, result_file
from bitmosaic.io.threads import available_threads
from bitmosaic.pipeline.export.formats import Exported
from bitmosaic.pipeline.export.links import short_names, write_links
from bitmosaic.run.clusters import Clusters, ImageFacts
from bitmosaic.run.folder import AnyRun, as_run
from bitmosaic.run.images import RunImages
from bitmosaic.run.sheets import TILE, contact_sheet, overview
from bitmosaic.run.tables import TABLE_WRITERS, save_table

TABLES, LIST = tuple(TABLE_WRITERS), ".txt"
SHEETS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
MOST_ON_SHEET, COLUMNS = 60, 12  # rows, and images per row


@dataclass(frozen=True)
class Chosen:
    """Selected rows of a run, in order of relevance, and the clusters of the run."""

    clusters: Clusters
    rows: np.ndarray  # (m,) int64
    scores: np.ndarray | None = None  # (m,) float64, of outliers: see `hamming.search.outlier_scores`

    def table(self) -> dict[str, list]:
        """One row per image: path, cluster, name, distance to its center in bits, and the score of an outlier."""
        numbers = self.clusters.labels[self.rows].tolist()
        columns: dict[str, list] = {
            "path": [self.clusters.facts.paths[row] for row in self.rows],
            "cluster": numbers,
            "name": [self.clusters.names.get(number) for number in numbers],
            "distance": self.clusters.distances[self.rows].astype(np.float64).round(2).tolist(),
        }
        return columns if self.scores is None else columns | {"score": self.scores.round(2).tolist()}


def find_outliers(run: AnyRun, n: int = 100) -> Chosen:
    """The n images farthest from their cluster center, for their cluster, the farthest first; all if there are fewer.

    The score compares the distance of an image with the distances in its cluster; images above 2 are outliers.
    """
    clusters = Clusters(ImageFacts.of(as_run(run)))
    scores = clusters.outlier_scores
    rows = np.argsort(-scores, kind="stable")[:n]
    return Chosen(clusters, rows, scores[rows])


def draw_sample(run: AnyRun, n: int = 1000, seed: int = 0, n_threads: int | None = None) -> Chosen:
    """Draw a diverse sample of n images, balanced over the clusters and spread inside each (see `diverse_sample`)."""
    clusters = Clusters(ImageFacts.of(as_run(run)))
    threads = available_threads(n_threads)
    rows = diverse_sample(clusters.facts.codes, clusters.labels, n, clusters.distances, seed, threads)
    return Chosen(clusters, rows)


# ---- tables, lists and links


def write_chosen(chosen: Chosen, out: Path, source: Any = None, progress: Progress = quiet) -> Exported | None:
    """Write a table, a list of paths for other commands, or a folder of links in the order of the rows."""
    run = chosen.clusters.facts.run
    if out.suffix.lower() in TABLES:
        save_table(out, chosen.table())
        return None
    if out.suffix.lower() == LIST:
        images = RunImages(run, source, progress)
        lines = [images.place(row) or run.paths[row] for row in chosen.rows.tolist()]
        end = list_end(lines)
        with result_file(out) as file:
            file.write("".join(line + end for line in lines).encode("utf-8", "surrogateescape"))
        return (
            None
            if end == "\n"
            else Exported({}, "paths are separated by NUL bytes, because a name contains a line break")
        )
    names = short_names(chosen.clusters.facts.paths)
    digits = len(str(len(chosen.rows)))
    entries = [(row, "", f"{i:0{digits}d} {names[row]}") for i, row in enumerate(chosen.rows.tolist(), 1)]
    return write_links(out, entries, RunImages(run, source, progress), progress, edits=chosen.clusters.version)


def list_end(paths: Iterable[str]) -> str:
    """The separator of paths in a list: NUL if a name contains a line break. `read_list` accepts both."""
    return "\0" if any("\n" in path or path.endswith("\r") for path in paths) else "\n"


# ---- sheets


def draw_outliers(chosen: Chosen, sheet: Path, source: Any = None, progress: Progress = quiet) -> None:
    rows = chosen.rows[: MOST_ON_SHEET * COLUMNS].tolist()
    run = chosen.clusters.facts.run
    images = RunImages(run, source, progress).required("A sheet").thumbnails(rows, TILE, progress)
    title = f"{len(chosen.rows):,} outliers of {len(chosen.clusters.labels):,} images"
    subtitle = "the farthest from its cluster center first"
    save_sheet(contact_sheet(title, subtitle, [images[row] for row in rows if row in images], []), sheet)


def draw_chosen(chosen: Chosen, sheet: Path, source: Any = None, progress: Progress = quiet) -> None:
    """Draw one line per cluster, with the first of its selected images."""
    clusters = chosen.clusters
    numbers = clusters.labels[chosen.rows]
    lines_of = {number: chosen.rows[numbers == number] for number in clusters.numbers if (numbers == number).any()}
    shown = dict(list(lines_of.items())[:MOST_ON_SHEET])
    wanted = [row for rows in shown.values() for row in rows[:COLUMNS].tolist()]
    found = RunImages(clusters.facts.run, source, progress).required("A sheet")
    images = found.thumbnails(wanted, TILE, progress)
    lines = [
        (
            clusters.title(number),
            f"{len(rows):,} of {clusters.sizes[number]:,} images",
            [images[row] for row in rows[:COLUMNS].tolist() if row in images],
        )
        for number, rows in shown.items()
    ]
    save_sheet(overview(f"A sample of {len(chosen.rows):,} of {len(clusters.labels):,} images", lines, COLUMNS), sheet)


# ---- shared with duplicates


def check_outputs(
    run_folder: Path, out: Path | None, sheet: Path | None, suffixes: tuple[str, ...], links: bool = True
) -> None:
    """Check the outputs before the work. `out` is a file with one of the suffixes or, with `links`, a new folder."""
    is_folder = links and out is not None and out.suffix.lower() not in suffixes and (out.is_dir() or not out.suffix)
    for file in (None if is_folder else out, sheet):
        if file is not None and not file.absolute().parent.is_dir():
            raise MissingFileError(f"The folder {file.parent} does not exist. Create it, or choose another place.")
    if sheet is not None:
        check_output(sheet, run_folder)
        if sheet.suffix.lower() not in SHEETS:
            raise ParameterError(f"--sheet must be a file named {_listed(SHEETS)}; got {sheet.name}.")
    if out is not None:
        check_output(out, run_folder, is_folder)
        if not is_folder and out.suffix.lower() not in suffixes:
            folder = ", or a new folder for links" if links else ""
            raise ParameterError(f"--out must be a file named {_listed(suffixes)}{folder}; got {out.name}.")
        if is_folder and out.exists() and not (out.is_dir() and not any(out.iterdir())):
            raise InvalidDataError(f"Links go into a new or empty folder; {out} is not empty. Choose another.")


def _listed(suffixes: Iterable[str]) -> str:
    return " or ".join(f"*{suffix}" for suffix in suffixes)


def save_sheet(sheet: Any, path: Path) -> None:
    with result_file(path) as file:
        sheet.save(file, SHEETS[path.suffix.lower()])

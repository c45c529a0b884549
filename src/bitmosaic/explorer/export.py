"""Clusters as edited -> what other programs read: a table, or a folder of links (or copies) for each cluster."""

import io
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bitmosaic.errors import BitmosaicError, FileFormatError, InvalidDataError, MissingFileError, ParameterError
from bitmosaic.explorer.clusters import Clusters
from bitmosaic.files import whole_file, write_json
from bitmosaic.images import Progress, open_images, quiet
from bitmosaic.images.files import FileSource
from bitmosaic.pipeline import find_source
from bitmosaic.run import TABLE_WRITERS, Run

FORMAT, VERSION = "bitmosaic-links", 1
LONGEST_NAME = 120  # bytes of UTF-8; file systems take 255, and some programs add to a name
LONGEST_SUFFIX = 10
_FORBIDDEN = re.compile(r'[<>:"/\\|?*]')
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)  # devices on Windows


class ExportError(BitmosaicError, OSError):
    """An export that the system stopped."""


@dataclass(frozen=True)
class Exported:
    """What `export_links` has made."""

    folders: int
    links: int
    copies: int
    missing: int  # pictures that are no longer where they were


def export_table(clusters: Clusters, path: Any) -> None:
    """Every picture with its cluster, as CSV or Parquet by the suffix of the path."""
    path = Path(path)
    if path.suffix.lower().removeprefix(".") not in TABLE_WRITERS:
        raise ParameterError(f"A table is written as .csv or .parquet; got {path.name}.")
    save_table(table(clusters), path)


def save_table(columns: dict[str, Any], path: Path) -> None:
    """Columns as CSV or Parquet, by the suffix."""
    try:
        with whole_file(path) as file:
            TABLE_WRITERS[path.suffix.lower().removeprefix(".")](file, columns)
    except OSError as error:
        raise ExportError(f"{path} could not be written: {error.strerror or error}.") from error


def table(clusters: Clusters) -> dict[str, Any]:
    """The columns of the table. Names are there if a cluster has one, the run's own clusters if an edit changed any."""
    pictures = clusters.pictures
    columns: dict[str, Any] = {"path": pictures.paths, "cluster": clusters.labels}
    if clusters.names:
        columns["name"] = [clusters.names.get(number) for number in clusters.labels.tolist()]
    if clusters.touched:
        columns["original_cluster"] = np.asarray(pictures.run.column("labels"))
    columns["distance"] = clusters.distances
    if pictures.run.views.labels is not None:
        columns["label"] = pictures.run.views.labels
    return columns


def export_links(clusters: Clusters, folder: Any, source: Any = None, progress: Progress = quiet) -> Exported:
    """A folder for each cluster with a link to each of its pictures, or a copy of what is in an archive or array.

    `source`: where the pictures are now, if not where the run has read them. A picture keeps its name and those of its
    folders, joined by `__`. Copies from an archive are the bytes in it; pictures of an array become PNG files.
    """
    width = max(3, len(str(max(clusters.numbers))))
    places = {n: safe_name(f"{n:0{width}d} {clusters.names.get(n, '')}") for n in clusters.numbers}
    names = short_names(clusters.pictures.paths)
    entries = [(row, places[number], names[row]) for row, number in enumerate(clusters.labels.tolist())]
    return link_pictures(clusters.pictures.run, entries, folder, source, progress, edits=clusters.version)


def link_pictures(
    run: Run,
    entries: Sequence[tuple[int, str, str]],
    folder: Any,
    source: Any = None,
    progress: Progress = quiet,
    **facts: Any,
) -> Exported:
    """A new folder of links to pictures, or of copies: for each its row, the folder it goes into ("": this one), and
    how it shall be called there. `facts` go into the folder's manifest."""
    folder = Path(folder)
    images = find_source(run.views_folder, progress) if source is None else open_images(source, progress)
    if images is None:
        raise MissingFileError(
            f"Links need pictures; those of {run.folder} are not where they were, or there never were any. "
            "Say where they are: --source PICTURES."
        )
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InvalidDataError(f"Links go into a folder of their own; {folder} holds other things. Choose another.")
    name: dict[str, Callable[[str], str]] = defaultdict(_own_names)
    targets = [folder / place / name[place](wanted) for _, place, wanted in entries]
    positions = _positions([run.paths[row] for row, _, _ in entries], images.paths)
    links = isinstance(images, FileSource)
    made = 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for place in dict.fromkeys(target.parent for target in targets):
            place.mkdir(exist_ok=True)
        # By its manifest, a later search for pictures knows this folder and passes it over.
        write_json(folder / "manifest.json", {"format": FORMAT, "version": VERSION} | facts)
        for done in (_link if links else _copy)(images, positions, targets, progress):
            made += done
    except (OSError, FileFormatError) as error:
        raise ExportError(
            f"Of {len(targets):,} pictures {made:,} were exported to {folder}, then it stopped: {error} "
            "Remove the folder, and try again."
        ) from error
    return Exported(len(name), made * links, made * (not links), missing=len(targets) - made)


def _positions(rows: Sequence[str], paths: Sequence[str]) -> np.ndarray:
    """Where each picture of the run stands in its source, -1 where it is not there any more."""
    position = {path: i for i, path in enumerate(paths)}
    return np.array([position.get(path, -1) for path in rows], np.int64)


def _link(source: Any, positions: np.ndarray, targets: list[Path], progress: Progress) -> Iterator[bool]:
    for number, (position, target) in enumerate(zip(positions.tolist(), targets, strict=True), 1):
        place = os.path.abspath(os.path.join(source.root, source.paths[position]))
        there = position >= 0 and os.path.isfile(place)
        if there:
            target.symlink_to(place)
        progress("linking pictures", number, len(targets))
        yield there


def _copy(source: Any, positions: np.ndarray, targets: list[Path], progress: Progress) -> Iterator[bool]:
    row_at = {position: row for row, position in enumerate(positions.tolist()) if position >= 0}
    for number, (position, content) in enumerate(source.contents(row_at), 1):
        target = targets[row_at[position]]
        if isinstance(content, bytes):
            with target.open("xb") as file:
                file.write(content)
        elif content is not None:
            png = io.BytesIO()  # not the file itself: Pillow does not see that a disk is full
            Image.fromarray(content).save(png, "PNG")
            with target.with_name(f"{target.name}.png").open("xb") as file:
                file.write(png.getvalue())
        progress("copying pictures", number, len(row_at))
        yield content is not None


# ---- names that stay in their folder


def short_names(paths: Sequence[str]) -> list[str]:
    """File names that say where pictures come from: their paths without the folders that all are in, `/` as `__`."""
    folders = zip(min(paths).split("/")[:-1], max(paths).split("/")[:-1], strict=False)
    common = sum(len(ours) + 1 for ours, _ in takewhile(lambda pair: pair[0] == pair[1], folders))
    return [path[common:].replace("/", "__") for path in paths]


def _own_names() -> Callable[[str], str]:
    """Safe names in one folder; one that is taken, whatever its case, gets a number."""
    taken: dict[str, int] = {}

    def own(name: str) -> str:
        safe = candidate = safe_name(name)
        while candidate.casefold() in taken:
            taken[safe.casefold()] = count = taken.get(safe.casefold(), 1) + 1
            stem, suffix = os.path.splitext(safe)
            candidate = f"{stem} ({count}){suffix}"
        taken[candidate.casefold()] = 1
        return candidate

    return own


def safe_name(text: str) -> str:
    """A file name that every usual system takes and that names nothing outside its folder."""
    text = "".join(letter if letter.isprintable() else "_" for letter in text)
    text = _FORBIDDEN.sub("_", text).strip(" .") or "_"
    if _RESERVED.fullmatch(text):
        text = f"_{text}"
    if len(text.encode()) > LONGEST_NAME:
        stem, suffix = os.path.splitext(text)
        if len(suffix) > LONGEST_SUFFIX:
            stem, suffix = text, ""
        text = stem.encode()[: LONGEST_NAME - len(suffix)].decode(errors="ignore").rstrip(" .") + suffix
    return text

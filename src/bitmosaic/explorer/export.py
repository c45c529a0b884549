"""Clusters as edited -> what other programs read: a table, or a folder of links (or copies) for each cluster."""

import io
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bitmosaic.errors import BitmosaicError, FileFormatError, InvalidDataError, MissingFileError, ParameterError
from bitmosaic.explorer.clusters import Clusters
from bitmosaic.files import whole_file, write_json
from bitmosaic.images import Progress, quiet
from bitmosaic.run import TABLE_WRITERS
from bitmosaic.run_pictures import RunPictures

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
    kind = path.suffix.lower().removeprefix(".")
    if kind not in TABLE_WRITERS:
        raise ParameterError(f"A table is written as .csv or .parquet; got {path.name}.")
    try:
        with whole_file(path) as file:
            TABLE_WRITERS[kind](file, table(clusters))
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
    folder = Path(folder)
    run = clusters.pictures.run
    pictures = RunPictures(run, source, progress)
    if not pictures.available:
        raise MissingFileError(
            f"Links need pictures; those of {run.folder} are not where they were, or there never were any. "
            "Say where they are: --source PICTURES."
        )
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InvalidDataError(f"Links go into a folder of their own; {folder} holds other things. Choose another.")
    targets = _targets(clusters, folder)
    links = copies = 0
    try:
        for place in dict.fromkeys(target.parent for target in targets):
            place.mkdir(parents=True)
        # By its manifest, a later search for pictures knows this folder and passes it over.
        write_json(folder / "manifest.json", {"format": FORMAT, "version": VERSION, "edits": clusters.version})
        left: list[int] = []
        for _ in _linked(pictures, targets, left, progress):
            links += 1
        for _ in _copied(pictures, targets, left, progress):
            copies += 1
    except (OSError, FileFormatError) as error:
        raise ExportError(
            f"Of {len(targets):,} pictures {links + copies:,} were exported to {folder}, then it stopped: {error} "
            "Remove the folder, and try again."
        ) from error
    return Exported(len(clusters.numbers), links, copies, missing=len(targets) - links - copies)


def _linked(pictures: RunPictures, targets: list[Path], left: list[int], progress: Progress) -> Iterator[int]:
    """Link each picture that is a file; the rows of the others go to `left`."""
    for row, target in enumerate(targets):
        if (place := pictures.place(row)) is None:
            left.append(row)
        elif os.path.isfile(place):
            target.symlink_to(place)
            yield row
        progress("linking pictures", row + 1, len(targets))


def _copied(pictures: RunPictures, targets: list[Path], rows: list[int], progress: Progress) -> Iterator[int]:
    """Copy pictures of archives and arrays."""
    for number, (row, content) in enumerate(pictures.contents(rows), 1):
        target = targets[row]
        if isinstance(content, bytes):
            with target.open("xb") as file:
                file.write(content)
        elif content is not None:
            png = io.BytesIO()  # not the file itself: Pillow does not see that a disk is full
            Image.fromarray(content).save(png, "PNG")
            with target.with_name(f"{target.name}.png").open("xb") as file:
                file.write(png.getvalue())
        progress("copying pictures", number, len(rows))
        if content is not None:
            yield row


# ---- names that stay in their folder


def _targets(clusters: Clusters, folder: Path) -> list[Path]:
    """A path of its own for each picture."""
    width = max(3, len(str(max(clusters.numbers))))
    places = {n: folder / safe_name(f"{n:0{width}d} {clusters.names.get(n, '')}") for n in clusters.numbers}
    paths = clusters.pictures.paths
    folders = zip(min(paths).split("/")[:-1], max(paths).split("/")[:-1], strict=False)
    common = sum(len(ours) + 1 for ours, _ in takewhile(lambda pair: pair[0] == pair[1], folders))
    name = {number: _own_names() for number in clusters.numbers}
    return [
        places[number] / name[number](paths[row][common:].replace("/", "__"))
        for row, number in enumerate(clusters.labels.tolist())
    ]


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

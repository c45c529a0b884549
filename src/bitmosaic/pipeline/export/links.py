"""Export images of a run as folders of links. Images in an archive or array are copied."""

import io
import os
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bitmosaic.errors import InvalidDataError
from bitmosaic.images import Progress, quiet
from bitmosaic.io.files import (
    ABANDONED,
    beside,
    make_folder,
    new_file,
    remove,
    remove_unfinished,
    sync_folder,
    write_json,
    writing,
)
from bitmosaic.pipeline.export.formats import Exported, FindImages, counted
from bitmosaic.run.clusters import Clusters
from bitmosaic.run.images import RunImages

FORMAT, VERSION = "bitmosaic-links", 1
LONGEST_NAME = 120  # bytes of UTF-8; file systems allow 255, and some programs append to a name
LONGEST_SUFFIX = 10
_FORBIDDEN = re.compile(r'[<>:"/\\|?*]')
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)  # devices on Windows


def export_links(clusters: Clusters, folder: Path, find_images: FindImages, progress: Progress = quiet) -> Exported:
    """One folder per cluster, named by its number and its name."""
    width, own = max(3, len(str(max(clusters.numbers)))), _own_names()
    places = {n: own(f"{n:0{width}d} {clusters.names.get(n, '')}") for n in clusters.numbers}
    names = short_names(clusters.facts.paths)
    entries = [(row, places[number], names[row]) for row, number in enumerate(clusters.labels.tolist())]
    return write_links(folder, entries, find_images(), progress, edits=clusters.version)


def write_links(
    folder: Path,
    entries: Sequence[tuple[int, str, str]],
    images: RunImages,
    progress: Progress = quiet,
    **facts: Any,
) -> Exported:
    """Write a folder of links, which appears when it is complete.

    `entries`: the row of each image, its folder inside ("": the top), and its file name. A member of an archive is
    copied as it is; an image of an array becomes a PNG file. `facts` go into the manifest of the folder, by which
    `open_images` recognizes such folders and skips them.
    """
    images.required("A folder of links")
    folder = Path(os.path.abspath(folder))
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InvalidDataError(f"Links go into a new or empty folder; {folder} is not empty. Choose another.")
    unfinished = beside(folder)
    remove_unfinished(folder.parent, below=False, older_than=ABANDONED)
    links = copies = 0
    name: dict[str, Callable[[str], str]] = defaultdict(_own_names)
    targets = {row: Path(place, name[place](wanted)) for row, place, wanted in entries}
    try:
        with writing(folder):
            make_folder(unfinished)
            for place in name:
                (unfinished / place).mkdir(exist_ok=True)
            write_json(unfinished / "manifest.json", {"format": FORMAT, "version": VERSION} | facts)
            to_copy = []
            for number, (row, target) in enumerate(targets.items(), 1):
                image_place = images.place(row)
                if image_place is None:
                    to_copy.append(row)
                elif os.path.isfile(image_place):
                    (unfinished / target).symlink_to(image_place)
                    links += 1
                progress("linking images", number, len(targets))
            for number, (row, content) in enumerate(images.contents(to_copy), 1):
                copies += _copy(content, unfinished / targets[row])
                progress("copying images", number, len(to_copy))
            for place in name:
                sync_folder(unfinished / place)
            if folder.exists():
                folder.rmdir()  # empty, as checked above
            unfinished.rename(folder)
            sync_folder(folder.parent)
    finally:
        remove(unfinished, ignore_errors=True)
    missing = len(targets) - links - copies
    kinds = [counted(links, "link")] * bool(links or not copies) + [counted(copies, "copy", "copies")] * bool(copies)
    notes = [f"{missing:,} images were not found."] if missing else []
    made = {"folders": len(name), "links": links, "copies": copies, "missing": missing}
    return Exported(made, f"{' and '.join(kinds)} in {counted(len(name), 'folder')}", notes)


def _copy(content: bytes | np.ndarray | None, target: Path) -> bool:
    if isinstance(content, bytes):
        with new_file(target) as file:
            file.write(content)
    elif content is not None:
        png = io.BytesIO()  # not the file itself: Pillow does not report a full disk
        Image.fromarray(content).save(png, "PNG")
        with new_file(_free(target.with_name(f"{target.name}.png"))) as file:
            file.write(png.getvalue())
    return content is not None


def _free(target: Path) -> Path:
    """The target, or a numbered one if the name is taken by a link."""
    number, free = 1, target
    while os.path.lexists(free):
        number += 1
        free = target.with_name(f"{target.stem} ({number}){target.suffix}")
    return free


# ---- safe file names


def short_names(paths: Sequence[str]) -> list[str]:
    """File names from paths: without the common folders, `/` replaced by `__`."""
    if not paths:
        return []
    folders = zip(min(paths).split("/")[:-1], max(paths).split("/")[:-1], strict=False)
    common = sum(len(ours) + 1 for ours, _ in takewhile(lambda pair: pair[0] == pair[1], folders))
    return [path[common:].replace("/", "__") for path in paths]


def _own_names() -> Callable[[str], str]:
    """Safe and unique names in one folder, ignoring case: a name that is taken gets a number."""
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
    """A file name that is valid on all common systems and stays in its folder."""
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

"""Pictures of a run -> folders with a link to each, or a copy of what is in an archive or array."""

import io
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from bitmosaic.errors import ExportError, FileFormatError, InvalidDataError, MissingFileError
from bitmosaic.exports.kind import Exported, Pictures, counted
from bitmosaic.files import beside, new_file, new_folder, remove_unfinished, sync_folder, write_json
from bitmosaic.images import Progress, quiet
from bitmosaic.run_pictures import RunPictures

if TYPE_CHECKING:
    from bitmosaic.explorer.clusters import Clusters

FORMAT, VERSION = "bitmosaic-links", 1
LONGEST_NAME = 120  # bytes of UTF-8; file systems take 255, and some programs add to a name
LONGEST_SUFFIX = 10
_FORBIDDEN = re.compile(r'[<>:"/\\|?*]')
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)  # devices on Windows


def export_links(clusters: "Clusters", folder: Path, find_pictures: Pictures, progress: Progress = quiet) -> Exported:
    """A folder for each cluster, named by its number and its name."""
    width, own = max(3, len(str(max(clusters.numbers)))), _own_names()
    places = {n: own(f"{n:0{width}d} {clusters.names.get(n, '')}") for n in clusters.numbers}
    names = short_names(clusters.pictures.paths)
    entries = [(row, places[number], names[row]) for row, number in enumerate(clusters.labels.tolist())]
    return write_links(folder, entries, find_pictures(), progress, edits=clusters.version)


def write_links(
    folder: Path,
    entries: Sequence[tuple[int, str, str]],
    pictures: RunPictures,
    progress: Progress = quiet,
    **facts: Any,
) -> Exported:
    """A folder of links that appears when it is finished: for each picture its row, the folder inside that it goes
    into ("": this one), and how it shall be called there.

    Copies from an archive are the bytes in it; pictures of an array become PNG files. `facts` go into the manifest, by
    which a later search for pictures knows the folder and passes it over.
    """
    if not pictures.available:
        raise MissingFileError(
            f"Links need pictures; those of {pictures.run.folder} are not where they were, or there never were any. "
            "Say where they are: --source PICTURES."
        )
    folder = Path(os.path.abspath(folder))
    remove_unfinished(folder, below=False)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InvalidDataError(f"Links go into a folder of their own; {folder} holds other things. Choose another.")
    unfinished = beside(folder / "inside" if folder.exists() else folder)
    remove_unfinished(unfinished.parent, below=False)
    links = copies = 0
    name: dict[str, Callable[[str], str]] = defaultdict(_own_names)
    targets = {row: Path(place, name[place](wanted)) for row, place, wanted in entries}
    try:
        with new_folder(unfinished):
            for place in name:
                (unfinished / place).mkdir(exist_ok=True)
            write_json(unfinished / "manifest.json", {"format": FORMAT, "version": VERSION} | facts)
            to_copy = []
            for number, (row, target) in enumerate(targets.items(), 1):
                place_of_picture = pictures.place(row)
                if place_of_picture is None:
                    to_copy.append(row)
                elif os.path.isfile(place_of_picture):
                    (unfinished / target).symlink_to(place_of_picture)
                    links += 1
                progress("linking pictures", number, len(targets))
            for number, (row, content) in enumerate(pictures.contents(to_copy), 1):
                copies += _copy(content, unfinished / targets[row])
                progress("copying pictures", number, len(to_copy))
            for place in name:
                sync_folder(unfinished / place)
            _put(unfinished, folder)
    except ExportError:
        raise
    except (OSError, FileFormatError) as error:
        raise ExportError(
            f"Of {len(targets):,} pictures {links + copies:,} were exported to {folder}, then it stopped: {error} "
            "Nothing of it was kept; try again."
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    missing = len(targets) - links - copies
    kinds = [counted(links, "link")] * bool(links or not copies) + [counted(copies, "copy", "copies")] * bool(copies)
    notes = [f"{missing:,} pictures are not where they were."] if missing else []
    made = {"folders": len(name), "links": links, "copies": copies, "missing": missing}
    return Exported(made, f"{' and '.join(kinds)} in {counted(len(name), 'folder')}", notes)


def _put(unfinished: Path, folder: Path) -> None:
    """Rename the finished folder; an empty one that is there already may be where somebody stands, and stays.

    All of it is there in the end, or what is there goes back: half an export looks like a whole one.
    """
    moves = [(unfinished, folder)]
    if unfinished.parent == folder:
        moves = [(entry, folder / entry.name) for entry in unfinished.iterdir()]
    try:
        for entry, place in moves:
            entry.rename(place)
        sync_folder(moves[0][1].parent)
    except BaseException as error:
        if left := _not_taken_back(moves):
            raise ExportError(
                f"The export to {folder} stopped at its end ({error}), and {left[0]} could not be taken back. "
                "Remove it, and try again."
            ) from error
        raise


def _not_taken_back(moves: Sequence[tuple[Path, Path]]) -> list[Path]:
    """Undo the renames that were made; what stays where it is."""
    made = [(entry, place) for entry, place in moves if not os.path.lexists(entry)]
    for entry, place in made:
        with suppress(OSError):
            place.rename(entry)
    return [place for entry, place in made if not os.path.lexists(entry)]


def _copy(content: bytes | np.ndarray | None, target: Path) -> bool:
    if isinstance(content, bytes):
        with new_file(target) as file:
            file.write(content)
    elif content is not None:
        png = io.BytesIO()  # not the file itself: Pillow does not see that a disk is full
        Image.fromarray(content).save(png, "PNG")
        with new_file(_free(target.with_name(f"{target.name}.png"))) as file:
            file.write(png.getvalue())
    return content is not None


def _free(target: Path) -> Path:
    """The target, or one with a number where a link has its name."""
    number = 1
    while target.exists() or target.is_symlink():
        number += 1
        target = target.with_name(f"{target.stem.removesuffix(f' ({number - 1})')} ({number}){target.suffix}")
    return target


# ---- names that stay in their folder


def short_names(paths: Sequence[str]) -> list[str]:
    """File names that say where pictures come from: their paths without the folders that all are in, `/` as `__`."""
    if not paths:
        return []
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

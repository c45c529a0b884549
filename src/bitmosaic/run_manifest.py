"""The manifest of a run folder, and that of an addition to it: read, and checked part by part, for others wrote it."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bitmosaic.errors import FileFormatError, MissingFileError
from bitmosaic.reading import read_json

FORMAT, VERSION = "bitmosaic-run", 1
ADDITION, ADDITION_VERSION = "bitmosaic-addition", 1
STAGES = ("extract", "fit", "tables", "pictures")
HIGHEST = 2**24  # numbers of clusters are below: arrays have a place for each
LONGEST_PATH, LONGEST_NAME = 4096, 255  # letters; systems allow fewer in some scripts
SCORES = {"acc", "nmi", "purity", "f_score"}
REFIT = ("images", "kept", "split", "merged", "born", "died")
_SURROGATE = re.compile("[\ud800-\udfff]")


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a run folder."""
    try:
        manifest = _read(folder, FORMAT, "a run folder", VERSION)
    except FileNotFoundError:
        raise MissingFileError(
            f"A run folder has a manifest.json; there is none in {folder}. Make a run with: bitmosaic cluster"
        ) from None
    _require(folder, manifest, _parts(manifest))
    return manifest


def read_addition_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of an addition to a run."""
    try:
        manifest = _read(folder, ADDITION, "an addition to a run", ADDITION_VERSION)
    except FileNotFoundError as error:
        raise FileFormatError(f"An addition to a run has a manifest.json; there is none in {folder}.") from error
    parts: dict[str, Callable[[Any], bool]] = {"at": _is_text, "source": _is_name, "updated": _is_flag}
    _require(folder, manifest, parts | dict.fromkeys(("images", "skipped", "known"), _is_count))
    if not manifest["images"]:
        raise FileFormatError(f"An addition to a run has a picture at least; {folder} has none. Remove it.")
    return manifest


def _read(folder: Path, form: str, what: str, version: int) -> dict[str, Any]:
    path = folder / "manifest.json"
    try:
        manifest = read_json(path)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{path} cannot be read ({error}).") from error
    if not isinstance(manifest, dict) or manifest.get("format") != form:
        raise FileFormatError(f"{folder} is not {what}: its manifest is not that of one.")
    if manifest.get("version") != version:
        raise FileFormatError(
            f"{folder} is {what} of version {manifest.get('version')!r}; this bitmosaic reads {version}."
        )
    return manifest


def _require(folder: Path, manifest: dict[str, Any], parts: dict[str, Callable[[Any], bool]]) -> None:
    wrong = next((key for key, is_right in parts.items() if not is_right(manifest.get(key))), None)
    if wrong is not None:
        path = folder / "manifest.json"
        raise FileFormatError(f"{path} lacks a part, or has a wrong one: {wrong!r}. Was it changed by hand?")


def _parts(manifest: dict[str, Any]) -> dict[str, Callable[[Any], bool]]:
    """What the manifest must hold, after the stages that are done, and how each part is checked."""
    parts: dict[str, Callable[[Any], bool]] = {
        "begun": _is_text,
        "bitmosaic": _is_text,
        "arguments": _are_arguments,
        "seconds": _are_figures,
    }
    done = manifest["seconds"] if isinstance(manifest.get("seconds"), dict) else {}
    found: tuple[dict[str, Callable[[Any], bool]], ...] = (
        {"images": _is_count, "skipped": _is_count},
        {"view_weights": _are_figures, "iterations": _is_count},
        {"sizes": _are_counts},
        {"sheets": _is_count},
    )
    for number, stage_parts in enumerate(found):
        if any(stage in done for stage in STAGES[number:]):  # a later stage needs what an earlier one has left
            parts |= stage_parts
    optional = {
        "bytes": lambda part: isinstance(part, dict) and all(map(_are_figures, part.values())),
        "views_folder": _is_place,
        "scores": lambda part: _are_figures(part) and part.keys() >= SCORES,
        "absorbed": _is_count,
        "ids": lambda part: _are_counts(part) and max(part, default=HIGHEST) < HIGHEST,
        "next_number": lambda part: _is_count(part) and part <= HIGHEST,
        "refits": lambda part: isinstance(part, list) and all(map(_is_refit, part)),
        "how_many": lambda part: isinstance(part, dict) and _is_text(part.get("words")),
    }
    return parts | {key: is_right for key, is_right in optional.items() if key in manifest}


def _is_text(part: Any) -> bool:
    return isinstance(part, str) and part.isprintable() and bool(part)


def _is_name(part: Any) -> bool:
    """Of a file, which may hold any letter that can be encoded."""
    return isinstance(part, str) and not _SURROGATE.search(part)


def _is_place(part: Any) -> bool:
    """A path that a file system may have."""
    if not isinstance(part, str) or "\0" in part or len(part) > LONGEST_PATH:
        return False
    return all(len(name) <= LONGEST_NAME for name in part.split("/"))


def _is_flag(part: Any) -> bool:
    return isinstance(part, bool)


def _is_count(part: Any) -> bool:
    return type(part) is int and 0 <= part < 2**48


def _are_counts(part: Any) -> bool:
    return isinstance(part, list) and all(map(_is_count, part))


def _is_refit(part: Any) -> bool:
    """When, of how many pictures, and how many clusters were kept, split, merged, born, and died."""
    return isinstance(part, dict) and _is_text(part.get("at")) and all(_is_count(part.get(key)) for key in REFIT)


def _are_figures(part: Any) -> bool:
    """Numbers, each under a name; a view may have any, as long as it can be encoded."""
    return isinstance(part, dict) and all(
        key and not _SURROGATE.search(key) and type(value) in (int, float) and -1e12 < value < 1e12
        for key, value in part.items()
    )


def _are_arguments(part: Any) -> bool:
    """What is shown of them, or taken for what it is: the number of clusters and the names of the views."""
    if not isinstance(part, dict) or not (_is_count(part.get("clusters")) or _is_text(part.get("clusters"))):
        return False
    views = part.get("views", [])
    return isinstance(views, list) and all(isinstance(view, dict) and _is_text(view.get("name")) for view in views)

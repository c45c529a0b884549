"""A views folder, read as memory maps.

<view>.npy         one matrix per view, a row per sample
manifest.json      format, number of rows, and the views with shapes and types; written last
labels.npy         true labels, if known
paths.jsonl        one JSON string per line: the path of each sample, if known
digests.npy        (n, 16) uint8, the content hash of each image, if the views were extracted from images. The name is
                   that of version 0.1.0: it is also in manifests and reserved as a view name
extraction.json    how the views were extracted, if they were: source, extractors and image size

A folder of .npy files without a manifest is a views folder, too.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from bitmosaic.errors import FileFormatError
from bitmosaic.io.read import load_npy, open_npy, read_json
from bitmosaic.views.views import Views

MANIFEST, LABELS, PATHS, DIGESTS = "manifest.json", "labels.npy", "paths.jsonl", "digests.npy"
RECIPE = "extraction.json"
FORMAT, VERSION = "bitmosaic-views", 1
_PLAIN_NAME = re.compile(r"[\w-](?:[\w .-]*[\w-])?")  # no separators, no leading dot, no trailing dot or space


def is_plain_name(name: Any) -> bool:
    """Whether it is a valid file name on every system: letters, digits, _ . - and spaces."""
    return isinstance(name, str) and _PLAIN_NAME.fullmatch(name) is not None and len(name.encode()) <= 200


def views_signature(path: Path) -> str:
    """A hash of names, sizes and times of the files of views. It changes when the views are written again."""
    files = [path]
    if path.is_dir():
        files = [*path.glob("*.npy"), path / MANIFEST, path / PATHS]
    facts = [
        (str(file.relative_to(path)), file.stat().st_size, file.stat().st_mtime_ns)
        for file in sorted(files)
        if file.is_file()
    ]
    return hashlib.sha256(repr(facts).encode("utf-8", "surrogateescape")).hexdigest()


def read_folder(folder: Path, bare: bool = False) -> Views:
    """Views in the order of the manifest. Without a manifest: all .npy files by name, except labels and digests.

    `bare` leaves out labels and paths, which take memory.
    """
    if (folder / MANIFEST).exists():
        return _read_listed(folder, _read_manifest(folder / MANIFEST), bare)
    if (folder / RECIPE).exists():  # an extraction always writes a manifest
        raise FileFormatError(f"Extracted views have a manifest.json; {folder} has lost it. Copy the folder again.")
    files = sorted(file for file in folder.glob("*.npy") if not file.name.startswith("."))
    views = [file for file in files if file.name not in (LABELS, DIGESTS)]
    if not views:
        raise FileFormatError(f"A views folder holds one .npy file per view; {folder} holds none. Check the path.")
    labels = load_npy(folder / LABELS) if not bare and (folder / LABELS).exists() else None
    paths = _read_paths(folder / PATHS) if not bare and (folder / PATHS).exists() else None
    return Views(tuple(file.stem for file in views), tuple(open_matrix(file) for file in views), labels, paths)


def open_matrix(path: Path) -> np.memmap:
    """The matrix in a .npy file as a read-only memory map."""
    array = open_npy(path)
    if array.ndim != 2:
        raise FileFormatError(
            f"A view is a matrix of shape (n, d); {path} holds shape {array.shape}. Save it as a matrix."
        )
    return array


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = read_json(path)
    except (ValueError, OSError) as error:
        raise FileFormatError(f"{path} is not a whole JSON file ({error}). Extract the views again.") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise FileFormatError(
            f"The format in {path} must be {FORMAT!r}. Check the path. "
            "Parquet parts written by Dask workers of version 0.1.0 must be extracted again."
        )
    if (version := manifest.get("version")) != VERSION:
        raise FileFormatError(f"{path} must have version {VERSION}; got {version!r}. Update bitmosaic.")
    if not all(is_plain_name(entry["file"]) for entry in manifest["views"]):  # of another folder
        raise FileFormatError(f"{path} may list only files of its own folder. Extract the views again.")
    return manifest


def _read_listed(folder: Path, manifest: dict[str, Any], bare: bool) -> Views:
    arrays = tuple(open_matrix(folder / entry["file"]) for entry in manifest["views"])
    labels = load_npy(folder / LABELS) if not bare and manifest.get("labels") else None
    paths = _read_paths(folder / PATHS) if not bare and manifest.get("paths") else None
    return Views(tuple(entry["name"] for entry in manifest["views"]), arrays, labels, paths)


def read_content_hashes(folder: Path) -> np.ndarray | None:
    """The content hash of each image of a views folder, (n, 16) uint8 as a memory map. None if it has none."""
    if not (folder / MANIFEST).exists() or not _read_manifest(folder / MANIFEST).get("digests"):
        return None
    return open_npy(folder / DIGESTS)


def _read_paths(path: Path) -> tuple[str, ...]:
    try:
        with path.open("rb") as file:
            return tuple(map(json.loads, file))
    except (ValueError, OSError) as error:
        raise FileFormatError(f"{path} must hold one JSON string per line ({error}). Write it again.") from error


def read_recipe(path: Path) -> dict[str, Any]:
    """How the views of a folder were extracted: the source, the views with their options, the image size."""
    try:
        return read_json(path)
    except (OSError, ValueError) as error:
        raise FileFormatError(
            f"{path} cannot be read ({error}). Copy it again, or extract into another folder."
        ) from error

"""A views folder: one <view>.npy per view as memory maps, manifest.json, and where they are known labels.npy,
paths.jsonl and digests.npy; or Parquet parts.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from bitmosaic.errors import FileFormatError
from bitmosaic.npy import load_npy, open_npy
from bitmosaic.reading import read_json, read_lines
from bitmosaic.views import parts
from bitmosaic.views.core import Views

MANIFEST, LABELS, PATHS, DIGESTS = "manifest.json", "labels.npy", "paths.jsonl", "digests.npy"
DIGEST_BYTES = 16  # among a hundred million pictures, two that differ share a digest with a chance of 1e-23
_AGAIN = (  # right for a folder of one's own as for one inside a run
    "Copy it again from where it was made; if there is no copy, make the views, or the run they belong to, anew in "
    "another folder."
)
EXTRACTION = "extraction.json"  # how the views were made of pictures, where they were
FORMAT, VERSION = "bitmosaic-views", 1
# No separators, no leading dot, no trailing dot or space.
_LONGEST_PATH = 2**20  # bytes of a line
_PLAIN_NAME = re.compile(r"[\w-](?:[\w .-]*[\w-])?")


def is_plain_name(name: Any) -> bool:
    """Whether it names a file inside a folder, on every system: letters, digits, _ . - and spaces."""
    return isinstance(name, str) and _PLAIN_NAME.fullmatch(name) is not None and len(name.encode()) <= 200


def views_fingerprint(path: Path) -> str:
    """A hash over what tells, without reading them, that the views in a folder or file have changed."""
    files = [path]
    if path.is_dir():
        files = [*path.glob("*.npy"), *path.glob("parts/*"), path / MANIFEST, path / PATHS]
    facts = [
        (str(file.relative_to(path)), file.stat().st_size, file.stat().st_mtime_ns)
        for file in sorted(files)
        if file.is_file()
    ]
    return hashlib.sha256(repr(facts).encode("utf-8", "surrogateescape")).hexdigest()


def read_folder(folder: Path, bare: bool = False) -> Views:
    """With a manifest, what it lists and in its order; without one, every .npy by name, but for labels and digests.

    `bare`: labels and paths, which take memory, are not read.
    """
    if (folder / MANIFEST).exists():
        manifest = _read_manifest(folder / MANIFEST)
        read = parts.read_parts if manifest["format"] == parts.FORMAT else _read_listed
        return read(folder, manifest, bare)
    if (folder / EXTRACTION).exists():  # what else is in it is no view
        raise FileFormatError(f"A views folder that was extracted has a manifest.json; {folder} has lost it. {_AGAIN}")
    files = sorted(file for file in folder.glob("*.npy") if not file.name.startswith("."))
    views = [file for file in files if file.name not in (LABELS, DIGESTS)]
    views = views or [file for file in files if file.name == DIGESTS]  # alone, it is somebody's matrix
    if not views:
        raise FileFormatError(
            f"A views folder holds one .npy file for each view; {folder} holds none. Is it the right folder?"
        )
    labels = load_npy(folder / LABELS) if not bare and (folder / LABELS).exists() else None
    paths = _read_paths(folder / PATHS) if not bare and (folder / PATHS).exists() else None
    return Views(tuple(file.stem for file in views), tuple(open_matrix(file) for file in views), labels, paths)


def open_matrix(path: Path) -> np.memmap:
    """The matrix in a .npy file as a memory map, read-only."""
    array = open_npy(path)
    if array.ndim != 2:
        raise FileFormatError(
            f"A view is a matrix of shape (n, d); {path} holds shape {array.shape}. Save it as a matrix."
        )
    return array


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = read_json(path)
    except FileFormatError:
        raise
    except (ValueError, OSError) as error:
        raise FileFormatError(f"{path} is not a whole JSON file ({error}). Extract the views again.") from error
    if not isinstance(manifest, dict) or manifest.get("format") not in (FORMAT, parts.FORMAT):
        raise FileFormatError(f"The format in {path} must be {FORMAT!r}, and is not. Is it the right folder?")
    version, known = manifest.get("version"), VERSION if manifest["format"] == FORMAT else parts.VERSION
    if version != known:
        raise FileFormatError(f"{path} must be of version {known}; got {version!r}. Update bitmosaic.")
    entries = manifest.get("views")
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise FileFormatError(f"{path} must list at least one view under 'views'. Extract the views again.")
    for entry in entries if manifest["format"] == FORMAT else ():
        if not is_plain_name(entry.get("file")):
            raise FileFormatError(
                f"{path} may list only plain names of files beside it; got {entry.get('file')!r}. "
                "Was it changed by hand? Extract the views again."
            )
    return manifest


def _read_listed(folder: Path, manifest: dict[str, Any], bare: bool) -> Views:
    arrays = []
    for entry in manifest["views"]:
        array = open_matrix(folder / entry["file"])
        listed = [entry.get("shape"), entry.get("dtype"), manifest.get("n_rows")]
        if listed != [list(array.shape), array.dtype.str, array.shape[0]]:
            raise FileFormatError(
                f"{folder / entry['file']} must be as the manifest lists it, {entry.get('shape')} "
                f"{entry.get('dtype')} of {manifest.get('n_rows')} rows; it is {list(array.shape)} "
                f"{array.dtype.str}. Extract the views again."
            )
        arrays.append(array)
    labels = load_npy(folder / LABELS) if not bare and manifest.get("labels") else None
    paths = _read_paths(folder / PATHS) if not bare and manifest.get("paths") else None
    return Views(tuple(entry.get("name") for entry in manifest["views"]), tuple(arrays), labels, paths)


def read_digests(folder: Path) -> np.ndarray | None:
    """(n, 16) uint8 of the content of each picture of a views folder as a memory map; None where they were not kept."""
    if not (folder / MANIFEST).exists():
        return None
    manifest, path = _read_manifest(folder / MANIFEST), folder / DIGESTS
    if not manifest.get("digests", path.exists() and (folder / EXTRACTION).exists()):  # old manifests do not tell
        return None
    if not path.exists():
        raise FileFormatError(
            f"{path} must be there, as manifest.json lists it, and is not: pictures are known again by it. {_AGAIN}"
        )
    digests, shape = open_npy(path), (manifest.get("n_rows"), DIGEST_BYTES)
    if digests.dtype != np.uint8 or digests.shape != shape:
        raise FileFormatError(
            f"{path} must hold uint8 of shape {shape}; it holds {digests.dtype} of {digests.shape}. {_AGAIN}"
        )
    return digests


def _read_paths(path: Path) -> tuple[str, ...]:
    try:
        paths = tuple(json.loads(line) for line in read_lines(path, _LONGEST_PATH))
    except FileFormatError:
        raise
    except (ValueError, OSError, RecursionError) as error:
        raise FileFormatError(f"{path} must hold one JSON string a line ({error}). Write it again.") from error
    if not all(isinstance(item, str) for item in paths):
        raise FileFormatError(f"{path} must hold one JSON string a line; some are no strings. Write it again.")
    return paths

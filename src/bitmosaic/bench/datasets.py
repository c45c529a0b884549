"""A path -> a data set with classes, whichever of the known kinds is there; or a views folder of it for `bench run`.

Kinds: `cifar-10`, the binary or the Python version, unpacked or as .tar.gz · `class-folders`, pictures in a folder for
each class, as a folder, .tar, .tar.xz or .zip, and ILSVRC2012_img_train.tar as it is · `youtube-faces` · `nus-wide`,
its low-level features · `views`, what `read_views` reads: multi-view .mat files, views folders and others.
"""

import hashlib
import json
import os
import shutil
import tarfile
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from bitmosaic.bench.cifar import is_batch, read_cifar
from bitmosaic.bench.nus_wide import CONCEPTS, find_files, has_features, read_nus_wide
from bitmosaic.bench.picture_sets import TarOfTars, class_folders, is_youtube_faces, youtube_faces
from bitmosaic.bench.selection import Choice, LabelledSource, called, choose_rows, take_rows
from bitmosaic.errors import FileFormatError, InvalidDataError, MissingFileError, ParameterError
from bitmosaic.extraction import DEFAULT_VIEWS, ViewSpec, as_json, extract_views, finished
from bitmosaic.files import beside, megabytes, sync_folder, write_json
from bitmosaic.images import ImageSource, Progress, open_images, quiet
from bitmosaic.images.tars import STREAM_ERRORS
from bitmosaic.views import Views, read_views, write_views
from bitmosaic.views.readers import READERS

KINDS = ("cifar-10", "class-folders", "youtube-faces", "nus-wide", "views")
MANY_FACES = 1201  # the paper takes people with more than 1,200 pictures
RECIPE = "dataset.json"
HEAD = 20  # members of an archive that tell its kind
_RULE = (
    "A data set is CIFAR-10 (data_batch_1 … test_batch, with or without .bin, or their .tar.gz), pictures in a folder "
    "for each class, YouTube Faces (PERSON/VIDEO/*.jpg), NUS-WIDE (Normalized_CH.dat … and Labels_*.txt), or views "
    "(a .mat, .npz, .h5 or .parquet file, a views folder)"
)


@dataclass(frozen=True)
class Found:
    """What is at a path; pictures in folders are listed already."""

    path: Path
    kind: str
    source: ImageSource | None = None


def open_dataset(
    path: str | os.PathLike[str],
    kind: str = "auto",
    *,
    classes: int | Sequence[str] | None = None,
    per_class: int | None = None,
    at_least: int | None = None,
    concepts: int | None = None,
    seed: int = 0,
    progress: Progress = quiet,
) -> Views | LabelledSource:
    """Features as Views with labels, pictures as a source that `extract_views(…, labels="folder")` takes.

    `classes`: their names, or so many random ones. `per_class`: so many random images of each. Classes with fewer than
    `at_least` are left out; of YouTube Faces, people with 1,200 pictures or fewer unless it is given. `concepts`: so
    many of NUS-WIDE's most frequent ones, 21. The same `seed` chooses the same images.
    """
    choice = Choice(classes, per_class, at_least, seed)
    return _load(find(Path(path), kind, progress), choice, concepts, progress)


def prepare(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    kind: str = "auto",
    features: Sequence[str | ViewSpec] = DEFAULT_VIEWS,
    *,
    mirror: bool = True,
    max_side: int | None = None,
    n_threads: int | None = None,
    strict: bool = False,
    classes: int | Sequence[str] | None = None,
    per_class: int | None = None,
    at_least: int | None = None,
    concepts: int | None = None,
    seed: int = 0,
    progress: Progress = quiet,
) -> Views:
    """A data set -> the views folder `out` with labels. What was begun goes on, what is done is not done again.

    `features`, `mirror`, `max_side`, `n_threads` and `strict` are those of `extract_views`, for pictures only; the
    rest is as in `open_dataset`.
    """
    choice, out = Choice(classes, per_class, at_least, seed), Path(out)
    found = find(Path(path), kind, progress)
    if found.kind in ("nus-wide", "views"):
        if tuple(features) != tuple(DEFAULT_VIEWS):
            raise ParameterError(
                f"Features are extracted from pictures; {called(path)} has features. Leave out --view."
            )
        recipe = as_json(_recipe(found) | asdict(choice) | {"concepts": concepts})
        if not _is_made(out, recipe):
            _write(_load(found, choice, concepts, progress), out, recipe, progress)
        return read_views(out)
    return extract_views(
        _load(found, choice, concepts, progress),
        out,
        features,
        mirror=mirror,
        labels="folder",
        max_side=max_side,
        n_threads=n_threads,
        strict=strict,
        progress=progress,
    )


def find(path: Path, kind: str = "auto", progress: Progress = quiet) -> Found:
    """Which of the kinds is at a path, by the names of the files; with `kind`, no other is looked for."""
    if kind not in ("auto", *KINDS):
        raise ParameterError(f"kind must be auto, {', '.join(KINDS)}; got {kind!r}.")
    if not path.exists():
        raise MissingFileError(f"{_RULE}; there is nothing at {called(path)}. Check the path.")
    names = [] if path.is_dir() else _first_members(path)
    if kind == "auto":
        there = _kinds_in_folder(path) if path.is_dir() else _kinds_of_file(path, names)
        if len(there) > 1:
            raise InvalidDataError(
                f"{called(path)} holds several data sets: {' and '.join(there)}. Choose the folder of one, or name "
                "its kind."
            )
        kind = there[0] if there else kind
    if kind in ("cifar-10", "nus-wide", "views"):
        return Found(path, kind)
    try:
        nested = bool(names) and all(name.endswith(".tar") for name in names)
        source = TarOfTars(str(path), progress) if nested else open_images(path, progress)
    except InvalidDataError as error:
        raise FileFormatError(f"{_RULE}; {called(path)} holds none of these. Check the path.") from error
    except FileFormatError as error:
        if names or zipfile.is_zipfile(path):  # a damaged archive is told as such
            raise
        raise FileFormatError(f"{_RULE}; {called(path)} is none of these. Check the path.") from error
    if kind == "auto":
        kind = "youtube-faces" if is_youtube_faces(source) else "class-folders"
    return Found(path, kind, source)


def _kinds_in_folder(folder: Path) -> list[str]:
    """What the names of files tell; pictures, which take longest to find, are not looked for."""
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    below = [place for entry in entries if entry.is_dir() and "batches" in entry.name for place in entry.iterdir()]
    there = []
    if any(is_batch(entry.name) for entry in (*entries, *below)):
        there.append("cifar-10")
    if has_features(folder):
        there.append("nus-wide")
    if any(entry.suffix == ".npy" for entry in entries):
        there.append("views")
    return there


def _kinds_of_file(path: Path, members: list[str]) -> list[str]:
    if is_batch(path.name) or any(is_batch(name) for name in members):
        return ["cifar-10"]
    return ["views"] if path.suffix.lower() in READERS else []


def _first_members(path: Path) -> list[str]:
    """The names of a few files at the front of a .tar, plain or compressed; none where it is not one."""
    names: list[str] = []
    try:
        with tarfile.open(path) as archive:
            for member in islice(archive, HEAD):
                if member.isreg():
                    names.append(member.name)
                if is_batch(member.name):
                    break
    except STREAM_ERRORS:  # who reads all of it says what is wrong
        pass
    return names


def _load(found: Found, choice: Choice, concepts: int | None, progress: Progress) -> Any:
    """Views or a source of pictures, all with classes."""
    path, shown = found.path, called(found.path)
    if concepts is not None and found.kind != "nus-wide":
        raise ParameterError(f"concepts is for nus-wide; {shown} is {found.kind}. Choose by classes instead.")
    if found.kind in ("nus-wide", "views"):
        n_concepts = CONCEPTS if concepts is None else concepts
        views = read_views(path) if found.kind == "views" else read_nus_wide(path, n_concepts, progress)
        if views.labels is None:
            raise InvalidDataError(f"Scores need true classes; {shown} has none. Add a variable Y, or a labels.npy.")
        return take_rows(views, choose_rows(views.labels, choice, shown))
    if found.source is None:
        pictures = read_cifar(path, progress)
    elif found.kind == "class-folders":
        pictures = class_folders(found.source)
    else:
        pictures = youtube_faces(found.source)
        if choice.at_least is None:
            choice = replace(choice, at_least=MANY_FACES)
    return pictures.take(choose_rows(pictures.labels(), choice, shown))


def _recipe(found: Found) -> dict[str, Any]:
    """What decides the views, and tells whether the files have changed since."""
    if found.kind == "nus-wide":
        files = find_files(found.path).all()
    else:
        files = sorted(found.path.iterdir()) if found.path.is_dir() else [found.path]
    sizes = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    digest = hashlib.sha256(repr(sizes).encode()).hexdigest()
    return {"source": called(found.path.resolve()), "kind": found.kind, "fingerprint": digest}


def _is_made(out: Path, recipe: dict[str, Any]) -> bool:
    """Whether the views are there. A folder with anything else in it is refused."""
    if not (out / RECIPE).is_file():
        if finished(out) is None:
            return False
    elif _read_json(out / RECIPE) == recipe:
        return True
    raise InvalidDataError(
        f"A views folder is made from one data set in one way; {called(out)} was made from another, from files that "
        "have changed since, or with other choices. Choose another folder, or remove this one."
    )


def _read_json(path: Path) -> Any:
    """None where it was cut or is something else."""
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return None


def _write(views: Views, out: Path, recipe: dict[str, Any], progress: Progress) -> None:
    """The folder takes its place whole."""
    whole = beside(out)
    try:
        write_views(
            whole,
            views,
            progress=lambda done, total: progress("writing features (MB)", megabytes(done), megabytes(total)),
        )
        write_json(whole / RECIPE, recipe)
        if out.is_dir():
            out.rmdir()  # empty, as `_is_made` has seen
        whole.rename(out)
        sync_folder(out.parent)
    finally:
        shutil.rmtree(whole, ignore_errors=True)

"""Detect and open labeled data sets, or write them as a views folder for `bench run`.

Kinds: `cifar-10`, the binary version, extracted or as .tar.gz · `class-folders`, images in one folder per class, as a
folder, .tar, .tar.xz or .zip, or ILSVRC2012_img_train.tar · `youtube-faces` · `nus-wide`, its low-level features ·
`views`, everything that `read_views` reads: multi-view .mat files, views folders and others.
"""

import hashlib
import json
import os
import re
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bitmosaic.errors import FileFormatError, InvalidDataError, MissingFileError, ParameterError
from bitmosaic.images import ImageSource, Progress, display_path, folder_name, open_images, quiet
from bitmosaic.images.archive import STREAM_ERRORS, Member, TarSource, list_images
from bitmosaic.images.array import ArraySource
from bitmosaic.images.source import Piece
from bitmosaic.io.files import beside, megabytes, sync_folder, write_json
from bitmosaic.pipeline.extraction import DEFAULT_VIEWS, ExtractOptions, ViewSpec, as_json, extract_views, finished
from bitmosaic.views import Views, read_rows, read_views, write_views
from bitmosaic.views.open import READERS

# ---- Choose views, classes and rows of a data set for a benchmark.


def open_data(data: str, labels_needed: bool = True) -> tuple[str, Views, Any]:
    """Open PATH or PATH?views=NAME,NAME and return a name, the views, and the true labels, if any."""
    path, asked, chosen = data.partition("?views=")
    views = read_views(path)
    truth = views.labels
    if truth is None and labels_needed:
        raise InvalidDataError(f"Scores need true labels; {path} has none. Add a variable Y, or a labels.npy.")
    place = Path(path).resolve()
    name = place.parent.name if place.name == "views" else place.stem  # RUN/views is named after its run
    if asked:
        name, views = f"{name}[{chosen}]", choose_views(views, chosen.split(","))
    return name, views, truth


def choose_views(views: Views, names: Sequence[str]) -> Views:
    return Views(tuple(names), tuple(views[name] for name in names), views.labels)


@dataclass(frozen=True)
class Choice:
    """The part of a data set to use; by default all of it."""

    classes: int | Sequence[str] | None = None  # names, or a number of random classes
    per_class: int | None = None  # number of random rows per class
    at_least: int | None = None  # classes with fewer rows are left out
    seed: int = 0

    def __post_init__(self) -> None:
        n_classes = self.classes if isinstance(self.classes, int) else 2 if self.classes is None else len(self.classes)
        for name, value, least in (
            ("classes", n_classes, 2),
            ("per_class", self.per_class, 1),
            ("at_least", self.at_least, 1),
        ):
            if value is not None and value < least:
                raise ParameterError(f"{name} must be at least {least}; got {value}.")


def parse_classes(text: str | None) -> int | list[str] | None:
    """Parse the value of the option --classes: 10, or n01440764,n02084071."""
    if text is None or text.strip().isdecimal():
        return None if text is None else int(text)
    return [name.strip() for name in text.split(",") if name.strip()]


def choose_rows(labels: np.ndarray, choice: Choice, data: str) -> np.ndarray:
    """The chosen positions, ascending. `data` is the name of the data set in messages."""
    values, numbers, counts = np.unique(labels, return_inverse=True, return_counts=True)
    names = [str(value) for value in values]
    rng, at_least = np.random.default_rng(choice.seed), choice.at_least or 1
    large = np.flatnonzero(counts >= at_least)
    if len(large) < 2:
        raise InvalidDataError(
            f"At least two classes with {at_least:,} images or more are needed; {data} has {len(names):,} "
            f"classes, {len(large)} of them that large, the largest with {counts.max():,}. Lower at_least, or check "
            "the path."
        )
    wanted = choice.per_class or 1
    if isinstance(choice.classes, int):
        large = large[counts[large] >= wanted]
        if len(large) < choice.classes:
            raise ParameterError(
                f"classes must be at most the number of classes with {max(wanted, at_least):,} images or more, "
                f"{len(large):,} in {data}; got {choice.classes:,}."
            )
        chosen = np.sort(rng.choice(large, choice.classes, replace=False))
    elif choice.classes is not None:
        known = {names[i]: i for i in large}
        if missing := [name for name in choice.classes if name not in known]:
            raise ParameterError(
                f"classes must name classes of {data}, such as {', '.join(list(known)[:3])}; it has no "
                f"{', '.join(missing[:3])} with {at_least:,} images or more."
            )
        chosen = np.unique([known[name] for name in choice.classes])
    else:
        chosen = large
    if choice.per_class is None:
        return np.flatnonzero(np.isin(numbers, chosen))
    smallest = chosen[counts[chosen].argmin()]
    if counts[smallest] < wanted:
        raise ParameterError(
            f"per_class must be at most the size of the smallest class; {names[smallest]} of {data} has "
            f"{counts[smallest]:,} images; got {wanted:,}. Leave small classes out with at_least."
        )
    of_class = [rng.choice(np.flatnonzero(numbers == c), wanted, replace=False) for c in chosen]
    return np.sort(np.concatenate(of_class))


def take_rows(views: Views, positions: np.ndarray) -> Views:
    """Some rows of all views, in memory. Returns the same object if all rows are chosen."""
    if len(positions) == views.n_rows:
        return views
    return replace(
        views,
        arrays=tuple(read_rows(array, positions, array.dtype) for array in views.arrays),
        labels=None if views.labels is None else views.labels[positions],
        paths=None if views.paths is None else tuple(views.paths[i] for i in positions),
    )


class LabeledSource(ImageSource):
    """Some images of another source, in its order, each with its class."""

    def __init__(self, source: ImageSource, positions: np.ndarray, labels: np.ndarray):
        super().__init__(source.name, (source.paths[i] for i in positions))
        self.source = source
        self.positions = positions  # (n,) ascending, in `source`
        self._labels = labels  # (n,) strings

    def labels(self) -> np.ndarray:
        return self._labels

    def take(self, positions: np.ndarray) -> "LabeledSource":
        return LabeledSource(self.source, self.positions[positions], self._labels[positions])

    def image_signature(self, position: int) -> tuple[int, int]:
        return self.source.image_signature(int(self.positions[position]))

    def _pieces(self, positions: Sequence[int], piece_size: int) -> Generator[Piece, None, None]:
        # An archive is read forward, so the source makes the pieces. Its positions are mapped to ours.
        theirs = [int(self.positions[i]) for i in positions]
        for piece in self.source._pieces(theirs, piece_size):
            yield [(int(np.searchsorted(self.positions, i)), content) for i, content in piece]

    def _content(self, position: int) -> object:
        return self.source._content(int(self.positions[position]))

    def _decode(self, content: object, max_side: int | None) -> np.ndarray:
        return self.source._decode(content, max_side)


def labeled(source: ImageSource, labels: np.ndarray) -> LabeledSource:
    return LabeledSource(source, np.arange(len(source)), labels)


def called(path: object) -> str:
    """A path as shown in messages."""
    return display_path(str(path))


# ---- Read the binary version of CIFAR-10, extracted or as .tar.gz, as labeled images.
#
# Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009. Six batches of 10,000 images; an image is
# 3,072 bytes: 32×32 of red, then of green, then of blue, row by row. The Python version contains the same images as
# pickles, which are not read.


BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
PIXELS = 3 * 32 * 32
_BATCH = re.compile(r"(data_batch_[1-5]|test_batch)(\.bin)?")
_NAMES = "batches.meta.txt"


def is_batch(path: str) -> bool:
    return _BATCH.fullmatch(path.rpartition("/")[2]) is not None


def read_cifar(path: Path, progress: Progress = quiet) -> LabeledSource:
    """Read a folder or archive with all six batches, or one batch. Labels are names if batches.meta.txt exists."""
    pixels: dict[str, np.ndarray] = {}  # batch -> (n, 3072)
    numbers: dict[str, np.ndarray] = {}  # batch -> (n,)
    seen: dict[str, str] = {}
    names = None
    n_batches = 1 if is_batch(path.name) else len(BATCHES)
    for file, content in _files(path):
        base = file.rpartition("/")[2]
        if base == _NAMES:
            names = content.decode(errors="replace").split()
            continue
        batch = base.removesuffix(".bin")
        if batch in seen:
            raise InvalidDataError(
                f"{called(path)} contains {batch} twice, as {seen[batch]} and {file}. Pass one of the folders."
            )
        seen[batch] = file
        pixels[batch], numbers[batch] = _binary(content, file)
        progress("reading batches", len(seen), n_batches)
    order = [batch for batch in BATCHES if batch in seen]
    if len(order) < n_batches:
        raise InvalidDataError(
            f"CIFAR-10 needs the files {BATCHES[0]}.bin … {BATCHES[4]}.bin and {BATCHES[5]}.bin; {called(path)} lacks "
            f"{', '.join(f'{batch}.bin' for batch in BATCHES if batch not in seen)}. Add them, or pass one batch."
        )
    classes = np.concatenate([numbers[batch] for batch in order])
    texts = [str(i) for i in range(10)] if names is None else names
    images = np.concatenate([pixels[batch] for batch in order]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    source = ArraySource(images)
    source.name = os.fspath(path)
    return labeled(source, np.array(texts)[classes])


def _files(path: Path) -> Iterator[tuple[str, bytes]]:
    """The batch files and the file of class names at a path, with their contents."""
    if path.is_dir():
        yield from _read(place for folder in (path, *_folders(path)) for place in folder.iterdir())
    elif is_batch(path.name):
        yield from _read([path, path.parent / _NAMES])
    else:
        try:
            with tarfile.open(path) as archive:
                for member in archive:
                    if member.isreg() and _is_wanted(member.name) and (file := archive.extractfile(member)):
                        _refuse_python_version(member.name)
                        yield member.name, file.read()
        except STREAM_ERRORS as error:
            if isinstance(error, FileFormatError):
                raise
            raise FileFormatError(f"{called(path)} is truncated or damaged: {error}. Download it again.") from error


def _read(places: Iterable[Path]) -> Iterator[tuple[str, bytes]]:
    for place in sorted(places):
        if _is_wanted(place.name) and place.is_file():
            file = called(place.as_posix())
            _refuse_python_version(file)
            yield file, place.read_bytes()


def _folders(path: Path) -> list[Path]:
    return sorted(place for place in path.iterdir() if place.is_dir() and not place.name.startswith("."))


def _is_wanted(name: str) -> bool:
    return is_batch(name) or name.rpartition("/")[2] == _NAMES


def _refuse_python_version(file: str) -> None:
    if is_batch(file) and not file.endswith(".bin"):
        raise FileFormatError(
            f"{file} belongs to the Python version of CIFAR-10, which uses pickles and is not read. Download the "
            "binary version, cifar-10-binary.tar.gz, from the same page."
        )


def _binary(content: bytes, file: str) -> tuple[np.ndarray, np.ndarray]:
    if not content or len(content) % (1 + PIXELS):
        raise FileFormatError(
            f"A batch of CIFAR-10 consists of records of {1 + PIXELS:,} bytes; {file} has {len(content):,} bytes. "
            "It may be truncated or belong to another data set: download it again."
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, 1 + PIXELS)
    return records[:, 1:], records[:, 0]


# ---- Labeled images whose path contains the class: class folders (such as ImageNet), YouTube Faces.


ALIGNED = "aligned_images_DB/"
_FRAME = re.compile(r"(?:.*/)?[^/]+/(\d+)/(?:aligned_detect_)?\1\.\d+\.jpg")  # PERSON/VIDEO/aligned_detect_VIDEO.FRAME
_OF_PERSON = re.compile(r"(?:.*/)?([^/]+)/\d+/[^/]+")


class TarOfTars(TarSource):
    """ILSVRC2012_img_train.tar: a plain .tar that contains one .tar per class, such as n01440764.tar."""

    def __init__(self, path: str, progress: Progress = quiet):
        status = os.stat(path)
        self._status = status.st_size, status.st_mtime_ns
        total = megabytes(status.st_size)
        members: dict[str, Member] = {}
        try:
            with open(path, "rb") as file, tarfile.open(fileobj=file, mode="r:") as archive:

                def report() -> None:
                    progress("finding images (MB)", megabytes(file.tell()), total)

                for member in archive.getmembers():
                    if not member.isreg() or not member.name.endswith(".tar"):
                        continue
                    file.seek(member.offset_data + max(0, member.size - 512))
                    if file.read(512) != bytes(512):  # otherwise the search for its end continues in the next one
                        raise tarfile.ReadError(f"{member.name} is truncated")
                    file.seek(member.offset_data)  # list_images starts here; its offsets are relative to the file
                    for name, image in list_images(file, False, report).items():
                        members[f"{Path(member.name).stem}/{name}"] = image
        except STREAM_ERRORS as error:
            raise FileFormatError(
                f"{display_path(path)} is truncated or damaged: {error}. Download or copy the archive again."
            ) from error
        progress("finding images (MB)", total, total)
        ImageSource.__init__(self, path, members)
        self._members = list(members.values())


def class_folders(source: ImageSource) -> LabeledSource:
    """Label each image with the name of its folder. Such a folder must not contain folders with images."""
    folders = {path.rpartition("/")[0]: path for path in source.paths}
    for folder, path in folders.items():
        above = next((part for part in _above(folder) if part in folders), None)
        if above is not None:
            raise InvalidDataError(
                f"Images must be in one folder per class; those of {called(source.name)} are at several depths, "
                f"such as {display_path(folders[above])} and {display_path(path)}. Move them, or choose one folder."
            )
    return labeled(source, np.array([folder_name(path) for path in source.paths]))


def _above(folder: str) -> list[str]:
    """All parent folders of a folder; "" is the top."""
    parts = folder.split("/") if folder else []
    return ["/".join(parts[:n]) for n in range(len(parts))]


def is_youtube_faces(source: ImageSource) -> bool:
    """Whether all images are named like frames of YouTube Faces."""
    return all(_FRAME.fullmatch(path) for path in source.paths)


def youtube_faces(source: ImageSource) -> LabeledSource:
    """PERSON/VIDEO/FRAME.jpg; the class is the person. If there are aligned images, only these are used.

    Wolf, Hassner & Maoz, Face Recognition in Unconstrained Videos with Matched Background Similarity, CVPR 2011.
    """
    aligned = [i for i, path in enumerate(source.paths) if ALIGNED in path]
    positions = aligned or range(len(source))
    matches = [_OF_PERSON.fullmatch(source.paths[i]) for i in positions]
    people = [match[1] for match in matches if match]
    if len(people) < len(matches):
        stray = source.paths[positions[matches.index(None)]]
        raise InvalidDataError(
            f"Frames of YouTube Faces must be in aligned_images_DB/PERSON/VIDEO; {len(matches) - len(people):,} of "
            f"{len(matches):,} images in {called(source.name)} are not, such as {display_path(stray)}. Pass "
            "the folder aligned_images_DB."
        )
    return LabeledSource(source, np.array(positions), np.array([display_path(person) for person in people]))


# ---- Read the low-level features and ground truth of NUS-WIDE, as downloaded text files, as views with one class per
# row.
#
# Chua et al., NUS-WIDE: A Real-World Web Image Database from National University of Singapore, CIVR 2009. An image has
# any number of 81 concepts. As in the HSIC paper, only the 21 most frequent ones are used, and images without any of
# them are left out. For an image with several, the paper uses "one of the most representative" and does not specify
# which one. Here it is the rarest, since frequent concepts such as sky and person describe an image least.


WIDTHS = {"CH": 64, "CM55": 225, "CORR": 144, "EDH": 73, "WT": 128}
VIEWS = {"CH": "ch", "CM55": "cm", "CORR": "corr", "EDH": "edh", "WT": "wt"}  # the names of our own extractors
CONCEPTS = 21
LINES = 10_000  # read at a time
_FEATURES = re.compile(r"(?:(Train|Test)_)?Normalized_(CH|CM55|CORR|EDH|WT)(?:_Lite_(Train|Test))?\.dat")
_LABELS = re.compile(r"(?:Lite_)?Labels_(.+?)(?:_(Train|Test))?\.txt")
_LIST = re.compile(r"Concepts\d*\.txt")


@dataclass
class Files:
    """The files found. A part is Train, Test, or "" for files with all images."""

    features: dict[tuple[str, str], Path] = field(default_factory=dict)  # part, feature
    labels: dict[tuple[str, str], Path] = field(default_factory=dict)  # part, concept
    lists: dict[tuple[str, str], Path] = field(default_factory=dict)

    def all(self) -> list[Path]:
        return sorted({*self.features.values(), *self.labels.values(), *self.lists.values()})


def has_features(folder: Path, depth: int = 3) -> bool:
    """Whether a folder contains a feature file, up to `depth` levels deep. Fast also in folders of many images."""
    with os.scandir(folder) as entries:
        there = [entry for entry in entries if not entry.name.startswith(".")]
    if any(_FEATURES.fullmatch(entry.name) for entry in there):
        return True
    return depth > 1 and any(has_features(Path(entry.path), depth - 1) for entry in there if entry.is_dir())


def find_files(folder: Path) -> Files:
    """All files of NUS-WIDE or NUS-WIDE-Lite in a folder and its subfolders, found by name."""
    found = Files()
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if match := _FEATURES.fullmatch(name):
                kind, key = found.features, (match[1] or match[3] or "", match[2])
            elif match := _LABELS.fullmatch(name):
                kind, key = found.labels, (match[2] or "", match[1])
            elif _LIST.fullmatch(name):
                kind, key = found.lists, ("", "")
            else:
                continue
            kind[key] = Path(root, name)
    return found


def read_nus_wide(folder: Path, n_concepts: int = CONCEPTS, progress: Progress = quiet) -> Views:
    """The five views of the images with one of the most frequent concepts. Train comes before Test where split."""
    files = find_files(folder)
    parts = _parts(files, folder)
    concepts = _concepts(files, parts)
    if not 2 <= n_concepts <= len(concepts):
        raise ParameterError(
            f"concepts must be from 2 to {len(concepts)}, those in {called(folder)}; got {n_concepts}."
        )
    flags = {part: _flags(files, part, concepts) for part in parts}  # each (n, concepts)
    counts = sum(of_part.sum(axis=0) for of_part in flags.values())
    rarest_first = np.argsort(-np.asarray(counts), kind="stable")[:n_concepts][::-1]
    frequent = {part: flags[part][:, rarest_first] for part in parts}
    keep: dict[str, np.ndarray] = {part: np.any(frequent[part], axis=1) for part in parts}
    n_rows = sum(int(rows.sum()) for rows in keep.values())
    labels = np.concatenate([rarest_first[frequent[part][keep[part]].argmax(axis=1)] for part in parts])
    done, total = 0, sum(files.features[part, name].stat().st_size for part in parts for name in WIDTHS)

    def read(n_bytes: int) -> None:
        nonlocal done
        done += n_bytes
        progress("reading features (MB)", megabytes(done), megabytes(total))

    arrays = []
    for name, width in WIDTHS.items():
        array = np.empty((n_rows, width), np.float32)
        filled = 0
        for part in parts:
            n_part = int(keep[part].sum())
            _read_features(files.features[part, name], keep[part], array[filled : filled + n_part], read)
            filled += n_part
        arrays.append(array)
    return Views(tuple(VIEWS.values()), tuple(arrays), labels=np.array(concepts)[labels])


def _parts(files: Files, folder: Path) -> list[str]:
    """The parts to read: one part with all images, or else Train and Test. Every view must exist."""
    whole = all(("", name) in files.features for name in WIDTHS) and any(part == "" for part, _ in files.labels)
    split = [part for part in ("Train", "Test") if any(found == part for found, _ in files.features)]
    parts = [""] if whole or not split else split
    missing = [
        f"{part}_Normalized_{name}.dat".removeprefix("_")
        for part in parts
        for name in WIDTHS
        if (part, name) not in files.features
    ]
    missing += [
        f"Labels_CONCEPT_{part}.txt".replace("_.", ".")
        for part in parts
        if not any(found == part for found, _ in files.labels)
    ]
    if missing:
        raise MissingFileError(
            "NUS-WIDE needs Low_Level_Features with Normalized_CH, CM55, CORR, EDH and WT.dat and Groundtruth with "
            f"Labels_CONCEPT.txt, each whole or as Train and Test; {called(folder)} lacks {', '.join(missing)}. "
            "Extract the missing files to the same folder."
        )
    return parts


def _concepts(files: Files, parts: list[str]) -> list[str]:
    """In the order of the list of concepts if it exists, otherwise sorted."""
    found = [{concept for part, concept in files.labels if part == wanted} for wanted in parts]
    if files.lists:
        path = files.lists["", ""]
        concepts = list(dict.fromkeys(path.read_text(encoding="utf-8", errors="replace").split()))
    else:
        path, concepts = Path("Groundtruth"), sorted(set.union(*found))
    for part, have in zip(parts, found, strict=True):
        if missing := [concept for concept in concepts if concept not in have]:
            raise MissingFileError(
                f"Every concept must have a label file{f' for {part}' if part else ''}; of {len(concepts)} in "
                f"{called(path)}, {len(missing)} have none, such as {missing[0]}. Extract Groundtruth again."
            )
    return concepts


def _flags(files: Files, part: str, concepts: list[str]) -> np.ndarray:
    """(n, concepts) bool: whether an image of this part has a concept."""
    columns = [_read_flags(files.labels[part, concept]) for concept in concepts]
    if len({len(column) for column in columns}) > 1:
        lengths = ", ".join(f"{concept} {len(column):,}" for concept, column in zip(concepts, columns, strict=True))
        raise FileFormatError(
            f"All label files must have the same number of lines; got {lengths}. One may be truncated: extract it "
            "again."
        )
    return np.stack(columns, axis=1)


def _read_flags(path: Path) -> np.ndarray:
    """(n,) bool from a text file with 0 or 1 on each line."""
    try:
        flags = np.loadtxt(path, np.uint8, ndmin=1)
        if flags.ndim > 1 or flags.max() > 1:
            raise ValueError("other numbers")
    except (ValueError, OverflowError) as error:
        raise FileFormatError(
            f"A label file of NUS-WIDE has 0 or 1 on each line; {called(path)} has other content. Extract it again."
        ) from error
    return flags.astype(bool)


def _read_features(path: Path, keep: np.ndarray, out: np.ndarray, read: Callable[[int], None]) -> None:
    """Read the rows to keep into `out`. `read` is called with the number of bytes read."""
    first = filled = 0
    width = out.shape[1]
    with path.open(encoding="utf-8", errors="replace") as file:
        while lines := list(islice(file, LINES)):
            read(sum(map(len, lines)))
            if not any(map(str.strip, lines)):
                continue
            try:
                rows = np.loadtxt(lines, np.float32, ndmin=2)
                if rows.shape[1] != width:
                    raise ValueError(f"{rows.shape[1]} on line {first + 1:,}")
            except ValueError as error:
                raise FileFormatError(
                    f"{path.name} must have {width} numbers on each line; {called(path)} has others after line "
                    f"{first:,} ({error}). It may be truncated or contain other features: extract it again."
                ) from error
            kept = rows[: max(0, len(keep) - first)][keep[first : first + len(rows)]]
            out[filled : filled + len(kept)] = kept
            first, filled = first + len(rows), filled + len(kept)
    if first != len(keep):
        raise FileFormatError(
            f"A feature file must have one line per image, {len(keep):,} according to the label files; {called(path)} "
            f"has {first:,}. It may be truncated, or belong to another part: extract it again."
        )


KINDS = ("cifar-10", "class-folders", "youtube-faces", "nus-wide", "views")
MANY_FACES = 1201  # the paper uses people with more than 1,200 images
RECIPE = "dataset.json"
HEAD = 20  # members of an archive that are checked to detect its kind
_RULE = (
    "A data set is CIFAR-10 (data_batch_1.bin … test_batch.bin, or their .tar.gz), images in one folder "
    "per class, YouTube Faces (PERSON/VIDEO/*.jpg), NUS-WIDE (Normalized_CH.dat … and Labels_*.txt), or views "
    "(a .mat, .npz, .h5 or .parquet file, a views folder)"
)


@dataclass(frozen=True)
class Found:
    """A detected data set. `source` lists its images, if they are in folders."""

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
) -> Views | LabeledSource:
    """Open features as Views with labels, or images as a source for `extract_views(…, labels="folder")`.

    `classes`: names of classes, or a number of random ones. `per_class`: number of random images per class. Classes
    with fewer than `at_least` images are left out (default for YouTube Faces: 1,201). `concepts`: number of the most
    frequent concepts of NUS-WIDE (default 21). The same `seed` chooses the same images.
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
    """Write a data set as the views folder `out` with labels. An interrupted call is resumed by the same call.

    `features`, `mirror`, `max_side`, `n_threads` and `strict` are those of `extract_views` and apply only to images.
    The others are those of `open_dataset`.
    """
    choice, out = Choice(classes, per_class, at_least, seed), Path(out)
    found = find(Path(path), kind, progress)
    if found.kind in ("nus-wide", "views"):
        if tuple(features) != tuple(DEFAULT_VIEWS):
            raise ParameterError(
                f"{called(path)} contains features, not images: nothing is extracted. Leave out --view."
            )
        recipe = as_json(_recipe(found) | asdict(choice) | {"concepts": concepts})
        if not _is_made(out, recipe):
            _write(_load(found, choice, concepts, progress), out, recipe, progress)
        return read_views(out)
    options = ExtractOptions(features, mirror, "folder", max_side, n_threads, strict)
    return extract_views(_load(found, choice, concepts, progress), out, options, progress)


def find(path: Path, kind: str = "auto", progress: Progress = quiet) -> Found:
    """Detect the kind of data set at a path by its file names. With `kind`, skip the detection."""
    if kind not in ("auto", *KINDS):
        raise ParameterError(f"kind must be auto, {', '.join(KINDS)}; got {kind!r}.")
    if not path.exists():
        raise MissingFileError(f"{_RULE}; there is nothing at {called(path)}. Check the path.")
    names = [] if path.is_dir() else _first_members(path)
    if kind == "auto":
        there = _kinds_in_folder(path) if path.is_dir() else _kinds_of_file(path, names)
        if len(there) > 1:
            raise InvalidDataError(
                f"{called(path)} contains several data sets: {' and '.join(there)}. Pass the folder of one, or its "
                "kind."
            )
        kind = there[0] if there else kind
    if kind in ("cifar-10", "nus-wide", "views"):
        return Found(path, kind)
    try:
        nested = bool(names) and all(name.endswith(".tar") for name in names)
        source = TarOfTars(str(path), progress) if nested else open_images(path, progress)
    except InvalidDataError as error:
        raise FileFormatError(f"{_RULE}; {called(path)} contains none of these. Check the path.") from error
    except FileFormatError as error:
        if names or zipfile.is_zipfile(path):  # keep the error of a damaged archive
            raise
        raise FileFormatError(f"{_RULE}; {called(path)} is none of these. Check the path.") from error
    if kind == "auto":
        kind = "youtube-faces" if is_youtube_faces(source) else "class-folders"
    return Found(path, kind, source)


def _kinds_in_folder(folder: Path) -> list[str]:
    """Kinds found by file names. Images are not searched here, as that takes longest."""
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
    """The names of the first files of a .tar, plain or compressed; empty for other files."""
    names: list[str] = []
    try:
        with tarfile.open(path) as archive:
            for member in islice(archive, HEAD):
                if member.isreg():
                    names.append(member.name)
                if is_batch(member.name):
                    break
    except STREAM_ERRORS:  # the full read reports the error
        pass
    return names


def _load(found: Found, choice: Choice, concepts: int | None, progress: Progress) -> Any:
    """Open as Views or as a source of images, both with labels."""
    path, shown = found.path, called(found.path)
    if concepts is not None and found.kind != "nus-wide":
        raise ParameterError(f"concepts applies only to nus-wide; {shown} is {found.kind}. Use classes instead.")
    if found.kind in ("nus-wide", "views"):
        n_concepts = CONCEPTS if concepts is None else concepts
        views = read_views(path) if found.kind == "views" else read_nus_wide(path, n_concepts, progress)
        if views.labels is None:
            raise InvalidDataError(f"Scores need true labels; {shown} has none. Add a variable Y, or a labels.npy.")
        return take_rows(views, choose_rows(views.labels, choice, shown))
    if found.source is None:
        images = read_cifar(path, progress)
    elif found.kind == "class-folders":
        images = class_folders(found.source)
    else:
        images = youtube_faces(found.source)
        if choice.at_least is None:
            choice = replace(choice, at_least=MANY_FACES)
    return images.take(choose_rows(images.labels(), choice, shown))


def _recipe(found: Found) -> dict[str, Any]:
    """All inputs that determine the views, including the signature of the files."""
    if found.kind == "nus-wide":
        files = find_files(found.path).all()
    else:
        files = sorted(found.path.iterdir()) if found.path.is_dir() else [found.path]
    sizes = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    signature = hashlib.sha256(repr(sizes).encode()).hexdigest()
    return {"source": called(found.path.resolve()), "kind": found.kind, "signature": signature}


def _is_made(out: Path, recipe: dict[str, Any]) -> bool:
    """Whether `out` already holds these views. Refuses a folder with other content."""
    if not (out / RECIPE).is_file():
        if finished(out) is None:
            return False
    elif json.loads((out / RECIPE).read_bytes()) == recipe:
        return True
    raise InvalidDataError(
        f"{called(out)} was made from another data set, from files that have changed since, or with other options. "
        "Choose another folder, or remove this one."
    )


def _write(views: Views, out: Path, recipe: dict[str, Any], progress: Progress) -> None:
    """Write to a temporary folder, then rename it."""
    temporary = beside(out)
    try:
        write_views(
            temporary,
            views,
            progress=lambda done, total: progress("writing features (MB)", megabytes(done), megabytes(total)),
        )
        write_json(temporary / RECIPE, recipe)
        if out.is_dir():
            out.rmdir()  # empty, checked by `_is_made`
        temporary.rename(out)
        sync_folder(out.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)

"""Detect and open labeled data sets, or write them as a views folder for `bench run`.

Kinds: `cifar-10`, the binary version, extracted or as .tar.gz · `class-folders`, images in one folder per class, as a
folder, .tar, .tar.xz or .zip, or ILSVRC2012_img_train.tar · `youtube-faces` · `nus-wide`, its low-level features ·
`views`, everything that `read_views` reads: multi-view .mat files, views folders and others.
"""

import os
import re
import tarfile
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bitmosaic.errors import FileFormatError, InvalidDataError, MissingFileError, ParameterError
from bitmosaic.images import ImageSource, Progress, display_path, folder_name, open_images, quiet
from bitmosaic.images.archive import STREAM_ERRORS, Member, TarSource, list_images
from bitmosaic.images.array import ArraySource
from bitmosaic.images.source import Piece
from bitmosaic.io.files import make_folder, megabytes, remove_unfinished, write_json
from bitmosaic.io.read import read_json
from bitmosaic.pipeline.extraction import DEFAULT_VIEWS, ExtractOptions, ViewSpec, as_json, extract_views
from bitmosaic.views import Views, read_rows, read_views, write_views
from bitmosaic.views.folder import MANIFEST
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

    classes: int | None = None  # number of random classes
    per_class: int | None = None  # number of random rows per class
    at_least: int | None = None  # classes with fewer rows are left out
    seed: int = 0


EVERYTHING = Choice()


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
    if choice.classes is not None:
        large = large[counts[large] >= wanted]
        if len(large) < choice.classes:
            raise ParameterError(
                f"classes must be at most the number of classes with {max(wanted, at_least):,} images or more, "
                f"{len(large):,} in {data}; got {choice.classes:,}."
            )
        chosen = np.sort(rng.choice(large, choice.classes, replace=False))
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


# ---- Read the binary version of CIFAR-10, extracted or as .tar.gz, as labeled images.
#
# Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009. Six batches of 10,000 images; an image is
# 3,072 bytes: 32×32 of red, then of green, then of blue, row by row. The Python version contains the same images as
# pickles, which are not read.


BATCHES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
RECORD = 1 + 3 * 32 * 32  # bytes: the class, and the pixels
_BATCH = re.compile(r"(?:.*/)?(?:data_batch_[1-5]|test_batch)(?:\.bin)?")  # without .bin: the Python version
_NAMES = "batches.meta.txt"


def read_cifar(path: Path) -> LabeledSource:
    """Read a folder or archive with the six batches and the names of the classes."""
    if path.is_dir():
        files = {place.name: place.read_bytes() for place in _cifar_files(path) if place.name in (*BATCHES, _NAMES)}
    else:
        try:
            with tarfile.open(path) as archive:
                members = {Path(member.name).name: member for member in archive if member.isreg()}
                wanted = [members[name] for name in (*BATCHES, _NAMES) if name in members]
                files = {Path(m.name).name: file.read() for m in wanted if (file := archive.extractfile(m))}
        except STREAM_ERRORS as error:
            raise _damaged(path, error) from error
    if missing := [name for name in (*BATCHES, _NAMES) if name not in files]:
        raise InvalidDataError(
            f"The binary version of CIFAR-10 has {', '.join((*BATCHES, _NAMES))}; {display_path(str(path))} lacks "
            f"{missing[0]}. The Python version uses pickles and is not read: download cifar-10-binary.tar.gz."
        )
    try:
        records = np.frombuffer(b"".join(files[name] for name in BATCHES), np.uint8).reshape(-1, RECORD)
    except ValueError as error:
        raise _damaged(path, error) from error
    source = ArraySource(records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    source.name = os.fspath(path)
    names = np.array(files[_NAMES].decode().split())
    return LabeledSource(source, np.arange(len(source)), names[records[:, 0]])


def _cifar_files(folder: Path) -> list[Path]:
    """Files of a folder, and of the folder in it that the archive extracts to."""
    return [*folder.glob("*"), *folder.glob("*batches*/*")]


def _damaged(path: Path, error: Exception) -> FileFormatError:
    return FileFormatError(f"{display_path(str(path))} is truncated or damaged: {error}. Download it again.")


# ---- Labeled images whose path contains the class: class folders (such as ImageNet), YouTube Faces.


ALIGNED = "aligned_images_DB/"
# PERSON/VIDEO/aligned_detect_VIDEO.FRAME.jpg
_FRAME = re.compile(r"(?:.*/)?([^/]+)/(\d+)/(?:aligned_detect_)?\2\.\d+\.jpg")


class TarOfTars(TarSource):
    """ILSVRC2012_img_train.tar: a plain .tar that contains one .tar per class, such as n01440764.tar."""

    def _list(self, stream: Any, read_all: bool, report: Callable[[], None]) -> dict[str, Member]:
        members: dict[str, Member] = {}
        with tarfile.open(fileobj=stream, mode="r:") as archive:
            classes = archive.getmembers()
        for member in classes:
            if not member.isreg() or not member.name.endswith(".tar"):
                continue
            stream.seek(member.offset_data + max(0, member.size - 512))
            if stream.read(512) != bytes(512):  # otherwise the search for its end continues in the next one
                raise tarfile.ReadError(f"{member.name} is truncated")
            stream.seek(member.offset_data)  # list_images starts here; its offsets are relative to the file
            for name, image in list_images(stream, read_all, report).items():
                members[f"{Path(member.name).stem}/{name}"] = image
        return members


def class_folders(source: ImageSource) -> LabeledSource:
    """Label each image with the name of its folder."""
    return LabeledSource(source, np.arange(len(source)), np.array([folder_name(path) for path in source.paths]))


def is_youtube_faces(source: ImageSource) -> bool:
    """Whether all images are named like frames of YouTube Faces."""
    return all(_FRAME.fullmatch(path) for path in source.paths)


def youtube_faces(source: ImageSource) -> LabeledSource:
    """PERSON/VIDEO/FRAME.jpg; the class is the person. If there are aligned images, only these are used.

    Wolf, Hassner & Maoz, Face Recognition in Unconstrained Videos with Matched Background Similarity, CVPR 2011.
    """
    frames = {i: match[1] for i, path in enumerate(source.paths) if (match := _FRAME.fullmatch(path))}
    aligned = {i: person for i, person in frames.items() if ALIGNED in source.paths[i]}
    people = aligned or frames
    if not people:
        raise InvalidDataError(
            "Frames of YouTube Faces are named PERSON/VIDEO/aligned_detect_VIDEO.FRAME.jpg; "
            f"{display_path(source.name)} has none. Pass the folder aligned_images_DB."
        )
    return LabeledSource(source, np.array(list(people)), np.array([display_path(p) for p in people.values()]))


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
_FEATURES = "*Normalized_*.dat"


def read_nus_wide(folder: Path, n_concepts: int = CONCEPTS, progress: Progress = quiet) -> Views:
    """The five views of the images with one of the most frequent concepts. Train comes before Test where split."""
    files = {path.name: path for path in sorted(folder.rglob("*.*"))}
    parts = [("", "")] if "Normalized_CH.dat" in files else [("Train_", "_Train"), ("Test_", "_Test")]
    labels = re.compile(rf"Labels_(.+){parts[0][1]}\.txt")
    found = [match[1] for name in files if (match := labels.fullmatch(name))]
    concepts = sorted(name for name in found if not name.endswith(("_Train", "_Test")))
    needed = [f"{before}Normalized_{name}.dat" for before, _ in parts for name in WIDTHS]
    needed += [f"Labels_{concept}{after}.txt" for _, after in parts for concept in concepts or ["CONCEPT"]]
    if missing := [name for name in needed if name not in files]:
        raise MissingFileError(
            "NUS-WIDE needs Low_Level_Features with Normalized_CH, CM55, CORR, EDH and WT.dat and Groundtruth with "
            f"Labels_CONCEPT.txt, each whole or as Train and Test; {display_path(str(folder))} lacks "
            f"{', '.join(missing[:3])}. Extract the missing files to the same folder."
        )
    if not 2 <= n_concepts <= len(concepts):
        raise ParameterError(f"concepts must be from 2 to {len(concepts)}, the number of concepts; got {n_concepts}.")
    flags = [_columns([files[f"Labels_{concept}{after}.txt"] for concept in concepts]) for _, after in parts]
    counts = np.concatenate(flags).sum(axis=0)
    rarest_first = np.argsort(-counts, kind="stable")[:n_concepts][::-1]
    frequent = np.concatenate(flags)[:, rarest_first] > 0
    keep = frequent.any(axis=1)
    arrays = []
    for done, (name, width) in enumerate(WIDTHS.items()):
        progress("reading features", done, len(WIDTHS))
        rows = [
            _numbers(files[f"{before}Normalized_{name}.dat"], (len(part), width))
            for (before, _), part in zip(parts, flags, strict=True)
        ]
        arrays.append(np.concatenate(rows)[keep])
    progress("reading features", len(WIDTHS), len(WIDTHS))
    classes = rarest_first[frequent[keep].argmax(axis=1)]
    return Views(tuple(VIEWS.values()), tuple(arrays), labels=np.array(concepts)[classes])


def _columns(paths: list[Path]) -> np.ndarray:
    """(n, concepts): 1 where an image has a concept."""
    first = _numbers(paths[0], None)
    return np.hstack([first, *(_numbers(path, first.shape) for path in paths[1:])])


def _numbers(path: Path, shape: tuple[int, ...] | None) -> np.ndarray:
    """The numbers of a text file as float32. None: any shape."""
    try:
        rows = np.loadtxt(path, np.float32, ndmin=2)
        if shape not in (None, rows.shape):
            raise ValueError(f"expected {shape[0]:,} lines of {shape[1]} numbers, got {rows.shape}")
    except ValueError as error:
        raise FileFormatError(
            f"{display_path(str(path))} may be truncated, or belong to another part: {error}. Extract it again."
        ) from error
    return rows


KINDS = ("cifar-10", "class-folders", "youtube-faces", "nus-wide", "views")
MANY_FACES = 1201  # the paper uses people with more than 1,200 images
RECIPE = "dataset.json"
HEAD = 20  # members of an archive that are checked to detect its kind


def open_dataset(
    path: str | os.PathLike[str],
    kind: str = "auto",
    *,
    choice: Choice = EVERYTHING,
    concepts: int | None = None,
    progress: Progress = quiet,
) -> Any:
    """Open features as Views with labels, or images as a source for `extract_views(…, labels="folder")`.

    People of YouTube Faces with fewer than 1,201 images are left out unless `choice` says otherwise. `concepts`: number
    of the most frequent concepts of NUS-WIDE (default 21).
    """
    path, shown = Path(path), display_path(str(path))
    if kind not in ("auto", *KINDS):
        raise ParameterError(f"kind must be auto, {', '.join(KINDS)}; got {kind!r}.")
    if not path.exists():
        raise MissingFileError(f"There is no data set at {shown}. Check the path.")
    members = _first_members(path)
    kind = _kind(path, members) if kind == "auto" else kind
    if kind in ("nus-wide", "views"):
        views = open_data(str(path))[1] if kind == "views" else read_nus_wide(path, concepts or CONCEPTS, progress)
        return take_rows(views, choose_rows(np.asarray(views.labels), choice, shown))
    if kind == "cifar-10":
        images = read_cifar(path)
    else:
        nested = bool(members) and all(name.endswith(".tar") for name in members)
        source = TarOfTars(str(path), progress) if nested else open_images(path, progress)
        if kind == "youtube-faces" or (kind == "auto" and is_youtube_faces(source)):
            images = youtube_faces(source)
            choice = replace(choice, at_least=choice.at_least or MANY_FACES)
        else:
            images = class_folders(source)
    return images.take(choose_rows(images.labels(), choice, shown))


def _kind(path: Path, members: list[str]) -> str:
    """The kind of data set by its file names; "auto" where the names of images decide, which takes longest."""
    names = [place.name for place in _cifar_files(path)] if path.is_dir() else [path.name, *members]
    if any(map(_BATCH.fullmatch, names)):
        return "cifar-10"
    if any(any(path.glob(depth + _FEATURES)) for depth in ("", "*/", "*/*/")):
        return "nus-wide"
    return "views" if any(path.glob("*.npy")) or path.suffix.lower() in READERS else "auto"


def _first_members(path: Path) -> list[str]:
    """The names of the first files of a .tar, plain or compressed; empty for other files and folders."""
    try:
        with tarfile.open(path) as archive:
            return [member.name for member in islice(archive, HEAD) if member.isreg()]
    except STREAM_ERRORS:  # the full read reports the error
        return []


def prepare(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    kind: str = "auto",
    features: Sequence[str | ViewSpec] = DEFAULT_VIEWS,
    *,
    choice: Choice = EVERYTHING,
    concepts: int | None = None,
    progress: Progress = quiet,
) -> Views:
    """Write a data set as the views folder `out` with labels. An interrupted call is resumed by the same call.

    `features` are those of `extract_views`, for images only. The others are those of `open_dataset`.
    """
    out = Path(out)
    recipe = as_json({"source": display_path(str(Path(path).resolve())), "kind": kind, "concepts": concepts})
    recipe |= as_json(asdict(choice))
    if not (out / RECIPE).exists():
        opened = open_dataset(path, kind, choice=choice, concepts=concepts, progress=progress)
        if isinstance(opened, ImageSource):
            return extract_views(opened, out, ExtractOptions(features, labels="folder"), progress)
        if out.exists() and any(out.iterdir()):
            raise InvalidDataError(f"Views go into a folder of their own; {out} holds other things. Choose another.")
        make_folder(out)
        write_json(out / RECIPE, recipe)
    elif read_json(out / RECIPE) != recipe:
        raise InvalidDataError(f"{out} was made from another data set or with other options. Choose another folder.")
    elif not (out / MANIFEST).exists():  # interrupted
        remove_unfinished(out)
        opened = open_dataset(path, kind, choice=choice, concepts=concepts, progress=progress)
    else:
        return read_views(out)
    write_views(
        out,
        opened,
        progress=lambda done, total: progress("writing features (MB)", megabytes(done), megabytes(total)),
    )
    return read_views(out)

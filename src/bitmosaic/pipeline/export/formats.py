"""Export the edited clusters to files of other programs. Rows are in the order of the run.

The first part is shared by all exports: their result, JSON with long lists, names of image files.
"""

import io
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bitmosaic import __version__
from bitmosaic.errors import import_extra
from bitmosaic.images import Progress, display_path, quiet
from bitmosaic.images.decode import quiet_pillow, size_of
from bitmosaic.io.files import result_file
from bitmosaic.io.threads import available_threads, in_order
from bitmosaic.run.clusters import Clusters
from bitmosaic.run.images import RunImages
from bitmosaic.run.tables import image_table, save_table

ROWS_AT_ONCE, FILES_AT_ONCE = 2**20, 256


@dataclass(frozen=True)
class Exported:
    """The result of an export: facts for programs, words and notes for people."""

    facts: dict[str, int]
    words: str
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, clusters: Clusters, notes: list[str] | None = None, **facts: int) -> "Exported":
        """The result of an export of all images."""
        counts = {"images": len(clusters.labels), "clusters": len(clusters.numbers)}
        words = f"{counted(counts['images'], 'image')} in {counted(counts['clusters'], 'cluster')}"
        return cls(counts | facts, words, notes or [])


FindImages = Callable[[], RunImages]  # opened only by the exports that need image files
Write = Callable[[Clusters, Path, FindImages, Progress], Exported]


@dataclass(frozen=True)
class Kind:
    """A format: its name, its file suffixes and its writer."""

    name: str
    suffixes: tuple[str, ...]
    write: Write


def counted(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def write_object(file: BinaryIO, head: dict[str, Any], **lists: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object in ASCII: `head`, then the lists. Entries are written one per line as they come, so that a
    million images take no memory.
    """
    separator = b"{\n"
    for key, value in head.items():
        file.write(separator + _text(key) + b": " + _text(value))
        separator = b",\n"
    for key, entries in lists.items():
        file.write(separator + _text(key) + b": [")
        comma = b"\n"
        for entry in entries:
            file.write(comma + _text(entry))
            comma = b",\n"
        file.write(b"\n]")
        separator = b",\n"
    file.write(b"\n}\n")


def _text(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False).encode("ascii")


def file_names(images: RunImages, paths: list[str]) -> tuple[list[str], list[str]]:
    """The file of each image, or its path in the run if it has none, and notes for the user.

    A name that is not UTF-8 is shown with replacement characters, because most JSON readers accept only UTF-8.
    """
    places = [images.place(row) for row in range(len(paths))]
    without = places.count(None)
    notes = []
    if not images.available:
        notes = ["The images were not found; paths are those of the run. Pass their folder: --source FOLDER."]
    elif without:
        notes = [f"{without:,} images are not files: their paths are those in their archive or array."]
    return [path if place is None else display_path(place) for place, path in zip(places, paths, strict=True)], notes


# ---- tables


def table(clusters: Clusters) -> dict[str, Any]:
    """The columns of the table. `name` is there if a cluster has a name, `original_cluster` if an edit changed one, and
    `addition` (0: the first images of the run) if images were added."""
    facts, run = clusters.facts, clusters.facts.run
    counts = [run.manifest.images, *(addition.n_rows for addition in run.additions)]
    return image_table(
        path=facts.paths,
        cluster=clusters.labels,
        name=[clusters.names.get(number) for number in clusters.labels.tolist()] if clusters.names else None,
        original_cluster=facts.log.labels if clusters.touched else None,
        addition=np.repeat(np.arange(len(counts)), counts) if run.additions else None,  # paths can repeat
        distance=clusters.distances,
        label=run.views.labels,
    )


def export_csv(clusters: Clusters, path: Path, *_: Any) -> Exported:
    save_table(path, table(clusters), ".csv")
    return Exported.of(clusters)


def export_parquet(clusters: Clusters, path: Path, *_: Any) -> Exported:
    save_table(path, table(clusters), ".parquet")
    return Exported.of(clusters)


# ---- arrays


def export_codes(clusters: Clusters, path: Path, *_: Any) -> Exported:
    """(n, n_bits / 8) uint8, eight bits per byte, as returned by `transform`."""
    return _save(clusters, path, clusters.facts.codes)


def export_labels(clusters: Clusters, path: Path, *_: Any) -> Exported:
    """(n,) int32: the cluster number of each image."""
    return _save(clusters, path, clusters.labels)


def _save(clusters: Clusters, path: Path, array: np.ndarray) -> Exported:
    with result_file(path) as file:
        np.lib.format.write_array(file, array, allow_pickle=False)
    return Exported.of(clusters)


def export_faiss(clusters: Clusters, path: Path, _: Any, progress: Progress) -> Exported:
    """An IndexBinaryFlat: exact search by Hamming distance, with equal weights for all bits."""
    faiss = import_extra("faiss", "bench", "A faiss index")
    codes = clusters.facts.codes
    index = faiss.IndexBinaryFlat(8 * codes.shape[1])
    for first in range(0, len(codes), ROWS_AT_ONCE):
        index.add(np.ascontiguousarray(codes[first : first + ROWS_AT_ONCE]))
        progress("adding codes", min(first + ROWS_AT_ONCE, len(codes)), len(codes))
    with result_file(path) as file:
        file.write(faiss.serialize_index_binary(index).data)
    return Exported.of(clusters)


# ---- Export the edited clusters as COCO JSON: a category for each cluster, an annotation for each image.
#
# Annotations label whole images and have no boxes. Ids start at 1, because some readers take 0 for "none": an image
# `id` is its row plus one, a category `id` its cluster number plus one. An image of unknown size has no `width` and
# `height`.


def export_coco(clusters: Clusters, path: Path, find_images: FindImages, progress: Progress) -> Exported:
    images, run = find_images(), clusters.facts.run
    names, notes = file_names(images, clusters.facts.paths)
    sizes = image_sizes(images, len(names), progress)
    without_size = int((sizes[:, 0] == 0).sum())
    if without_size:
        notes.append(f"The size of {counted(without_size, 'image')} is unknown and left out.")
    head = {
        "info": {
            "description": f"Clusters of {run.folder.resolve().name}",
            "version": __version__,
            "date_created": run.manifest.begun,
            "contributor": "bitmosaic",
        },
        "licenses": [],
        "categories": [
            {"id": number + 1, "name": clusters.title(number), "supercategory": "cluster", "cluster": number}
            for number in clusters.numbers
        ],
    }
    with result_file(path) as file:
        write_object(file, head, images=_images(clusters, names, sizes), annotations=_annotations(clusters))
    return Exported.of(clusters, notes, without_size=without_size)


def _images(clusters: Clusters, names: list[str], sizes: np.ndarray) -> Iterator[dict[str, Any]]:
    for row, (name, (width, height)) in enumerate(zip(names, sizes.tolist(), strict=True)):
        image: dict[str, Any] = {"id": row + 1, "file_name": name}
        if width:
            image |= {"width": width, "height": height}
        if (label := clusters.facts.label(row)) is not None:
            image["label"] = label
        yield image


def _annotations(clusters: Clusters) -> Iterator[dict[str, Any]]:
    columns = zip(clusters.labels.tolist(), clusters.distances.tolist(), strict=True)
    for row, (number, distance) in enumerate(columns):
        yield {"id": row + 1, "image_id": row + 1, "category_id": number + 1, "distance": round(distance, 4)}


# ---- sizes of images


def image_sizes(images: RunImages, n_rows: int, progress: Progress = quiet) -> np.ndarray:
    """(n, 2) int32: width and height of each image as displayed, 0 if unknown.

    Of a file only the header is read; a member of an archive is unpacked, but not decoded.
    """
    sizes, done = np.zeros((n_rows, 2), np.int32), 0
    places = {row: place for row in range(n_rows) if (place := images.place(row)) is not None}
    rows = list(places)
    pieces = [rows[first : first + FILES_AT_ONCE] for first in range(0, len(rows), FILES_AT_ONCE)]
    with quiet_pillow():
        measured = in_order(lambda piece: (piece, [_size(places[row]) for row in piece]), pieces, available_threads())
        for piece, found in measured:
            sizes[piece] = found
            done += len(piece)
            progress("reading sizes", done, n_rows)
        for row, content in images.contents(row for row in range(n_rows) if row not in places):
            sizes[row] = _size(content)
            done += 1
            progress("reading sizes", done, n_rows)
    return sizes


def _size(image: str | bytes | np.ndarray | None) -> tuple[int, int]:
    try:
        if isinstance(image, str):
            if not os.path.isfile(image):  # opening a pipe would block
                return 0, 0
            with open(image, "rb") as file:
                return size_of(file)
        if isinstance(image, bytes):
            return size_of(io.BytesIO(image))
    except Exception:  # a damaged file can raise anything
        return 0, 0
    return (0, 0) if image is None else (image.shape[1], image.shape[0])


# ---- Export the edited clusters for `fiftyone.Dataset.from_json`: one sample per image, with its cluster.


_FIELDS = "fiftyone.core.fields"
_CLASSIFICATION = f"{_FIELDS}.EmbeddedDocumentField(fiftyone.core.labels.Classification)"


def export_fiftyone(clusters: Clusters, path: Path, find_images: FindImages, progress: Progress) -> Exported:
    names, notes = file_names(find_images(), clusters.facts.paths)
    if notes:
        notes.append("FiftyOne shows image files only. Unpack the images, and load with rel_dir=FOLDER.")
    fields = {
        "cluster": _CLASSIFICATION,
        "cluster_number": f"{_FIELDS}.IntField",
        "distance": f"{_FIELDS}.FloatField",
    }
    if clusters.facts.classes is not None:
        fields["ground_truth"] = _CLASSIFICATION
    run = clusters.facts.run
    head = {
        "name": run.folder.resolve().name,
        "media_type": "image",
        "sample_fields": fields,
        "info": {"made_by": f"bitmosaic {__version__}", "run": str(run.folder.resolve()), "edits": clusters.version},
    }
    with result_file(path) as file:
        write_object(file, head, samples=_samples(clusters, names, progress))
    return Exported.of(clusters, notes)


def _samples(clusters: Clusters, names: list[str], progress: Progress) -> Iterator[dict[str, Any]]:
    columns = zip(names, clusters.labels.tolist(), clusters.distances.tolist(), strict=True)
    for row, (name, number, distance) in enumerate(columns):
        sample = {
            "filepath": name,
            "tags": [],
            "cluster": _label(clusters.title(number)),
            "cluster_number": number,
            "distance": round(distance, 4),
        }
        if (label := clusters.facts.label(row)) is not None:
            sample["ground_truth"] = _label(label)
        yield sample
        if row % 1000 == 999 or row + 1 == len(names):
            progress("writing samples", row + 1, len(names))


def _label(text: str) -> dict[str, Any]:
    return {"_cls": "Classification", "tags": [], "label": text}

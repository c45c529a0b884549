"""Clusters as edited -> a JSON file for `fiftyone.Dataset.from_json`: a sample for each picture, with its cluster."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitmosaic import __version__
from bitmosaic.exports.json_file import write_object
from bitmosaic.exports.kind import Exported, Pictures, saving
from bitmosaic.exports.pictures import file_names
from bitmosaic.images import Progress

if TYPE_CHECKING:
    from bitmosaic.explorer.clusters import Clusters

_FIELDS = "fiftyone.core.fields"
_CLASSIFICATION = f"{_FIELDS}.EmbeddedDocumentField(fiftyone.core.labels.Classification)"


def export_fiftyone(clusters: "Clusters", path: Path, find_pictures: Pictures, progress: Progress) -> Exported:
    names, notes = file_names(find_pictures(), clusters.pictures.paths)
    if notes:
        notes.append("FiftyOne shows pictures in files only: unpack them, and load with rel_dir=FOLDER.")
    fields = {
        "cluster": _CLASSIFICATION,
        "cluster_number": f"{_FIELDS}.IntField",
        "distance": f"{_FIELDS}.FloatField",
    }
    if clusters.pictures.classes is not None:
        fields["ground_truth"] = _CLASSIFICATION
    run = clusters.pictures.run
    head = {
        "name": run.folder.resolve().name,
        "media_type": "image",
        "sample_fields": fields,
        "info": {"made_by": f"bitmosaic {__version__}", "run": str(run.folder.resolve()), "edits": clusters.version},
    }
    with saving(path) as file:
        write_object(file, head, samples=_samples(clusters, names, progress))
    return Exported.of(clusters, notes)


def _samples(clusters: "Clusters", names: list[str], progress: Progress) -> Iterator[dict[str, Any]]:
    columns = zip(names, clusters.labels.tolist(), clusters.distances.tolist(), strict=True)
    for row, (name, number, distance) in enumerate(columns):
        sample = {
            "filepath": name,
            "tags": [],
            "cluster": _label(clusters.title(number)),
            "cluster_number": number,
            "distance": round(distance, 4),
        }
        if (label := clusters.pictures.label(row)) is not None:
            sample["ground_truth"] = _label(label)
        yield sample
        if row % 1000 == 999 or row + 1 == len(names):
            progress("writing samples", row + 1, len(names))


def _label(text: str) -> dict[str, Any]:
    return {"_cls": "Classification", "tags": [], "label": text}

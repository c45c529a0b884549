"""Clusters as edited -> a JSON file in the manner of COCO: a category for each cluster, a label for each picture.

The annotations are labels of whole pictures and have no boxes. COCO counts from 1, since some readers take 0 for
"nothing": picture `id` is its row plus one, category `id` its cluster's number plus one. A picture whose size cannot be
had has no `width` and `height`, rather than wrong ones.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bitmosaic import __version__
from bitmosaic.exports.json_file import write_object
from bitmosaic.exports.kind import Exported, Pictures, counted, saving
from bitmosaic.exports.pictures import file_names, picture_sizes
from bitmosaic.images import Progress

if TYPE_CHECKING:
    from bitmosaic.explorer.clusters import Clusters


def export_coco(clusters: "Clusters", path: Path, find_pictures: Pictures, progress: Progress) -> Exported:
    pictures, run = find_pictures(), clusters.pictures.run
    names, notes = file_names(pictures, clusters.pictures.paths)
    sizes = picture_sizes(pictures, len(names), progress)
    without_size = int((sizes[:, 0] == 0).sum())
    if without_size:
        notes.append(f"The size of {counted(without_size, 'picture')} is not known, and left out.")
    head = {
        "info": {
            "description": f"Clusters of {run.folder.resolve().name}",
            "version": __version__,
            "date_created": run.manifest["begun"],
            "contributor": "bitmosaic",
        },
        "licenses": [],
        "categories": [
            {"id": number + 1, "name": clusters.title(number), "supercategory": "cluster", "cluster": number}
            for number in clusters.numbers
        ],
    }
    with saving(path) as file:
        write_object(file, head, images=_images(clusters, names, sizes), annotations=_annotations(clusters))
    return Exported.of(clusters, notes, without_size=without_size)


def _images(clusters: "Clusters", names: list[str], sizes: np.ndarray) -> Iterator[dict[str, Any]]:
    for row, (name, (width, height)) in enumerate(zip(names, sizes.tolist(), strict=True)):
        image: dict[str, Any] = {"id": row + 1, "file_name": name}
        if width:
            image |= {"width": width, "height": height}
        if (label := clusters.pictures.label(row)) is not None:
            image["label"] = label
        yield image


def _annotations(clusters: "Clusters") -> Iterator[dict[str, Any]]:
    columns = zip(clusters.labels.tolist(), clusters.distances.tolist(), strict=True)
    for row, (number, distance) in enumerate(columns):
        yield {"id": row + 1, "image_id": row + 1, "category_id": number + 1, "distance": round(distance, 4)}

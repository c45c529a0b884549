"""Codes, or clusters as edited, -> a NumPy file or a faiss index; rows are those of the run, and of its tables."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bitmosaic.errors import MissingExtraError
from bitmosaic.exports.kind import Exported, saving
from bitmosaic.images import Progress

if TYPE_CHECKING:
    from bitmosaic.explorer.clusters import Clusters

ROWS_AT_ONCE = 2**20


def export_codes(clusters: "Clusters", path: Path, *_: Any) -> Exported:
    """(n, n_bits / 8) uint8, eight bits a byte, as `transform` gives them."""
    return _save(clusters, path, clusters.pictures.codes)


def export_labels(clusters: "Clusters", path: Path, *_: Any) -> Exported:
    """(n,) int32: the number of each picture's cluster."""
    return _save(clusters, path, clusters.labels)


def _save(clusters: "Clusters", path: Path, array: np.ndarray) -> Exported:
    with saving(path) as file:
        np.lib.format.write_array(file, array, allow_pickle=False)
    return Exported.of(clusters)


def export_faiss(clusters: "Clusters", path: Path, _: Any, progress: Progress) -> Exported:
    """An IndexBinaryFlat: exact search by Hamming distance, in which every bit counts the same."""
    try:
        import faiss
    except ImportError as error:
        raise MissingExtraError("A faiss index is written by faiss: pip install 'bitmosaic[bench]'") from error
    codes = clusters.pictures.codes
    index = faiss.IndexBinaryFlat(8 * codes.shape[1])
    for first in range(0, len(codes), ROWS_AT_ONCE):
        index.add(np.ascontiguousarray(codes[first : first + ROWS_AT_ONCE]))
        progress("adding codes", min(first + ROWS_AT_ONCE, len(codes)), len(codes))
    with saving(path) as file:
        file.write(faiss.serialize_index_binary(index).data)
    return Exported.of(clusters)

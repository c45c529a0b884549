"""Clusters as edited -> a table of every picture, as CSV or Parquet."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bitmosaic.exports.kind import Exported, saving
from bitmosaic.run import TABLE_WRITERS

if TYPE_CHECKING:
    from bitmosaic.explorer.clusters import Clusters


def table(clusters: "Clusters") -> dict[str, Any]:
    """The columns of the table. Names are there if a cluster has one, the run's own clusters if an edit changed any,
    and the number of the addition (0: the pictures of the beginning) if there was one."""
    pictures = clusters.pictures
    columns: dict[str, Any] = {"path": pictures.paths, "cluster": clusters.labels}
    if clusters.names:
        columns["name"] = [clusters.names.get(number) for number in clusters.labels.tolist()]
    if clusters.touched:
        columns["original_cluster"] = pictures.log.labels
    if additions := pictures.run.additions:  # paths of different sources may be the same
        counts = [pictures.run.manifest["images"], *(addition.n_rows for addition in additions)]
        columns["addition"] = np.repeat(np.arange(len(counts)), counts)
    columns["distance"] = clusters.distances
    if pictures.run.views.labels is not None:
        columns["label"] = pictures.run.views.labels
    return columns


def export_csv(clusters: "Clusters", path: Path, *_: Any) -> Exported:
    save_table(table(clusters), path, "csv")
    return Exported.of(clusters)


def export_parquet(clusters: "Clusters", path: Path, *_: Any) -> Exported:
    save_table(table(clusters), path, "parquet")
    return Exported.of(clusters)


def save_table(columns: dict[str, Any], path: Path, kind: str | None = None) -> None:
    """Columns as CSV or Parquet, by the suffix if the kind is not given."""
    with saving(path) as file:
        TABLE_WRITERS[kind or path.suffix.lower().removeprefix(".")](file, columns)

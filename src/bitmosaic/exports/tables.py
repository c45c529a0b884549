"""Clusters as edited -> a table of every picture, as CSV or Parquet."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitmosaic.exports.kind import Exported, saving
from bitmosaic.run import TABLE_WRITERS

if TYPE_CHECKING:
    from bitmosaic.explorer.clusters import Clusters


def table(clusters: "Clusters") -> dict[str, Any]:
    """The columns of the table. Names are there if a cluster has one, the run's own clusters if an edit changed any."""
    pictures = clusters.pictures
    columns: dict[str, Any] = {"path": pictures.paths, "cluster": clusters.labels}
    if clusters.names:
        columns["name"] = [clusters.names.get(number) for number in clusters.labels.tolist()]
    if clusters.touched:
        columns["original_cluster"] = pictures.log.labels
    columns["distance"] = clusters.distances
    if pictures.run.views.labels is not None:
        columns["label"] = pictures.run.views.labels
    return columns


def export_csv(clusters: "Clusters", path: Path, *_: Any) -> Exported:
    return _write(clusters, path, "csv")


def export_parquet(clusters: "Clusters", path: Path, *_: Any) -> Exported:
    return _write(clusters, path, "parquet")


def _write(clusters: "Clusters", path: Path, kind: str) -> Exported:
    with saving(path) as file:
        TABLE_WRITERS[kind](file, table(clusters))
    return Exported.of(clusters)

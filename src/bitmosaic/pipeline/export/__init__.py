"""Export the edited clusters to files for other programs. `KINDS` is the registry of formats."""

from pathlib import Path
from typing import Any

from bitmosaic.errors import ParameterError
from bitmosaic.images import Progress, quiet
from bitmosaic.io.files import check_output
from bitmosaic.pipeline.export.formats import (
    Exported,
    Kind,
    export_coco,
    export_codes,
    export_csv,
    export_faiss,
    export_fiftyone,
    export_labels,
    export_parquet,
)
from bitmosaic.pipeline.export.links import export_links
from bitmosaic.run.clusters import Clusters
from bitmosaic.run.images import RunImages

FOLDER = ""  # the suffix of a folder
KINDS = {
    kind.name: kind
    for kind in (
        Kind("csv", (".csv",), export_csv),
        Kind("parquet", (".parquet",), export_parquet),
        Kind("coco", (".json",), export_coco),
        Kind("fiftyone", (), export_fiftyone),
        Kind("codes", (".npy",), export_codes),
        Kind("labels", (), export_labels),
        Kind("faiss", (".faiss", ".index"), export_faiss),
        Kind("links", (FOLDER,), export_links),
    )
}


def export(
    clusters: Clusters, out: Any, kind: str | None = None, source: Any = None, progress: Progress = quiet
) -> Exported:
    """Write the clusters to `out`, as `kind`, or as the kind of its suffix.

    `source`: where the images are now, if they were moved.
    """
    out = Path(out)
    chosen = kind_of(out, kind)
    check_output(out, clusters.facts.run.folder, is_folder=chosen is KINDS["links"])
    return chosen.write(clusters, out, lambda: RunImages(clusters.facts.run, source, progress), progress)


def kind_of(out: Path, name: str | None = None) -> Kind:
    if name is not None and name in KINDS:
        return KINDS[name]
    suffix = FOLDER if out.is_dir() else out.suffix.lower()
    found = [kind for kind in KINDS.values() if suffix in kind.suffixes] if name is None else []
    if not found:
        got = out.name if name is None else f"--as {name}"
        raise ParameterError(f"Unknown kind of export: {got}. Choose one by the suffix or by --as: {_listed()}.")
    return found[0]


def _listed() -> str:
    """csv (.csv), coco (.json), fiftyone, …"""
    shown = {FOLDER: "a folder"}
    words = (
        kind.name + (f" ({' or '.join(shown.get(suffix, suffix) for suffix in kind.suffixes)})" * bool(kind.suffixes))
        for kind in KINDS.values()
    )
    return ", ".join(words)

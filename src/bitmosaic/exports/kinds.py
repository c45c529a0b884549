"""All kinds of exports by name, and `export`, which writes one of them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitmosaic.errors import ParameterError
from bitmosaic.exports.arrays import export_codes, export_faiss, export_labels
from bitmosaic.exports.coco import export_coco
from bitmosaic.exports.fiftyone_json import export_fiftyone
from bitmosaic.exports.kind import Exported, Kind
from bitmosaic.exports.links import export_links
from bitmosaic.exports.tables import export_csv, export_parquet
from bitmosaic.images import Progress, quiet
from bitmosaic.places import check_output
from bitmosaic.run_pictures import RunPictures

if TYPE_CHECKING:
    from bitmosaic.explorer.clusters import Clusters

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
    clusters: "Clusters", out: Any, kind: str | None = None, source: Any = None, progress: Progress = quiet
) -> Exported:
    """Write the clusters to `out`, as the kind that is named or that its suffix tells.

    `source`: where the pictures are now, if not where the run has read them; the kinds that need them ask.
    """
    out = Path(out)
    chosen = kind_of(out, kind)
    check_output(out, clusters.pictures.run.folder, is_folder=chosen is KINDS["links"])
    return chosen.write(clusters, out, lambda: RunPictures(clusters.pictures.run, source, progress), progress)


def kind_of(out: Path, name: str | None = None) -> Kind:
    if name is not None and name in KINDS:
        return KINDS[name]
    suffix = FOLDER if out.is_dir() else out.suffix.lower()
    found = [kind for kind in KINDS.values() if suffix in kind.suffixes] if name is None else []
    if not found:
        got = out.name if name is None else f"--as {name}"
        raise ParameterError(f"The kind of an export is told by its suffix, or by --as: {_listed()}; got {got}.")
    return found[0]


def _listed() -> str:
    """csv (.csv), coco (.json), fiftyone, …"""
    shown = {FOLDER: "a folder"}
    words = (
        kind.name + (f" ({' or '.join(shown.get(suffix, suffix) for suffix in kind.suffixes)})" * bool(kind.suffixes))
        for kind in KINDS.values()
    )
    return ", ".join(words)

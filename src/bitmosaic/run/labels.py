"""True labels of the images of a run, from folder names, a file, or an array."""

import csv
import os
from pathlib import Path
from typing import Any

import numpy as np

from bitmosaic.errors import FileFormatError, InvalidDataError, MissingFileError
from bitmosaic.estimators.metrics import clustering_scores
from bitmosaic.images import display_path, folder_name
from bitmosaic.io.paths import as_path
from bitmosaic.io.read import load_npy
from bitmosaic.run.folder import Run
from bitmosaic.views.views import as_labels


def true_labels(run: Run, labels: Any) -> np.ndarray:
    """True labels by row. `labels` is "folder", a .csv or .npy file, or an array in the order of the rows."""
    if isinstance(labels, str) and labels == "folder":
        names = [folder_name(path) for path in run.paths]
        if len({*names} - {""}) < 2:
            raise InvalidDataError(
                "Labels from folders need images in several folders; those of this run are in one or none. "
                "Pass a file with labels."
            )
        return np.array(names)
    if not isinstance(labels, str | bytes | os.PathLike):
        return _for_each_row(as_labels(labels), run, "the array")
    path = as_path(labels, "A file of labels")
    if not path.is_file():
        raise MissingFileError(f"Labels must be 'folder', a .csv or a .npy file; there is no file {path}.")
    try:
        values = _labels_from_csv(run, path) if path.suffix == ".csv" else as_labels(load_npy(path))
    except InvalidDataError:
        raise
    except (ValueError, OSError, csv.Error) as error:
        raise FileFormatError(
            f"Labels must be 'folder', a .csv or a .npy file; {path} cannot be read ({error})."
        ) from error
    return _for_each_row(values, run, path)


def scores_of(truth: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Scores of the images that have a true label. An image outside of any folder has the label "", which is none."""
    rows = truth != "" if truth.dtype.kind == "U" else np.ones(len(truth), bool)
    return clustering_scores(truth[rows], np.asarray(labels)[rows])


def _for_each_row(values: np.ndarray, run: Run, where: Any) -> np.ndarray:
    if len(values) != len(run.paths):
        raise InvalidDataError(
            f"There must be one label for each of {len(run.paths)} images; {where} has {len(values)}."
        )
    return values


def _labels_from_csv(run: Run, path: Path) -> np.ndarray:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if not {"path", "label"} <= set(reader.fieldnames or ()):
            raise InvalidDataError(f"{path} must have the columns path and label; it has {reader.fieldnames}.")
        known = {row["path"]: row["label"] for row in reader}
    names = [display_path(p) for p in run.paths]
    missing = [name for name in names if name not in known]
    if missing:
        raise InvalidDataError(
            f"{path} must have a label for every image; {len(missing)} lack one, such as {missing[0]}."
        )
    return np.array([known[name] for name in names])

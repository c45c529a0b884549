"""What was added to a run: RUN/additions/0001, 0002 …, each a folder that appeared whole; the base is never rewritten.

manifest.json      where from, when, and how many came, were known already, or could not be read
views/             the views folder of the new pictures
codes.npy, labels.npy, distances.npy, clusters.csv, clusters.parquet   as in a run, of the new pictures
skipped.csv        pictures that could not be read, and why
known.csv          pictures that the run has already, and under which path
centers.npy, bit_sums.npy, counts.npy   with `--update`: the centers as they moved, and what they are the majority of
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bitmosaic.errors import FileFormatError, MissingFileError
from bitmosaic.npy import load_npy, open_npy
from bitmosaic.run_manifest import read_addition_manifest
from bitmosaic.solver.online import Majority
from bitmosaic.views import Views, read_views

FOLDER = "additions"
COLUMNS = {"codes": (np.uint8, 2), "labels": (np.int32, 1), "distances": (np.float32, 1)}  # type, dimensions
_ROWS = 2**20  # that are looked at at once
_AGAIN = "Make the run again: bitmosaic fit VIEWS --clusters K --out OTHER."


@dataclass(frozen=True)
class Addition:
    """One folder of them."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def n_rows(self) -> int:
        return self.manifest["images"]

    @property
    def views_folder(self) -> Path:
        return self.folder / "views"

    @property
    def views(self) -> Views:
        views = read_views(self.views_folder)
        if views.n_rows != self.n_rows:
            raise FileFormatError(
                f"{self.views_folder} must have a row for each of {self.n_rows} images; it has {views.n_rows}. "
                "Copy the run again from where it was made."
            )
        return views

    def moved(self, n_clusters: int, n_bytes: int) -> Majority | None:
        """The centers that this addition has moved, None if it was added without an update."""
        if not self.manifest["updated"]:
            return None
        shapes = {
            "centers": (np.uint8, (n_clusters, n_bytes)),
            "bit_sums": (np.int64, (n_clusters, 8 * n_bytes)),
            "counts": (np.int64, (n_clusters,)),
        }
        found = {name: load_npy(self.folder / f"{name}.npy") for name in shapes}
        for name, (dtype, shape) in shapes.items():
            if found[name].dtype != dtype or found[name].shape != shape:
                raise FileFormatError(
                    f"{self.folder / name}.npy must hold {np.dtype(dtype)} of shape {shape}; it holds "
                    f"{found[name].dtype} of {found[name].shape}. Copy the run again from where it was made."
                )
        majority = Majority(**found)
        if not majority.is_sound():
            raise FileFormatError(
                f"{self.folder / 'bit_sums.npy'} must be sums over as many codes as counts.npy says, and is not. "
                "Copy the run again from where it was made."
            )
        return majority


def read_additions(run_folder: Path) -> list[Addition]:
    """The additions of a run in their order; none where there never was one."""
    folder = run_folder / FOLDER
    if not folder.is_dir():
        return []
    found = (entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    names = sorted(found, key=lambda name: (len(name), name))
    expected = [addition_name(number) for number in range(1, len(names) + 1)]
    if names != expected:
        strange = next((name for name in names if name not in expected), names[-1])
        raise FileFormatError(
            f"The additions of a run are numbered from {addition_name(1)} on, and nothing else is beside them; "
            f"{folder} has {len(names)}, one of them {strange!a}. Copy the run again from where it was made."
        )
    return [Addition(folder / name, read_addition_manifest(folder / name)) for name in names]


def addition_name(number: int) -> str:
    return f"{number:04d}"


def open_column(folder: Path, name: str, n_rows: int | None) -> np.ndarray:
    """codes, labels or distances of a folder, as a memory map."""
    path = folder / f"{name}.npy"
    if not path.is_file():
        raise MissingFileError(f"{path} is not there: the run was stopped before its tables. Run it again.")
    column = open_npy(path)
    if column.shape[:1] != (n_rows,):
        raise FileFormatError(f"{path} must have a row for each of {n_rows} images, and has not. {_AGAIN}")
    dtype, ndim = COLUMNS[name]
    if column.dtype != dtype or column.ndim != ndim:
        raise FileFormatError(f"{path} must hold {name} of {np.dtype(dtype)}; it holds {column.dtype}. {_AGAIN}")
    return column


def require_fitting(folder: Path, name: str, column: np.ndarray, n_bytes: int, ids: np.ndarray) -> None:
    """Columns were written by a model with codes of so many bytes, and with these numbers of clusters."""
    fits = {
        "codes": lambda rows: rows.shape[1] == n_bytes,
        "labels": lambda rows: np.isin(rows, ids).all(),
        "distances": lambda rows: ((rows >= 0) & (rows <= 16 * n_bytes)).all(),  # bits weigh 1 on average
    }
    if not all(fits[name](column[start : start + _ROWS]) for start in range(0, len(column), _ROWS)):
        raise FileFormatError(
            f"All files of a run must belong together; {folder / name}.npy does not fit the others. "
            "Copy the run again from where it was made."
        )

"""Additions to a run, in the folders additions/0001, 0002 … of the run. The files of the first fit are not changed.

manifest.json      source, time, and the numbers of images that were added, known already, or skipped
views/             the views folder of the new images
codes.npy, labels.npy, distances.npy, clusters.csv, clusters.parquet   as in a run, of the new images
skipped.csv        images that could not be read, and why
known.csv          images that the run already had, and their paths in the run
centers.npy, bit_sums.npy, counts.npy   with `--update`: the new centers, and the bit sums and counts behind them

A folder is renamed to its number when it is complete. The one in work is additions/.adding.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bitmosaic.errors import FileFormatError, MissingFileError
from bitmosaic.io.read import load_npy, open_npy
from bitmosaic.run.manifest import AdditionManifest
from bitmosaic.solver.clustering import Majority
from bitmosaic.views import Views, read_views

FOLDER = "additions"
COLUMNS = {"codes": (np.uint8, 2), "labels": (np.int32, 1), "distances": (np.float32, 1)}  # type, dimensions
_ROWS = 2**20  # checked at once
_AGAIN = "Copy the run again from where it was made."


@dataclass(frozen=True)
class Addition:
    """One addition."""

    folder: Path
    manifest: AdditionManifest

    @property
    def n_rows(self) -> int:
        return self.manifest.images

    @property
    def views_folder(self) -> Path:
        return self.folder / "views"

    @property
    def views(self) -> Views:
        views = read_views(self.views_folder)
        if views.n_rows != self.n_rows:
            raise FileFormatError(
                f"{self.views_folder} must have a row for each of {self.n_rows} images; it has {views.n_rows}. {_AGAIN}"
            )
        return views

    def moved(self, n_clusters: int, n_bytes: int) -> Majority | None:
        """The centers after this addition, None if it did not update them."""
        if not self.manifest.updated:
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
                    f"{found[name].dtype} of shape {found[name].shape}. {_AGAIN}"
                )
        majority = Majority(**found)
        if not majority.is_sound():
            raise FileFormatError(
                f"{self.folder / 'bit_sums.npy'} does not match counts.npy: a sum is larger than its count. {_AGAIN}"
            )
        return majority


def read_additions(run_folder: Path) -> list[Addition]:
    """The additions of a run in order. An empty list if there are none."""
    folder = run_folder / FOLDER
    if not folder.is_dir():
        return []
    found = (entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    names = sorted(found, key=lambda name: (len(name), name))
    expected = [addition_name(number) for number in range(1, len(names) + 1)]
    if names != expected:
        strange = next((name for name in names if name not in expected), names[-1])
        raise FileFormatError(
            f"{folder} may hold only additions, numbered from {addition_name(1)} on without gaps; "
            f"got {strange!a}. {_AGAIN}"
        )
    return [Addition(folder / name, AdditionManifest.read(folder / name)) for name in names]


def addition_name(number: int) -> str:
    return f"{number:04d}"


def open_column(folder: Path, name: str, n_rows: int | None) -> np.ndarray:
    """codes, labels or distances of a run or an addition, as a memory map."""
    path = folder / f"{name}.npy"
    if not path.is_file():
        raise MissingFileError(
            f"{path} is missing: the run was interrupted before its tables. Run the same command again to resume."
        )
    column = open_npy(path)
    if column.shape[:1] != (n_rows,):
        raise FileFormatError(
            f"{path} must have a row for each of {n_rows} images; its shape is {column.shape}. {_AGAIN}"
        )
    dtype, ndim = COLUMNS[name]
    if column.dtype != dtype or column.ndim != ndim:
        kind = "matrix" if ndim == 2 else "vector"
        raise FileFormatError(
            f"{path} must hold a {kind} of {np.dtype(dtype)}; it holds {column.dtype} of shape {column.shape}. {_AGAIN}"
        )
    return column


def check_column(folder: Path, name: str, column: np.ndarray, n_bytes: int, ids: np.ndarray) -> None:
    """Check the values of a column: the model has codes of `n_bytes` bytes, and clusters with the numbers `ids`."""
    fits = {
        "codes": lambda rows: rows.shape[1] == n_bytes,
        "labels": lambda rows: np.isin(rows, ids).all(),
        "distances": lambda rows: ((rows >= 0) & (rows <= 16 * n_bytes)).all(),  # bit weights have mean 1
    }
    if not all(fits[name](column[start : start + _ROWS]) for start in range(0, len(column), _ROWS)):
        raise FileFormatError(
            f"All files of a run must belong together; {folder / name}.npy does not fit the others. {_AGAIN}"
        )

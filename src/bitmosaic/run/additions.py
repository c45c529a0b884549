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

from bitmosaic.errors import FileFormatError
from bitmosaic.io.read import load_npy, open_npy
from bitmosaic.run.manifest import AdditionManifest
from bitmosaic.solver.clustering import Majority
from bitmosaic.views import Views, read_views

FOLDER = "additions"
COLUMNS = {"codes": (np.uint8, 2), "labels": (np.int32, 1), "distances": (np.float32, 1)}  # type, dimensions
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
        return read_views(self.views_folder)

    def moved(self) -> Majority | None:
        """The centers after this addition, None if it did not update them."""
        if not self.manifest.updated:
            return None
        return Majority(**{name: load_npy(self.folder / f"{name}.npy") for name in Majority._fields})


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


def open_column(folder: Path, name: str, n_rows: int) -> np.ndarray:
    """codes, labels or distances of a run or an addition, as a memory map."""
    path = folder / f"{name}.npy"
    column = open_npy(path)
    dtype, ndim = COLUMNS[name]
    if column.dtype != dtype or column.ndim != ndim or len(column) != n_rows:
        raise FileFormatError(
            f"{path} must hold {np.dtype(dtype)} in {ndim} dimensions, a row for each of {n_rows} images; it holds "
            f"{column.dtype} of shape {column.shape}. {_AGAIN}"
        )
    return column

"""The first pass over the views: every value usable, which rows have which view, mean and variance of each column,
and which views are to be rooted."""

from dataclasses import dataclass

import numpy as np

from bitmosaic.errors import InvalidDataError
from bitmosaic.solver.blocks import rows_per_block
from bitmosaic.threads import in_order, row_ranges
from bitmosaic.views import exact_dtype, forget_pages, read_rows

LARGEST = np.finfo(np.float32).max


@dataclass(frozen=True)
class ViewFacts:
    """What one view holds, over the rows that have it; of the square roots of its values if `root`."""

    present: np.ndarray  # (n,) bool
    mean: np.ndarray  # (d,) float64
    variance: np.ndarray  # (d,) float64
    resolution: float  # the rounding of a value, relative to it
    root: bool


class Moments:
    """Mean, and sums of squared and cubed deviations from it, of each column; added up block by block."""

    def __init__(self, X):
        """Of float64 rows, which are overwritten."""
        self.count = len(X)
        self.mean = X.mean(0) if len(X) else np.zeros(X.shape[1])
        X -= self.mean
        self.squares, self.cubes = np.einsum("ij,ij->j", X, X), np.einsum("ij,ij,ij->j", X, X, X)

    def add(self, other):
        """Chan's and Pébay's updates: no large sums are subtracted."""
        if other.count:
            a, b, total = self.count, other.count, self.count + other.count
            shift = other.mean - self.mean
            self.cubes += other.cubes + shift**3 * (a * b * (a - b) / total**2)
            self.cubes += 3 * shift * (a * other.squares - b * self.squares) / total
            self.squares += other.squares + shift**2 * (a * b / total)
            self.mean += shift * (b / total)
            self.count = total

    @property
    def variance(self):
        return self.squares / max(self.count, 1)

    def typical_skewness(self):
        """The median over the columns of how far from symmetric they are; 0 where all are constant."""
        varied = self.squares > 0
        skewness = self.cubes[varied] / self.count / self.variance[varied] ** 1.5
        return float(np.median(np.abs(skewness))) if varied.any() else 0.0


def scan(views, n_threads=1, root=False):
    """Facts of every view. A row of NaN is a missing view; any other value that is not finite is an error.

    With `root`, a view without negative values is rooted where that makes its columns more symmetric, and its moments
    are those of the roots.
    """
    facts = [_scan_view(name, array, n_threads, root) for name, array in zip(views.names, views.arrays, strict=True)]
    missing = ~np.any([f.present for f in facts], axis=0)
    if missing.any():
        what = f"row {missing.argmax()} is NaN in all of {list(views.names)}"
        if len(views) == 1:
            what = f"row {missing.argmax()} is all NaN, and there is no other view"
        raise InvalidDataError(
            f"Every image needs at least one view; {what} ({missing.sum()} such rows). Leave those images out."
        )
    return facts


def _scan_view(name, array, n_threads, root):
    n, width = array.shape
    present = np.empty(n, bool)

    def look(rows):
        X = read_rows(array, rows, exact_dtype(array))
        present[rows] = check_rows(name, X, rows.start)
        X = X.astype(np.float64) if present[rows].all() else X[present[rows]].astype(np.float64)
        forget_pages(array)
        rooted = Moments(np.sqrt(X)) if root and X.min(initial=0) >= 0 else None
        return Moments(X), rooted

    plain, rooted = Moments(np.empty((0, width))), Moments(np.empty((0, width)))
    for part, rooted_part in in_order(look, row_ranges(n, rows_per_block([width])), n_threads):
        plain.add(part)
        root = root and rooted_part is not None
        if root:
            rooted.add(rooted_part)
    root = root and rooted.typical_skewness() < plain.typical_skewness()
    moments = rooted if root else plain
    resolution = float(np.finfo(exact_dtype(array)).eps)
    return ViewFacts(present, moments.mean, moments.variance, resolution, root)


def check_rows(name, X, first_row):
    """Which rows of a block are there; an error for what float32 cannot hold and for NaN in part of a row."""
    if np.abs(X).max(initial=0) <= LARGEST:  # false where there is a NaN
        return np.ones(len(X), bool)
    infinite = (np.abs(X) > LARGEST).any(1)
    if infinite.any():
        raise InvalidDataError(
            f"Values must be finite and within the range of float32; view {name!r} has infinity or a larger value in "
            f"row {first_row + infinite.argmax()}. Replace it, or make the whole row NaN if that image lacks the view."
        )
    empty = np.isnan(X)
    partly = empty.any(1) & ~empty.all(1)
    if partly.any():
        row = partly.argmax()
        raise InvalidDataError(
            f"A row must be whole, or all NaN where an image lacks the view; view {name!r} has NaN in "
            f"{empty[row].sum()} of {X.shape[1]} columns of row {first_row + row}. Fill the gap or blank the whole row."
        )
    return ~empty[:, 0]

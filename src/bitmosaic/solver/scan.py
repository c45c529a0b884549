"""The first look at the rows to learn from: which have which view, mean and variance of each column, and which views
are to be rooted. And the check that every row which is read can be used."""

from dataclasses import dataclass

import numpy as np

from bitmosaic import kernels
from bitmosaic.errors import InvalidDataError
from bitmosaic.threads import in_order, row_ranges
from bitmosaic.views import exact_dtype, forget_pages, read_rows

ROWS_PER_BLOCK = 1024
BYTES_PER_BLOCK = 16 * 2**20  # of raw features, for very wide views
LARGEST = np.finfo(np.float32).max
SMALLEST_SPREAD = 1e-37  # of a column: float32 holds the inverse of no smaller one


def rows_per_block(widths):
    """1024 rows, fewer for views so wide that a block of them would be large."""
    rows = ROWS_PER_BLOCK
    while rows > 64 and rows * 4 * max(widths) > BYTES_PER_BLOCK:
        rows //= 2
    return rows


@dataclass(frozen=True)
class ViewFacts:
    """What one view holds, over the rows that have it; of the square roots of its values if `root`."""

    present: np.ndarray  # (n,) bool, of the rows looked at
    mean: np.ndarray  # (d,) float64
    variance: np.ndarray  # (d,) float64
    resolution: float  # the rounding of a value, relative to it
    root: bool

    @property
    def constant(self):
        """Columns whose spread is within rounding of their mean, or at the edge of float32: no information (d,)."""
        return self.variance <= np.maximum(self.resolution * np.abs(self.mean), SMALLEST_SPREAD) ** 2


class Moments:
    """Mean, and sums of squared and cubed deviations from it, of each column; added up block by block."""

    def __init__(self, X, root=False):
        """Of rows (n, d), or of their square roots."""
        self.count = len(X)
        self.mean, self.squares, self.cubes = np.empty((3, X.shape[1]))
        kernels.column_moments(X, root, self.mean, self.squares, self.cubes)

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
        varied = self.variance > 1e-74  # whose power of 1.5 is still a number
        skewness = self.cubes[varied] / self.count / self.variance[varied] ** 1.5
        return float(np.median(np.abs(skewness))) if varied.any() else 0.0


def scan(views, rows=None, n_threads=1, root=False):
    """Facts of every view, over some sorted `rows` or all of them. A row of NaN is a missing view.

    With `root`, a view without negative values is rooted where that makes its columns more symmetric, and its moments
    are those of the roots.
    """
    facts = [
        _scan_view(name, array, rows, n_threads, root) for name, array in zip(views.names, views.arrays, strict=True)
    ]
    check_images(views.names, ~np.array([f.present for f in facts]), rows, 0)
    return facts


def _scan_view(name, array, rows, n_threads, root):
    n, width = (array.shape[0] if rows is None else len(rows)), array.shape[1]
    present = np.empty(n, bool)

    def look(block):
        numbers = np.arange(block.start, block.stop) if rows is None else rows[block]
        X = read_rows(array, block if rows is None else numbers, exact_dtype(array))
        present[block] = check_rows(name, X, rows, block.start)
        if not present[block].all():
            X = X[present[block]]
        found = Moments(X), Moments(X, root=True) if root and X.min(initial=0) >= 0 else None
        forget_pages(array, numbers)
        return found

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


def presence(views, rows=None, n_threads=1):
    """Which of some sorted `rows` (or of all) have which view (m, n) bool, every one of them checked."""
    n = views.n_rows if rows is None else len(rows)
    present = np.empty((len(views), n), bool)

    def look(block):
        numbers = np.arange(block.start, block.stop) if rows is None else rows[block]
        for v, (name, array) in enumerate(zip(views.names, views.arrays, strict=True)):
            X = read_rows(array, block if rows is None else numbers, exact_dtype(array))
            present[v, block] = check_rows(name, X, rows, block.start)
            forget_pages(array, numbers)

    for _ in in_order(look, row_ranges(n, rows_per_block(views.widths)), n_threads):
        pass
    check_images(views.names, ~present, rows, 0)
    return present


def check_images(names, missing, rows, first):
    """An error where an image has no view at all; missing (m, n), numbered as :func:`check_rows` says."""
    nowhere = missing.all(0)
    if nowhere.any():
        row = row_number(rows, first + nowhere.argmax())
        what = f"row {row} is NaN in all of {list(names)}"
        if len(names) == 1:
            what = f"row {row} is all NaN, and there is no other view"
        raise InvalidDataError(
            f"Every image needs at least one view; {what} ({nowhere.sum()} such rows here). Leave those images out."
        )


def row_number(rows, position):
    """The number of a row in the user's data; `rows` are the numbers of those looked at, None for all."""
    return position if rows is None else rows[position]


def check_rows(name, X, rows, first):
    """Which rows of a block are there; an error for what float32 cannot hold and for NaN in part of a row.

    The block begins at position `first` of the sorted row numbers `rows`, or of all rows if None.
    """
    if X.min(initial=0) >= -LARGEST and X.max(initial=0) <= LARGEST:  # false where there is a NaN
        return np.ones(len(X), bool)
    infinite = (np.abs(X) > LARGEST).any(1)
    if infinite.any():
        raise InvalidDataError(
            f"Values must be finite and within the range of float32; view {name!r} has infinity or a larger value in "
            f"row {row_number(rows, first + infinite.argmax())}. Replace it, or make the whole row NaN if that image "
            "lacks the view."
        )
    empty = np.isnan(X)
    partly = empty.any(1) & ~empty.all(1)
    if partly.any():
        row = partly.argmax()
        raise InvalidDataError(
            f"A row must be whole, or all NaN where an image lacks the view; view {name!r} has NaN in "
            f"{empty[row].sum()} of {X.shape[1]} columns of row {row_number(rows, first + row)}. "
            "Fill the gap or blank the whole row."
        )
    return ~empty[:, 0]

"""First pass over the training rows: which rows have which view, mean and variance of each column, and how the values
of each view are scaled. Also checks that every row is usable."""

from dataclasses import dataclass

import numpy as np

from bitmosaic.errors import InvalidDataError
from bitmosaic.hamming import kernels
from bitmosaic.io.threads import in_order, row_ranges
from bitmosaic.solver.embedding import scaled_rows
from bitmosaic.views import exact_dtype, forget_pages, read_rows

ROWS_PER_BLOCK = 1024
BYTES_PER_BLOCK = 16 * 2**20  # of raw features, for very wide views
LARGEST = np.finfo(np.float32).max
SPARSE = 0.6  # mean / standard deviation of a column without negative values, below which values are mostly near zero
ALIKE = 10  # largest standard deviation of a column / the median, up to which columns have the same unit
SMALLEST_SPREAD = 1e-37  # of a column: the inverse of a smaller one overflows float32


def rows_per_block(widths):
    """1024 rows, or fewer for very wide views."""
    rows = ROWS_PER_BLOCK
    while rows > 8 and rows * 4 * max(widths) > BYTES_PER_BLOCK:
        rows //= 2
    return rows


@dataclass(frozen=True)
class ViewFacts:
    """Statistics of one view over the rows that have it, after its scaling of rows or values."""

    present: np.ndarray  # (n,) bool, for the scanned rows
    mean: np.ndarray  # (d,) float64
    variance: np.ndarray  # (d,) float64
    resolution: float  # relative rounding error of a value
    scaling: str  # "standard", "root", "unit" or "center"

    @property
    def constant(self):
        """Columns without information (d,): spread within rounding of the mean, or too small for float32."""
        return self.variance <= np.maximum(self.resolution * np.abs(self.mean), SMALLEST_SPREAD) ** 2


class Moments:
    """Mean, and sums of squared and cubed deviations from it, for each column. Blocks can be merged."""

    def __init__(self, X, root=False):
        """Moments of rows (n, d), or of their square roots."""
        self.count = len(X)
        self.mean, self.squares, self.cubes = np.empty((3, X.shape[1]))
        kernels.column_moments(X, root, self.mean, self.squares, self.cubes)

    def add(self, other):
        """Merge another block by the updates of Chan and Pébay, which avoid subtracting large sums."""
        if other.count:
            a, b, total = self.count, other.count, self.count + other.count
            shift = other.mean - self.mean
            squared = shift * shift
            cubed = squared * shift  # shift**3 takes 20 times as long
            self.cubes += other.cubes + cubed * (a * b * (a - b) / total**2)
            self.cubes += 3 * shift * (a * other.squares - b * self.squares) / total
            self.squares += other.squares + squared * (a * b / total)
            self.mean += shift * (b / total)
            self.count = total

    @property
    def variance(self):
        return self.squares / max(self.count, 1)

    def typical_skewness(self):
        """Median over the columns of the absolute skewness; 0 if all columns are constant."""
        varied = self.variance > 1e-74  # its power of 1.5 does not underflow
        skewness = self.cubes[varied] / self.count / self.variance[varied] ** 1.5
        return float(np.median(np.abs(skewness))) if varied.any() else 0.0


def scan(views, rows=None, n_threads=1, scaling="auto"):
    """Statistics of every view, over some sorted `rows` or all of them. A row of NaN is a missing view.

    The moments are those of the scaled rows, before columns are divided by their standard deviations. With "auto", the
    scaling of each view is chosen by :func:`best_scaling`.
    """
    facts = [
        _scan_view(name, array, rows, n_threads, scaling) for name, array in zip(views.names, views.arrays, strict=True)
    ]
    check_images(views.names, ~np.array([f.present for f in facts]), rows, 0)
    return facts


def _scan_view(name, array, rows, n_threads, scaling):
    n, width = (array.shape[0] if rows is None else len(rows)), array.shape[1]
    present = np.empty(n, bool)
    kinds = ("standard", "root", "unit") if scaling == "auto" else (scaling,)

    def look(block):
        numbers = np.arange(block.start, block.stop) if rows is None else rows[block]
        X = read_rows(array, block if rows is None else numbers, exact_dtype(array))
        present[block] = check_rows(name, X, rows, block.start)
        if not present[block].all():
            X = X[present[block]]
        if scaling == "root" and X.min(initial=0) < 0:
            raise InvalidDataError(
                f"scaling='root' needs values that are not negative; view {name!r} has some. "
                "Use scaling='auto' or scaling='standard'."
            )
        no_negatives = scaling != "auto" or X.min(initial=0) >= 0
        possible = kinds if no_negatives else ("standard",)
        found = {kind: Moments(scaled_rows(X, kind), root=kind == "root") for kind in possible}
        forget_pages(array, numbers)
        return found

    totals = {kind: Moments(np.empty((0, width))) for kind in kinds}
    for part in in_order(look, row_ranges(n, rows_per_block([width])), n_threads):
        totals = {kind: total for kind, total in totals.items() if kind in part}
        for kind, total in totals.items():
            total.add(part[kind])
    if scaling == "auto":
        scaling = best_scaling(totals)
    moments = totals["standard" if scaling == "center" and "center" not in totals else scaling]
    return ViewFacts(present, moments.mean, moments.variance, float(np.finfo(exact_dtype(array)).eps), scaling)


def best_scaling(moments):
    """How to scale a view, from its moments: "standard", and "root" and "unit" if it has no negative values.

    "unit" if values are mostly near zero, as in counts of words and activations of a network. "root" if square roots
    are more symmetric, as of histograms. "center" if there are negative values and columns have about the same spread,
    as in embeddings: their unit is the same, and directions with a larger spread matter more. Else "standard".
    """
    plain, root = moments["standard"], moments.get("root")
    spread = np.sqrt(plain.variance[plain.variance > 0])
    if not len(spread):
        return "standard"
    if root is None:
        return "center" if spread.max() <= ALIKE * np.median(spread) else "standard"
    if np.median(plain.mean[plain.variance > 0] / spread) < SPARSE:
        return "unit"
    return "root" if root.typical_skewness() < plain.typical_skewness() else "standard"


def presence(views, rows=None, n_threads=1):
    """Which of some sorted `rows` (or of all) have which view: (m, n) bool. Every row is checked."""
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
    """Raise an error if an image has no view at all. `missing` (m, n) is numbered as in :func:`check_rows`."""
    nowhere = missing.all(0)
    if nowhere.any():
        row = row_number(rows, first + nowhere.argmax())
        what = f"row {row} is NaN in all of {list(names)}"
        if len(names) == 1:
            what = f"row {row} is all NaN and there is no other view"
        raise InvalidDataError(
            f"Every image needs at least one view, but {what} ({nowhere.sum()} such rows in this block). "
            "Remove these images."
        )


def row_number(rows, position):
    """The row number in the data of the user; `rows` are the numbers of the scanned rows, None for all."""
    return position if rows is None else rows[position]


def check_rows(name, X, rows, first):
    """Which rows of a block are present. Raises an error for values beyond float32 and for rows that are partly NaN.

    The block starts at position `first` of the sorted row numbers `rows`, or of all rows if None.
    """
    if X.min(initial=0) >= -LARGEST and X.max(initial=0) <= LARGEST:  # false where there is a NaN
        return np.ones(len(X), bool)
    infinite = (np.abs(X) > LARGEST).any(1)
    if infinite.any():
        raise InvalidDataError(
            f"Values must be finite and within the range of float32; view {name!r} has infinity or a too large value "
            f"in row {row_number(rows, first + infinite.argmax())}. Replace it, or set the whole row to NaN if the "
            "image lacks this view."
        )
    empty = np.isnan(X)
    partly = empty.any(1) & ~empty.all(1)
    if partly.any():
        row = partly.argmax()
        raise InvalidDataError(
            f"A row must have no NaN, or be all NaN if the image lacks the view; view {name!r} has NaN in "
            f"{empty[row].sum()} of {X.shape[1]} columns of row {row_number(rows, first + row)}. "
            "Fill in the values or set the whole row to NaN."
        )
    return ~empty[:, 0]

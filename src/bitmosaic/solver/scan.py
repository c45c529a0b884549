"""The first pass over the views: every value usable, which rows have which view, mean and variance of each column."""

from dataclasses import dataclass

import numpy as np

from bitmosaic.errors import InvalidDataError
from bitmosaic.solver.blocks import rows_per_block
from bitmosaic.threads import in_order, row_ranges
from bitmosaic.views import exact_dtype, forget_pages, read_rows

LARGEST = np.finfo(np.float32).max


@dataclass(frozen=True)
class ViewFacts:
    """What one view holds, over the rows that have it."""

    present: np.ndarray  # (n,) bool
    mean: np.ndarray  # (d,) float64
    variance: np.ndarray  # (d,) float64
    resolution: float  # the rounding of a value, relative to it


def scan(views, n_threads=1):
    """Facts of every view. A row of NaN is a missing view; any other value that is not finite is an error."""
    facts = [_scan_view(name, array, n_threads) for name, array in zip(views.names, views.arrays, strict=True)]
    missing = ~np.any([f.present for f in facts], axis=0)
    if missing.any():
        what = f"row {missing.argmax()} is NaN in all of {list(views.names)}"
        if len(views) == 1:
            what = f"row {missing.argmax()} is all NaN, and there is no other view"
        raise InvalidDataError(
            f"Every image needs at least one view; {what} ({missing.sum()} such rows). Leave those images out."
        )
    return facts


def _scan_view(name, array, n_threads):
    n, width = array.shape
    present = np.empty(n, bool)

    def look(rows):
        X = read_rows(array, rows, exact_dtype(array))
        present[rows] = check_rows(name, X, rows.start)
        X = X.astype(np.float64) if present[rows].all() else X[present[rows]].astype(np.float64)
        forget_pages(array)
        mean = X.mean(0) if len(X) else np.zeros(width)
        X -= mean
        return len(X), mean, np.einsum("ij,ij->j", X, X)

    count, mean, squares = 0, np.zeros(width), np.zeros(width)
    for n_part, mean_part, squares_part in in_order(look, row_ranges(n, rows_per_block([width])), n_threads):
        if n_part:  # Chan's update: no large sums are subtracted
            total = count + n_part
            shift = mean_part - mean
            squares += squares_part + shift**2 * (count * n_part / total)
            mean += shift * (n_part / total)
            count = total
    resolution = float(np.finfo(exact_dtype(array)).eps)
    return ViewFacts(present, mean, squares / max(count, 1), resolution)


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

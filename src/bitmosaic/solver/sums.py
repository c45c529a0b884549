"""Sums over rows that are the same bits in whatever order, and in whatever groups, they are added up.

Float sums depend on how they are cut. These are kept in fixed point, 64 bits wide, where addition is exact: one machine
that takes block after block and a cluster that adds up a tree get the same. For up to a million rows the step is finer
than the rounding of a float64 sum would be; for a billion it is 1e-9.
"""

import numpy as np

from bitmosaic import kernels

LARGEST = 2  # what a row adds to an entry, at most: a similarity within ±1, times a change of a bit from -1 to +1


class Sums:
    """Several arrays, each added up over `n_rows` rows. Integers are added as they are."""

    def __init__(self, n_rows=1):
        self.scale = 2.0 ** (61 - int(LARGEST * n_rows).bit_length())
        self.totals: list[np.ndarray] = []  # int64
        self.are_floats: list[bool] = []

    def add(self, parts):
        """One array for each total."""
        if not self.totals:
            self.totals = [np.zeros(np.shape(part), np.int64) for part in parts]
            self.are_floats = [np.asarray(part).dtype.kind == "f" for part in parts]
        for total, part, is_float in zip(self.totals, parts, self.are_floats, strict=True):
            if is_float:
                kernels.add_in_fixed_point(np.ravel(part), self.scale, total.reshape(-1))
            else:
                total += part

    def merge(self, other):
        """Add what another one has added up."""
        if not self.totals:
            self.scale, self.are_floats = other.scale, other.are_floats
            self.totals = [total.copy() for total in other.totals]
        else:
            for total, more in zip(self.totals, other.totals, strict=False):
                total += more

    def __sizeof__(self):
        """For Dask, which otherwise takes it for a small thing."""
        return sum(total.nbytes for total in self.totals)

    def values(self):
        """float64, or int64 where integers were added."""
        return [t / self.scale if is_float else t for t, is_float in zip(self.totals, self.are_floats, strict=True)]

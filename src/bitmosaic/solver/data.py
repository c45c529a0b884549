"""Where the rows of the views are: on this machine. A cluster has the same four doors (`bitmosaic.scale.data`)."""

from dataclasses import replace

import numpy as np

from bitmosaic.solver.blocks import Blocks
from bitmosaic.solver.scan import presence, scan
from bitmosaic.views import forget_pages

FEW_ROWS = 65_536  # so many rows tell the mean and variance of a column as well as all do, and may be in one place


class LocalData:
    """Views that this process can read."""

    client = None  # of a cluster

    def __init__(self, views):
        self.views = views
        self.names, self.widths, self.n_rows = views.names, views.widths, views.n_rows

    def sample(self, rows):
        """The data to learn from some sorted rows: where they are few, on this machine."""
        return self

    def scan(self, rows, n_threads, root):
        """Facts of every view over some sorted rows; mean and variance from every k-th where there are many."""
        stride = -(-len(rows) // FEW_ROWS)
        some = rows[::stride]
        facts = scan(self.views, None if len(some) == self.n_rows else some, n_threads, root)
        if stride == 1:
            return facts
        present = self.presence(rows, n_threads)
        return [replace(f, present=p) for f, p in zip(facts, present, strict=True)]

    def presence(self, rows, n_threads):
        """Which of the rows have which view: (m, n) bool."""
        return presence(self.views, None if len(rows) == self.n_rows else rows, n_threads)

    def arrays(self, rows):
        """The views, to read these few rows from."""
        return self.views.arrays

    def blocks(self, embeddings, rows=None, **how):
        """Embeddings of some sorted rows, or of all."""
        rows = None if rows is None or len(rows) == self.n_rows else rows
        return Blocks(self.views, embeddings, rows, **how)

    def outcome(self, column, dtype):
        """A column of the result, as the user gets it."""
        return column


class TakenRows:
    """Some rows of a matrix, found by their numbers in it."""

    def __init__(self, numbers, values, n_rows):
        """Sorted numbers (k,) of the rows, and their values (k, d); the matrix has `n_rows`."""
        self.numbers, self.values = numbers, values
        self.shape, self.dtype = (n_rows, values.shape[1]), values.dtype

    def __getitem__(self, rows):
        if isinstance(rows, slice):
            start, stop = np.searchsorted(self.numbers, [rows.start, rows.stop])
            return self.values[start:stop]
        return self.values[np.searchsorted(self.numbers, rows)]

    def forget_pages(self, rows):
        """Of sorted rows that have been read, where the values are a memory map."""
        forget_pages(self.values, np.searchsorted(self.numbers, rows[[0, -1]]))

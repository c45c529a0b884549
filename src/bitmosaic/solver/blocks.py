"""Rows of all views -> blocks of embeddings, cached as far as memory allows and computed again beyond that.

The cut into blocks depends on the shapes of the data alone: sums over blocks, taken in order, are the same bits
whatever the memory limit, the chunk size or the number of threads.
"""

import numpy as np

from bitmosaic.embedding import subtract_mean
from bitmosaic.threads import in_order, row_ranges
from bitmosaic.views import exact_dtype, forget_pages, read_rows

ROWS_PER_BLOCK = 1024
BYTES_PER_BLOCK = 16 * 2**20  # of raw features, for very wide views


def rows_per_block(widths):
    """1024 rows, fewer for views so wide that a block of them would be large."""
    rows = ROWS_PER_BLOCK
    while rows > 64 and rows * 4 * max(widths) > BYTES_PER_BLOCK:
        rows //= 2
    return rows


class Blocks:
    """The embeddings of some rows of the views, block by block."""

    def __init__(self, arrays, embeddings, rows=None, *, chunk_size=None, cache_bytes=0, n_threads=1):
        self.arrays, self.embeddings = arrays, list(embeddings)
        self.rows = rows  # sorted row numbers, or None for all rows
        self.n_rows = arrays[0].shape[0] if rows is None else len(rows)
        self.n_threads = n_threads
        self.step = rows_per_block([array.shape[1] for array in arrays])
        self.chunk_size = min(chunk_size or self.step, self.step)
        self.slices = list(row_ranges(self.n_rows, self.step))
        block_bytes = 4 * self.step * sum(e.n_anchors for e in embeddings)
        self.n_cached = min(len(self.slices), int(cache_bytes // block_bytes))
        self._cache: list = [None] * self.n_cached  # per block, per view: (Z, missing)

    def __len__(self):
        return len(self.slices)

    def raw(self, view, where):
        """Rows of one view, read `chunk_size` at a time."""
        array = self.arrays[view]
        X = np.empty((where.stop - where.start, array.shape[1]), exact_dtype(array))
        for piece in row_ranges(len(X), self.chunk_size):
            start, stop = where.start + piece.start, where.start + piece.stop
            rows = slice(start, stop) if self.rows is None else self.rows[start:stop]
            X[piece] = read_rows(array, rows, X.dtype)
        forget_pages(array)
        return X

    def embedded(self, number):
        """Z_v of one block for every view: a list of (n, l) float32."""
        if number < self.n_cached and self._cache[number] is not None:
            return [Z for Z, _ in self._cache[number]]
        views = [embed(self.raw(v, self.slices[number])) for v, embed in enumerate(self.embeddings)]
        if number < self.n_cached:
            self._cache[number] = views
        return [Z for Z, _ in views]

    def sweep(self, work):
        """Yield ``work(rows, Zs)`` for every block, in order."""
        return in_order(lambda i: work(self.slices[i], self.embedded(i)), range(len(self)), self.n_threads)

    def centre(self, n_present):
        """Give each embedding the mean of ψ over the rows that have the view; n_present (m,)."""
        sums = [np.zeros(e.n_anchors) for e in self.embeddings]
        for parts in self.sweep(lambda rows, Zs: [Z.sum(0, dtype=np.float64) for Z in Zs]):
            for total, part in zip(sums, parts, strict=True):
                total += part
        means = [s / n for s, n in zip(sums, n_present, strict=True)]
        self.embeddings = [e.centred(mean) for e, mean in zip(self.embeddings, means, strict=True)]
        for views in self._cache:
            for (Z, missing), e in zip(views, self.embeddings, strict=True):
                subtract_mean(Z, e.mean, missing)

    def grams(self):
        """G_v = Z_vᵀZ_v of every view: float64 (l, l).

        The products are in float64 too: in float32 their rounding outweighs a ridge of 1e-3 where data are tight.
        """
        totals = [np.zeros((e.n_anchors, e.n_anchors)) for e in self.embeddings]
        for parts in self.sweep(lambda rows, Zs: [(D := Z.astype(np.float64)).T @ D for Z in Zs]):
            for total, part in zip(totals, parts, strict=True):
                total += part
        return totals

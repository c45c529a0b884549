"""Rows of all views -> blocks of embeddings, cached as far as memory allows and computed again beyond that.

The cut into blocks depends on the shapes of the data alone, and sums over blocks are exact: they are the same bits
whatever the memory limit, the chunk size, the number of threads or, on a cluster, the parts that hold some blocks each.
"""

from itertools import combinations, pairwise

import numpy as np

from bitmosaic.embedding import subtract_mean
from bitmosaic.solver.clustering import Problem
from bitmosaic.solver.scan import check_images, check_rows, rows_per_block
from bitmosaic.solver.sums import Sums
from bitmosaic.threads import in_order, row_ranges
from bitmosaic.views import exact_dtype, forget_pages, read_rows


class Blocks:
    """The embeddings of some rows of the views, block by block."""

    def __init__(self, views, embeddings, rows=None, *, chunk_size=None, cache_bytes=0, n_threads=1):
        self.names, self.arrays, self.embeddings = views.names, views.arrays, list(embeddings)
        self.rows = rows  # sorted row numbers, or None for all rows
        self.n_rows = views.n_rows if rows is None else len(rows)
        self.n_threads = n_threads
        self.step = rows_per_block(views.widths)
        self.chunk_size = min(chunk_size or self.step, self.step)
        self.slices = list(row_ranges(self.n_rows, self.step))
        block_bytes = 4 * self.step * sum(e.n_anchors for e in embeddings)
        self.n_cached = min(len(self.slices), int(cache_bytes // block_bytes))
        self._cache: list = [None] * self.n_cached  # per block, per view: (Z, missing)

    def __len__(self):
        return len(self.slices)

    def raw(self, view, where):
        """Rows of one view, read `chunk_size` at a time, and their check; `where` is a slice or sorted positions."""
        array, name = self.arrays[view], self.names[view]
        rows = self.row_numbers(where)
        pieces = [
            read_rows(array, consecutive(rows[piece]), exact_dtype(array))
            for piece in row_ranges(len(rows), self.chunk_size)
        ]
        X = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        return X, lambda block: check_rows(name, block, rows, 0)

    def row_numbers(self, where):
        """Of a slice or of sorted positions."""
        if self.rows is not None:
            return self.rows[where]
        return np.arange(where.start, where.stop) if isinstance(where, slice) else where

    def embedded(self, number):
        """Z_v of one block for every view: a list of (n, l) float32."""
        if number < self.n_cached and self._cache[number] is not None:
            return [Z for Z, _ in self._cache[number]]
        where = self.slices[number]
        views = [embed(*self.raw(v, where)) for v, embed in enumerate(self.embeddings)]
        self.forget_pages(where, range(len(views)))
        check_images(self.names, np.array([missing for _, missing in views]), self.rows, where.start)
        if number < self.n_cached:
            self._cache[number] = views
        return [Z for Z, _ in views]

    def forget_pages(self, where, views):
        """Of some rows of the views with these numbers."""
        rows = self.row_numbers(where)
        for v in views:
            forget_pages(self.arrays[v], rows)

    # ---- passes over the rows

    def run(self, work, *columns):
        """``work(Zs, *rows)`` of each block gives rows of a new column, and arrays to be added up.

        `rows` are those of the block in each of the `columns`. Returns the new column and the sums.
        """
        column, sums = self.collect(work, columns, self.n_rows)
        return column, sums.values()

    def run_some(self, work, positions, *columns):
        """As :meth:`run`, with some rows only: those at sorted `positions`, of which the columns speak."""
        column, sums = self.collect(work, columns, self.n_rows, positions)
        return column, sums.values()

    def add_up(self, work):
        """The sums of the arrays that ``work(Zs)`` of each block gives, beside None."""
        return self.collect(work, (), self.n_rows)[1].values()

    def collect(self, work, columns, n_rows, positions=None):
        """As :meth:`run`, with sums that can be merged with those of other rows, `n_rows` in all."""

        def one_block(number):
            rows = self.slices[number]
            if positions is None:
                return rows, *work(self.embedded(number), *(column[rows] for column in columns))
            which = slice(*np.searchsorted(positions, [rows.start, rows.stop]))
            picked = positions[which] - rows.start
            if not len(picked):
                return which, None, None
            Zs = self.embedded(number)
            Zs = Zs if len(picked) == len(Zs[0]) else [Z[picked] for Z in Zs]
            return which, *work(Zs, *(column[which] for column in columns))

        column, sums = None, Sums(n_rows)
        n_out, numbers = self.n_rows, range(len(self))
        if positions is not None and len(positions):
            n_out, numbers = len(positions), range(positions[0] // self.step, positions[-1] // self.step + 1)
        for which, new, parts in in_order(one_block, numbers, self.n_threads):
            if new is not None:
                column = np.empty((n_out, *new.shape[1:]), new.dtype) if column is None else column
                column[which] = new
            if parts is not None:
                sums.add(parts)
        return column, sums

    def constant(self, row):
        """A column with the same row throughout."""
        return np.tile(row, (self.n_rows, 1))

    def problem(self, codes, norm, balance):
        """The clustering of a column of codes."""
        return Problem(codes, norm, balance, n_threads=self.n_threads)

    def at_hand(self, positions):
        """Have the raw rows at some sorted positions at hand; on one machine, they are."""

    # ---- what is added up

    def centre(self, n_present):
        """Give each embedding the mean of ψ over the rows that have the view; n_present (m,)."""
        means = [total / n for total, n in zip(self.totals(), n_present, strict=True)]
        self.embeddings = [e.centred(mean) for e, mean in zip(self.embeddings, means, strict=True)]
        for views in self._cache:
            for (Z, _), e in zip(views, self.embeddings, strict=True):
                subtract_mean(Z, e.mean, ~Z.any(1))

    def totals(self):
        """The sum of Z_v over all rows, for every view: float64 (l,)."""
        return self.add_up(column_totals)

    def grams(self):
        """G_v = Z_vᵀZ_v of every view: float64 (l, l).

        The products are in float64 too: in float32 their rounding outweighs a ridge of 1e-3 where data are tight.
        """
        return self.add_up(own_grams)

    def joint_gram(self):
        """Gram matrix of the concatenated embeddings (Σl, Σl) float64, and the slice of each view in it.

        Between views the products are in float32.
        """
        views = side_by_side([e.n_anchors for e in self.embeddings])
        parts = self.add_up(all_grams)
        joint = np.empty((views[-1].stop, views[-1].stop))
        for view, G in zip(views, parts, strict=False):
            joint[view, view] = G
        for (u, v), G in zip(combinations(range(len(views)), 2), parts[len(views) :], strict=True):
            joint[views[u], views[v]], joint[views[v], views[u]] = G, G.T
        return joint, views


def column_totals(Zs):
    return None, [Z.sum(0, dtype=np.float64) for Z in Zs]


def own_grams(Zs):
    return None, [own_products(Z) for Z in Zs]


def all_grams(Zs):
    return None, [own_products(Z) for Z in Zs] + [A.T @ B for A, B in combinations(Zs, 2)]


def side_by_side(widths):
    """The slice of each of some matrices, of so many columns, that are put side by side."""
    edges = np.concatenate([[0], np.cumsum(widths)]).tolist()
    return [slice(a, b) for a, b in pairwise(edges)]


def consecutive(rows):
    """Sorted row numbers as a slice, where they follow each other: faster to read."""
    return slice(rows[0], rows[-1] + 1) if rows[-1] - rows[0] + 1 == len(rows) else rows


def own_products(Z):
    """ZᵀZ in float64."""
    D = Z.astype(np.float64)
    return D.T @ D

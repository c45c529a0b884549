"""Rows of all views -> blocks of embeddings, cached as far as memory allows and recomputed otherwise.

The block boundaries depend only on the shapes of the data, and sums over blocks are exact. Results are therefore
bitwise identical for any memory limit, chunk size, number of threads, or distribution of the blocks over a cluster.
"""

from dataclasses import replace
from functools import partial
from itertools import combinations, pairwise

import numpy as np

from bitmosaic.hamming import kernels
from bitmosaic.io.threads import in_order, row_ranges
from bitmosaic.solver.clustering import Problem
from bitmosaic.solver.embedding import subtract_mean
from bitmosaic.solver.scan import check_images, check_rows, presence, rows_per_block, scan
from bitmosaic.views import SparseRows, exact_dtype, forget_pages, read_rows

# ---- Sums over rows that are bitwise identical for any order and grouping of the rows.
#
# Float sums depend on the order of addition. These sums use 64-bit fixed point, where addition is exact, so that one
# machine and a cluster get the same result. For up to a million rows the resolution is finer than the rounding of a
# float64 sum; for a billion rows it is 1e-9.


LARGEST = 2  # most that a row adds to an entry: a similarity within ±1 times a bit change of 2


class Sums:
    """Several arrays, each added up over `n_rows` rows. Integer arrays are added without scaling."""

    def __init__(self, n_rows=1):
        self.scale = 2.0 ** (61 - int(LARGEST * n_rows).bit_length())
        self.totals: list[np.ndarray] = []  # int64
        self.are_floats: list[bool] = []

    def add(self, parts):
        """Add one array to each total."""
        if not self.totals:
            self.totals = [np.zeros(np.shape(part), np.int64) for part in parts]
            self.are_floats = [np.asarray(part).dtype.kind == "f" for part in parts]
        for total, part, is_float in zip(self.totals, parts, self.are_floats, strict=True):
            if is_float:
                kernels.add_in_fixed_point(np.ravel(part), self.scale, total.reshape(-1))
            else:
                total += part

    def merge(self, other):
        """Add the totals of another instance."""
        if not self.totals:
            self.scale, self.are_floats = other.scale, other.are_floats
            self.totals = [total.copy() for total in other.totals]
        else:
            for total, more in zip(self.totals, other.totals, strict=False):
                total += more

    def __sizeof__(self):
        """Size for Dask, which would otherwise underestimate it."""
        return sum(total.nbytes for total in self.totals)

    def values(self):
        """The totals: float64, or int64 for integer arrays."""
        return [t / self.scale if is_float else t for t, is_float in zip(self.totals, self.are_floats, strict=True)]


class Blocks:
    """The embeddings of some rows of the views, block by block."""

    is_local = True  # columns are arrays of this process

    def __init__(self, views, embeddings, rows=None, *, chunk_size=None, cache_bytes=0, n_threads=1):
        self.names, self.arrays, self.embeddings = views.names, views.arrays, list(embeddings)
        self.rows = rows  # sorted row numbers, or None for all rows
        self.n_rows = views.n_rows if rows is None else len(rows)
        self.n_threads = n_threads
        self.step = rows_per_block(views.widths)
        self.chunk_size = min(chunk_size or self.step, self.step)
        self.slices = list(row_ranges(self.n_rows, self.step))
        block_bytes = 4 * self.step * sum(e.n_columns for e in embeddings)
        self.n_cached = min(len(self.slices), int(cache_bytes // block_bytes))
        self._cache: list = [None] * self.n_cached  # per block, per view: (Z, missing)

    def __len__(self):
        return len(self.slices)

    def raw(self, view, where):
        """Rows of one view, read `chunk_size` at a time, and a function that checks them. `where` is a slice or sorted
        positions."""
        array, name = self.arrays[view], self.names[view]
        rows = self.row_numbers(where)
        pieces = [
            read_rows(array, consecutive(rows[piece]), exact_dtype(array))
            for piece in row_ranges(len(rows), self.chunk_size)
        ]
        X = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        return X, lambda block: check_rows(name, block, rows, 0)

    def row_numbers(self, where):
        """Row numbers of a slice or of sorted positions."""
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
        """Release the memory pages of some rows of the views with these numbers."""
        rows = self.row_numbers(where)
        for v in views:
            forget_pages(self.arrays[v], rows)

    # ---- passes over the rows

    def run(self, work, *columns, embed=True):
        """Apply ``work(Zs, *rows)`` to each block. It returns the rows of a new column and arrays to add up.

        `rows` are the rows of the block in each of the `columns`. Returns the new column and the sums. Without `embed`,
        the Zs are None.
        """
        column, sums = self.collect(work, columns, self.n_rows, embed=embed)
        return column, sums.values()

    def run_some(self, work, positions, *columns):
        """As :meth:`run`, for the rows at sorted `positions` only. `columns` hold only these rows."""
        column, sums = self.collect(work, columns, self.n_rows, positions)
        return column, sums.values()

    def add_up(self, work):
        """The sums over all blocks of the arrays that ``work(Zs)`` returns after None."""
        return self.collect(work, (), self.n_rows)[1].values()

    def collect(self, work, columns, n_rows, positions=None, embed=True):
        """As :meth:`run`, with sums that can be merged with those of other rows, `n_rows` in all."""

        def one_block(number):
            rows = self.slices[number]
            if positions is None:
                Zs = self.embedded(number) if embed else None
                return rows, *work(Zs, *(column[rows] for column in columns))
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
        """A column that repeats one row."""
        return np.tile(row, (self.n_rows, 1))

    def problem(self, codes, norm, balance):
        """The clustering problem for a column of codes."""
        return Problem(codes, norm, balance, n_threads=self.n_threads)

    # ---- sums over all rows

    def center(self, n_present):
        """Set the mean of each embedding over the rows that have the view; n_present (m,)."""
        means = [total / n for total, n in zip(self.totals(), n_present, strict=True)]
        self.embeddings = [e.centered(mean) for e, mean in zip(self.embeddings, means, strict=True)]
        for views in self._cache:
            for (Z, _), e in zip(views, self.embeddings, strict=True):
                subtract_mean(Z, e.mean, ~Z.any(1))

    def totals(self):
        """The sum of Z_v over all rows, for every view: float64 (l,)."""
        return self.add_up(column_totals)

    def grams(self):
        """G_v = Z_vᵀZ_v of every view: float64 (l, l).

        The products are in float64 as well: float32 rounding would exceed a ridge of 1e-3 for data with little
        variance.
        """
        return self.add_up(own_grams)

    def joint_gram(self):
        """Gram matrix of the concatenated similarities (Σl, Σl) float64, and the slice of each view in it. The
        products of a block are in float32."""
        views = side_by_side([e.n_anchors for e in self.embeddings])
        parts = self.add_up(partial(all_grams, [e.n_anchors for e in self.embeddings]))
        joint = np.empty((views[-1].stop, views[-1].stop))
        for view, G in zip(views, parts, strict=False):
            joint[view, view] = G
        for (u, v), G in zip(combinations(range(len(views)), 2), parts[len(views) :], strict=True):
            joint[views[u], views[v]], joint[views[v], views[u]] = G, G.T
        return joint, views


FUSED = 2  # bound on a column of F, so that sums stay exact


class FusedBlocks:
    """The rows of all views in one space, F = Σ_v Z_v P_v: blocks of a single view for Algorithm 1. F is computed once
    if it is `kept`, else in every pass."""

    def __init__(self, blocks, projections, kept):
        self.blocks = blocks
        self.n_rows, self.embeddings = blocks.n_rows, [projections]
        self.constant, self.problem = blocks.constant, blocks.problem
        self.fuse = partial(fused, projections)
        self.F = blocks.run(lambda Zs: (self.fuse(Zs), []))[0] if kept else None

    def run(self, work, *columns):
        if self.F is None:
            return self.blocks.run(partial(on_fused, self.fuse, work), *columns)
        return self.blocks.run(partial(on_kept, work), self.F, *columns, embed=False)

    def totals(self):
        return self.add_up(column_totals)

    def grams(self):
        return self.add_up(own_grams)

    def add_up(self, work):
        return self.blocks.add_up(partial(on_fused, self.fuse, work)) if self.F is None else self.run(work)[1]


def fused(projections, Zs):
    F = sum(Z @ P for Z, P in zip(Zs, projections, strict=True))
    return np.clip(F, -FUSED, FUSED, out=F)


def on_fused(fuse, work, Zs, *columns):
    return work([fuse(Zs)], *columns)


def on_kept(work, Zs, F, *columns):
    return work([F], *columns)


def column_totals(Zs):
    return None, [Z.sum(0, dtype=np.float64) for Z in Zs]


def own_grams(Zs):
    return None, [own_products(Z) for Z in Zs]


def all_grams(n_anchors, Zs):
    Zs = [Z[:, :l] for Z, l in zip(Zs, n_anchors, strict=True)]
    return None, [Z.T @ Z for Z in Zs] + [A.T @ B for A, B in combinations(Zs, 2)]


def side_by_side(widths):
    """The column slice of each matrix when matrices of these widths are concatenated."""
    edges = np.concatenate([[0], np.cumsum(widths)]).tolist()
    return [slice(a, b) for a, b in pairwise(edges)]


def consecutive(rows):
    """Sorted row numbers as a slice if they are consecutive, which is faster to read."""
    return slice(rows[0], rows[-1] + 1) if rows[-1] - rows[0] + 1 == len(rows) else rows


def own_products(Z):
    """ZᵀZ in float64."""
    D = Z.astype(np.float64)
    return D.T @ D


# ---- Rows of views on this machine. `bitmosaic.estimators.dask.data` has the same interface for a cluster.


FEW_ROWS = 65_536  # enough rows to estimate the mean and variance of a column; they fit on one machine


class LocalData:
    """Views that this process can read."""

    def __init__(self, views):
        self.views = views
        self.names, self.widths, self.n_rows = views.names, views.widths, views.n_rows
        self.n_here = views.n_rows  # rows that are held on this machine

    def most_values(self, n_rows):
        """Upper bound on the values other than zero in any `n_rows` rows of each view; only sparse views have one."""
        arrays = self.views.arrays
        return tuple(a.most_values(n_rows) if isinstance(a, SparseRows) else n_rows * a.shape[1] for a in arrays)

    def sample(self, rows):
        """The data to learn from some sorted rows. On a cluster, few rows are moved to one machine."""
        return self

    def scan(self, rows, n_threads, scaling):
        """Facts of every view over some sorted rows. With many rows, mean and variance come from every k-th row."""
        stride = -(-len(rows) // FEW_ROWS)
        some = rows[::stride]
        facts = scan(self.views, None if len(some) == self.n_rows else some, n_threads, scaling)
        if stride == 1:
            return facts
        present = self.presence(rows, n_threads)
        return [replace(f, present=p) for f, p in zip(facts, present, strict=True)]

    def presence(self, rows, n_threads):
        """Which rows have which view: (m, n) bool."""
        return presence(self.views, None if len(rows) == self.n_rows else rows, n_threads)

    def arrays(self, rows):
        """The arrays of the views, from which these rows can be read."""
        return self.views.arrays

    def blocks(self, embeddings, rows=None, **how):
        """Embeddings of some sorted rows, or of all."""
        rows = None if rows is None or len(rows) == self.n_rows else rows
        return Blocks(self.views, embeddings, rows, **how)

    def outcome(self, column, dtype):
        """A column of the result, in the form returned to the user."""
        return column


class TakenRows:
    """Some rows of a matrix, indexed by their original row numbers."""

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
        """Release the memory pages of sorted rows, if the values are a memory map."""
        forget_pages(self.values, np.searchsorted(self.numbers, rows[[0, -1]]))

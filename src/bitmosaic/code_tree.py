"""Packed codes -> a tree of blocks of codes that are alike, in which the nearest codes are found by looking at few.

Learned codes fill only a small part of their space, for their bits depend on each other. So codes are put in an order
in which those that agree in the most telling bits stand together, and are cut into leaves of at most LEAF; FAN leaves
make a node, FAN nodes one above. Of each node are known the bits that all its codes share, a center, and how far they
are from it at most: no code of it is nearer to a query than the number of shared bits that differ, or than the center
less that radius. Nodes are opened in the order of this bound, until none can hold a nearer code: so this is exact.

Keys hold a distance in their upper half and a row in the lower: `tree_kernels.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bitmosaic import tree_kernels
from bitmosaic.codes import as_words
from bitmosaic.threads import in_order, row_ranges

LEAF, FAN = 128, 16
ROWS_PER_PIECE, NODES_PER_PIECE = 65_536, 1024
QUERIES_PER_PIECE, QUERIES_PER_SCAN = 64, 32
LARGE, BRANCHES = 200_000, 32  # larger trees have so many branches, which threads grow
WORTH = 8  # a search that has looked at 1 / WORTH of all codes goes through all, in a row: that is faster then
FEW = 65_536  # room for keys within a radius, before there are known to be more
FAR = np.uint64(2**64 - 1)  # larger than any key
_HALF, _ROW = np.uint64(32), np.uint64(2**32 - 1)


@dataclass(frozen=True)
class CodeTree:
    codes: np.ndarray  # (w, n) uint64, in the order of the tree
    rows: np.ndarray  # (n,) uint32: which each was
    begin: np.ndarray  # (m,) int64: where the codes of a leaf begin, or the nodes of any other
    end: np.ndarray  # (m,) int64
    centers: np.ndarray  # (w, m) uint64
    common: np.ndarray  # (w, m) uint64: the bits that all codes of a node share
    radii: np.ndarray  # (m,) int64
    lowest: np.ndarray  # (m,) uint32: rows
    n_leaves: int  # these nodes come first
    top: int  # from here on, nodes belong to no other

    @classmethod
    def of(cls, codes, first_row=0, n_threads=1) -> "CodeTree":
        """Packed codes (n, b) uint8, of rows first_row, first_row + 1, …"""
        n, n_words = len(codes), -(-codes.shape[1] // 8)
        planes, rows = np.empty((n_words, n), np.uint64), np.arange(first_row, first_row + n, dtype=np.uint32)

        def turn(some):
            planes[:, some] = as_words(codes[some]).T

        each_piece(turn, n, ROWS_PER_PIECE, n_threads)
        starts = _grow(planes, rows, n_threads)
        begin, end, first, last, top = _levels(starts, n)
        n_nodes = len(begin)
        centers, common = np.empty((2, n_words, n_nodes), np.uint64)
        radii, lowest = np.empty(n_nodes, np.int64), np.empty(n_nodes, np.uint32)

        def describe(some):
            facts = centers[:, some], common[:, some], radii[some], lowest[some]
            tree_kernels.describe(planes, rows, first[some], last[some], *facts)

        each_piece(describe, n_nodes, NODES_PER_PIECE, n_threads)
        return cls(planes, rows, begin, end, centers, common, radii, lowest, len(starts), top)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in vars(self).values() if isinstance(part, np.ndarray))

    def packed(self, n_bytes) -> np.ndarray:
        """The codes in the order of their rows, (n, n_bytes) uint8."""
        words = np.empty(self.codes.shape[::-1], np.uint64)
        words[self.rows - self.rows.min()] = self.codes.T
        return words.view(np.uint8)[:, :n_bytes]

    def with_nearest(self, queries, heaps, n_threads=1) -> np.ndarray:
        """queries (q, w) uint64, heaps (q, k) uint64 of the smallest keys so far -> those with this tree's keys."""
        heaps, before, done = heaps.copy(), heaps, np.empty(len(heaps), bool)
        nodes = self.begin, self.end, self.centers, self.common, self.radii, self.lowest, self.n_leaves, self.top
        budget = len(self) // WORTH

        def search(some):
            tree_kernels.nearest(self.codes, self.rows, *nodes, budget, queries[some], heaps[some], done[some])

        if heaps.shape[1] <= budget or len(self) <= LEAF:
            step = min(QUERIES_PER_PIECE, -(-len(queries) // (4 * n_threads)))
            each_piece(search, len(queries), max(step, 1), n_threads)
        else:
            done[:] = False
        hard = np.flatnonzero(~done)
        for some in row_ranges(len(hard), QUERIES_PER_SCAN):
            these = hard[some]
            heaps[these] = self._scanned(queries[these], before[these], heaps[these, 0], n_threads)
        return heaps

    def _scanned(self, queries, heaps, bounds, n_threads):
        """The same by comparing all; `bounds` (q,) as in `scan`."""

        def search(some, here):
            tree_kernels.scan(self.codes, self.rows, some.start, some.stop, queries, here)

        return scan(search, len(self), heaps, bounds, n_threads)

    def within(self, query, radius) -> np.ndarray:
        """The keys of the codes within `radius` of a query (w,) uint64, in no order."""
        nodes = self.begin, self.end, self.centers, self.common, self.radii, self.n_leaves, self.top
        keys = np.empty(FEW, np.uint64)
        while (count := tree_kernels.within(self.codes, self.rows, *nodes, query, radius, keys)) > len(keys):
            keys = np.empty(count, np.uint64)
        return keys[:count]


def empty_heaps(n_queries, k) -> np.ndarray:
    return np.full((n_queries, k), FAR)


def told(keys) -> tuple[np.ndarray, np.ndarray]:
    """Keys -> distances int32 and rows int64."""
    return (keys >> _HALF).astype(np.int32), (keys & _ROW).astype(np.int64)


def scan(search: Callable[[slice, np.ndarray], None], n_codes, heaps, bounds, n_threads) -> np.ndarray:
    """Heaps (q, k) of the smallest keys so far -> those with the keys that `search` finds in each piece of the codes.

    `bounds` (q,) are keys that k others are not above, or FAR: heaps full of them take only what is smaller.
    """

    def search_piece(some):
        here = np.repeat(bounds[:, None], heaps.shape[1], axis=1)
        search(some, here)
        return here

    step = max(ROWS_PER_PIECE, -(-n_codes // (4 * n_threads)))
    for here in in_order(search_piece, row_ranges(n_codes, step), min(n_threads, -(-n_codes // step))):
        both = np.sort(np.concatenate([heaps, here], axis=1), axis=1)
        heaps = np.ascontiguousarray(both[:, heaps.shape[1] - 1 :: -1])  # the largest first: a heap
    return heaps


def _grow(codes, rows, n_threads):
    """Puts codes (w, n) and rows (n,) in the order of a tree; returns where its leaves begin, (m,) int64."""
    n = len(rows)
    starts = np.empty(n, np.int64)
    if n <= LARGE:
        return starts[: tree_kernels.grow(codes, rows, 0, n, LEAF, starts)].copy()
    branches = starts[: tree_kernels.grow(codes, rows, 0, n, n // BRANCHES, starts)].tolist()

    def grow(branch):
        begin, end = branch
        count = tree_kernels.grow(codes, rows, begin, end, LEAF, starts[begin:end])
        return starts[begin : begin + count]

    return np.concatenate(list(in_order(grow, zip(branches, [*branches[1:], n], strict=True), n_threads)))


def _levels(starts, n):
    """Leaves, and the nodes above: begin, end as in the tree, the first and last of the codes below each node, and
    where the top begins."""
    begin, end = starts, np.append(starts[1:], n)
    levels, spans, above = [(begin, end)], [(begin, end)], 0
    while len(begin) > tree_kernels.NODES_AT_ONCE:
        firsts = np.arange(0, len(begin), FAN)
        lasts = np.minimum(firsts + FAN, len(begin))
        levels.append((above + firsts, above + lasts))
        above += len(begin)
        begin, end = begin[firsts], end[lasts - 1]
        spans.append((begin, end))
    return *map(np.concatenate, zip(*levels, strict=True)), *map(np.concatenate, zip(*spans, strict=True)), above


def each_piece(work, n, step, n_threads):
    """Call `work` with slices of n things, on several threads if there are several slices."""
    for _ in in_order(work, row_ranges(n, step), max(1, min(n_threads, -(-n // step)))):
        pass

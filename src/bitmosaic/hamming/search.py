"""Packed codes -> a tree for exact search, the nearest codes of a few queries, and outlier scores."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bitmosaic.hamming import tree_kernels
from bitmosaic.hamming.codes import as_words
from bitmosaic.io.threads import in_order, row_ranges

# ---- Packed codes -> a tree of blocks of similar codes for exact nearest neighbor search.
#
# Learned codes fill only a small part of their space because their bits depend on each other. Codes are ordered so
# that codes that agree in the most informative bits are adjacent, and are cut into leaves of at most LEAF codes. FAN
# leaves form a node, FAN nodes form a node above. Each node stores the bits that all its codes share, a center, and
# the largest distance from it (radius). The distance of a query to any code of a node is at least the number of shared
# bits that differ, and at least the distance to the center minus the radius. Nodes are opened in the order of this
# bound until none can hold a nearer code, so the search is exact.
#
# Keys hold a distance in their upper half and a row in the lower: `tree_kernels.py`.


LEAF, FAN = 128, 16
ROWS_PER_PIECE, NODES_PER_PIECE = 65_536, 1024
QUERIES_PER_PIECE, QUERIES_PER_SCAN = 64, 32
LARGE, BRANCHES = 200_000, 32  # larger trees are split into this many branches, built in parallel
WORTH = 8  # a search that has visited 1 / WORTH of all codes switches to a linear scan, which is then faster
FEW = 65_536  # initial capacity for keys within a radius
FAR = np.uint64(2**64 - 1)  # larger than any key
_HALF, _ROW = np.uint64(32), np.uint64(2**32 - 1)


@dataclass(frozen=True)
class CodeTree:
    codes: np.ndarray  # (w, n) uint64, in tree order
    rows: np.ndarray  # (n,) uint32: original row of each code
    begin: np.ndarray  # (m,) int64: first code of a leaf, or first child of any other node
    end: np.ndarray  # (m,) int64
    centers: np.ndarray  # (w, m) uint64
    common: np.ndarray  # (w, m) uint64: the bits that all codes of a node share
    radii: np.ndarray  # (m,) int64
    lowest: np.ndarray  # (m,) uint32: lowest row
    n_leaves: int  # leaves come first
    top: int  # first node of the top level

    @classmethod
    def of(cls, codes, first_row=0, n_threads=1) -> "CodeTree":
        """Build a tree from packed codes (n, b) uint8 of rows first_row, first_row + 1, …"""
        n, n_words = len(codes), -(-codes.shape[1] // 8)
        planes, rows = np.empty((n_words, n), np.uint64), np.arange(first_row, first_row + n, dtype=np.uint32)

        def transpose(some):
            planes[:, some] = as_words(codes[some]).T

        each_piece(transpose, n, ROWS_PER_PIECE, n_threads)
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
        """The codes in row order, (n, n_bytes) uint8."""
        words = np.empty(self.codes.shape[::-1], np.uint64)
        words[self.rows - self.rows.min()] = self.codes.T
        return words.view(np.uint8)[:, :n_bytes]

    def with_nearest(self, queries, heaps, n_threads=1) -> np.ndarray:
        """queries (q, w) uint64, heaps (q, k) uint64 of the smallest keys so far -> heaps updated with the keys of this
        tree."""
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
        """As `with_nearest`, by comparing all; `bounds` (q,) as in `scan`."""

        def search(some, here):
            tree_kernels.scan(self.codes, self.rows, some.start, some.stop, queries, here)

        return scan(search, len(self), heaps, bounds, n_threads)

    def within(self, query, radius) -> np.ndarray:
        """The keys of the codes within `radius` of a query (w,) uint64, unsorted."""
        nodes = self.begin, self.end, self.centers, self.common, self.radii, self.n_leaves, self.top
        keys = np.empty(FEW, np.uint64)
        while (count := tree_kernels.within(self.codes, self.rows, *nodes, query, radius, keys)) > len(keys):
            keys = np.empty(count, np.uint64)
        return keys[:count]


def empty_heaps(n_queries, k) -> np.ndarray:
    return np.full((n_queries, k), FAR)


def split_keys(keys) -> tuple[np.ndarray, np.ndarray]:
    """Keys -> distances int32 and rows int64."""
    return (keys >> _HALF).astype(np.int32), (keys & _ROW).astype(np.int64)


def scan(search: Callable[[slice, np.ndarray], None], n_codes, heaps, bounds, n_threads) -> np.ndarray:
    """Heaps (q, k) of the smallest keys so far -> heaps updated with the keys that `search` finds in each piece of the
    codes.

    `bounds` (q,) are upper bounds of the k-th smallest key, or FAR. Heaps start filled with them, so only smaller keys
    enter.
    """

    def search_piece(some):
        here = np.repeat(bounds[:, None], heaps.shape[1], axis=1)
        search(some, here)
        return here

    step = max(ROWS_PER_PIECE, -(-n_codes // (4 * n_threads)))
    for here in in_order(search_piece, row_ranges(n_codes, step), min(n_threads, -(-n_codes // step))):
        both = np.sort(np.concatenate([heaps, here], axis=1), axis=1)
        heaps = np.ascontiguousarray(both[:, heaps.shape[1] - 1 :: -1])  # descending: a valid max-heap
    return heaps


def _grow(codes, rows, n_threads):
    """Sort codes (w, n) and rows (n,) into tree order in place; returns the start of each leaf, (m,) int64."""
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
    """Leaves and the nodes above: begin, end as in the tree, the first and last code below each node, and the start of
    the top level."""
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
    """Call `work` with slices of range(n), on several threads if there are several slices."""
    for _ in in_order(work, row_ranges(n, step), max(1, min(n_threads, -(-n // step)))):
        pass


def nearest_codes(codes, queries, k, n_threads=1):
    """The k nearest of codes (n, b) to each query (q, b): distances (q, k) int32 and rows (q, k) int64, the nearest
    first, ties by lowest row; k is at most n.

    Compares all with all and needs no index. For up to a few hundred queries that is faster than building a
    `NeighborIndex`.
    """
    words, heaps = as_words(queries), empty_heaps(len(queries), min(max(k, 0), len(codes)))
    if heaps.size:

        def search(some, here):
            tree_kernels.scan_rows(as_words(codes[some]), some.start, words, here)

        heaps = scan(search, len(codes), heaps, heaps[:, 0], n_threads)
    return split_keys(np.sort(heaps, axis=1))


def outlier_scores(labels, distances):
    """How unusual the distance of each image to its center is for its cluster: (d - median) / spread, (n,) float64.

    The spread is the median deviation of the farther half, scaled to that of a normal distribution, and at least half
    of the spread over all clusters. Otherwise images of a very loose or very tight cluster would dominate.
    """
    labels, distances = np.asarray(labels), np.asarray(distances, np.float64)
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    deviations = np.zeros(len(distances))
    for rows in members:
        deviations[rows] = distances[rows] - np.median(distances[rows])
    overall = _upper_spread(deviations)
    scores = np.zeros(len(distances))
    for rows in members:
        scores[rows] = deviations[rows] / (max(_upper_spread(deviations[rows]), overall / 2) or 1.0)
    return scores


def _upper_spread(deviations):
    return 1.4826 * np.median(deviations[deviations >= 0]) if len(deviations) else 0.0

"""Codes -> nearest centers, updated after some centers changed: the same labels with fewer comparisons.

Between two iterations most centers do not change. If a code is not farther from its own center than before, no
unchanged center can be nearer: only the changed ones are compared. Also, a center farther from the own center than
twice the distance of the code cannot be nearer (triangle inequality). Both hold for plain Hamming distance.
"""

from dataclasses import dataclass

import numpy as np

from bitmosaic.hamming import kernels
from bitmosaic.hamming.codes import as_words, finder, in_pieces, nearest_centers
from bitmosaic.io.threads import in_order, row_ranges

NEAR = 128  # neighbors listed per center
CODES_FOR_NEAR = 8  # codes per center below which the lists cost more than they save
CENTERS_PER_PIECE = 256


@dataclass(frozen=True)
class Assignment:
    """Codes and their nearest centers. Ties: lowest index."""

    centers: np.ndarray  # (c, b) uint8
    labels: np.ndarray  # (n,) int32
    distances: np.ndarray  # (n,) int32, or float32 with bit weights

    def __sizeof__(self):
        """Size for Dask, which would otherwise underestimate it."""
        return self.centers.nbytes + self.labels.nbytes + self.distances.nbytes


def assign_codes(codes, centers, bit_weights=None, n_threads=1, before: Assignment | None = None) -> Assignment:
    """The nearest center of each packed code; `before` is the assignment of the same codes to the previous centers."""
    if before is None or bit_weights is not None or before.distances.dtype != np.int32:
        return Assignment(centers, *nearest_centers(codes, centers, bit_weights, n_threads))
    movers = np.flatnonzero((centers != before.centers).any(1)).astype(np.int32)
    if not movers.size:
        return before
    words, near = as_words(centers), _center_neighbors(centers, movers, len(codes), n_threads)
    find_mover, find_any = finder(centers[movers], len(codes)), finder(centers, len(codes))
    labels, distances = before.labels.copy(), before.distances.copy()

    def follow(rows):
        some, own, own_distances = codes[rows], labels[rows], distances[rows]
        left = np.empty(len(some), np.uint8)
        kernels.follow_centers(as_words(some), words, *near, own, own_distances, left)
        if (to_movers := np.flatnonzero(left == 1)).size:
            found, far = np.empty((2, to_movers.size), np.int32)
            find_mover(some[to_movers], found, far)
            found, own_far = movers[found], own_distances[to_movers]
            nearer = (far < own_far) | ((far == own_far) & (found < own[to_movers]))
            own[to_movers[nearer]], own_distances[to_movers[nearer]] = found[nearer], far[nearer]
        if (to_any := np.flatnonzero(left == 2)).size:
            found, far = np.empty((2, to_any.size), np.int32)
            find_any(some[to_any], found, far)
            own[to_any], own_distances[to_any] = found, far

    in_pieces(follow, len(codes), n_threads)
    return Assignment(centers, labels, distances)


def _center_neighbors(centers, movers, n_codes, n_threads):
    """For each center the nearest others, their distances, and the radius of the list, among the changed centers and
    among all: (2, c, m), (2, c, m), (2, c) int32. The radius is -1 for a list that would cost more than it saves."""
    c, words = len(centers), as_words(centers)
    near, gaps = np.empty((2, 2, c, min(c, NEAR)), np.int32)
    reach = np.full((2, c), -1, np.int32)
    users = (n_codes, n_codes * len(movers) // c)  # the latter: codes whose own center changed
    for kind, among in enumerate((movers, np.arange(c, dtype=np.int32))):
        if users[kind] >= CODES_FOR_NEAR * c:

            def list_near(some, kind=kind, among=among):
                kernels.near_centers(words, some.start, among, near[kind, some], gaps[kind, some], reach[kind, some])

            for _ in in_order(list_near, row_ranges(c, CENTERS_PER_PIECE), n_threads):
                pass
    return near, gaps, reach

"""±1 <-> packed bytes, Hamming distances, nearest centers, sums of codes: kernels on threads, and NumPy versions.

A packed code is a row of `n_bits / 8` bytes. The first bit is the highest bit of the first byte, as in `np.packbits`.
Bit 1 means +1 and bit 0 means -1.
"""

from dataclasses import dataclass

import numpy as np

from bitmosaic.errors import InvalidDataError
from bitmosaic.hamming import kernels
from bitmosaic.io.threads import in_order, row_ranges

MANY_CENTERS, MANY_WEIGHTED, MANY_PAIRS = 40, 80, 100_000  # from which table look-ups are faster
ROWS_PER_PIECE = 4096  # fixed, so that float sums do not depend on the number of threads
CENTERS_PER_PIECE = 256
NEAR = 128  # neighbors listed per center
CODES_FOR_NEAR = 8  # codes per center below which the lists cost more than they save

_BITS_OF_BYTE = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.int64)  # (256, 8)


def pack(signs):
    """±1 (or any real numbers, 0 counts as +1) (n, n_bits) -> packed codes (n, n_bits/8) uint8."""
    signs = np.asarray(signs)
    if signs.shape[-1] % 8:
        raise InvalidDataError(f"The number of bits must be a multiple of 8; got {signs.shape[-1]}.")
    return np.packbits(signs >= 0, axis=-1)


def unpack(codes, dtype=np.float32):
    """Packed codes (n, n_bits/8) uint8 -> ±1 (n, n_bits) of `dtype`."""
    signs = np.unpackbits(codes, axis=-1).astype(dtype)
    signs *= 2
    signs -= 1
    return signs


def as_words(codes):
    """Packed codes (n, b) uint8 -> (n, ceil(b/8)) uint64; rows are padded with zero bytes."""
    missing = -codes.shape[1] % 8
    if missing:
        codes = np.pad(codes, ((0, 0), (0, missing)))
    return np.ascontiguousarray(codes).view(np.uint64)


def half_byte_table(centers, bit_weights):
    """The cost of each half-byte of a code for each center: (2b, 16, c) float32, for `weighted_distances`."""
    center_bits = np.unpackbits(centers, axis=1).T.reshape(-1, 4, 1, len(centers))  # (2b, 4, 1, c)
    value_bits = _BITS_OF_BYTE[:16, 4:, None]  # (16, 4, 1)
    weights = np.asarray(bit_weights, np.float32).reshape(-1, 4, 1, 1)
    table = np.zeros((len(center_bits), 16, len(centers)), np.float32)
    for bit in range(4):
        table += (center_bits[:, bit] != value_bits[:, bit]) * weights[:, bit]
    return table


def hamming_distances(codes, centers, bit_weights=None, n_threads=1):
    """Distances of packed codes (n, b) to packed centers (c, b): (n, c) int32, or float32 with bit weights.

    With weights the distance is Σ_k d_k [b_k ≠ q_k].
    """
    if bit_weights is None:
        table, words = None, as_words(centers)
        out = np.empty((len(codes), len(centers)), np.int32)
    else:
        table, words = half_byte_table(centers, bit_weights), None
        out = np.empty((len(codes), len(centers)), np.float32)

    def measure(rows):
        if table is None:
            kernels.hamming_distances(as_words(codes[rows]), words, out[rows])
        else:
            kernels.weighted_distances(np.ascontiguousarray(codes[rows]), table, out[rows])

    in_pieces(measure, len(codes), n_threads)
    return out


def nearest_centers(codes, centers, bit_weights=None, n_threads=1):
    """The nearest center of each code (ties: lowest index) and its distance: (n,) int32 and (n,)."""
    find = finder(centers, len(codes), bit_weights)
    labels = np.empty(len(codes), np.int32)
    distances = np.empty(len(codes), np.int32 if bit_weights is None else np.float32)
    in_pieces(lambda rows: find(codes[rows], labels[rows], distances[rows]), len(codes), n_threads)
    return labels, distances


def finder(centers, n_codes, bit_weights=None):
    """A function (codes, labels OUT, distances OUT) that finds nearest centers, optimized for `n_codes` codes in
    all."""
    if _tables_pay(n_codes, centers, MANY_CENTERS if bit_weights is None else MANY_WEIGHTED):
        blocks = kernels.center_blocks(centers)
        if bit_weights is None:
            table = kernels.HALF_BYTE_DISTANCES
            return lambda codes, *out: kernels.nearest_centers_by_tables(
                np.ascontiguousarray(codes), table, blocks, *out
            )
        tables = kernels.weighted_tables(bit_weights)
        return lambda codes, *out: kernels.nearest_weighted_by_tables(
            np.ascontiguousarray(codes), *tables, blocks, *out
        )
    if bit_weights is not None:
        costs = half_byte_table(centers, bit_weights)
        return lambda codes, *out: kernels.nearest_weighted(np.ascontiguousarray(codes), costs, *out)
    words = as_words(centers)
    return lambda codes, *out: kernels.nearest_centers(as_words(codes), words, *out)


def _tables_pay(n_codes, centers, many_centers):
    """Whether table look-ups find the nearest center faster."""
    many = len(centers) >= many_centers and n_codes * len(centers) >= MANY_PAIRS
    return many and 8 * centers.shape[1] <= kernels.MOST_BITS and kernels.available()


def costs_with(codes, candidates, closest, mass, bit_weights=None, n_threads=1):
    """Total cost of the codes with each candidate as an additional center: Σ_i mass_i min(closest_i, distance),
    (m,)."""
    if bit_weights is not None:
        return mass @ np.minimum(hamming_distances(codes, candidates, bit_weights, n_threads), closest[:, None])
    words = as_words(candidates)

    def add_up(rows):
        costs = np.empty(len(candidates))
        kernels.costs_with(as_words(codes[rows]), words, closest[rows], mass[rows], costs)
        return costs

    return sum(in_order(add_up, row_ranges(len(codes), ROWS_PER_PIECE), _useful(n_threads, len(codes))))


def cluster_bit_sums(codes, labels, n_clusters, sample_weight=None, n_threads=1):
    """S: the sum of the ±1 codes of each cluster, (n_clusters, n_bits) int64, or float64 with sample weights."""
    shape = (n_clusters, 8 * codes.shape[1])

    def add_up(rows):
        block, owners = np.ascontiguousarray(codes[rows]), labels[rows]
        if sample_weight is None:
            ones = np.zeros(shape, np.int64)
            kernels.count_ones(block, _BITS_OF_BYTE, owners, ones)
            return 2 * ones - np.bincount(owners, minlength=n_clusters)[:, None]
        weights = sample_weight[rows]
        ones = np.zeros(shape)
        kernels.weigh_ones(block, _BITS_OF_BYTE, owners, weights, ones)
        return 2 * ones - np.bincount(owners, weights, minlength=n_clusters)[:, None]

    total = np.zeros(shape, np.int64 if sample_weight is None else np.float64)
    step = max(ROWS_PER_PIECE, 64 * n_clusters)  # each piece has its own sums, which must not be larger than its rows
    for part in in_order(add_up, row_ranges(len(codes), step), _useful(n_threads, len(codes), step)):
        total += part
    return total


def in_pieces(work, n_rows, n_threads):
    """Call `work` with slices of the rows, on several threads."""
    for _ in in_order(work, row_ranges(n_rows, ROWS_PER_PIECE), _useful(n_threads, n_rows)):
        pass


def _useful(n_threads, n_rows, step=None):
    return max(1, min(n_threads, -(-n_rows // (step or ROWS_PER_PIECE))))


# ---- Nearest centers, updated after some centers changed: the same labels with fewer comparisons.
#
# Between two iterations most centers do not change. If a code is not farther from its own center than before, no
# unchanged center can be nearer: only the changed ones are compared. Also, a center farther from the own center than
# twice the distance of the code cannot be nearer (triangle inequality). Both hold for plain Hamming distance.


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


# ---- Reference versions in plain NumPy, for tests of the kernels.


def hamming_distances_numpy(codes, centers, bit_weights=None):
    """(n, c) int64, or float64 with bit weights."""
    differ = np.unpackbits(codes[:, None] ^ centers[None], axis=2)  # (n, c, n_bits)
    return differ.sum(2, dtype=np.int64) if bit_weights is None else differ @ np.asarray(bit_weights, float)


def nearest_centers_numpy(codes, centers, bit_weights=None):
    distances = hamming_distances_numpy(codes, centers, bit_weights)
    return distances.argmin(1), distances.min(1)


def cluster_bit_sums_numpy(codes, labels, n_clusters, sample_weight=None):
    signs = unpack(codes, np.float64)
    if sample_weight is not None:
        signs *= np.asarray(sample_weight)[:, None]
    sums = np.zeros((n_clusters, signs.shape[1]))
    np.add.at(sums, labels, signs)
    return sums

"""Packed codes -> all pairs that differ in a few bits, without comparing all with all.

A code is cut into parts, so many that two codes within the radius agree in one of them, or differ there in one bit at
most. Codes are sorted by a part, and each is compared with those of an equal part, or of one a bit away. The more codes
there are, the longer the parts that pay; which cut is the cheapest is told by some of the codes.
"""

from dataclasses import dataclass

import numpy as np

from bitmosaic import neighbour_kernels
from bitmosaic.codes import ROWS_PER_PIECE, as_words
from bitmosaic.threads import in_order, row_ranges

MOST_PAIRS = 1_000_000
ROWS_PER_KEY = 65_536
PAIRS_AT_ONCE = 4096
LONGEST_FLIPPED = 22  # bits of a part that is looked up in a table
LOOK_UP = 4  # as long as so many comparisons
SAMPLE = 20_000  # codes that tell how many comparisons it takes


def quiet(stage: str, done: int, total: int) -> None:
    """The progress of those who do not ask for it."""


def near_pairs(codes, radius, most=MOST_PAIRS, n_threads=1):
    """All pairs of rows whose codes differ in at most `radius` bits: (p, 2) int64, lower row first, and (p,) int32.

    In the order of distance, first and second row; of more than `most` pairs, the first ones in this order.
    """
    sketches = np.empty((len(codes), 0, 0), np.float32)
    pairs, scores = scored_pairs(codes, radius, sketches, radius, most, n_threads, quiet)
    return pairs, scores.astype(np.int32)


def scored_pairs(codes, radius, sketches, limit, most, n_threads, report):
    """The pairs within `radius` that score at most `limit` (see the kernel), by score and rows: (p, 2) and (p,)."""
    cut = cheapest_cut(codes, radius)[0]
    masks = cut.masks()
    best = _FirstPairs(most, limit)
    for part in range(cut.n_parts):
        report("comparing", part, cut.n_parts)
        keys = cut.keys(codes, part)
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        flips, starts = cut.flips(part, keys)
        inputs = as_words(codes[order]), keys, order, flips, starts, masks[:part], cut.n_flips, sketches, radius

        def compare(places, inputs=inputs):
            found, place = _FirstPairs(most, best.limit), np.array([places.start, 0, -1])
            while place[0] < places.stop:
                new = np.empty((PAIRS_AT_ONCE, 2), np.int64), np.empty(PAIRS_AT_ONCE, np.float32)
                count = neighbour_kernels.near_pairs(*inputs, np.float32(found.limit), places.stop, place, *new)
                found.add(new[0][:count], new[1][:count])
            return found.taken()

        for found in in_order(compare, row_ranges(len(codes), ROWS_PER_PIECE), n_threads):
            best.add(*found)
    best.cut()
    return best.taken()


class _FirstPairs:
    """The first `most` of all pairs that were added, in the order of score, first and second row."""

    def __init__(self, most, limit):
        self.most, self.limit = most, limit  # no pair that scores more than the limit is among them
        self.parts = [(np.empty((0, 2), np.int64), np.empty(0, np.float32))]
        self.count = 0

    def add(self, pairs, scores):
        if len(scores):
            self.parts.append((pairs.copy(), scores.copy()))
            self.count += len(scores)
        if self.count > 2 * self.most + PAIRS_AT_ONCE:
            self.cut()

    def cut(self):
        pairs, scores = self.taken()
        order = np.lexsort((pairs[:, 1], pairs[:, 0], scores))[: self.most]
        self.parts, self.count = [(pairs[order], scores[order])], len(order)
        if self.count and self.count == self.most:
            self.limit = min(self.limit, scores[order[-1]])

    def taken(self):
        return np.concatenate([pairs for pairs, _ in self.parts]), np.concatenate([scores for _, scores in self.parts])


# ---- how codes are cut


@dataclass(frozen=True)
class Cut:
    """Parts of a code, interleaved since bits that stand together are more alike; two codes within the radius differ
    in at most `n_flips` bits of one of them."""

    n_bits: int
    n_parts: int
    n_flips: int  # 0 or 1

    def bits(self, part):
        return np.arange(part, self.n_bits, self.n_parts)

    def masks(self):
        """(n_parts, words) uint64."""
        of_part = np.arange(self.n_bits) % self.n_parts == np.arange(self.n_parts)[:, None]
        return as_words(np.packbits(of_part, axis=1))

    def keys(self, codes, part):
        """The bits of a part as one number, (n,) uint64."""
        keys, n_bits = np.zeros(len(codes), np.uint64), len(self.bits(part))
        for rows in row_ranges(len(codes), ROWS_PER_KEY) if n_bits else ():
            bits = np.unpackbits(codes[rows], axis=1)[:, part :: self.n_parts]
            words = as_words(np.packbits(bits, axis=1))[:, 0]
            keys[rows] = words.byteswap() >> np.uint64(64 - n_bits)
        return keys

    def flips(self, part, keys):
        """What to change in a key, (m,) uint64, nothing first, and where each key begins among those sorted."""
        if not self.n_flips:
            return np.zeros(1, np.uint64), np.zeros(0, np.int64)
        n_bits = len(self.bits(part))
        flips = np.concatenate([np.zeros(1, np.uint64), np.uint64(1) << np.arange(n_bits, dtype=np.uint64)])
        return flips, np.searchsorted(keys, np.arange(2**n_bits, dtype=np.uint64))


def cheapest_cut(codes, radius):
    """The cut that takes the fewest comparisons, and how many, look-ups counted in."""
    n_bits = 8 * codes.shape[1]
    # A part fits a word; one more than the bits is empty, and all codes are equal there.
    plain = Cut(n_bits, min(max(radius + 1, -(-n_bits // 64)), n_bits + 1), 0)
    cuts, half = [plain], radius // 2 + 1
    if half <= n_bits and -(-n_bits // half) <= LONGEST_FLIPPED:
        cuts.append(Cut(n_bits, half, 1))
    sample = codes[spread(len(codes), SAMPLE)]
    costs = [_comparisons(sample, len(codes), cut) for cut in cuts]
    best = int(np.argmin(costs))
    return cuts[best], costs[best]


def _comparisons(sample, n_rows, cut):
    """How many comparisons a cut takes for so many rows as there are in the sample."""
    pairs, look_ups = 0.0, 0
    for part in range(cut.n_parts if len(sample) else 0):
        keys, counts = np.unique(cut.keys(sample, part), return_counts=True)
        pairs += (counts * (counts - 1.0)).sum() / 2
        if cut.n_flips:
            for bit in range(n_bits := len(cut.bits(part))):
                flipped = keys ^ np.uint64(1 << bit)
                place = np.searchsorted(keys, flipped).clip(max=len(keys) - 1)
                pairs += (counts * counts[place] * 1.0)[keys[place] == flipped].sum() / 2
            look_ups += n_bits
    return pairs * (n_rows / max(len(sample), 1)) ** 2 + LOOK_UP * look_ups * n_rows / 2


def spread(n, most):
    """At most so many rows of n, from the first to the last."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).astype(np.int64))

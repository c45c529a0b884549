"""Packed codes -> all pairs that differ in few bits, without comparing all with all.

A code is cut into enough parts that two codes within the radius agree in one of them, or differ there in at most one
bit. Codes are sorted by a part, and each is compared with the codes whose part is equal, or one bit away. With more
codes, longer parts are faster. A sample of the codes determines the cheapest cut.
"""

import heapq
from dataclasses import dataclass

import numpy as np

from bitmosaic.hamming.codes import ROWS_PER_PIECE, as_words
from bitmosaic.hamming.kernels import popcount
from bitmosaic.io.threads import in_order, kernel, row_ranges

# ---- Numba kernels: pairs of codes that agree in a part.
#
# As in `kernels.py`: compiled on first use, cached on disk, without the GIL. The caller allocates every output.


@kernel()
def sketch_distance(one, other, limit):
    """one, other (v, s) f32 IN: squared distance, averaged over the views that both have (a missing view starts with
    NaN). May stop early with any value above `limit`. Infinite without a common view."""
    common = 0
    for v in range(one.shape[0]):
        common += not (np.isnan(one[v, 0]) or np.isnan(other[v, 0]))
    if common == 0:
        return np.float32(np.inf)
    total = np.float32(0)
    for v in range(one.shape[0]):
        if np.isnan(one[v, 0]) or np.isnan(other[v, 0]):
            continue
        for k in range(one.shape[1]):
            difference = one[v, k] - other[v, k]
            total += difference * difference
        if total > limit * common:
            break
    return total / np.float32(common)


@kernel()
def near_pairs_of_part(
    codes, keys, rows, flips, starts, earlier, allowed, sketches, radius, limit, stop, place, pairs, scores
):
    """codes (n, w) u64, keys (n,) u64, rows (n,) i64 IN: sorted by key, which is one part of each code · flips (f,) u64
    IN: a pair has keys that are equal (flips[0] = 0) or differ by one of the other flips · starts IN: first position of
    each key; unused without other flips · earlier (p, w) u64 IN: masks of parts already processed; pairs that differ
    there in at most `allowed` bits are skipped · sketches (N, v, s) f32 IN: of all rows, or none (v = 0) · pairs (m, 2)
    i64, scores (m,) f32 OUT: the rows of each new pair, the lower first, with distance at most `radius` and score at
    most `limit`; the score is the sketch distance, or without sketches the Hamming distance · place (3,) i64 INOUT:
    row, flip and other row (-1: the first) to continue from; at the end the first is `stop`. Returns the number of
    pairs, at most m."""
    found = 0
    i, f, j = place[0], place[1], place[2]
    while i < stop:
        while f < len(flips):
            key = keys[i] ^ flips[f]
            if j < 0:
                j = i + 1 if f == 0 else starts[key] if key > keys[i] else codes.shape[0]
            while j < codes.shape[0] and keys[j] == key:
                bits = np.uint64(0)
                for word in range(codes.shape[1]):
                    bits += popcount(codes[i, word] ^ codes[j, word])  # type: ignore[call-arg]
                if np.int64(bits) > radius or _share(codes[i], codes[j], earlier, allowed):
                    j += 1
                    continue
                score = np.float32(bits)
                if sketches.shape[1] > 0:
                    score = sketch_distance(sketches[rows[i]], sketches[rows[j]], limit)
                if score <= limit:
                    if found == len(scores):
                        place[0], place[1], place[2] = i, f, j
                        return found
                    pairs[found, 0], pairs[found, 1] = min(rows[i], rows[j]), max(rows[i], rows[j])
                    scores[found] = score
                    found += 1
                j += 1
            f, j = f + 1, -1
        i, f = i + 1, 0
    place[0], place[1], place[2] = i, f, j
    return found


@kernel(inline="always")
def _share(one, other, masks, allowed):
    """Whether two codes (w,) u64 differ in at most `allowed` bits of one of the masks (p, w) u64."""
    for p in range(masks.shape[0]):
        differ = np.uint64(0)
        for word in range(len(one)):
            differ += popcount((one[word] ^ other[word]) & masks[p, word])  # type: ignore[call-arg]
        if np.int64(differ) <= allowed:
            return True
    return False


MOST_PAIRS = 1_000_000
ROWS_PER_KEY = 65_536
PAIRS_AT_ONCE = 4096
LONGEST_FLIPPED = 22  # bits of a part for which a table of keys is affordable
LOOK_UP = 4  # cost of a look-up in comparisons
SAMPLE = 20_000  # codes used to estimate the number of comparisons


def scored_pairs(codes, radius, sketches, limit, most, n_threads, report):
    """The pairs within `radius` with a score of at most `limit` (see the kernel), sorted by score and rows: (p, 2) and
    (p,)."""
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
                count = near_pairs_of_part(*inputs, np.float32(found.limit), places.stop, place, *new)
                found.add(new[0][:count], new[1][:count])
            return found.taken()

        for found in in_order(compare, row_ranges(len(codes), ROWS_PER_PIECE), n_threads):
            best.add(*found)
    best.cut()
    return best.taken()


class _FirstPairs:
    """The first `most` of all added pairs, sorted by score, first and second row."""

    def __init__(self, most, limit):
        self.most, self.limit = most, limit  # pairs with a higher score are not needed
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


# ---- cuts of codes into parts


@dataclass(frozen=True)
class Cut:
    """Parts of a code. They are interleaved because neighboring bits are more alike. Two codes within the radius differ
    in at most `n_flips` bits of at least one part."""

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
        """The bits of a part as one number: (n,) uint64."""
        keys, n_bits = np.zeros(len(codes), np.uint64), len(self.bits(part))
        for rows in row_ranges(len(codes), ROWS_PER_KEY) if n_bits else ():
            bits = np.unpackbits(codes[rows], axis=1)[:, part :: self.n_parts]
            words = as_words(np.packbits(bits, axis=1))[:, 0]
            keys[rows] = words.byteswap() >> np.uint64(64 - n_bits)
        return keys

    def flips(self, part, keys):
        """Bit masks to apply to a key, (m,) uint64, zero first, and the first position of each key among the sorted
        keys."""
        if not self.n_flips:
            return np.zeros(1, np.uint64), np.zeros(0, np.int64)
        n_bits = len(self.bits(part))
        flips = np.concatenate([np.zeros(1, np.uint64), np.uint64(1) << np.arange(n_bits, dtype=np.uint64)])
        return flips, np.searchsorted(keys, np.arange(2**n_bits, dtype=np.uint64))


def cheapest_cut(codes, radius):
    """The cut with the fewest comparisons, and their number including look-ups."""
    n_bits = 8 * codes.shape[1]
    # A part must fit into a word. With n_bits + 1 parts, one part is empty and all codes agree in it.
    plain = Cut(n_bits, min(max(radius + 1, -(-n_bits // 64)), n_bits + 1), 0)
    cuts, half = [plain], radius // 2 + 1
    if half <= n_bits and -(-n_bits // half) <= LONGEST_FLIPPED:
        cuts.append(Cut(n_bits, half, 1))
    sample = codes[evenly_spaced(len(codes), SAMPLE)]
    costs = [_comparisons(sample, len(codes), cut) for cut in cuts]
    best = int(np.argmin(costs))
    return cuts[best], costs[best]


def _comparisons(sample, n_rows, cut):
    """Estimated number of comparisons of a cut for `n_rows` rows, from a sample."""
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


def evenly_spaced(n, most):
    """At most `most` of n rows, evenly spaced from the first to the last."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).astype(np.int64))


def affordable_radius(codes, radius, most):
    """The largest radius, up to the requested one, that needs at most `most` comparisons, and the rows to compare.

    Rows are left out only at radius 0: those with the most frequent codes.
    """
    for smaller in range(radius, -1, -1):
        if cheapest_cut(codes, smaller)[1] <= most:
            return smaller, np.arange(len(codes))
    _, owners, counts = np.unique(codes, axis=0, return_inverse=True, return_counts=True)
    smallest = np.argsort(counts, kind="stable")
    kept = np.zeros(len(counts), bool)
    kept[smallest] = np.cumsum(_n_pairs(counts[smallest])) <= most
    return 0, np.flatnonzero(kept[owners])


def _n_pairs(sizes):
    return sizes * (sizes - 1.0) / 2


# ---- groups


def duplicate_groups(pairs, scores) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pairs of rows (p, 2), each once, and their distances (p,) -> groups of rows and distances from the first row.

    The row with the most partners becomes the first of a group with all its partners. This repeats with the remaining
    rows. So all members are near the first row, and chains of pairs are not merged into one group. Sorted by smallest
    distance, size and first row.
    """
    partners: dict[int, dict[int, float]] = {}
    for (one, other), score in zip(pairs.tolist(), scores.tolist(), strict=True):
        partners.setdefault(one, {})[other] = score
        partners.setdefault(other, {})[one] = score
    waiting = [(-len(near), row) for row, near in partners.items()]
    heapq.heapify(waiting)
    groups = []
    while waiting:
        count, row = heapq.heappop(waiting)
        near = partners.get(row, {})
        if len(near) < -count:
            heapq.heappush(waiting, (-len(near), row)) if near else None
            continue
        members = sorted(near, key=lambda other: (near[other], other))
        groups.append((np.array([row, *members]), np.array([0.0, *(near[other] for other in members)])))
        for taken in (row, *members):
            for other in partners.pop(taken):
                if other in partners:
                    partners[other].pop(taken, None)
    return sorted(groups, key=lambda group: (group[1][1], -len(group[0]), group[0][0]))

"""The Numba kernels of `near_duplicates.py`: the pairs of codes that agree in a part.

As in `kernels.py`: compiled on first use, cached on disk, without the GIL, and the caller allocates every output.
"""

import numpy as np

from bitmosaic.kernels import kernel, popcount


@kernel()
def sketch_distance(one, other, limit):
    """one, other (v, s) f32 IN: the squared distance, a mean over the views that both have (the others begin with
    NaN); anything above `limit` where it is more than that, and infinite without a common view."""
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
def near_pairs(codes, keys, rows, flips, starts, earlier, allowed, sketches, radius, limit, stop, place, pairs, scores):
    """codes (n, w) u64, keys (n,) u64, rows (n,) i64 IN: in the order of the keys, which are one part of each code ·
    flips (f,) u64 IN: a pair has keys that are equal (flips[0] = 0) or differ by one of the others · starts IN: where
    each key, and those above it, begin; not read without others · earlier (p, w) u64 IN: masks of the parts whose pairs
    have been found before, differing in `allowed` bits of them at most · sketches (N, v, s) f32 IN, of all rows, or
    none (v = 0) · pairs (m, 2) i64, scores (m,) f32 OUT: the rows of each pair, the lower first, that was not found
    before and has a distance of at most `radius` and a score of at most `limit`: the sketch distance, or without
    sketches the distance itself · place (3,) i64 INOUT: row, flip and other row (-1: the first) to go on with; at the
    end the first is `stop`. Returns the number of pairs, at most m."""
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

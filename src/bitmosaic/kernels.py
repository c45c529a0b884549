"""Every Numba kernel of the solver, and nothing else: loops over rows of features, similarities and packed codes.

Each kernel is compiled on first use, cached on disk, releases the GIL and runs on the calling thread; `codes.py`
cuts the rows into pieces and spreads them over threads. The caller allocates every output.
Codes come as u64 words (rows padded with zero bytes) or as u8 bytes; the first bit of a byte is its highest.
"""

import numpy as np
from numba import njit, types
from numba.extending import intrinsic


def kernel(**options):
    """Numba's njit, kept on disk where Numba finds a place: a read-only installation without a home has none."""

    def compiled(function):
        try:
            return njit(cache=True, nogil=True, **options)(function)
        except RuntimeError:
            return njit(nogil=True, **options)(function)

    return compiled


@intrinsic
def popcount(typing_context, word):
    """Set bits of a u64, through LLVM's ctpop: one instruction where the machine has it."""

    def codegen(context, builder, signature, args):
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), codegen


@intrinsic
def float_of_bits(typing_context, bits):
    """The f32 that has the bits of an i32."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], context.get_value_type(types.float32))

    return types.float32(types.int32), codegen


# ---- features and similarities

_LARGEST = np.finfo(np.float32).max


@kernel()
def normalise(rows, offset, factor, root, far, out):
    """rows (n, d) f32 or f64 IN · offset (d,) f64 IN · factor (d,) f32 IN · out (n, d) f32 OUT, zero for rows of NaN.

    (x - offset) · factor, at most `far`, of the square roots (with their sign) if `root`. Subtracted in float64.
    Returns whether every value is a number that float32 can hold.
    """
    plain = True
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            plain &= np.abs(rows[i, j]) <= _LARGEST
        if np.isnan(rows[i, 0]):
            out[i, :] = 0.0
        elif root:
            for j in range(rows.shape[1]):
                x = np.copysign(np.sqrt(np.abs(rows[i, j])), rows[i, j])
                out[i, j] = min(max((np.float64(x) - offset[j]) * factor[j], -far), far)
        else:
            for j in range(rows.shape[1]):
                out[i, j] = min(max((np.float64(rows[i, j]) - offset[j]) * factor[j], -far), far)
    return plain


_LOG2_E, _LN2_HIGH, _LN2_LOW = np.float32(1.44269504), np.float32(0.693359375), np.float32(-2.12194440e-4)
_HALF, _ONE, _TWO, _ZERO = np.float32(0.5), np.float32(1), np.float32(2), np.float32(0)
_LOWEST, _BIAS = np.float32(-87), np.float32(127)
_C2, _C3, _C4 = np.float32(5.0000001201e-1), np.float32(1.6666665459e-1), np.float32(4.1665795894e-2)
_C5, _C6, _C7 = np.float32(8.3334519073e-3), np.float32(1.3981999507e-3), np.float32(1.9875691500e-4)


@kernel(inline="always")
def fast_exp(x):
    """e^x of an f32 ≤ 0 to 1e-7, in operations that fit vector registers; 1e-38 where it is less."""
    x = max(x, _LOWEST)
    power = np.floor(x * _LOG2_E + _HALF)
    r = x - power * _LN2_HIGH - power * _LN2_LOW
    series = ((((_C7 * r + _C6) * r + _C5) * r + _C4) * r + _C3) * r + _C2
    return (series * r * r + r + _ONE) * float_of_bits(np.int32(power + _BIAS) << np.int32(23))  # type: ignore[call-arg]


@kernel()
def similarities(products, row_squares, anchor_squares, inverse_width, mean, missing, reach):
    """products (n, l) f32 INOUT: xᵀa becomes exp(-‖x - a‖²/γ) - mean, zero where missing or without an anchor within
    ‖x - a‖² < reach f32 · row_squares (n,), anchor_squares (l,), mean (l,) f32 IN · missing (n,) bool IN.
    `inverse_width` f32 is 1/γ."""
    for i in range(products.shape[0]):
        row, square = products[i], row_squares[i]
        if missing[i]:
            row[:] = _ZERO
            continue
        near = False
        for j in range(len(row)):
            distance = max(square + anchor_squares[j] - row[j] - row[j], _ZERO)
            near |= distance < reach
            row[j] = fast_exp(-distance * inverse_width) - mean[j]
        if not near:
            row[:] = _ZERO


@kernel()
def column_moments(rows, root, mean, squares, cubes):
    """rows (n, d) f32 or f64 IN · mean, squares, cubes (d,) f64 OUT: of each column, or of its square roots, the mean
    and the sums of squared and cubed deviations from it. Counted from the first row: a constant has none at all."""
    mean[:], squares[:], cubes[:] = 0.0, 0.0, 0.0
    if rows.shape[0] == 0:
        return
    first = np.sqrt(rows[0]) if root else rows[0]
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            mean[j] += np.float64(np.sqrt(rows[i, j]) if root else rows[i, j]) - first[j]
    for j in range(rows.shape[1]):
        mean[j] = first[j] + mean[j] / rows.shape[0]
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            deviation = (np.sqrt(rows[i, j]) if root else rows[i, j]) - mean[j]
            squares[j] += deviation * deviation
            cubes[j] += deviation * deviation * deviation


# ---- k-means of rows of features


@kernel()
def highest_scores(scores, offsets, labels, totals):
    """scores (n, f·c) f32 IN · offsets (f·c,) f32 IN · labels (f, n) i32 OUT · totals (f,) f64 INOUT.

    Of each row and fit the first of the c clusters with the highest score less its offset; those are added up.
    """
    n_fits, n_clusters = len(totals), len(offsets) // len(totals)
    for i in range(scores.shape[0]):
        for f in range(n_fits):
            first = f * n_clusters
            best, highest = 0, scores[i, first] - offsets[first]
            for j in range(1, n_clusters):
                score = scores[i, first + j] - offsets[first + j]
                if score > highest:
                    best, highest = j, score
            labels[f, i] = best
            totals[f] += highest


@kernel()
def move_rows(rows, fits, found, labels, sums, sizes):
    """rows (n, d) f32 IN · fits (a,), those of the f that have new labels found (a, n) i32 IN · labels (f, n) i32,
    sums (f, c, d) f64, sizes (f, c) i64 INOUT. A label of -1 is none yet."""
    for a in range(len(fits)):
        f = fits[a]
        for i in range(rows.shape[0]):
            old, new = labels[f, i], found[a, i]
            if old == new:
                continue
            labels[f, i] = new
            sizes[f, new] += 1
            for j in range(rows.shape[1]):
                sums[f, new, j] += rows[i, j]
            if old >= 0:
                sizes[f, old] -= 1
                for j in range(rows.shape[1]):
                    sums[f, old, j] -= rows[i, j]


# ---- packed codes

FAR = 2**30  # farther than any two codes


@kernel()
def hamming_distances(codes, centers, out):
    """codes (n, w) u64 IN · centers (c, w) u64 IN · out (n, c) i32 OUT."""
    for i in range(codes.shape[0]):
        for j in range(centers.shape[0]):
            distance = np.uint64(0)
            for word in range(codes.shape[1]):
                distance += popcount(codes[i, word] ^ centers[j, word])  # type: ignore[call-arg]
            out[i, j] = distance


@kernel()
def nearest_centers(codes, centers, labels, distances):
    """codes (n, w) u64 IN · centers (c, w) u64 IN · labels (n,) i32 OUT · distances (n,) i32 OUT.

    Ties: lowest index.
    """
    for i in range(codes.shape[0]):
        best = np.int64(64 * codes.shape[1] + 1)
        label = 0
        for j in range(centers.shape[0]):
            bits = np.uint64(0)
            for word in range(codes.shape[1]):
                bits += popcount(codes[i, word] ^ centers[j, word])  # type: ignore[call-arg]
            distance = np.int64(bits)
            if distance < best:
                best = distance
                label = j
        labels[i] = label
        distances[i] = best


@kernel()
def near_centers(centers, first, among, near, gaps, reach):
    """centers (c, w) u64 IN · among (q,) i32 IN · near, gaps (k, m) i32 OUT · reach (k,) i32 OUT: for each of the k
    centers from `first` on, those of the centers `among` that lie within `reach`, itself left out, and how far they
    are, the nearest first. `reach` is the largest with at most m of them; gaps beyond the last are FAR."""
    most = near.shape[1]
    distances, counts = np.empty(len(among), np.int64), np.empty(64 * centers.shape[1] + 1, np.int64)
    for a in range(near.shape[0]):
        counts[:] = 0
        for i in range(len(among)):
            bits = np.uint64(0)
            for word in range(centers.shape[1]):
                bits += popcount(centers[first + a, word] ^ centers[among[i], word])  # type: ignore[call-arg]
            distances[i] = FAR if among[i] == first + a else np.int64(bits)
            if distances[i] < FAR:
                counts[distances[i]] += 1
        radius, found = -1, 0
        while radius + 1 < len(counts) and found + counts[radius + 1] <= most:
            radius += 1
            start = found
            found += counts[radius]
            counts[radius] = start  # where those at this distance begin
        reach[a] = radius
        gaps[a, found:] = FAR
        for i in range(len(among)):
            if distances[i] <= radius:
                place = counts[distances[i]]
                near[a, place], gaps[a, place] = among[i], distances[i]
                counts[distances[i]] += 1


@kernel()
def follow_centers(codes, centers, near, gaps, reach, labels, distances, left):
    """codes (n, w), centers (c, w) u64 IN · near, gaps (2, c, m) i32, reach (2, c) i32 as above IN: among the centers
    that changed, and among all · labels, distances (n,) i32 INOUT: the nearest centers before some changed, and now ·
    left (n,) u8 OUT: 0 if this is certain; else the distance is that of the own center, and nearer ones may be among
    those that changed, 1, or among all, 2. Ties: lowest index.
    """
    for i in range(codes.shape[0]):
        own = label = labels[i]
        bits = np.uint64(0)
        for word in range(codes.shape[1]):
            bits += popcount(codes[i, word] ^ centers[own, word])  # type: ignore[call-arg]
        distance = best = np.int64(bits)
        among = 0 if distance <= distances[i] else 1
        distances[i] = distance
        if 2 * distance > reach[among, own]:
            left[i] = among + 1
            continue
        left[i] = 0
        for place in range(near.shape[2]):
            if gaps[among, own, place] > distance + best:  # so it is farther from the code than the best
                break
            j = near[among, own, place]
            bits = np.uint64(0)
            for word in range(codes.shape[1]):
                bits += popcount(codes[i, word] ^ centers[j, word])  # type: ignore[call-arg]
            found = np.int64(bits)
            if found < best or (found == best and j < label):
                best, label = found, j
        labels[i], distances[i] = label, best


@kernel()
def costs_with(codes, candidates, closest, mass, costs):
    """codes (n, w), candidates (m, w) u64 IN · closest, mass (n,) f64 IN · costs (m,) f64 OUT: for each candidate, the
    sum of the masses of the codes times the distance to it or `closest`, whichever is less."""
    for j in range(candidates.shape[0]):
        costs[j] = 0.0
        for i in range(codes.shape[0]):
            bits = np.uint64(0)
            for word in range(codes.shape[1]):
                bits += popcount(codes[i, word] ^ candidates[j, word])  # type: ignore[call-arg]
            costs[j] += mass[i] * min(np.float64(np.int64(bits)), closest[i])


@kernel()
def weighted_distances(codes, table, out):
    """codes (n, b) u8 IN · table (2b, 16, c) f32 IN: cost of each half-byte for each center · out (n, c) f32 OUT.

    A distance is added up half-byte by half-byte, so the loop over the centers runs in vector registers.
    """
    for i in range(codes.shape[0]):
        out[i, :] = 0.0
        for byte in range(codes.shape[1]):
            high, low = codes[i, byte] >> 4, codes[i, byte] & 15
            for j in range(table.shape[2]):
                out[i, j] += table[2 * byte, high, j]
            for j in range(table.shape[2]):
                out[i, j] += table[2 * byte + 1, low, j]


@kernel()
def nearest_weighted(codes, table, labels, distances):
    """codes (n, b) u8 IN · table as above IN · labels (n,) i32 OUT · distances (n,) f32 OUT. Ties: lowest index."""
    sums = np.empty((1, table.shape[2]), np.float32)
    for i in range(codes.shape[0]):
        weighted_distances(codes[i : i + 1], table, sums)
        label = 0
        for j in range(1, table.shape[2]):
            if sums[0, j] < sums[0, label]:
                label = j
        labels[i] = label
        distances[i] = sums[0, label]


@kernel()
def count_ones(codes, bits_of_byte, labels, counts):
    """codes (n, b) u8 IN · bits_of_byte (256, 8) i64 IN · labels (n,) i32 IN · counts (c, 8b) i64 INOUT."""
    for i in range(codes.shape[0]):
        row = counts[labels[i]]
        for byte in range(codes.shape[1]):
            bits = bits_of_byte[codes[i, byte]]
            for bit in range(8):
                row[8 * byte + bit] += bits[bit]


@kernel()
def weigh_ones(codes, bits_of_byte, labels, weights, sums):
    """As count_ones, each sample counting weights (n,) f64 times · sums (c, 8b) f64 INOUT."""
    for i in range(codes.shape[0]):
        row = sums[labels[i]]
        for byte in range(codes.shape[1]):
            bits = bits_of_byte[codes[i, byte]]
            for bit in range(8):
                row[8 * byte + bit] += weights[i] * bits[bit]


@kernel()
def add_flipped(rows, old, new, change):
    """rows (n, l) f32 IN · old, new (n, b) u8 IN · change (8b, l) f32 INOUT: for each bit, twice the rows where it
    became 1, less twice those where it became 0."""
    for i in range(rows.shape[0]):
        row = rows[i]
        for byte in range(old.shape[1]):
            flipped = old[i, byte] ^ new[i, byte]
            if flipped == 0:
                continue
            for bit in range(8):
                mask = np.uint8(128 >> bit)
                if flipped & mask:
                    step = _TWO if new[i, byte] & mask else -_TWO
                    target = change[8 * byte + bit]
                    for j in range(len(row)):
                        target[j] += step * row[j]


@kernel()
def add_in_fixed_point(part, scale, total):
    """part (n,) f32 or f64 IN · scale f64 IN · total (n,) i64 INOUT: the nearest integers of part · scale are added."""
    for i in range(part.shape[0]):
        total[i] += np.int64(np.rint(part[i] * scale))

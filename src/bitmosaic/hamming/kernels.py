"""Numba kernels for rows of features, similarities and packed codes.

Each kernel is compiled on first use, cached on disk, releases the GIL and runs on the calling thread. `codes.py` splits
the rows into pieces and distributes them over threads. The caller allocates every output. Codes are u64 words (rows
padded with zero bytes) or u8 bytes; the first bit of a byte is its highest.
"""

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from bitmosaic.io.threads import kernel


@intrinsic
def popcount(typing_context, word):
    """Number of set bits of a u64, through LLVM's ctpop: one instruction if the machine has it."""

    def codegen(context, builder, signature, args):
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), codegen


@intrinsic
def float_of_bits(typing_context, bits):
    """The f32 with the same bits as an i32."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], context.get_value_type(types.float32))

    return types.float32(types.int32), codegen


# ---- features and similarities

_LARGEST = np.finfo(np.float32).max


@kernel()
def normalize(rows, offset, factor, root, far, out):
    """rows (n, d) f32 or f64 IN · offset (d,) f64 IN · factor (d,) f32 IN · out (n, d) f32 OUT, zero for rows of NaN.

    (x - offset) · factor, clipped to ±`far`; of the signed square roots if `root`. Subtraction in float64. Returns
    whether every value is a number that float32 can hold.
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
    """e^x of an f32 ≤ 0 with error 1e-7, in operations that vectorize; not below 1e-38."""
    x = max(x, _LOWEST)
    power = np.floor(x * _LOG2_E + _HALF)
    r = x - power * _LN2_HIGH - power * _LN2_LOW
    series = ((((_C7 * r + _C6) * r + _C5) * r + _C4) * r + _C3) * r + _C2
    return (series * r * r + r + _ONE) * float_of_bits(np.int32(power + _BIAS) << np.int32(23))  # type: ignore[call-arg]


@kernel()
def similarities(Z, rows, row_squares, anchor_squares, inverse_width, linear, most, mean, missing, reach):
    """Z (n, l) or (n, l + k) f32 INOUT: xᵀa becomes exp(-‖x - a‖²/γ) - mean, and the columns after it become linear · x
    within ±`most`, less their mean. All zero if the row is missing or has no anchor with ‖x - a‖² < reach f32.

    rows (n, k), row_squares (n,), anchor_squares (l,), mean (l or l + k,) f32 IN · missing (n,) bool IN · inverse_width
    (1/γ), linear, most f32 IN."""
    l = len(anchor_squares)
    for i in range(Z.shape[0]):
        row, square = Z[i], row_squares[i]
        if missing[i]:
            row[:] = _ZERO
            continue
        near = False
        for j in range(l):
            distance = max(square + anchor_squares[j] - row[j] - row[j], _ZERO)
            near |= distance < reach
            row[j] = fast_exp(-distance * inverse_width) - mean[j]
        if not near:
            row[:] = _ZERO
            continue
        for j in range(l, len(row)):
            row[j] = min(max(linear * rows[i, j - l], -most), most) - mean[j]


@kernel()
def column_moments(rows, root, mean, squares, cubes):
    """rows (n, d) f32 or f64 IN · mean, squares, cubes (d,) f64 OUT: for each column, or its square roots, the mean and
    the sums of squared and cubed deviations from it. Computed relative to the first row, so that constant columns have
    exactly zero deviation."""
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

    For each row and fit, the cluster with the highest score minus offset (ties: lowest index); these maxima are added
    to totals.
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
def smallest(table, places, values):
    """table (n, p) f32 IN · places (n, r) i32 OUT · values (n, r) f32 OUT, r ≤ p: the r smallest entries of each row,
    in ascending order (ties: lowest index first)."""
    r = places.shape[1]
    for i in range(table.shape[0]):
        for k in range(r):
            values[i, k], places[i, k] = np.inf, 0
        for j in range(table.shape[1]):
            value = table[i, j]
            if value >= values[i, r - 1]:
                continue
            k = r - 1
            while k > 0 and values[i, k - 1] > value:
                values[i, k], places[i, k] = values[i, k - 1], places[i, k - 1]
                k -= 1
            values[i, k], places[i, k] = value, j


@kernel()
def move_rows(rows, fits, found, labels, sums, sizes):
    """rows (n, d) f32 IN · fits (a,) IN: the fits with new labels found (a, n) i32 IN · labels (f, n) i32, sums (f, c,
    d) f64, sizes (f, c) i64 INOUT. A label of -1 means no label yet."""
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

FAR = 2**30  # larger than any distance


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
    centers from `first` on, the other centers in `among` within `reach` and their distances, the nearest first. `reach`
    is the largest radius with at most m of them; gaps after the last are FAR."""
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
            counts[radius] = start  # first slot for this distance
        reach[a] = radius
        gaps[a, found:] = FAR
        for i in range(len(among)):
            if distances[i] <= radius:
                place = counts[distances[i]]
                near[a, place], gaps[a, place] = among[i], distances[i]
                counts[distances[i]] += 1


@kernel()
def follow_centers(codes, centers, near, gaps, reach, labels, distances, left):
    """codes (n, w), centers (c, w) u64 IN · near, gaps (2, c, m) i32, reach (2, c) i32 IN: as above, for the centers
    that changed and for all centers · labels, distances (n,) i32 INOUT: the nearest centers before and after the change
    · left (n,) u8 OUT: 0 if the result is certain; otherwise the distance is that of the own center, and a nearer one
    may be among the changed centers (1) or among all (2). Ties: lowest index."""
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
            if (
                gaps[among, own, place] > distance + best
            ):  # farther from the code than the best, by the triangle inequality
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
    sum over the codes of mass · min(distance, closest)."""
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

    Distances are added up half-byte by half-byte, so that the loop over the centers vectorizes.
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
    """As count_ones, with weights (n,) f64 IN · sums (c, 8b) f64 INOUT."""
    for i in range(codes.shape[0]):
        row = sums[labels[i]]
        for byte in range(codes.shape[1]):
            bits = bits_of_byte[codes[i, byte]]
            for bit in range(8):
                row[8 * byte + bit] += weights[i] * bits[bit]


@kernel()
def add_flipped(rows, old, new, change):
    """rows (n, l) f32 IN · old, new (n, b) u8 IN · change (8b, l) f32 INOUT: for each bit, add twice the rows where it
    became 1 and subtract twice the rows where it became 0."""
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
    """part (n,) f32 or f64 IN · scale f64 IN · total (n,) i64 INOUT: adds part · scale rounded to integers."""
    for i in range(part.shape[0]):
        total[i] += np.int64(np.rint(part[i] * scale))


# ---- Nearest of many centers by table look-ups in vector registers, for x86 processors with AVX2.
#
# A Hamming distance is a sum over half-bytes. The distances of one half-byte of a code from those of 32 centers are
# one instruction: a byte shuffle of the 16 distances of this half-byte from all others. The layout of the centers
# matches: half-byte k of 128 centers occupies 128 consecutive bytes. Two codes at a time share the loaded centers.
#
# With bit weights, distances are first rounded down to bytes. Only centers that can be nearest by these are compared
# exactly, so labels and distances are those of a full comparison.


CODES_AT_ONCE = 2
VECTORS = 4  # of 32 centers each
CENTERS_AT_ONCE = 32 * VECTORS
MOST_BITS = 248  # a distance must fit into a byte

REACH = 0.35  # fraction of the total weight; larger distances saturate at 255

_DIFFERENT = np.arange(16, dtype=np.uint8)[:, None] ^ np.arange(16, dtype=np.uint8)
HALF_BYTE_DISTANCES = np.bitwise_count(_DIFFERENT)


def available():
    """Whether this processor supports the kernel."""
    return bool(binding.get_host_cpu_features().get("avx2"))


def half_bytes(codes):
    """Packed codes (n, b) uint8 -> (n, 2b), the higher half of a byte first."""
    return np.stack([codes >> 4, codes & 15], axis=2).reshape(len(codes), -1)


def center_blocks(centers):
    """Packed centers (c, b) -> (ceil(c / 128), 2b, 128) uint8; the last block is padded with the last center."""
    n_blocks = -(-len(centers) // CENTERS_AT_ONCE)
    padded = half_bytes(centers)[np.minimum(np.arange(n_blocks * CENTERS_AT_ONCE), len(centers) - 1)]
    return np.ascontiguousarray(padded.reshape(n_blocks, CENTERS_AT_ONCE, -1).transpose(0, 2, 1))


def weighted_tables(bit_weights):
    """Cost of two half-bytes at each position, (2b, 16, 16) float32, and the same rounded down to bytes."""
    weights = np.asarray(bit_weights, np.float32).reshape(-1, 4, 1, 1)
    costs = np.zeros((len(weights), 16, 16), np.float32)
    for bit in range(4):
        costs += (_DIFFERENT >> (3 - bit) & 1) * weights[:, bit]
    scale = 255 / (REACH * weights.sum(dtype=np.float64))
    return costs, np.minimum(np.floor(scale * costs.astype(np.float64)), 255).astype(np.uint8)


def _block_distances(own_tables):
    """Intrinsic for the distances of two codes from a block of centers. With `own_tables`, each half-byte has its own
    table, and sums saturate at 255."""

    @intrinsic
    def block_distances(typing_context, codes, table, block, out):
        """codes (2, k) u8 half-bytes IN · table (16, 16) u8, or (k, 16, 16) u8 IN · block (k, 128) u8 IN · out (3, 128)
        u8 OUT: the distances of the two codes from 128 centers, at most 255, and in the third row the smallest of each.
        All arrays are C-contiguous."""

        def codegen(context, builder, signature, args):
            byte, half, vector = ir.IntType(8), ir.VectorType(ir.IntType(8), 16), ir.VectorType(ir.IntType(8), 32)
            arrays = [context.make_array(t)(context, builder, a) for t, a in zip(signature.args, args, strict=True)]
            codes_at, table_at, block_at, out_at = (builder.bitcast(a.data, byte.as_pointer()) for a in arrays)
            n_half_bytes = builder.extract_value(arrays[0].shape, 1)
            index = n_half_bytes.type

            def number(value):
                return ir.Constant(index, value)

            def load(pointer, offset, kind):
                loaded = builder.load(builder.bitcast(builder.gep(pointer, [offset]), kind.as_pointer()))
                loaded.align = 1
                return loaded

            def store(value, offset):
                pointer = builder.bitcast(builder.gep(out_at, [number(offset)]), value.type.as_pointer())
                builder.store(value, pointer).align = 1

            def function(name, result, *parameters):
                return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, parameters), name)

            shuffle = function("llvm.x86.avx2.pshuf.b", vector, vector, vector)
            saturating = function("llvm.uadd.sat.v32i8", vector, vector, vector)
            add = (lambda a, b: builder.call(saturating, [a, b])) if own_tables else builder.add
            smallest = function("llvm.vector.reduce.umin.v32i8", byte, vector)
            twice = ir.Constant(ir.VectorType(ir.IntType(32), 32), [*range(16), *range(16)])
            zeros = ir.Constant(vector, [0] * 32)
            sums = [[cgutils.alloca_once_value(builder, zeros) for _ in range(VECTORS)] for _ in range(CODES_AT_ONCE)]

            with cgutils.for_range(builder, n_half_bytes) as loop:
                first = builder.mul(loop.index, number(CENTERS_AT_ONCE))
                table = builder.gep(table_at, [builder.shl(loop.index, number(8))]) if own_tables else table_at
                centers = [load(block_at, builder.add(first, number(32 * v)), vector) for v in range(VECTORS)]
                for i in range(CODES_AT_ONCE):
                    place = builder.add(builder.mul(number(i), n_half_bytes), loop.index)
                    value = builder.zext(builder.load(builder.gep(codes_at, [place])), index)
                    distances = load(table, builder.shl(value, number(4)), half)
                    distances = builder.shuffle_vector(distances, distances, twice)
                    for v in range(VECTORS):
                        found = builder.call(shuffle, [distances, centers[v]])
                        builder.store(add(builder.load(sums[i][v]), found), sums[i][v])

            for i in range(CODES_AT_ONCE):
                lowest = builder.load(sums[i][0])
                for v in range(VECTORS):
                    found = builder.load(sums[i][v])
                    store(found, CENTERS_AT_ONCE * i + 32 * v)
                    lowest = builder.select(builder.icmp_unsigned("<", found, lowest), found, lowest)
                store(builder.call(smallest, [lowest]), CENTERS_AT_ONCE * CODES_AT_ONCE + i)
            return context.get_dummy_value()

        return types.void(codes, table, block, out), codegen

    return block_distances


plain_distances = _block_distances(own_tables=False)
rough_distances = _block_distances(own_tables=True)


@kernel()
def split(code, out):
    """code (b,) u8 IN · out (2b,) u8 OUT: its half-bytes, the higher first."""
    for byte in range(len(code)):
        out[2 * byte], out[2 * byte + 1] = code[byte] >> 4, code[byte] & 15


@kernel()
def nearest_centers_by_tables(codes, table, blocks, labels, distances):
    """codes (n, b) u8 IN · table (16, 16) u8, blocks (q, 2b, 128) u8 as above IN · labels, distances (n,) i32 OUT.

    Ties: lowest index.
    """
    pair = np.empty((2, 2 * codes.shape[1]), np.uint8)
    found, best = np.empty((3, blocks.shape[2]), np.uint8), np.empty((2, blocks.shape[2]), np.uint8)
    for first in range(0, codes.shape[0], 2):
        rows = (first, min(first + 1, codes.shape[0] - 1))
        for i in range(2):
            split(codes[rows[i]], pair[i])
            distances[rows[i]] = 256
        for q in range(blocks.shape[0]):
            plain_distances(pair, table, blocks[q], found)
            for i in range(2):
                if found[2, i] < distances[rows[i]]:
                    distances[rows[i]] = found[2, i]
                    labels[rows[i]] = q * blocks.shape[2]
                    kept, row = best[i], found[i]
                    for j in range(len(row)):
                        kept[j] = row[j]
        for i in range(rows[1] - rows[0] + 1):
            j = 0
            while best[i, j] != distances[rows[i]]:
                j += 1
            labels[rows[i]] += j


@kernel()
def nearest_weighted_by_tables(codes, costs, rough, blocks, labels, distances):
    """codes (n, b) u8 IN · costs (2b, 16, 16) f32, rough (2b, 16, 16) u8, blocks (q, 2b, 128) u8 as above IN · labels
    (n,) i32, distances (n,) f32 OUT. Ties: lowest index.

    Each half-byte is rounded down by less than 1, so a center whose rough distance is more than 2b above the smallest
    one is not the nearest.
    """
    n_half_bytes = 2 * codes.shape[1]
    pair = np.empty((2, n_half_bytes), np.uint8)
    found = np.empty((blocks.shape[0], 3, blocks.shape[2]), np.uint8)
    for first in range(0, codes.shape[0], 2):
        rows = (first, min(first + 1, codes.shape[0] - 1))
        for i in range(2):
            split(codes[rows[i]], pair[i])
        for q in range(blocks.shape[0]):
            rough_distances(pair, rough, blocks[q], found[q])
        for i in range(rows[1] - rows[0] + 1):
            limit = np.int64(255)
            for q in range(blocks.shape[0]):
                limit = min(limit, np.int64(found[q, 2, i]))
            limit += n_half_bytes + 1  # 1 for float32 rounding
            label, best = 0, np.float32(np.inf)
            for q in range(blocks.shape[0]):
                if found[q, 2, i] > limit:
                    continue
                row = found[q, i]
                for j in range(len(row)):
                    if row[j] <= limit:
                        total = np.float32(0)
                        for k in range(n_half_bytes):
                            total += costs[k, pair[i, k], blocks[q, k, j]]
                        if total < best:
                            label, best = q * len(row) + j, total
            labels[rows[i]], distances[rows[i]] = label, best

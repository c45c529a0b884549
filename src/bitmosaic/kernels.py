"""Every Numba kernel, and nothing else: loops over packed codes.

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

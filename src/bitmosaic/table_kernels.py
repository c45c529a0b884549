"""The nearest of many centers by table look-ups in vector registers, for x86 processors with AVX2.

A Hamming distance is a sum over half-bytes, and the distance of one half-byte of a code from those of 32 centers is one
instruction: a byte shuffle of the 16 distances that this half-byte has from all others. Centers are laid out for it:
half-byte k of 128 centers stands in 128 bytes in a row. Two codes at a time share the centers that are loaded.

Where bits have weights, the distances are rounded down to bytes first: only centers that can be nearest by these are
compared in full, so labels and distances are those of comparing all.
"""

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from bitmosaic.kernels import kernel

CODES_AT_ONCE = 2
VECTORS = 4  # of 32 centers each
CENTERS_AT_ONCE = 32 * VECTORS
MOST_BITS = 248  # so that a distance fits into a byte

REACH = 0.35  # of the sum of all weights; distances beyond it are the same byte, 255

_DIFFERENT = np.arange(16, dtype=np.uint8)[:, None] ^ np.arange(16, dtype=np.uint8)
HALF_BYTE_DISTANCES = np.bitwise_count(_DIFFERENT)


def available():
    """Whether this processor has what the kernel needs."""
    return bool(binding.get_host_cpu_features().get("avx2"))


def half_bytes(codes):
    """Packed codes (n, b) uint8 -> (n, 2b), the higher half of a byte first."""
    return np.stack([codes >> 4, codes & 15], axis=2).reshape(len(codes), -1)


def center_blocks(centers):
    """Packed centers (c, b) -> (ceil(c / 128), 2b, 128) uint8; the last center fills the last block."""
    n_blocks = -(-len(centers) // CENTERS_AT_ONCE)
    padded = half_bytes(centers)[np.minimum(np.arange(n_blocks * CENTERS_AT_ONCE), len(centers) - 1)]
    return np.ascontiguousarray(padded.reshape(n_blocks, CENTERS_AT_ONCE, -1).transpose(0, 2, 1))


def weighted_tables(bit_weights):
    """What two half-bytes cost at each place, (2b, 16, 16) float32, and the same rounded down to bytes."""
    weights = np.asarray(bit_weights, np.float32).reshape(-1, 4, 1, 1)
    costs = np.zeros((len(weights), 16, 16), np.float32)
    for bit in range(4):
        costs += (_DIFFERENT >> (3 - bit) & 1) * weights[:, bit]
    scale = 255 / (REACH * weights.sum(dtype=np.float64))
    return costs, np.minimum(np.floor(scale * costs.astype(np.float64)), 255).astype(np.uint8)


def _block_distances(own_tables):
    """The distances of two codes from a block of centers. `own_tables`: each half-byte has a table of its own, and sums
    may be more than a byte holds."""

    @intrinsic
    def block_distances(typing_context, codes, table, block, out):
        """codes (2, k) u8 half-bytes IN · table (16, 16) u8, or (k, 16, 16) u8 IN · block (k, 128) u8 IN · out (3, 128)
        u8 OUT: the distances of the two codes from 128 centers, 255 where they are more, and in the third row the
        smallest of each. All arrays are C-contiguous."""

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
def nearest_centers(codes, table, blocks, labels, distances):
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
def nearest_weighted(codes, costs, rough, blocks, labels, distances):
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
            limit += n_half_bytes + 1  # 1 for what float32 rounds
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

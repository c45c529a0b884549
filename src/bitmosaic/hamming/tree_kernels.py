"""Numba kernels of `search.py`: sort codes so that similar ones are adjacent, then search them.

As in `kernels.py`: compiled on first use, cached on disk, without the GIL. The caller allocates every output. Codes are
stored word by word, (w, n) u64, so that loops over them vectorize. A key is a distance and a row in one u64, the
distance in the upper half: keys sort by distance, ties by lowest row.
"""

import numpy as np

from bitmosaic.hamming.kernels import popcount
from bitmosaic.io.threads import kernel

SAMPLE = 256  # codes of a node that determine its bit; a multiple of 64
CODES_AT_ONCE = 1024  # they stay in the L1 cache while several queries use them
NODES_AT_ONCE = 64  # most children of a node, and most nodes at the top level
_ONE, _ALL, _HALF = np.uint64(1), np.uint64(2**64 - 1), np.uint64(32)


# ---- the order of the codes


@kernel()
def best_bit(codes, begin, end, columns, varying, ones, scores):
    """codes (w, n) u64 IN · columns (64w, SAMPLE / 64) u64, varying (64w,) i64, ones, scores (64w,) f64: scratch.
    Returns the bit by which to cut codes begin … end: the one that explains most of the others, -1 if all codes are
    equal.

    A cut by bit i lowers the variance of bit j by cov(i, j)² / var(i). The score is the sum over j, estimated from a
    sample.
    """
    size = end - begin
    m, found = min(size, SAMPLE), 0
    for word in range(codes.shape[0]):
        every, some = _ALL, np.uint64(0)
        for s in range(m):
            code = codes[word, begin + size * s // m]
            every, some = every & code, some | code
        differ = every ^ some
        for bit in range(64):
            if differ >> np.uint64(bit) & _ONE:
                varying[found] = 64 * word + bit
                for part in range(columns.shape[1]):
                    column = np.uint64(0)
                    for s in range(64 * part, min(64 * part + 64, m)):
                        code = codes[word, begin + size * s // m]
                        column |= (code >> np.uint64(bit) & _ONE) << np.uint64(s - 64 * part)
                    columns[found, part] = column
                found += 1
    if found == 0:
        return _any_bit(codes, begin, end)
    for i in range(found):
        count = np.uint64(0)
        for part in range(columns.shape[1]):
            count += popcount(columns[i, part])  # type: ignore[call-arg]
        ones[i] = count / m
        scores[i] = np.square(ones[i] * (1 - ones[i]))
    for i in range(found):
        for j in range(i):
            count = np.uint64(0)
            for part in range(columns.shape[1]):
                count += popcount(columns[i, part] & columns[j, part])  # type: ignore[call-arg]
            covariance = count / m - ones[i] * ones[j]
            scores[i] += covariance * covariance
            scores[j] += covariance * covariance
    best = 0
    for i in range(found):
        scores[i] /= ones[i] * (1 - ones[i])
        if scores[i] > scores[best]:
            best = i
    return varying[best]


@kernel()
def _any_bit(codes, begin, end):
    """The first bit that varies among codes begin … end, -1 if there is none."""
    for word in range(codes.shape[0]):
        every, some = _ALL, np.uint64(0)
        for i in range(begin, end):
            every, some = every & codes[word, i], some | codes[word, i]
        for bit in range(64):
            if (every ^ some) >> np.uint64(bit) & _ONE:
                return 64 * word + bit
    return -1


@kernel()
def cut(codes, rows, begin, end, bit, spare_codes, spare_rows):
    """codes (w, n) u64, rows (n,) u32 INOUT: in begin … end, codes with a 0 in this bit move before those with a 1
    (stable) · spare_codes (w, m), spare_rows (m,), m ≥ end - begin: scratch. Returns the position of the first 1."""
    word, shift = bit // 64, np.uint64(bit % 64)
    zeros, others = begin, 0
    for i in range(begin, end):
        if codes[word, i] >> shift & _ONE:
            for w in range(codes.shape[0]):
                spare_codes[w, others] = codes[w, i]
            spare_rows[others] = rows[i]
            others += 1
        else:
            for w in range(codes.shape[0]):
                codes[w, zeros] = codes[w, i]
            rows[zeros] = rows[i]
            zeros += 1
    for w in range(codes.shape[0]):
        for i in range(others):
            codes[w, zeros + i] = spare_codes[w, i]
    for i in range(others):
        rows[zeros + i] = spare_rows[i]
    return zeros


@kernel()
def grow(codes, rows, first, last, most, starts):
    """codes (w, n) u64, rows (n,) u32 INOUT: first … last sorted into the order of a tree that cuts by one bit at a
    time, until at most `most` codes are left or all are equal · starts (last - first,) i64 OUT: start of each leaf.
    Returns the number of leaves.

    A bit is used once on a path from the root, so the depth is at most the number of bits.
    """
    n_words = codes.shape[0]
    spare_codes, spare_rows = np.empty((n_words, last - first), np.uint64), np.empty(last - first, np.uint32)
    columns, varying = np.empty((64 * n_words, SAMPLE // 64), np.uint64), np.empty(64 * n_words, np.int64)
    ones, scores = np.empty(64 * n_words), np.empty(64 * n_words)
    waiting = np.empty((64 * n_words + 2, 2), np.int64)
    waiting[0, 0], waiting[0, 1] = first, last
    n_waiting, n_leaves = 1, 0
    while n_waiting > 0:
        n_waiting -= 1
        begin, end = waiting[n_waiting]
        bit = best_bit(codes, begin, end, columns, varying, ones, scores) if end - begin > most else -1
        if bit < 0:
            for start in range(begin, end, most):
                starts[n_leaves] = start
                n_leaves += 1
            continue
        middle = cut(codes, rows, begin, end, bit, spare_codes, spare_rows)
        waiting[n_waiting, 0], waiting[n_waiting, 1] = middle, end
        waiting[n_waiting + 1, 0], waiting[n_waiting + 1, 1] = begin, middle
        n_waiting += 2
    return n_leaves


@kernel()
def describe(codes, rows, begin, end, centers, common, radii, lowest):
    """codes (w, n) u64, rows (n,) u32 IN · begin, end (m,) i64 IN: ranges of codes · centers, common (w, m) u64 OUT:
    for each range the majority of a sample, and the bits that are equal in all codes · radii (m,) i64 OUT: largest
    distance from the center · lowest (m,) u32 OUT: lowest row."""
    distances = np.empty(CODES_AT_ONCE, np.uint64)
    query = np.empty(codes.shape[0], np.uint64)
    for node in range(len(begin)):
        size = end[node] - begin[node]
        m = min(size, 64)
        for word in range(codes.shape[0]):
            every, some = _ALL, np.uint64(0)
            for i in range(begin[node], end[node]):
                every, some = every & codes[word, i], some | codes[word, i]
            center, differ = every, every ^ some
            for bit in range(64):
                if differ >> np.uint64(bit) & _ONE:
                    count = np.uint64(0)
                    for s in range(m):
                        count += codes[word, begin[node] + size * s // m] >> np.uint64(bit) & _ONE
                    if 2 * count > m:
                        center |= _ONE << np.uint64(bit)
            centers[word, node], common[word, node], query[word] = center, ~differ, center
        lowest[node] = rows[begin[node]]
        for i in range(begin[node], end[node]):
            lowest[node] = min(lowest[node], rows[i])
        radii[node] = 0
        for first in range(begin[node], end[node], CODES_AT_ONCE):
            last = min(first + CODES_AT_ONCE, end[node])
            measure(codes, first, last, query, distances)
            for i in range(last - first):
                radii[node] = max(radii[node], np.int64(distances[i]))


# ---- one query


@kernel(inline="always")
def measure(codes, begin, end, query, distances):
    """codes (w, n) u64, query (w,) u64 IN · distances (≥ end - begin,) u64 OUT: for codes begin … end. Returns the
    smallest."""
    for i in range(end - begin):
        distances[i] = popcount(codes[0, begin + i] ^ query[0])  # type: ignore[call-arg]
    for word in range(1, codes.shape[0]):
        for i in range(end - begin):
            distances[i] += popcount(codes[word, begin + i] ^ query[word])  # type: ignore[call-arg]
    smallest = _ALL
    for i in range(end - begin):
        smallest = min(smallest, distances[i])
    return smallest


@kernel(inline="always")
def replace_largest(heap, key):
    """heap (k,) u64 INOUT: a max-heap. `key` replaces the largest entry."""
    i, n = 0, len(heap)
    while 2 * i + 1 < n:
        child = 2 * i + 1
        if child + 1 < n and heap[child + 1] > heap[child]:
            child += 1
        if heap[child] <= key:
            break
        heap[i] = heap[child]
        i = child
    heap[i] = key


@kernel(inline="always")
def take(codes, rows, begin, end, query, distances, heap):
    """Insert the keys of codes begin … end that are smaller than the largest of the heap."""
    if measure(codes, begin, end, query, distances) > heap[0] >> _HALF:
        return
    for i in range(end - begin):
        key = distances[i] << _HALF | np.uint64(rows[begin + i])
        if key < heap[0]:
            replace_largest(heap, key)


@kernel()
def nearest(codes, rows, begin, end, centers, common, radii, lowest, n_leaves, top, budget, queries, heaps, done):
    """codes (w, n), rows (n,) IN · begin, end, …, lowest (m,) IN: nodes 0 … n_leaves are leaves with codes begin … end;
    the others have child nodes begin … end; the top level starts at `top` · queries (q, w) u64 IN · heaps (q, k) u64
    INOUT: the smallest keys, a max-heap each · done (q,) bool OUT: False if the search stopped after `budget` codes.

    The node with the lowest bound comes next, until no bound is below the largest key.
    """
    n_bits = 64 * codes.shape[0]
    heads, nodes, links = np.empty(n_bits + 1, np.int64), np.empty(len(begin), np.int32), np.empty(len(begin), np.int32)
    distances = np.empty(CODES_AT_ONCE, np.uint64)
    apart, differing = np.empty(NODES_AT_ONCE, np.uint64), np.empty(NODES_AT_ONCE, np.uint64)
    for q in range(len(queries)):
        query, heap = queries[q], heaps[q]
        heads[:] = -1  # queued nodes: a linked list for each bound
        n_kept, seen, bound = 0, 0, 0
        first, last = top, len(begin)
        while True:
            for word in range(codes.shape[0]):  # the bounds of nodes first … last
                for i in range(last - first):
                    differ = centers[word, first + i] ^ query[word]
                    shared = differ & common[word, first + i]
                    if word == 0:
                        apart[i], differing[i] = popcount(differ), popcount(shared)  # type: ignore[call-arg]
                    else:
                        apart[i] += popcount(differ)  # type: ignore[call-arg]
                        differing[i] += popcount(shared)
            for i in range(last - first):
                own = max(bound, np.int64(differing[i]), np.int64(apart[i]) - radii[first + i])
                if np.uint64(own) << _HALF | np.uint64(lowest[first + i]) < heap[0]:
                    nodes[n_kept], links[n_kept] = first + i, heads[own]
                    heads[own] = n_kept
                    n_kept += 1
            first = last
            while first == last:
                while bound <= n_bits and heads[bound] < 0:
                    bound += 1
                if bound > n_bits or np.uint64(bound) << _HALF >= heap[0]:
                    break
                node = nodes[heads[bound]]
                heads[bound] = links[heads[bound]]
                if np.uint64(bound) << _HALF | np.uint64(lowest[node]) >= heap[0]:
                    continue
                if node >= n_leaves:
                    first, last = begin[node], end[node]
                    continue
                seen += end[node] - begin[node]
                if seen > budget:
                    break
                take(codes, rows, begin[node], end[node], query, distances, heap)
            if first == last:
                break
        done[q] = seen <= budget


@kernel()
def within(codes, rows, begin, end, centers, common, radii, n_leaves, top, query, radius, keys):
    """As above, one query (w,) · keys (m,) u64 OUT: keys of the codes within `radius`, up to m. Returns the number of
    such codes."""
    waiting = np.empty(len(begin), np.int32)
    distances = np.empty(CODES_AT_ONCE, np.uint64)
    n_waiting = found = 0
    for node in range(top, len(begin)):
        waiting[n_waiting] = node
        n_waiting += 1
    while n_waiting > 0:
        n_waiting -= 1
        node = waiting[n_waiting]
        apart = differing = np.uint64(0)
        for word in range(codes.shape[0]):
            differ = centers[word, node] ^ query[word]
            apart += popcount(differ)  # type: ignore[call-arg]
            differing += popcount(differ & common[word, node])
        if max(np.int64(differing), np.int64(apart) - radii[node]) > radius:
            continue
        if node >= n_leaves:
            for child in range(begin[node], end[node]):
                waiting[n_waiting] = child
                n_waiting += 1
            continue
        if np.int64(measure(codes, begin[node], end[node], query, distances)) > radius:
            continue
        for i in range(end[node] - begin[node]):
            if np.int64(distances[i]) <= radius:
                if found < len(keys):
                    keys[found] = distances[i] << _HALF | np.uint64(rows[begin[node] + i])
                found += 1
    return found


# ---- many queries


@kernel()
def scan(codes, rows, first, last, queries, heaps):
    """codes (w, n) u64, rows (n,) u32, queries (q, w) u64 IN · heaps (q, k) u64 INOUT: compare codes first … last with
    every query; keys smaller than the largest of a heap are inserted."""
    distances = np.empty(CODES_AT_ONCE, np.uint64)
    for begin in range(first, last, CODES_AT_ONCE):
        for q in range(len(queries)):
            take(codes, rows, begin, min(begin + CODES_AT_ONCE, last), queries[q], distances, heaps[q])


@kernel()
def scan_rows(codes, first_row, queries, heaps):
    """As above, codes (n, w) u64 of rows first_row, first_row + 1, …"""
    distances = np.empty(CODES_AT_ONCE, np.uint64)
    transposed, rows = np.empty((codes.shape[1], CODES_AT_ONCE), np.uint64), np.empty(CODES_AT_ONCE, np.uint32)
    for begin in range(0, codes.shape[0], CODES_AT_ONCE):
        size = min(CODES_AT_ONCE, codes.shape[0] - begin)
        for i in range(size):
            rows[i] = first_row + begin + i
        if len(queries) == 1:  # transposing the codes would take longer
            take(codes[begin : begin + size].T, rows, 0, size, queries[0], distances, heaps[0])
            continue
        for word in range(codes.shape[1]):
            for i in range(size):
                transposed[word, i] = codes[begin + i, word]
        for q in range(len(queries)):
            take(transposed, rows, 0, size, queries[q], distances, heaps[q])

"""Codes -> centers that are near, with so many codes at least and so many at most in each cluster.

A transportation problem. `within` solves it exactly: from the nearest centers on, rows go along cheapest paths from
clusters that are too large to those with room (`size_kernels`). This also finds prices of full clusters, a good
beginning for the next time. `in_rounds` is for what would take too long: the rows that lose least go to the nearest
center with room, round by round. Sizes are met as exactly; the total distance is a little above the lowest.
"""

import numpy as np

from bitmosaic.codes import as_words, in_pieces, nearest_centers
from bitmosaic.solver import size_kernels
from bitmosaic.threads import row_ranges

ROWS_PER_CLUSTER, SAMPLE_PER_CLUSTER = 1000, 50  # from so many rows on, first prices are those of a sample
ROWS_AT_ONCE = 16_384  # whose differing bits are written out
STEPS = 16  # of a bit of mean weight, to which distances are rounded where bits have weights


def within(codes, centers, bit_weights, bound, low, high, labels, prices, n_threads=1):
    """Labels (n,) of codes (n, b) with low to high (c,) rows that are not bound (n,) bool in each cluster, and the
    prices (c,) of clusters in bits. `labels` are the nearest centers, or final where a row is bound."""
    c, steps = len(centers), 1 if bit_weights is None else STEPS
    if not prices.any() and len(codes) >= ROWS_PER_CLUSTER * c:
        prices = sampled_prices(codes, centers, bit_weights, bound, low, high, labels, n_threads)
    words, center_words, table = as_words(codes), as_words(centers), half_byte_costs(centers, bit_weights)
    whole = np.zeros(c + 1, np.int64)
    whole[:c] = np.rint(prices * steps)
    if whole.any() or steps > 1:  # the nearest of rounded distances
        near = np.empty(len(codes), np.int32)
        in_pieces(
            lambda rows: size_kernels.nearest_priced(words[rows], center_words, table, whole, near[rows]),
            len(codes),
            n_threads,
        )
        labels = np.where(bound, labels, near)
    else:
        labels = labels.copy()
    members = np.empty(2 * len(codes) + 16 * c, np.int32)
    first, count, edges = np.empty(c + 1, np.int64), np.empty(c, np.int64), np.empty((2, c, c), np.int32)
    met = size_kernels.spread(
        words, center_words, table, bound, low, high, members, first, count, labels, whole, *edges
    )
    assert met, "limits that cannot be met"
    return labels, whole[:c] / steps


def sampled_prices(codes, centers, bit_weights, bound, low, high, labels, n_threads):
    """Prices of clusters, from every k-th row."""
    stride = len(codes) // (SAMPLE_PER_CLUSTER * len(centers))
    some, taken = slice(None, None, stride), ~bound[::stride]
    share = taken.sum() / max((~bound).sum(), 1)
    limits = np.floor(low * share).astype(np.int64), np.ceil(high * share).astype(np.int64) + 1
    none = np.zeros(len(centers))
    return within(codes[some], centers, bit_weights, bound[some], *limits, labels[some], none, n_threads)[1]


def half_byte_costs(centers, bit_weights):
    """For each center what each half-byte of a code costs, the lower half of a byte first: (c, 2b, 16) int32."""
    if bit_weights is None:
        return np.empty((0, 0, 0), np.int32)
    weights = np.rint(bit_weights * (STEPS / bit_weights.mean())).astype(np.int32).reshape(-1, 2, 4)[:, ::-1]
    bits = np.unpackbits(centers, axis=1).reshape(len(centers), -1, 2, 4)[:, :, ::-1]  # (c, b, 2, 4)
    values = np.unpackbits(np.arange(16, dtype=np.uint8)[:, None], axis=1)[:, 4:]  # (16, 4)
    table = np.zeros((*bits.shape[:3], 16), np.int32)
    for k in range(4):
        table += (bits[..., k, None] != values[:, k]) * weights[..., k, None]
    return table.reshape(len(centers), -1, 16)


def in_rounds(codes, centers, bit_weights, bound, low, high, labels, n_threads=1):
    """The same where an exact solution would take too long: first clusters that are too large give rows away, then
    those that are too small are given some."""
    labels = labels.copy()
    for too_small in (False, True):
        while True:
            count = np.bincount(labels[~bound], minlength=len(centers))
            spare = np.maximum(count - (low if too_small else high), 0)
            wanted = np.maximum((low if too_small else high) - count, 0)
            if not (wanted if too_small else spare).any():
                break
            rows = np.flatnonzero((spare > 0)[labels] & ~bound)
            takers = np.flatnonzero(wanted)
            found, far = nearest_centers(codes[rows], centers[takers], bit_weights, n_threads)
            own = own_distances(codes[rows], centers, bit_weights, labels[rows])
            rows, found = rows[order := np.argsort(far - own, kind="stable")], takers[found[order]]
            leave = rank_among_equals(labels[rows]) < spare[labels[rows]]
            rows, found = rows[leave], found[leave]
            enter = rank_among_equals(found) < wanted[found]
            labels[rows[enter]] = found[enter]
    return labels


def own_distances(codes, centers, bit_weights, labels):
    """Of each code to the center of its label: (n,) int32, or float32 with bit weights."""
    far = np.empty(len(codes), np.int32 if bit_weights is None else np.float32)
    for rows in row_ranges(len(codes), ROWS_AT_ONCE):
        differ = codes[rows] ^ centers[labels[rows]]
        if bit_weights is None:
            far[rows] = np.bitwise_count(differ).sum(1, dtype=np.int32)
        else:
            far[rows] = np.unpackbits(differ, axis=1) @ bit_weights.astype(np.float32)
    return far


def rank_among_equals(values):
    """How many equal values come before each: (n,)."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    begins = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(values) else np.empty(0, np.int64)
    ranks = np.empty(len(values), np.int64)
    ranks[order] = np.arange(len(values)) - np.repeat(begins, np.diff(np.r_[begins, len(values)]))
    return ranks

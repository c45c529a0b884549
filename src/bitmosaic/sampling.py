"""Packed codes and clusters -> a few rows that stand for all: balanced over the clusters, spread inside each.

Inside a cluster the most central picture comes first. The others are drawn as seeds of k-means++ are, likelier the
farther they are from those before, each time the best of a few: where there are many pictures, there are some of the
sample, and an outlier is taken when it stands for others, too.
"""

import numpy as np

from bitmosaic.codes import cluster_bit_sums, costs_with, hamming_distances, nearest_centers, pack
from bitmosaic.errors import InvalidDataError, ParameterError

MUCH_WORK = 2e8  # rows × draws of a cluster, above which a single candidate is drawn each time


def diverse_sample(codes, labels, n, distances=None, seed=0, n_threads=1):
    """Rows (n,) int64 of a diverse sample: the most central of each cluster, then the second of each, and so on.

    `codes` (N, b) uint8 · `labels` (N,) their clusters · `distances` (N,) to the centers, if known; else to the
    majority of the codes. All clusters give as many, but a cluster that has fewer gives all it has. The same seed gives
    the same rows; of a shorter sample the first rows are about those of a longer one, but not exactly.
    """
    codes, labels = np.ascontiguousarray(codes), np.asarray(labels)
    if len(codes) != len(labels) or (distances is not None and len(distances) != len(codes)):
        raise InvalidDataError(f"There must be a label and a distance for each of {len(codes)} codes; there are not.")
    if not 1 <= n <= len(codes):
        raise ParameterError(f"A sample has from 1 to all {len(codes):,} pictures; got {n:,}.")
    rng = np.random.default_rng(seed)
    numbers, owners, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    if distances is None:
        centers = pack(cluster_bit_sums(codes, owners, len(numbers), n_threads=n_threads))
        distances = np.bitwise_count(codes ^ centers[owners]).sum(1)
    order = np.lexsort((distances, owners))
    members = np.split(order, np.cumsum(sizes)[:-1])
    shares = balanced_shares(sizes, n)
    chosen = [_spread(codes, rows, share, rng, n_threads) for rows, share in zip(members, shares.tolist(), strict=True)]
    turns = np.concatenate([np.arange(len(rows)) for rows in chosen])
    return np.concatenate(chosen)[np.argsort(turns, kind="stable")]


def balanced_shares(sizes, n):
    """How many of each cluster, (c,) int64: equal shares, small clusters whole, what is left over to larger ones."""
    sizes = np.asarray(sizes, np.int64)
    shares, left = np.zeros_like(sizes), int(n)
    for done, cluster in enumerate(np.argsort(sizes, kind="stable")):
        shares[cluster] = min(sizes[cluster], left // (len(sizes) - done))
        left -= shares[cluster]
    return shares


def _spread(codes, rows, count, rng, n_threads):
    """So many of the rows of a cluster, which come in the order of their distance to its center."""
    if count == len(rows) or not count:
        return rows[:count]
    own = codes[rows]
    mass, chosen = np.ones(len(rows)), [0]
    n_candidates = 2 + int(np.log(count)) if len(rows) * count < MUCH_WORK else 1
    closest = _distances(own, 0, n_threads)
    while len(chosen) < count:
        reached = np.cumsum(closest)
        if not reached[-1]:  # all that differ are chosen
            others = np.setdiff1d(np.arange(len(rows)), chosen)
            chosen.extend(rng.choice(others, count - len(chosen), replace=False).tolist())
            break
        drawn = np.searchsorted(reached, rng.random(n_candidates) * reached[-1], side="right").clip(max=len(rows) - 1)
        best = 0 if n_candidates == 1 else int(costs_with(own, own[drawn], closest, mass, None, n_threads).argmin())
        chosen.append(int(drawn[best]))
        closest = np.minimum(closest, _distances(own, drawn[best], n_threads))
    return rows[chosen]


def _distances(codes, row, n_threads):
    return hamming_distances(codes, codes[[row]], None, n_threads)[:, 0].astype(np.float64)


def coverage(codes, rows, n_threads=1):
    """Bits between a code and the nearest of the chosen rows, on average over all codes: the less, the better."""
    return float(nearest_centers(codes, codes[np.asarray(rows)], None, n_threads)[1].mean())

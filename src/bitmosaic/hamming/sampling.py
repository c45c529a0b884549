"""Packed codes and clusters -> a few representative rows: balanced over the clusters, diverse within each.

In each cluster the most central image comes first. The others are drawn like seeds of k-means++: with probability
proportional to the distance from the images drawn before, the best of a few candidates each time. Dense regions are
represented, and outliers are chosen only if they also represent others.
"""

import numpy as np

from bitmosaic.errors import InvalidDataError, ParameterError
from bitmosaic.hamming.codes import cluster_bit_sums, costs_with, hamming_distances, pack

MUCH_WORK = 2e8  # rows × draws of a cluster above which only one candidate is drawn each time


def diverse_sample(codes, labels, n, distances=None, seed=0, n_threads=1):
    """Rows (n,) int64 of a diverse sample: the most central of each cluster, then the second of each, and so on.

    `codes` (N, b) uint8 · `labels` (N,) their clusters · `distances` (N,) to the centers, if known; otherwise to the
    majority of the codes. All clusters contribute equally, but a cluster with fewer rows contributes all of them. The
    same seed gives the same rows. A shorter sample is approximately, not exactly, the beginning of a longer one.
    """
    codes, labels = np.ascontiguousarray(codes), np.asarray(labels)
    if len(codes) != len(labels) or (distances is not None and len(distances) != len(codes)):
        raise InvalidDataError(
            f"Expected a label and a distance for each of {len(codes)} codes, "
            f"got {len(labels)} labels and {'no' if distances is None else len(distances)} distances."
        )
    if not 1 <= n <= len(codes):
        raise ParameterError(f"The sample size must be from 1 to the number of images, {len(codes):,}; got {n:,}.")
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
    """Number of rows from each cluster, (c,) int64: equal shares; small clusters whole, the rest from larger ones."""
    sizes = np.asarray(sizes, np.int64)
    shares, left = np.zeros_like(sizes), int(n)
    for done, cluster in enumerate(np.argsort(sizes, kind="stable")):
        shares[cluster] = min(sizes[cluster], left // (len(sizes) - done))
        left -= shares[cluster]
    return shares


def _spread(codes, rows, count, rng, n_threads):
    """`count` of the rows of a cluster, which are sorted by distance to its center."""
    if count == len(rows) or not count:
        return rows[:count]
    own = codes[rows]
    mass, chosen = np.ones(len(rows)), [0]
    n_candidates = 2 + int(np.log(count)) if len(rows) * count < MUCH_WORK else 1
    closest = _distances(own, 0, n_threads)
    while len(chosen) < count:
        reached = np.cumsum(closest)
        if not reached[-1]:  # all distinct codes are chosen
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

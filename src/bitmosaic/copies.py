"""Fingerprints -> groups of copies: pictures that were resized, recompressed or toned, and what features add to them.

Pairs of fingerprints within a radius are copies. Pairs that were found elsewhere (by features, which know slightly
cropped pictures) may be added. Equal fingerprints are one until the groups are made, so that ten thousand blank pages
do not make fifty million pairs.
"""

import numpy as np

from bitmosaic.errors import ParameterError
from bitmosaic.near_duplicates import Progress, affordable, duplicate_groups
from bitmosaic.near_pairs import MOST_PAIRS, quiet, scored_pairs

RADIUS = 12  # bits; on CIFAR-10 F1 is the best for resized and recompressed copies from 10 to 14
MOST_COMPARISONS = 2e10  # of two fingerprints: a minute or two


def copy_groups(
    fingerprints,
    radius: int = RADIUS,
    pairs=None,
    scores=None,
    n_threads: int = 1,
    progress: Progress = quiet,
) -> tuple[int, list[np.ndarray]]:
    """The radius that was used, and the rows of each group, (m,) int64, the nearest to all others first.

    `fingerprints` (n, b) uint8 · `pairs` (p, 2) of rows that are copies whatever their fingerprints, and `scores` (p,):
    how far they are apart, where unrelated pictures are at about 1. Groups with the nearest pictures come first. The
    radius is reduced only where it would take more than a minute or two, or give more than a million pairs.
    """
    n_bits = 8 * fingerprints.shape[1]
    if not 0 <= radius < n_bits:
        raise ParameterError(f"The radius is a number of bits from 0 to {n_bits - 1}; got {radius}.")
    if len(fingerprints) < 2:
        return radius, []
    unique, first, owners = np.unique(fingerprints, axis=0, return_index=True, return_inverse=True)
    radius, some = affordable(unique, radius, MOST_COMPARISONS)
    sketches = np.empty((len(some), 0, 0), np.float32)
    near, bits = scored_pairs(unique[some], radius, sketches, radius, MOST_PAIRS, n_threads, progress)
    while len(near) == MOST_PAIRS and radius:  # some were cut off, and groups with them
        radius //= 2
        near, bits = scored_pairs(unique[some], radius, sketches, radius, MOST_PAIRS, n_threads, progress)
    apart = bits / (n_bits / 2)  # of unrelated pictures, half the bits differ
    linked = {(one, other): d for (one, other), d in zip(some[near].tolist(), apart.tolist(), strict=True)}
    if pairs is not None:
        for (one, other), score in zip(np.sort(owners[pairs], axis=1).tolist(), scores.tolist(), strict=True):
            if one != other:
                linked[one, other] = min(score, linked.get((one, other), score))
    # Rows instead of fingerprints as numbers, so that the order of groups does not depend on the bits.
    ends = first[np.array(list(linked), np.int64).reshape(-1, 2)]
    found = duplicate_groups(np.sort(ends, axis=1), np.array(list(linked.values())))
    order = np.argsort(owners, kind="stable")
    equal = dict(zip(first.tolist(), np.split(order, np.cumsum(np.bincount(owners))[:-1]), strict=True))
    groups = []
    for rows, near in found:
        members = [equal.pop(row) for row in rows.tolist()]
        nearest = 0.0 if any(len(same) > 1 for same in members) else near[1]
        groups.append((nearest, np.concatenate(members)))
    groups += [(0.0, rows) for rows in equal.values() if len(rows) > 1]
    return radius, [rows for _, rows in sorted(groups, key=lambda group: (group[0], -len(group[1]), group[1][0]))]

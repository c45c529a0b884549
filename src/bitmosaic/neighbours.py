"""Packed codes -> the nearest codes of a few, and how unusual each picture is for its cluster."""

import numpy as np

from bitmosaic import tree_kernels
from bitmosaic.code_tree import empty_heaps, scan, told
from bitmosaic.codes import as_words


def nearest_codes(codes, queries, k, n_threads=1):
    """Of codes (n, b), the k nearest to each query (q, b): distances (q, k) int32 and rows (q, k) int64, the nearest
    first, ties by lowest row; k is at most n.

    It compares all with all, and needs nothing made before: for up to a few hundred queries that is faster than to
    build a `NeighborIndex`.
    """
    words, heaps = as_words(queries), empty_heaps(len(queries), min(max(k, 0), len(codes)))
    if heaps.size:

        def search(some, here):
            tree_kernels.scan_rows(as_words(codes[some]), some.start, words, here)

        heaps = scan(search, len(codes), heaps, heaps[:, 0], n_threads)
    return told(np.sort(heaps, axis=1))


def outlier_scores(labels, distances):
    """How unusual each picture's distance to its center is for its cluster: (d - median) / spread, (n,) float64.

    The spread is the median deviation of the farther half, scaled to that of a normal distribution, but at least half
    of what it is over all clusters: else the loosest cluster, or a tight one, would fill the list.
    """
    labels, distances = np.asarray(labels), np.asarray(distances, np.float64)
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    deviations = np.zeros(len(distances))
    for rows in members:
        deviations[rows] = distances[rows] - np.median(distances[rows])
    overall = _upper_spread(deviations)
    scores = np.zeros(len(distances))
    for rows in members:
        scores[rows] = deviations[rows] / (max(_upper_spread(deviations[rows]), overall / 2) or 1.0)
    return scores


def _upper_spread(deviations):
    return 1.4826 * np.median(deviations[deviations >= 0]) if len(deviations) else 0.0

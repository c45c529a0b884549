"""Packed codes -> the nearest codes of one, and how unusual each picture is for its cluster."""

import numpy as np

from bitmosaic import neighbour_kernels
from bitmosaic.codes import as_words
from bitmosaic.threads import in_order, row_ranges

ROWS_PER_SCAN = 65_536


def nearest_codes(codes, query, k, n_threads=1):
    """The k codes (n, b) nearest to one query (b,): rows (k,) int64 and distances (k,) int32, ties by lowest row."""
    k = min(max(k, 0), len(codes))
    word = as_words(query[None])[0]
    distances, counts = np.empty(len(codes), np.int32), np.zeros(64 * len(word) + 1, np.int64)

    def scan(rows):
        here = np.zeros_like(counts)
        neighbour_kernels.distances_to(as_words(codes[rows]), word, distances[rows], here)
        return here

    for here in in_order(scan, row_ranges(len(codes), ROWS_PER_SCAN), n_threads):
        counts += here
    last = np.searchsorted(np.cumsum(counts), k)  # the distance of the k-th
    rows = np.concatenate([np.flatnonzero(distances < last), np.flatnonzero(distances == last)])[:k]
    rows = rows[np.argsort(distances[rows], kind="stable")]
    return rows, distances[rows]


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

"""Scores of a clustering against the true classes.

All scores are computed from one sparse table of counts, classes × clusters. It has at most one entry per sample.
"""

from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import min_weight_full_bipartite_matching
from sklearn.metrics.cluster import contingency_matrix

from bitmosaic.errors import InvalidDataError


def clustering_scores(y_true: Any, y_pred: Any) -> dict[str, float]:
    """Return four common clustering scores, each between 0 and 1; 1 is perfect agreement.

    acc: share of samples that are right when each cluster is given to at most one class and each class
        to at most one cluster, in the best way. The numbers of clusters and classes may differ.
    nmi: mutual information over the geometric mean of the entropies, I / sqrt(H(true) · H(pred)), as in
        the papers. (scikit-learn divides by the arithmetic mean unless `average_method="geometric"`.)
        Two constant labelings score 1, a single constant one 0.
    purity: share of samples that belong to the largest class of their cluster.
    f_score: harmonic mean of precision and recall over pairs of samples: a pair counts as found when it
        shares a cluster, and as right when it shares a class. If neither labeling has any such pair,
        they agree and score 1.

    y_true, y_pred: one label per sample, integers or strings, of any values. Counts are exact up to
    three billion samples.
    """
    classes, clusters = _label_codes(y_true, "y_true"), _label_codes(y_pred, "y_pred")
    if len(classes) != len(clusters):
        raise InvalidDataError(
            f"y_true and y_pred must have the same length; got {len(classes)} and {len(clusters)}. "
            "Both must list the same samples in the same order."
        )
    counts = csr_array(contingency_matrix(classes, clusters, sparse=True, dtype=np.int64))
    return {
        "acc": _accuracy(counts),
        "nmi": _normalized_mutual_information(counts),
        "purity": _purity(counts),
        "f_score": _pair_f_score(counts),
    }


def _accuracy(counts: csr_array) -> float:
    """max over one-to-one matchings of Σ counts[class, cluster], divided by n.

    Matched on the sparse table, so that 50,000 classes × 50,000 clusters need no dense matrix. SciPy's
    matching must use every row and column, so each class and each cluster gets a dummy partner, and
    the dummies of a class and a cluster that could match may match each other. A stored weight must
    not be 0, so every weight is one more than it counts.
    """
    n_classes, n_clusters = counts.shape
    table = counts.tocoo()
    class_, cluster = np.arange(n_classes), np.arange(n_clusters)
    rows = np.concatenate([table.row, class_, n_classes + cluster, n_classes + table.col])
    columns = np.concatenate([table.col, n_clusters + class_, cluster, n_clusters + table.row])
    gain = np.ones(len(rows))
    gain[: table.nnz] += table.data
    weights = csr_array((gain, (rows, columns)), shape=(n_classes + n_clusters,) * 2)
    row, column = min_weight_full_bipartite_matching(weights, maximize=True)
    matched = weights[row, column].sum() - (n_classes + n_clusters)
    return float(matched / counts.sum())


def _normalized_mutual_information(counts: csr_array) -> float:
    """I / sqrt(H · H); the same partition under other names is exactly 1."""
    n_classes, n_clusters = counts.shape
    if n_classes == n_clusters == counts.nnz:
        return 1.0
    if n_classes == 1 or n_clusters == 1:
        return 0.0
    n = counts.sum()
    in_class, in_cluster = counts.sum(axis=1), counts.sum(axis=0)
    table = counts.tocoo()
    # p / (q · r) as a product of two ratios: neither overflows, and ratios near 1 keep their digits.
    ratio = (table.data / in_class[table.row]) * (n / in_cluster[table.col])
    information = np.sum(table.data / n * np.log(ratio))
    return float(np.clip(information / np.sqrt(_entropy(in_class) * _entropy(in_cluster)), 0.0, 1.0))


def _entropy(sizes: np.ndarray) -> float:
    share = sizes / sizes.sum()
    return float(-np.sum(share * np.log(share)))


def _purity(counts: csr_array) -> float:
    return float(counts.max(axis=0).sum() / counts.sum())


def _pair_f_score(counts: csr_array) -> float:
    """2 · pairs in both / (pairs in clusters + pairs in classes), which is the harmonic mean."""
    in_both = _n_pairs(counts.data)
    in_either = _n_pairs(counts.sum(axis=0)) + _n_pairs(counts.sum(axis=1))
    return 2 * in_both / in_either if in_either else 1.0


def _n_pairs(sizes: np.ndarray) -> int:
    # n (n - 1) of all samples fits 63 bits up to n = 3·10⁹, so that this sum cannot overflow.
    return int(np.sum(sizes * (sizes - 1))) // 2


def _label_codes(labels: Any, name: str) -> np.ndarray:
    """Return an integer for each label, equal for equal labels."""
    try:
        array = np.asarray(labels)
    except ValueError:  # nested lists of unequal lengths
        array = np.empty((0, 0))
    if array.ndim != 1:
        shape = f"shape {array.shape}" if array.size else "nested or empty data"
        raise InvalidDataError(
            f"{name} must be one-dimensional, one label per sample; got {shape}. "
            "A single column becomes one-dimensional with labels.ravel()."
        )
    if array.size == 0:
        raise InvalidDataError(f"{name} must hold at least one label; got none. Is the label file empty?")
    if array.dtype.kind in "iub":
        return array
    if array.dtype.kind == "f":  # integers stored as floats, as in MATLAB files
        # From 2⁵³ on neighboring integers share a float: two labels could become one.
        bad = ~(np.abs(array) < 2**53) | (np.trunc(array) != array)
        values = array
    else:  # np.asarray([1, "1"]) makes both the string "1"; the list still has both
        values = np.array(labels, dtype=object) if isinstance(labels, list | tuple) else array.astype(object)
        kind = str if isinstance(values[0], str) else bytes if isinstance(values[0], bytes) else int | np.integer
        bad = np.array([not isinstance(value, kind) for value in values])
    if bad.any():
        value = values[bad][0]
        raise InvalidDataError(
            f"{name} must hold an integer for every sample, or a string for every sample; got {value!r:.80} "
            f"({type(value).__name__}) at position {int(np.argmax(bad))}. Remove samples without a label from both "
            "y_true and y_pred."
        )
    if array.dtype.kind == "f":
        return array.astype(np.int64)
    codes: dict[Any, int] = {}
    return np.fromiter((codes.setdefault(value, len(codes)) for value in values), np.int64, len(values))

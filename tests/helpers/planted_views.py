"""Views of planted clusters, for the tests of HSIC."""

import numpy as np

WIDTHS = {"a": 12, "b": 7, "c": 20}


def blobs(n=600, n_clusters=4, spread=4.0, seed=0):
    """Three views of the same planted clusters with unit noise, and the true clusters."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(n_clusters, size=n)
    views = {
        name: (spread * rng.standard_normal((n_clusters, d))[truth] + rng.standard_normal((n, d))).astype(np.float32)
        for name, d in WIDTHS.items()
    }
    return views, truth


def lacking(X, rows):
    """A copy of X in which these rows lack the view."""
    X = X.copy()
    X[rows] = np.nan
    return X


VIEWS, TRUTH = blobs()
NOISY, _ = blobs(spread=0.7, seed=1)  # no clear clusters: codes and labels are sensitive to rounding

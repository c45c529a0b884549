"""Rows -> the nearest of k rows: medoids instead of means."""

from dataclasses import dataclass
from types import ModuleType

import numpy as np

from bitmosaic.bench.baselines.base import Baseline, concatenated, integer_seed
from bitmosaic.bench.baselines.rbf import BLOCK, draw_rows
from bitmosaic.embedding import squared_distances
from bitmosaic.errors import MissingExtraError
from bitmosaic.threads import row_ranges


@dataclass(kw_only=True)
class KMedoids(Baseline):
    """k-medoids: E. Schubert, P. J. Rousseeuw, "Fast and eager k-medoids clustering", Information Systems, 2021.

    FasterPAM of the authors' package `kmedoids` on Euclidean distances, from random rows. The HSIC paper names H.-S.
    Park, C.-H. Jun, "A simple and fast algorithm for K-medoids clustering", Expert Systems with Applications, 2009:
    the same objective, which FasterPAM lowers further because it tries all swaps.

    Deviations: columns are standardised. With more than `n_sample` rows, medoids are sought among so many random ones
    for these alone (as in L. Kaufman, P. J. Rousseeuw, CLARA, 1986, but one larger sample), and all rows go to the
    nearest.

    After a fit: `objective_`, the sum of the distances of all rows to their medoids (the last only), and `medoids_`.
    """

    n_sample: int = 5000

    def cluster(self, views: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
        package = import_kmedoids()
        X = concatenated(views)
        sampled = draw_rows(len(X), self.n_sample, self.n_clusters, rng)
        found = package.fasterpam(
            distances(X[sampled], X[sampled]), self.n_clusters, random_state=integer_seed(rng), n_cpu=1
        )
        self.medoids_ = sampled[np.asarray(found.medoids, np.int64)]  # (k,) rows of X

        labels, total = np.empty(len(X), np.int32), 0.0
        for rows in row_ranges(len(X), BLOCK):
            D = distances(X[rows], X[self.medoids_])  # (block, k)
            labels[rows] = D.argmin(axis=1)
            total += float(D.min(axis=1).sum(dtype=np.float64))
        self.objective_ = [total]
        return labels


def distances(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """‖x - y‖ of all pairs of rows."""
    D = squared_distances(X, Y)
    return np.sqrt(D, out=D)


def import_kmedoids() -> ModuleType:
    try:
        import kmedoids
    except ImportError:
        raise MissingExtraError("k-medoids needs kmedoids: pip install 'bitmosaic[bench]'") from None
    return kmedoids

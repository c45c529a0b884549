"""Rows -> the nearest of k means: the yardstick, from random rows and from rows far apart."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import sklearn.cluster

from bitmosaic.bench.baselines.base import Baseline, concatenated, integer_seed


def lloyd(
    X: np.ndarray, n_clusters: int, rng: np.random.Generator, init: Literal["random", "k-means++"], n_init: int = 1
) -> sklearn.cluster.KMeans:
    """scikit-learn's k-means: at most 300 rounds, or until the centroids hardly move. X is centred meanwhile."""
    model = sklearn.cluster.KMeans(
        n_clusters, init=init, n_init=n_init, copy_x=False, random_state=integer_seed(rng), algorithm="lloyd"
    )
    return model.fit(X)


@dataclass
class KMeans(Baseline):
    """k-means: S. P. Lloyd, "Least squares quantization in PCM", IEEE Transactions on Information Theory, 1982.

    From scikit-learn, on all views side by side, once, from random rows. Deviations: columns are standardised; a
    cluster that loses all its rows gets the row farthest from its centroid, so n_clusters is reached.

    After a fit: `objective_`, the sum of squared distances (the last only, scikit-learn tells no more), and `sizes_`,
    bytes of the data that it works on and of the centroids.
    """

    init: ClassVar[Literal["random", "k-means++"]] = "random"

    def cluster(self, views: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
        X = concatenated(views)  # (n, Σ d_v)
        model = lloyd(X, self.n_clusters, rng, self.init)
        self.objective_ = [float(model.inertia_)]
        self.sizes_ = {"data": X.nbytes, "centroids": model.cluster_centers_.nbytes}
        return model.labels_


@dataclass
class KMeansPlusPlus(KMeans):
    """k-means++: D. Arthur, S. Vassilvitskii, "k-means++: The advantages of careful seeding", SODA, 2007.

    As `KMeans`, but each row of the start is drawn in proportion to its squared distance from those before.
    Deviation: scikit-learn draws a few candidates each time and keeps the best of them, a variant that the authors
    mention too.
    """

    init: ClassVar[Literal["random", "k-means++"]] = "k-means++"

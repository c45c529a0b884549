"""Rows -> features whose products approximate a kernel -> k-means."""

from dataclasses import dataclass

import numpy as np
from sklearn.kernel_approximation import Nystroem

from bitmosaic.bench.baselines.base import Baseline, concatenated, integer_seed
from bitmosaic.bench.baselines.kmeans import lloyd
from bitmosaic.bench.baselines.rbf import chosen_width, sample_size


@dataclass(kw_only=True)
class NystroemFeatures(Baseline):
    """Kernel k-means on Nyström features: S. Wang, A. Gittens, M. W. Mahoney, "Scalable kernel k-means clustering with
    Nyström approximation", JMLR, 2019; the features are those of C. Williams, M. Seeger, NIPS, 2000.

    scikit-learn's map from `n_sample` random rows, then its k-means, once, from a k-means++ start. Deviations: columns
    are standardised; γ = 1 / the mean squared distance; all features are kept, not only the strongest.

    After a fit: `objective_`, the sum of squared distances between features and centroids (the last only).
    """

    n_sample: int = 1000
    gamma: float | None = None

    def cluster(self, views: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
        X = concatenated(views)
        n_components = sample_size(len(X), self.n_sample, self.n_clusters)
        gamma = chosen_width(self.gamma, X, rng)
        features = Nystroem(kernel="rbf", gamma=gamma, n_components=n_components, random_state=integer_seed(rng))
        model = lloyd(features.fit_transform(X), self.n_clusters, rng, "k-means++")
        self.objective_ = [float(model.inertia_)]
        return model.labels_

"""Rows without negative values -> mixtures of k parts -> k-means on what each part contributes."""

import warnings
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import sklearn.decomposition
from sklearn.exceptions import ConvergenceWarning

from bitmosaic.bench.baselines.base import Baseline, concatenated, integer_seed
from bitmosaic.bench.baselines.kmeans import lloyd

MAX_ITER = 200
KMEANS_STARTS = 10


@dataclass
class NMF(Baseline):
    """NMF: D. D. Lee, H. S. Seung, "Learning the parts of objects by non-negative matrix factorization", Nature, 1999.

    X ≈ W H with n_clusters parts, from a random start; then k-means on W, as the literature on image clustering does
    it (D. Cai, X. He, J. Han, T. S. Huang, "Graph regularized nonnegative matrix factorization for data
    representation", TPAMI, 2011), and as the HSIC paper's word for NMF, "disjoint", suggests. To take the strongest
    part instead (W. Xu, X. Liu, Y. Gong, SIGIR, 2003) is made for documents; on image features its scores are lower.

    Deviations: columns are between 0 and 1; scikit-learn lowers the same objective by coordinate descent instead of
    multiplicative updates, for at most 200 iterations; k-means is the best of 10 starts by k-means++.

    After a fit: `objective_`, ‖X - W H‖ (the last only, scikit-learn tells no more).
    """

    scaling: ClassVar[Literal["standard", "nonnegative"]] = "nonnegative"

    def cluster(self, views: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
        model = sklearn.decomposition.NMF(
            self.n_clusters, init="random", max_iter=MAX_ITER, random_state=integer_seed(rng)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the cap is meant
            W = model.fit_transform(concatenated(views))  # (n, k)
        self.objective_ = [float(model.reconstruction_err_)]
        W *= np.linalg.norm(model.components_, axis=1)  # as if parts had norm 1, which W H leaves open
        return lloyd(W, self.n_clusters, rng, "k-means++", KMEANS_STARTS).labels_

"""Views -> similarities to anchors -> one code for all views and its clusters, learned together."""

from dataclasses import dataclass

import numpy as np

from bitmosaic.bench.baselines.binary import BLOCK, JointBaseline
from bitmosaic.embedding import fit_embedding, normalisation
from bitmosaic.errors import ParameterError
from bitmosaic.solver.blocks import own_products
from bitmosaic.threads import row_ranges

PROBES = 4096  # rows whose distances to their nearest anchors say how wide the kernel is


@dataclass
class BMVC(JointBaseline):
    """BMVC: Z. Zhang, L. Liu, F. Shen, H. T. Shen, L. Shao, "Binary multi-view clustering", TPAMI, 2019.

    The objective of `JointBaseline`, Z_v being the centred similarities exp(-‖x - a‖²/2σ²) of view v to `n_anchors`
    random rows, a tenth of all (or three for each cluster) at most, σ twice the mean distance of a row to its nearest
    anchor. Parameters are those of the authors' demo, which does not divide γ by the number of rows, with the 10
    iterations that it recommends. After a fit: also `view_weights_`, α (m,).

    Deviations: columns are standardised. With as many anchors as rows, every view would fit any code, hence fewer of
    small sets (seen with labels, in favour of the method). σ is of at most 4096 rows, and a row that is an anchor is
    not its own nearest one. The first codes are principal components of all views, rotated (chosen with labels in view,
    in favour of the method); in the demo, of one chosen view, not rotated. The first centroids are the best of 10 runs
    from k-means++ instead of random codes, and an empty cluster takes the farthest code. C is the exact minimum instead
    of three proximal steps, and inner rounds end when nothing changes.
    """

    ridge: float = 0.003
    coupling: float = 1e-5
    variance_reward: float = 0.01
    balance: float = 0.001
    exponent: float = 5.0
    max_iter: int = 10
    n_anchors: int = 1000

    def embed(self, views, rng):
        if self.n_anchors < 1:
            raise ParameterError(f"n_anchors must be at least 1; got {self.n_anchors}. Take 1000, for example.")
        n = len(views[0])
        anchors = rng.choice(n, min(self.n_anchors, max(n // 10, 3 * self.n_clusters), n), replace=False)
        probes = rng.choice(n, min(PROBES, n), replace=False)
        return [similarities(X, anchors, probes) for X in views]

    def gram(self, Z):
        """ZᵀZ (l, l) from float64 products: the rounding of float32 ones would outweigh the ridge."""
        return sum(own_products(Z[rows]) for rows in row_ranges(len(Z), BLOCK))


def similarities(X: np.ndarray, anchors: np.ndarray, probes: np.ndarray) -> np.ndarray:
    """exp(-‖x - a‖²/2σ²) of all rows x to the rows `anchors`, less its mean over x: (n, l) float32."""
    is_anchor = np.full(len(X), -1)
    is_anchor[anchors] = np.arange(len(anchors))
    d = X.shape[1]
    plain = normalisation(np.zeros(d), np.ones(d, np.float32))
    embedding = fit_embedding(plain, X[anchors], [(X[probes], is_anchor[probes])], kernel_width=1.0)
    Z = np.empty((len(X), len(anchors)), np.float32)
    for rows in row_ranges(len(X), BLOCK):
        Z[rows] = embedding(X[rows])[0]
    Z -= Z.mean(axis=0, dtype=np.float64).astype(np.float32)
    return Z

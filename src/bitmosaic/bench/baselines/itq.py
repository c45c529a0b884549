"""Views side by side -> rotated principal components -> packed codes -> clusters."""

from dataclasses import dataclass

import numpy as np

from bitmosaic.bench.baselines.base import concatenated, integer_seed
from bitmosaic.bench.baselines.binary import BinaryBaseline
from bitmosaic.binary_kmeans import BinaryKMeans
from bitmosaic.codes import pack
from bitmosaic.embedding import principal_basis, squares
from bitmosaic.solver.start import random_rotation


@dataclass
class ITQ(BinaryBaseline):
    """ITQ: Y. Gong, S. Lazebnik, A. Gordo, F. Perronnin, "Iterative quantization: A Procrustean approach to learning
    binary codes for large-scale image retrieval", TPAMI, 2013; its codes are clustered by binary k-means: Y. Gong,
    M. Pawlowski, F. Yang, L. Brandy, L. Bourdev, R. Fergus, "Web scale photo hash clustering on a single machine",
    CVPR, 2015.

    After a fit: `objective_`, the quantisation loss ‖B - VR‖² after each rotation.

    Deviations: columns are standardised. Principal components come from a randomised SVD. Where there are fewer of them
    than bits, R has that many orthonormal rows and n_bits columns, found by the same steps: codes always have n_bits.
    Binary k-means finds nearest centroids exactly instead of through a multi-index hash table, starts from k-means++,
    keeps the best of 10 runs, and gives an empty cluster the farthest code.
    """

    max_iter: int = 50

    def learn(self, views, rng):
        X = concatenated(views)
        basis = principal_basis(X, self.n_bits, integer_seed(rng), damped=False)  # (d, k)
        R, self.objective_ = best_rotation(X @ basis, self.n_bits, self.max_iter, rng)
        P = basis @ R  # (d, n_bits)
        codes = pack(X @ P)
        model = BinaryKMeans(self.n_clusters, max_iter=300, random_state=integer_seed(rng)).fit(codes)
        return codes, model.labels_, model.cluster_centers_, [P]


def best_rotation(
    V: np.ndarray, n_bits: int, max_iter: int, rng: np.random.Generator
) -> tuple[np.ndarray, list[float]]:
    """R (k, n_bits) with RRᵀ = I and a low ‖B - VR‖² where B = sgn(VR); and this loss after each update of R."""
    R = random_rotation(V.shape[1], n_bits, rng).astype(np.float32)
    constant = len(V) * n_bits + float(squares(V).sum(dtype=np.float64))
    losses = []
    for _ in range(max_iter):
        B = np.copysign(np.float32(1), V @ R)  # (n, n_bits)
        left, s, right = np.linalg.svd(V.T @ B, full_matrices=False)
        R = left @ right
        losses.append(constant - 2 * float(s.sum(dtype=np.float64)))  # tr(RᵀVᵀB) = Σ s
    return R, losses

"""All views side by side -> codes, projections and binary centroids, learned together -> clusters."""

from dataclasses import dataclass

from bitmosaic.bench.baselines.base import concatenated
from bitmosaic.bench.baselines.binary import JointBaseline


@dataclass
class CKM(JointBaseline):
    """CKM: X. Shen, W. Liu, I. Tsang, F. Shen, Q.-S. Sun, "Compressed k-means for large-scale clustering", AAAI, 2017.

    A reconstruction: ‖B - XP‖² + β‖P‖² + λ‖B - C_y‖² of all views side by side.

    Inferred, since only the abstract was at hand: it says that codes and clusters are learned jointly, and the HSIC
    paper says that CKM unites binary structural SVMs and k-means. The SVMs are least-squares ones here, one for each
    bit, which are the first two terms; β = 1 is the usual weight of an SVM. λ, the start and the stop are ours, not
    chosen by their scores.
    Deviations: columns are standardised; an empty cluster takes the farthest code.
    """

    def embed(self, views, rng):
        return [concatenated(views)]

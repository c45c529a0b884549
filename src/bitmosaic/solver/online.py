"""More codes of a stream -> centers that follow them: each is the majority of all codes ever assigned to it."""

from typing import NamedTuple

import numpy as np

from bitmosaic.codes import cluster_bit_sums, pack, unpack


class Majority(NamedTuple):
    """Centers, and what they are the majority of."""

    centers: np.ndarray  # (c, K/8) uint8
    bit_sums: np.ndarray  # (c, K) int64, sums of the ±1 codes ever assigned
    counts: np.ndarray  # (c,) int64, how many these are

    @classmethod
    def of(cls, centers, codes, labels, n_threads=1):
        """As a fit leaves it; the centers stay where they are."""
        counts = np.bincount(labels, minlength=len(centers)).astype(np.int64)
        return cls(centers, cluster_bit_sums(codes, labels, len(centers), None, n_threads), counts)

    def with_codes(self, codes, labels, n_threads=1):
        """After more codes were assigned. Where there are as many ones as zeros, a bit stays as it was.

        No other centers are nearer, in sum, to all codes ever assigned to them: so this never raises the distance.
        """
        sums = self.bit_sums + cluster_bit_sums(codes, labels, len(self.centers), None, n_threads)
        counts = self.counts + np.bincount(labels, minlength=len(self.centers))
        signs = np.where(sums == 0, unpack(self.centers, np.int8), np.sign(sums))
        return Majority(pack(signs), sums, counts)

    def is_sound(self):
        """Whether the sums, whose types and shapes are right, can be those of so many codes."""
        counts = self.counts[:, None]
        possible = ((counts >= 0) & (counts < 2**48)).all()
        return bool(possible and ((self.bit_sums <= counts) & (self.bit_sums >= -counts)).all())

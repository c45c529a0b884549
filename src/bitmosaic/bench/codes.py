"""Compare nearest centers of packed codes with `faiss.IndexBinaryFlat`."""

from dataclasses import dataclass

import numpy as np

from bitmosaic.bench.timing import best_times, faiss_on
from bitmosaic.errors import ParameterError
from bitmosaic.hamming.codes import nearest_centers

FLIPPED = 0.1  # share of the bits of a code that differ from its center
OURS, PEER = "bitmosaic", "faiss.IndexBinaryFlat"


@dataclass
class Comparison:
    """The best time of each method, in seconds for all pairs, and whether the results agree."""

    n_pairs: int
    seconds: dict[str, float]
    same_distances: bool
    same_labels: bool  # where the nearest center is unique

    def rate(self, name):
        return self.n_pairs / self.seconds[name]

    @property
    def ratio(self):
        return self.rate(OURS) / self.rate(PEER)


def planted_codes(n_rows, n_clusters, n_bits, seed=0):
    """Random centers (c, b), and codes (n, b) near them with a tenth of the bits flipped; both packed."""
    if n_bits % 8:
        raise ParameterError(f"The number of bits must be a multiple of 8; got {n_bits}.")
    rng = np.random.default_rng(seed)
    centers = rng.integers(256, size=(n_clusters, n_bits // 8), dtype=np.uint8)
    codes = np.empty((n_rows, n_bits // 8), np.uint8)
    for start in range(0, n_rows, 65_536):
        block = codes[start : start + 65_536]
        flips = rng.random((len(block), n_bits), np.float32) < FLIPPED
        block[:] = centers[rng.integers(n_clusters, size=len(block))] ^ np.packbits(flips, axis=1)
    return codes, centers


def contest(codes, centers, repeats, n_threads, progress):
    """The best time of both methods on all codes, and whether they agree."""
    with faiss_on(n_threads) as faiss:
        index = faiss.IndexBinaryFlat(8 * codes.shape[1])
        index.add(centers)
        nearest_centers(codes[:10_000], centers, n_threads=n_threads)  # compile before timing
        methods = {
            OURS: lambda: nearest_centers(codes, centers, n_threads=n_threads),
            PEER: lambda: index.search(codes, 1),
        }
        seconds, results = best_times(methods, repeats, progress)
        far, found = index.search(codes, min(2, len(centers)))
    labels, distances = results[OURS]
    unique = far[:, 0] < far[:, -1] if len(centers) > 1 else np.ones(len(codes), bool)
    same_labels = bool((found[unique, 0] == labels[unique]).all())
    return Comparison(len(codes) * len(centers), seconds, bool((far[:, 0] == distances).all()), same_labels)

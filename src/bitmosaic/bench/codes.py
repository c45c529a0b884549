"""Packed codes and their nearest centers, beside `faiss.IndexBinaryFlat`; and a whole fit of BinaryKMeans."""

import time
import warnings
from dataclasses import dataclass, field

import numpy as np

from bitmosaic.bench.choices import import_faiss
from bitmosaic.bench.memory import PeakMemory
from bitmosaic.binary_kmeans import BinaryKMeans
from bitmosaic.codes import nearest_centers
from bitmosaic.errors import ParameterError
from bitmosaic.neighbours import nearest_codes

FLIPPED = 0.1  # of the bits of a code differ from those of its planted center
QUERIES = 10  # searches in each turn
OURS, PEER = "bitmosaic", "faiss.IndexBinaryFlat"


@dataclass
class Contest:
    """The best time of each contestant, in seconds for all pairs, and whether they found the same."""

    n_pairs: int
    seconds: dict[str, float] = field(default_factory=dict)
    same_distances: bool = False
    same_labels: bool = False  # where one center is nearer than all others

    def rate(self, name):
        return self.n_pairs / self.seconds[name]

    @property
    def ratio(self):
        return self.rate(OURS) / self.rate(PEER)


@dataclass(frozen=True)
class Fit:
    """What a fit of BinaryKMeans took, and how far the codes are from their centers on average."""

    seconds: float
    n_iter: int
    peak_bytes: int  # above what was there before, the codes
    mean_distance: float


def planted_codes(n_rows, n_clusters, n_bits, seed=0):
    """Codes (n, b) around planted centers (c, b), both packed, a tenth of their bits flipped."""
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
    """Both contestants in turn, the order reversed each time, the best of `repeats`."""
    faiss = import_faiss("bench codes")
    index = faiss.IndexBinaryFlat(8 * codes.shape[1])
    index.add(centers)
    contestants = {
        OURS: lambda some: nearest_centers(some, centers, n_threads=n_threads),
        PEER: lambda some: index.search(some, 1),
    }
    result = Contest(len(codes) * len(centers))
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(n_threads)
    try:
        for run in contestants.values():
            run(codes[:10_000])  # compiled before the clock starts
        for turn in range(repeats):
            for place, name in enumerate(list(contestants)[:: 1 if turn % 2 == 0 else -1]):
                progress("measuring", 2 * turn + place, 2 * repeats)
                start = time.perf_counter()
                contestants[name](codes)
                seconds = time.perf_counter() - start
                result.seconds[name] = min(seconds, result.seconds.get(name, np.inf))
        progress("comparing", 0, 1)
        labels, distances = nearest_centers(codes, centers, n_threads=n_threads)
        far, found = index.search(codes, min(2, len(centers)))
        progress("comparing", 1, 1)
    finally:
        faiss.omp_set_num_threads(before)
    unique = far[:, 0] < far[:, -1] if len(centers) > 1 else np.ones(len(codes), bool)
    result.same_distances = bool((far[:, 0] == distances).all())
    result.same_labels = bool((found[unique, 0] == labels[unique]).all())
    return result


def search(codes, count, repeats, n_threads):
    """The best milliseconds of each contestant to find the `count` nearest codes of one, and if both are as near."""
    faiss = import_faiss("bench codes")
    index = faiss.IndexBinaryFlat(8 * codes.shape[1])
    index.add(codes)
    contestants = {
        OURS: lambda query: nearest_codes(codes, query[None], count, n_threads)[0][0],
        PEER: lambda query: index.search(query[None], count)[0][0],
    }
    best, same = dict.fromkeys(contestants, np.inf), True
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(n_threads)
    try:
        for turn, query in enumerate(codes[:: max(1, len(codes) // (QUERIES * repeats))]):
            found = {}
            for name in list(contestants)[:: 1 if turn % 2 == 0 else -1]:
                start = time.perf_counter()
                found[name] = contestants[name](query)
                if turn:  # compiled by then
                    best[name] = min(best[name], 1000 * (time.perf_counter() - start))
            same &= bool((found[OURS] == found[PEER]).all())
    finally:
        faiss.omp_set_num_threads(before)
    return best, same


def fit(codes, n_clusters, max_iter, n_threads):
    """One seeding and all its iterations."""
    model = BinaryKMeans(n_clusters, n_init=1, max_iter=max_iter, n_threads=n_threads, random_state=0)
    with PeakMemory() as memory, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the iterations are told
        start = time.perf_counter()
        model.fit(codes)
        seconds = time.perf_counter() - start
    return Fit(seconds, model.n_iter_, memory.peak - memory.start, model.inertia_ / len(codes))

"""Compare nearest centers of packed codes with `faiss.IndexBinaryFlat`, and time a fit of BinaryKMeans."""

import time
import warnings
from dataclasses import dataclass, field

import numpy as np

from bitmosaic.bench.memory import PeakMemory
from bitmosaic.errors import MissingExtraError, ParameterError
from bitmosaic.estimators.binary_kmeans import BinaryKMeans
from bitmosaic.hamming.codes import nearest_centers
from bitmosaic.hamming.search import nearest_codes

FLIPPED = 0.1  # share of the bits of a code that differ from its center
QUERIES = 10  # searches per repeat
OURS, PEER = "bitmosaic", "faiss.IndexBinaryFlat"


@dataclass
class Comparison:
    """The best time of each method, in seconds for all pairs, and whether the results agree."""

    n_pairs: int
    seconds: dict[str, float] = field(default_factory=dict)
    same_distances: bool = False
    same_labels: bool = False  # where the nearest center is unique

    def rate(self, name):
        return self.n_pairs / self.seconds[name]

    @property
    def ratio(self):
        return self.rate(OURS) / self.rate(PEER)


@dataclass(frozen=True)
class Fit:
    """Cost of a fit of BinaryKMeans, and the mean distance of the codes to their centers."""

    seconds: float
    n_iter: int
    peak_bytes: int  # above the memory before the fit, which includes the codes
    mean_distance: float


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
    """Time both methods alternately, in reversed order each time, and keep the best of `repeats`."""
    faiss = import_faiss("bench codes")
    index = faiss.IndexBinaryFlat(8 * codes.shape[1])
    index.add(centers)
    methods = {
        OURS: lambda some: nearest_centers(some, centers, n_threads=n_threads),
        PEER: lambda some: index.search(some, 1),
    }
    result = Comparison(len(codes) * len(centers))
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(n_threads)
    try:
        for run in methods.values():
            run(codes[:10_000])  # compile before timing
        for repeat in range(repeats):
            for done, name in enumerate(list(methods)[:: 1 if repeat % 2 == 0 else -1]):
                progress("measuring", 2 * repeat + done, 2 * repeats)
                start = time.perf_counter()
                methods[name](codes)
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
    """The best milliseconds of each method for one query of `count` codes, and whether the distances agree."""
    faiss = import_faiss("bench codes")
    index = faiss.IndexBinaryFlat(8 * codes.shape[1])
    index.add(codes)
    methods = {
        OURS: lambda query: nearest_codes(codes, query[None], count, n_threads)[0][0],
        PEER: lambda query: index.search(query[None], count)[0][0],
    }
    best, same = dict.fromkeys(methods, np.inf), True
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(n_threads)
    try:
        for number, query in enumerate(codes[:: max(1, len(codes) // (QUERIES * repeats))]):
            found = {}
            for name in list(methods)[:: 1 if number % 2 == 0 else -1]:
                start = time.perf_counter()
                found[name] = methods[name](query)
                if number:  # the first query compiles
                    best[name] = min(best[name], 1000 * (time.perf_counter() - start))
            same &= bool((found[OURS] == found[PEER]).all())
    finally:
        faiss.omp_set_num_threads(before)
    return best, same


def fit(codes, n_clusters, max_iter, n_threads):
    """Fit BinaryKMeans from one seeding."""
    model = BinaryKMeans(n_clusters, n_init=1, max_iter=max_iter, n_threads=n_threads, random_state=0)
    with PeakMemory() as memory, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the number of iterations is reported
        start = time.perf_counter()
        model.fit(codes)
        seconds = time.perf_counter() - start
    return Fit(seconds, model.n_iter_, memory.peak - memory.start, model.inertia_ / len(codes))


def import_faiss(command: str):
    try:
        import faiss
    except ImportError:
        raise MissingExtraError(f"{command} needs faiss: pip install 'bitmosaic[bench]'") from None
    return faiss

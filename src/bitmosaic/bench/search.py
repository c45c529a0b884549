"""Compare NeighborIndex with faiss's exact indexes on the same codes and queries.

The codes are those of a run, plus synthetic codes made from its features (`CodeMaker`). Queries are held-out codes of
the run, and synthetic codes that are not in the index.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bitmosaic.bench.memory import PeakMemory
from bitmosaic.bench.timing import best_times, faiss_on
from bitmosaic.errors import InvalidDataError
from bitmosaic.estimators.neighbor_index import NeighborIndex
from bitmosaic.io.threads import available_threads, in_order, row_ranges
from bitmosaic.run.folder import Run
from bitmosaic.views import exact_dtype, read_rows

OURS, PEER = "NeighborIndex", "faiss.IndexBinaryFlat"
HELD_OUT = 1000  # codes of the run used as queries, and number of synthetic queries
CHECKED = 3  # queries whose results are compared with a full sort in NumPy
SINGLE = 50  # number of single queries
RADIUS = 6

Progress = Callable[[str, int, int], None]
Search = Callable[[np.ndarray], list[np.ndarray]]  # queries -> sorted distances of each query


@dataclass(frozen=True)
class Codes:
    """The codes to search in, and the queries."""

    codes: np.ndarray  # those of the run first, then synthetic ones
    queries: dict[str, np.ndarray]  # "held out" and "synthetic"
    seconds: float


@dataclass
class Result:
    """The best time of each method for one kind of query, in seconds per query, and whether the results agree."""

    n_codes: int
    queries: str
    question: str
    at_once: int  # queries per call
    seconds: dict[str, float]
    same: bool

    @property
    def ratio(self) -> float:
        return self.seconds[PEER] / self.seconds[OURS]


@dataclass
class Built:
    """Cost of building an index."""

    n_codes: int
    seconds: float
    n_bytes: int
    peak_bytes: int  # above the memory before
    same_rows: bool  # same results as a full sort with ties by lowest row


# ---- synthetic codes from the features of a run

NEAREST = 10  # a row is moved toward one of this number of neighbors
NOISE, N_NOISES = 0.5, 4096  # in standard deviations of each column; number of noise rows, which are reused
SAMPLE = 5000  # rows used to estimate the standard deviations
ROWS_PER_PIECE = 1024


class CodeMaker:
    """Make synthetic codes from rows of a run. They depend on the seed, not on the number of threads."""

    def __init__(self, run: Run, rows: np.ndarray, seed: int = 0, n_threads: int | None = None):
        self.run, self.rows, self.seed, self.n_threads = run, rows, seed, available_threads(n_threads)
        codes = run.column("codes")[rows]
        _, near = NeighborIndex(codes, n_threads).kneighbors(codes, min(NEAREST + 1, len(rows)))
        self._near = near  # (m, ≤ 11), contains the row itself or one with an equal code
        rng = np.random.default_rng([seed, 0])
        sample = rows[np.sort(rng.choice(len(rows), min(SAMPLE, len(rows)), replace=False))]
        self._noises = []
        for array in run.views.arrays:
            spread = np.nanstd(read_rows(array, sample, exact_dtype(array)), axis=0)
            noises = rng.standard_normal((N_NOISES, array.shape[1]), np.float32)
            self._noises.append(noises * (NOISE * spread).astype(np.float32))

    def make(self, n: int, stream: int = 0, progress: Callable[[int, int], None] = lambda done, total: None):
        """n codes (n, b) uint8. A larger n only appends codes. Each `stream` gives different codes."""
        codes = np.empty((n, self.run.column("codes").shape[1]), np.uint8)

        def encode(piece):
            codes[piece] = self.run.model.transform(self._mixtures(piece, stream))
            return piece.stop

        for done in in_order(encode, row_ranges(n, ROWS_PER_PIECE), self.n_threads):
            progress(done, n)
        return codes

    def _mixtures(self, piece: slice, stream: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng([self.seed, 1 + stream, piece.start])
        places, noises = rng.integers(len(self.rows), size=ROWS_PER_PIECE), rng.integers(N_NOISES, size=ROWS_PER_PIECE)
        others = self._near[places, rng.integers(self._near.shape[1], size=ROWS_PER_PIECE)]
        shares, count = rng.random((ROWS_PER_PIECE, 1), np.float32), piece.stop - piece.start
        (places, from_places), (others, from_others) = (  # views are read in row order
            np.unique(rows[:count], return_inverse=True) for rows in (places, others)
        )
        mixed = {}
        for name, array, noise in zip(self.run.views.names, self.run.views.arrays, self._noises, strict=True):
            first = read_rows(array, self.rows[places], exact_dtype(array))[from_places]
            second = read_rows(array, self.rows[others], exact_dtype(array))[from_others]
            second -= first
            second *= shares[:count]
            second += first
            second += noise[noises[:count]]
            mixed[name] = second
        return mixed


# ---- the measurement


def make_codes(run: Run, n: int, seed: int, n_threads: int, progress: Progress) -> Codes:
    """n codes, of the run and synthetic, and queries that are not among them."""
    real = run.column("codes")
    if len(real) < 2 * HELD_OUT:
        raise InvalidDataError(
            f"bench search needs a run of at least {2 * HELD_OUT:,} images; this one has {len(real):,}."
        )
    begun = time.perf_counter()
    order = np.random.default_rng(seed).permutation(len(real))
    held, rest = np.sort(order[:HELD_OUT]), np.sort(order[HELD_OUT:])
    maker = CodeMaker(run, rest, seed, n_threads)
    made = maker.make(max(n - len(rest), 0), 0, lambda done, total: progress("making codes", done, total))
    queries = {"held out": np.array(real[held]), "synthetic": maker.make(HELD_OUT, 1)}
    return Codes(np.concatenate([real[rest[:n]], made]), queries, time.perf_counter() - begun)


def measure(
    codes: Codes,
    n_codes: list[int],
    ks: list[int],
    n_queries: int,
    repeats: int,
    n_threads: int,
    progress: Progress,
) -> tuple[list[Built], list[Result]]:
    """The best times of all queries with both methods."""
    builds, results = [], []
    questions: list[tuple[str, int]] = [*((f"k = {k}", k) for k in ks), (f"radius {RADIUS}", 0)]
    with faiss_on(n_threads) as faiss:
        for n in n_codes:
            some = np.ascontiguousarray(codes.codes[:n])
            built, index = _build(some, codes.queries["held out"][:CHECKED], n_threads)
            builds.append(built)
            flat = faiss.IndexBinaryFlat(8 * some.shape[1])
            flat.add(some)
            for number, (question, k) in enumerate(questions):
                progress(f"searching {n:,} codes", number, len(questions))
                for name, queries in codes.queries.items():
                    for at_once in (min(n_queries, len(queries)), 1):
                        seconds, same = _time(_methods(index, flat, k), queries, at_once, repeats)
                        results.append(Result(n, name, question, at_once, seconds, same))
            progress(f"searching {n:,} codes", len(questions), len(questions))
    return builds, results


def _build(codes: np.ndarray, checked: np.ndarray, n_threads: int) -> tuple[Built, NeighborIndex]:
    NeighborIndex(codes[:300_000], n_threads)  # compile before timing
    with PeakMemory() as memory:
        start = time.perf_counter()
        index = NeighborIndex(codes, n_threads)
        seconds = time.perf_counter() - start
    rows = index.kneighbors(checked, min(100, len(codes)), return_distance=False)
    expected = [np.argsort(np.bitwise_count(codes ^ code).sum(1), kind="stable")[: rows.shape[1]] for code in checked]
    peak = memory.peak - memory.start
    return Built(len(codes), seconds, index.nbytes, peak, bool(np.array_equal(rows, expected))), index


def _methods(index: NeighborIndex, flat: Any, k: int) -> dict[str, Search]:
    """k nearest, or with k = 0 all within the radius."""
    if k:
        return {OURS: lambda some: list(index.kneighbors(some, k)[0]), PEER: lambda some: list(flat.search(some, k)[0])}

    def in_range(some: np.ndarray) -> list[np.ndarray]:
        ends, distances, _ = flat.range_search(some, RADIUS + 1)  # faiss excludes the radius itself
        return [np.sort(distances[a:b]) for a, b in zip(ends[:-1].astype(int), ends[1:].astype(int), strict=True)]

    return {OURS: lambda some: list(index.radius_neighbors(some, RADIUS)[0]), PEER: in_range}


def _time(methods: dict[str, Search], queries: np.ndarray, at_once: int, repeats: int) -> tuple[dict[str, float], bool]:
    """Seconds per query of each method, and whether all distances are equal."""
    asked = [queries[:at_once]] if at_once > 1 else [queries[[i]] for i in range(min(SINGLE, len(queries)))]
    for search in methods.values():
        search(queries[:1])  # compile before timing

    def answers(search: Search) -> list[np.ndarray]:
        return [distances for some in asked for distances in search(some)]

    works = {name: partial(answers, search) for name, search in methods.items()}
    seconds, found = best_times(works, repeats, lambda *_: None)
    n_queries = sum(map(len, asked))
    same = all(map(np.array_equal, found[OURS], found[PEER]))
    return {name: best / n_queries for name, best in seconds.items()}, same

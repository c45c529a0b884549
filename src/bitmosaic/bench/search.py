"""NeighborIndex beside faiss's exact indexes on the same codes and queries, in one run.

Codes are those of a run and as many made from its features as are asked for (`made_codes.py`). Queries are real codes
that were held out, and made ones that are not in the index.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bitmosaic.bench.choices import import_faiss
from bitmosaic.bench.made_codes import CodeMaker
from bitmosaic.bench.memory import PeakMemory
from bitmosaic.errors import InvalidDataError
from bitmosaic.files import whole_file
from bitmosaic.neighbor_index import NeighborIndex
from bitmosaic.neighbours import nearest_codes
from bitmosaic.npy import load_npy
from bitmosaic.run import Run

OURS, PEER, HASHES = "NeighborIndex", "faiss.IndexBinaryFlat", "faiss.IndexBinaryMultiHash"
N_HASHES = 4
HELD_OUT = 1000  # real codes; so many are made as queries, too
CHECKED = 3  # queries whose rows are compared with a sort of all distances in NumPy
SINGLE, SECONDS = 50, 20.0  # queries asked one by one; a contestant whose turn took longer has no second one
TENTH = 10
GROWTH = 16  # the codes of 1/16 of the rows, made as many as all, are compared with those of all
RADIUS = 6

Progress = Callable[[str, int, int], None]
Search = Callable[[np.ndarray], list[np.ndarray]]  # queries -> for each the distances found, sorted


@dataclass(frozen=True)
class Codes:
    """What is searched, and what for."""

    codes: np.ndarray  # the real ones first
    queries: dict[str, np.ndarray]  # "held out" and "made"
    likeness: dict[str, list[float]]  # how far the 10th neighbours of the held-out codes are, among several codes
    seconds: float


@dataclass
class Result:
    """The best time of each contestant for one question, in seconds a query, and whether all found the same."""

    n_codes: int
    queries: str
    question: str
    at_once: int  # queries asked together
    seconds: dict[str, float] = field(default_factory=dict)
    same: bool = True

    @property
    def ratio(self) -> float:
        return self.seconds[PEER] / self.seconds[OURS]


@dataclass
class Built:
    """What an index of so many codes took."""

    n_codes: int
    seconds: float
    n_bytes: int
    peak_bytes: int  # above what was there before
    same_rows: bool  # as a sort of all distances gives them, ties by lowest row


def make_codes(run: Run, n: int, seed: int, n_threads: int, kept: Path | None, progress: Progress) -> Codes:
    """n codes, real and made, and queries that are not among them. Made codes are kept in a .npy file, if it is given,
    and taken from there the next time."""
    real = run.column("codes")
    if len(real) < 2 * HELD_OUT:
        raise InvalidDataError(
            f"bench search needs a run of {2 * HELD_OUT:,} pictures or more; this has {len(real):,}."
        )
    begun = time.perf_counter()
    order = np.random.default_rng(seed).permutation(len(real))
    held, rest = np.sort(order[:HELD_OUT]), np.sort(order[HELD_OUT:])
    maker = CodeMaker(run, rest, seed, n_threads)
    made = _made(maker, max(n - len(rest), 0), kept, lambda done, total: progress("making codes", done, total))
    queries = {"held out": np.array(real[held]), "made": maker.make(HELD_OUT, 1)}
    few = rest[::GROWTH]
    sets = {
        f"{len(few):,} real codes": real[few],
        f"{len(rest):,} real codes": real[rest],
        f"{len(rest):,} made of {len(rest):,}": maker.make(len(rest), 2),
        f"{len(rest):,} made of {len(few):,}": CodeMaker(run, few, seed, n_threads).make(len(rest), 3),
        f"{n:,}, those to be searched": (codes := np.concatenate([real[rest[:n]], made])),
    }
    likeness = {name: _tenths(some, queries["held out"], n_threads) for name, some in sets.items()}
    return Codes(codes, queries, likeness, time.perf_counter() - begun)


def _made(maker: CodeMaker, n: int, kept: Path | None, progress: Callable[[int, int], None]) -> np.ndarray:
    if kept is None:
        return maker.make(n, 0, progress)
    if kept.exists():
        codes, some = load_npy(kept), min(n, HELD_OUT)
        if len(codes) < n or not np.array_equal(codes[:some], maker.make(some)):
            raise InvalidDataError(
                f"{kept} must hold codes made of this run, {n:,} or more; it holds others. Remove it."
            )
        return codes[:n]
    codes = maker.make(n, 0, progress)
    with whole_file(kept) as file:
        np.lib.format.write_array(file, codes, allow_pickle=False)
    return codes


def _tenths(codes: np.ndarray, queries: np.ndarray, n_threads: int) -> list[float]:
    """Mean, 5th, 50th and 95th percentile."""
    distances = nearest_codes(codes, queries, TENTH, n_threads)[0][:, -1]
    return [float(distances.mean()), *np.percentile(distances, [5, 50, 95]).tolist()]


def measure(
    codes: Codes,
    n_codes: list[int],
    ks: list[int],
    n_queries: int,
    repeats: int,
    n_threads: int,
    hashes: bool,
    progress: Progress,
) -> tuple[list[Built], list[Result]]:
    """Every question to every contestant in turn, the order reversed each time; the best time of each counts."""
    faiss = import_faiss("bench search")
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(n_threads)
    builds, results = [], []
    try:
        for n in n_codes:
            some = np.ascontiguousarray(codes.codes[:n])
            built, index = _build(some, codes.queries["held out"][:CHECKED], n_threads)
            builds.append(built)
            peers = {PEER: faiss.IndexBinaryFlat(8 * some.shape[1])}
            if hashes:
                peers[HASHES] = faiss.IndexBinaryMultiHash(8 * some.shape[1], N_HASHES, 8 * some.shape[1] // N_HASHES)
            for peer in peers.values():
                peer.add(some)
            questions: list[tuple[str, int]] = [*((f"k = {k}", k) for k in ks), (f"radius {RADIUS}", 0)]
            for number, (question, k) in enumerate(questions):
                progress(f"searching {n:,} codes", number, len(questions))
                contestants = _contestants(index, peers, k)
                for name, queries in codes.queries.items():
                    for at_once in (min(n_queries, len(queries)), 1):
                        result = Result(n, name, question, at_once)
                        _compete(contestants, queries, result, repeats)
                        results.append(result)
            progress(f"searching {n:,} codes", len(questions), len(questions))
    finally:
        faiss.omp_set_num_threads(before)
    return builds, results


def _build(codes: np.ndarray, checked: np.ndarray, n_threads: int) -> tuple[Built, NeighborIndex]:
    NeighborIndex(codes[:300_000], n_threads)  # compiled before the clock starts
    with PeakMemory() as memory:
        start = time.perf_counter()
        index = NeighborIndex(codes, n_threads)
        seconds = time.perf_counter() - start
    rows = index.kneighbors(checked, min(100, len(codes)), return_distance=False)
    expected = [np.argsort(np.bitwise_count(codes ^ code).sum(1), kind="stable")[: rows.shape[1]] for code in checked]
    peak = memory.peak - memory.start
    return Built(len(codes), seconds, index.nbytes, peak, bool(np.array_equal(rows, expected))), index


def _contestants(index: NeighborIndex, peers: dict[str, Any], k: int) -> dict[str, Search]:
    """k nearest, or with k = 0 all within the radius. A hash is asked for a radius only: there it can be exact."""
    flat = peers[PEER]
    if k:
        return {OURS: lambda some: list(index.kneighbors(some, k)[0]), PEER: lambda some: list(flat.search(some, k)[0])}

    def in_range(peer: Any) -> Search:
        def search(some):
            ends, distances, _ = peer.range_search(some, RADIUS + 1)  # faiss: less than
            return [np.sort(distances[a:b]) for a, b in zip(ends[:-1].astype(int), ends[1:].astype(int), strict=True)]

        return search

    contestants = {OURS: lambda some: list(index.radius_neighbors(some, RADIUS)[0])} | {PEER: in_range(flat)}
    for name, peer in peers.items():
        if name != PEER:
            peer.nflip = RADIUS // N_HASHES  # of so many parts, one differs in at most so many bits: it is exact
            contestants[name] = in_range(peer)
    return contestants


def _compete(contestants: dict[str, Search], queries: np.ndarray, result: Result, repeats: int) -> None:
    several = result.at_once > 1
    asked = [queries[: result.at_once]] if several else [queries[[i]] for i in range(min(SINGLE, len(queries)))]
    found: dict[str, list[np.ndarray]] = {}
    slow = set()
    for search in contestants.values():
        search(queries[:1])  # compiled before the clock starts
    for turn in range(repeats):
        for name in list(contestants)[:: 1 if turn % 2 == 0 else -1]:
            if name in slow:
                continue
            start = time.perf_counter()
            found[name] = [distances for some in asked for distances in contestants[name](some)]
            seconds = time.perf_counter() - start
            slow |= {name} if seconds > SECONDS else set()
            a_query = seconds / sum(map(len, asked))
            result.seconds[name] = min(a_query, result.seconds.get(name, np.inf))
    for name in contestants:
        result.same &= all(map(np.array_equal, found[OURS], found[name]))

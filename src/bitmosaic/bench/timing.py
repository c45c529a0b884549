"""Fair timings of several methods on one machine, and faiss, with which several benchmarks compare."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from bitmosaic.errors import import_extra


def best_times(
    methods: Mapping[str, Callable[[], Any]], repeats: int, progress: Callable[[str, int, int], None]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Time all methods alternately, in reversed order each time: the best seconds of each, and its last result."""
    seconds, results = dict.fromkeys(methods, np.inf), {}
    for repeat in range(repeats):
        for done, name in enumerate(list(methods)[:: 1 if repeat % 2 == 0 else -1]):
            progress("measuring", len(methods) * repeat + done, len(methods) * repeats)
            start = time.perf_counter()
            results[name] = methods[name]()
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    progress("measuring", len(methods) * repeats, len(methods) * repeats)
    return seconds, results


@contextmanager
def faiss_on(n_threads: int) -> Iterator[Any]:
    """The module faiss, on this number of threads inside the block."""
    faiss = import_extra("faiss", "bench", "This benchmark")
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(n_threads)
    try:
        yield faiss
    finally:
        faiss.omp_set_num_threads(before)

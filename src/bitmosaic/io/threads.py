"""Cores and memory of the machine, a thread pool that returns results in order, and the options of Numba kernels.

The result must not depend on the number of threads. So the work is split into fixed pieces, BLAS runs on one thread
inside a piece, and the caller sums the results in the order of the pieces. Kernels release the GIL.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

from threadpoolctl import threadpool_limits

Item = TypeVar("Item")
Result = TypeVar("Result")
MOST_THREADS = 1024
OWN_GROUPS, GROUPS = "/proc/self/cgroup", "/sys/fs/cgroup"


def available_threads(n_threads: int | None = None) -> int:
    """The number of threads to use: `n_threads` up to MOST_THREADS, or by default all cores of this process."""
    if n_threads is not None:
        return min(n_threads, MOST_THREADS)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def machine_memory() -> int:
    """Bytes of memory of the machine, or the limit of its container if that is lower. 8 GB on Windows (unknown)."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**33
    return min([whole, *_container_limits()])


def _container_limits() -> Iterator[int]:
    """Memory limits of this process's control groups and those around them, on Linux (cgroup v1 and v2)."""
    try:
        groups = Path(OWN_GROUPS).read_text().splitlines()
    except OSError:
        return
    for group in groups:
        _, controllers, place = group.split(":", 2)
        root, name = (GROUPS, "memory.max") if not controllers else (f"{GROUPS}/memory", "memory.limit_in_bytes")
        if controllers and "memory" not in controllers.split(","):
            continue
        folder = Path(root, place.lstrip("/"))
        for around in (folder, *folder.parents):
            if around.is_relative_to(root):
                with suppress(OSError, ValueError):  # no such file, or "max"
                    yield int((around / name).read_text())


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """A context in which BLAS and LAPACK use one thread.

    The limit is global to the process: the first thread that enters sets it, the last one that leaves restores it.
    """
    global _blas_limit, _inside
    with _entering:
        if _inside == 0:
            _blas_limit = threadpool_limits(limits=1, user_api="blas")
        _inside += 1
    try:
        yield
    finally:
        with _entering:
            _inside -= 1
            if _inside == 0 and _blas_limit is not None:
                _blas_limit.restore_original_limits()


_entering = threading.Lock()
_inside, _blas_limit = 0, None


def in_order(work: Callable[[Item], Result], items: Iterable[Item], n_threads: int) -> Iterator[Result]:
    """Yield ``work(item)`` in the order of the items, computed by `n_threads` threads.

    At most `n_threads` + 1 results are computed ahead of the caller, so memory stays bounded. A nested call, from
    inside `work`, runs on its own thread only.
    """
    if n_threads == 1 or getattr(_this_thread, "is_worker", False):
        yield from map(work, items)
        return
    pool = _workers(n_threads)
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > n_threads:
                yield _first(waiting)
        while waiting:
            yield _first(waiting)
    finally:
        for future in waiting:
            future.cancel()
        # Garbage collection may close this generator on a worker thread, which must not wait for itself.
        if not getattr(_this_thread, "is_worker", False):
            wait(waiting)


def _first(waiting: deque[Future[Result]]) -> Result:
    """The first result. Its future stays in `waiting` until it is done."""
    result = waiting[0].result()
    waiting.popleft()
    return result


_this_thread = threading.local()
_pools: dict[int, ThreadPoolExecutor] = {}
_opening = threading.Lock()


def _workers(n_threads: int) -> ThreadPoolExecutor:
    """A pool that is kept open: starting threads for each short pass of a fit would take as long as the pass."""
    with _opening:
        if n_threads not in _pools:
            _pools[n_threads] = ThreadPoolExecutor(n_threads, initializer=_become_worker)
        return _pools[n_threads]


def _become_worker() -> None:
    _this_thread.is_worker = True


def _forget_workers() -> None:
    """After a fork: the child has no worker threads, and no thread would release a lock that was held."""
    global _opening, _entering, _this_thread
    _pools.clear()
    _opening, _entering, _this_thread = threading.Lock(), threading.Lock(), threading.local()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_workers)


def row_ranges(n_rows: int, step: int) -> Iterator[slice]:
    """Split ``range(n_rows)`` into slices of `step` rows. The last one may be shorter."""
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))


def ahead(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items. A thread computes the next one while the caller uses the current one."""
    iterator = iter(items)
    nothing = object()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(next, iterator, nothing)
        while (item := future.result()) is not nothing:
            future = pool.submit(next, iterator, nothing)
            yield item  # type: ignore[misc]


def kernel(**options):
    """Numba's njit without the GIL: compiled on first use, and cached on disk if Numba finds a writable folder."""
    from numba import njit

    def compiled(function):
        try:
            return njit(cache=True, nogil=True, **options)(function)
        except RuntimeError:
            return njit(nogil=True, **options)(function)

    return compiled

"""What the machine has, and every thread of the numerics: fixed pieces of work, results taken in order.

BLAS runs on one thread inside a piece, so a piece gives the same bits whatever the number of threads; the
caller adds the results up in the order of the pieces. Kernels release the GIL, hence plain threads.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from threadpoolctl import threadpool_limits

Item = TypeVar("Item")
Result = TypeVar("Result")
MOST_THREADS = 1024  # no machine has more to gain, and what is asked of the memory is asked for each number of them
ANSWER_HOLDS = 1.0  # seconds
OWN_GROUPS, GROUPS = "/proc/self/cgroup", "/sys/fs/cgroup"


def available_threads(n_threads: int | None = None) -> int:
    """The number of threads to use: as asked, within reason, or every core this process may run on."""
    if n_threads is not None:
        return min(n_threads, MOST_THREADS)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def machine_memory() -> int:
    """Bytes of memory that this process may have: the machine's, or its container's; 8 GB where nobody says.

    Readers ask for every part of a file, of which a few bytes may claim a million, and to ask the system takes longer
    than to read one. So an answer holds for a moment, and no longer: the limits of a container may be changed.
    """
    global _told
    if _told is None or time.monotonic() >= _told[0] + ANSWER_HOLDS:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**33
        _told = time.monotonic(), min([whole, *_container_limits()])
    return _told[1]


_told: tuple[float, int] | None = None  # when the system was last asked for its memory, and what it has said


def _container_limits() -> Iterator[int]:
    """Of the control group of this process and those around it, as Linux tells them in either version."""
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
    """A context in which BLAS and LAPACK keep to the calling thread.

    The limit is the process's own: where several threads are inside, it is set by the first and lifted by the last.
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

    At most `n_threads` + 1 results are under way or wait to be taken, so memory stays bounded. Work that itself calls
    this runs on its own thread alone.
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
        if not getattr(_this_thread, "is_worker", False):  # where garbage is collected, a thread may be its own work's
            wait(waiting)


def _first(waiting: deque[Future[Result]]) -> Result:
    """The first result; only then is its work no longer among what is waited for."""
    result = waiting[0].result()
    waiting.popleft()
    return result


_this_thread = threading.local()
_pools: dict[int, ThreadPoolExecutor] = {}
_opening = threading.Lock()


def _workers(n_threads: int) -> ThreadPoolExecutor:
    """Threads that stay: starting them for each of a fit's hundreds of short passes would take as long as the work."""
    with _opening:
        if n_threads not in _pools:
            _pools[n_threads] = ThreadPoolExecutor(n_threads, initializer=_become_worker)
        return _pools[n_threads]


def _become_worker() -> None:
    _this_thread.is_worker = True


def _forget_workers() -> None:
    """A forked child has no threads but its own, and no other thread to open a lock."""
    global _opening, _entering, _this_thread
    _pools.clear()
    _opening, _entering, _this_thread = threading.Lock(), threading.Lock(), threading.local()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_workers)


def row_ranges(n_rows: int, step: int) -> Iterator[slice]:
    """Cut ``range(n_rows)`` into slices of `step` rows; the last one may be shorter."""
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))


def ahead(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items, the next one being made in a thread while the caller is busy with the last."""
    iterator = iter(items)
    nothing = object()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(next, iterator, nothing)
        while (item := future.result()) is not nothing:
            future = pool.submit(next, iterator, nothing)
            yield item  # type: ignore[misc]

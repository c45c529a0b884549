"""Threads: results in order, bounded memory, errors passed to the caller; memory of the machine."""

import os
import signal
import threading
import time
from concurrent.futures import Future

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info

from bitmosaic import HSIC
from bitmosaic.io import threads
from bitmosaic.io.threads import available_threads, in_order, machine_memory, row_ranges, single_threaded_blas


@pytest.mark.parametrize("n_threads", [1, 3])
def test_results_come_in_the_order_of_the_items(n_threads):
    def slow_at_first(i):
        time.sleep(0.005 if i % 4 == 0 else 0)
        return i * i

    assert list(in_order(slow_at_first, range(25), n_threads)) == [i * i for i in range(25)]
    assert list(in_order(slow_at_first, [], n_threads)) == []


def test_the_number_of_threads_is_limited():
    assert [available_threads(n) for n in (1, 3, 2**62)] == [1, 3, 1024]
    assert available_threads() >= 1
    X = np.random.default_rng(0).normal(size=(60, 5))
    assert len(HSIC(3, n_threads=2**62, random_state=0).fit(X).labels_) == 60


def test_two_threads_work_at_the_same_time():
    both = threading.Barrier(2, timeout=10)  # raises unless two threads meet
    assert list(in_order(lambda i: both.wait() in (0, 1), range(4), 2)) == [True] * 4


def test_one_thread_works_on_the_calling_thread():
    assert set(in_order(lambda i: threading.get_ident(), range(3), 1)) == {threading.get_ident()}


@pytest.mark.parametrize("n_threads", [1, 3])
def test_at_most_one_result_more_than_threads_is_waiting(n_threads):
    begun, lock = [0], threading.Lock()

    def work(i):
        with lock:
            begun[0] += 1
        return i

    ahead = []
    for taken, _ in enumerate(in_order(work, range(40), n_threads), start=1):
        time.sleep(0.002)  # a slow caller: unlimited threads would run far ahead
        ahead.append(begun[0] - taken)
    assert begun[0] == 40
    assert max(ahead) <= n_threads


def test_items_are_taken_only_as_they_are_needed():
    taken = []

    def items():
        for i in range(100):
            taken.append(i)
            yield i

    results = in_order(lambda i: i, items(), 2)
    assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
    results.close()
    assert len(taken) <= 5 + 3


@pytest.mark.parametrize("n_threads", [1, 3])
def test_an_error_is_raised_in_the_caller_and_cancels_the_rest(n_threads):
    begun = []

    def work(i):
        begun.append(i)
        if i == 5:
            raise RuntimeError("block 5 is broken")
        return i

    got = []

    def take_all():
        for result in in_order(work, range(1000), n_threads):
            got.append(result)

    with pytest.raises(RuntimeError, match="block 5 is broken"):
        take_all()
    assert got == [0, 1, 2, 3, 4]
    assert max(begun) <= 5 + n_threads


@given(st.integers(0, 500), st.integers(1, 600))
def test_row_ranges_cover_every_row_once_and_in_order(n_rows, step):
    ranges = list(row_ranges(n_rows, step))
    rows = [row for part in ranges for row in range(n_rows)[part]]
    assert rows == list(range(n_rows))
    assert all(part.stop - part.start == step for part in ranges[:-1])
    assert all(0 < part.stop - part.start <= step and part.stop <= n_rows for part in ranges)


def test_blas_uses_one_thread_inside_the_context_only():
    def n_blas_threads():
        np.ones((8, 8)) @ np.ones((8, 8))
        return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

    before = n_blas_threads()
    with single_threaded_blas():
        assert set(n_blas_threads()) <= {1}
    assert n_blas_threads() == before


def test_nested_calls_do_not_deadlock():
    def outer(i):
        return sum(in_order(lambda j: 10 * i + j, range(3), 2))

    assert list(in_order(outer, range(6), 2)) == [30 * i + 3 for i in range(6)]


def test_an_interrupt_is_raised_after_running_work_has_ended(monkeypatch):
    running = threading.Event()

    def work(i):
        running.set()
        time.sleep(0.2)
        running.clear()

    def interrupted(future, real=Future.result):
        running.wait(5)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(in_order(work, range(2), 2))
    assert not running.is_set()


def test_closing_the_results_inside_of_work_does_not_deadlock():
    results = in_order(lambda i: i or results.close(), range(3), 2)
    # The first piece closes the generator that waits for it.
    with pytest.raises(ValueError, match="generator already executing"):
        list(results)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_has_its_own_threads():
    assert list(in_order(abs, range(4), 2)) == [0, 1, 2, 3]
    child = os.fork()
    if child == 0:
        os._exit(0 if list(in_order(abs, range(4), 2)) == [0, 1, 2, 3] else 1)
    deadline = time.monotonic() + 20
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    if ended == (0, 0):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended == (child, 0)


# ---- the memory of the machine


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A fake system: its control groups are files in a temporary folder."""
    monkeypatch.setattr(threads, "OWN_GROUPS", str(tmp_path / "own"))
    monkeypatch.setattr(threads, "GROUPS", str(tmp_path / "groups"))
    machine_memory.cache_clear()
    yield tmp_path
    machine_memory.cache_clear()


def limits(system, **files):
    for name, limit in files.items():
        path = system / "groups" / name.replace("__", "/")
        path.mkdir(parents=True, exist_ok=True)
        (path / ("memory.limit_in_bytes" if name.startswith("memory") else "memory.max")).write_text(f"{limit}\n")


def whole_memory():
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_memory_without_a_container_is_that_of_the_machine(system):
    assert machine_memory() == whole_memory()


def test_cores_and_memory_have_a_default_on_systems_without_posix_calls(system, monkeypatch):
    monkeypatch.delattr(os, "sysconf")
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert machine_memory() == 2**33
    assert available_threads() == os.cpu_count()


@pytest.mark.parametrize(("inner", "outer"), [("max", 5_000_000), (5_000_000, 6_000_000)])
def test_memory_is_the_limit_of_the_container_or_an_outer_one(system, inner, outer):
    (system / "own").write_text("0::/outer/inner\n")
    limits(system, outer=outer, outer__inner=inner)
    assert machine_memory() == 5_000_000


def test_memory_limits_of_cgroup_v1_are_read(system):
    (system / "own").write_text("5:cpu,cpuacct:/other\n4:memory:/outer/inner\n")
    limits(system, memory__outer=3_000_000, memory__other=1)
    assert machine_memory() == 3_000_000

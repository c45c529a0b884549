"""Parts: functions mapped over parts of rows, tree reductions, and row positions."""

from itertools import pairwise

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import wait
from hypothesis import given, settings
from hypothesis import strategies as st

from bitmosaic.estimators.dask.clustering import farthest_of_all, farthest_part
from bitmosaic.estimators.dask.parts import Column, Parts, by_worker
from bitmosaic.estimators.dask.rows import culled
from bitmosaic.hamming.codes import Assignment
from bitmosaic.solver.blocks import Sums
from bitmosaic.solver.clustering import farthest_distinct


def one_part(const, values):
    """Return an array of a part, and sums whose rounding would depend on the order if they were not exact."""
    sums = Sums(10_000)
    sums.add([values * const, len(values)])
    return np.tile(values, 2), sums


def parts_of(client, n_parts, rows_each=3):
    return Parts(client, rows_each * np.arange(n_parts + 1))


@pytest.mark.parametrize("n_parts", [1, 40])
def test_the_total_does_not_depend_on_the_tree(client, n_parts):
    rng = np.random.default_rng(n_parts)
    parts, values = parts_of(client, n_parts), list(rng.uniform(-1, 1, (n_parts, 3)))
    expected = Sums(10_000)
    for row in values:
        expected.add([row * 0.1, 3])
    workers = list(rng.choice(["here", "there", ""], n_parts))
    for order in (np.arange(n_parts), rng.permutation(n_parts)):
        for known in ((), [workers[i] for i in order]):
            futures = parts.map("test", one_part, 0.1, [values[i] for i in order])
            found = parts.total("test", futures, known)
            for a, b in zip(found, expected.values(), strict=True):
                np.testing.assert_array_equal(a, b)


def test_a_column_stays_on_the_workers_in_the_order_of_the_parts(client):
    parts, values = parts_of(client, 20), list(np.random.default_rng(0).uniform(-1, 1, (20, 3)))
    column, (_, count) = parts.split_sums("test", parts.map("test", one_part, 1, values))
    assert count == 60
    np.testing.assert_array_equal(client.gather(column.futures), np.tile(values, 2))
    assert set(column.workers) == set(client.scheduler_info()["workers"])
    held = client.who_has(column.futures)
    assert all(worker in held[future.key] for worker, future in zip(column.workers, column.futures, strict=True))


def test_parts_are_grouped_by_worker():
    assert by_worker([1, 2, 3, 4, 5], ["a", "b", "a", "a", "b"]) == {"a": [1, 3, 4], "b": [2, 5]}
    assert by_worker([1, 2, 3], []) == {"": [1, 2, 3]}


def test_positions_start_at_zero_in_each_part():
    parts = Parts(None, [0, 10, 10, 12, 40])
    found = parts.positions(np.array([0, 9, 10, 11, 12, 39]))
    assert [rows.tolist() for rows in found] == [[0, 9], [], [0, 1], [0, 27]]
    assert [rows.tolist() for rows in parts.positions(np.array([10]))] == [[], [], [0], []]


def test_rows_taken_from_a_column_are_in_order(client):
    values = np.random.default_rng(0).integers(256, size=(60, 2), dtype=np.uint8)
    parts = Parts(client, [0, 5, 6, 59, 60])
    futures = client.scatter([values[a:b] for a, b in ((0, 5), (5, 6), (6, 59), (59, 60))], hash=False)
    for rows in ([0], [5], [4, 5, 6], [7, 58, 59], range(60)):
        taken = parts.take(Column(parts, futures, width=2), np.array(rows))
        np.testing.assert_array_equal(taken, values[np.array(rows)])


def test_parts_of_a_lost_worker_are_submitted_to_the_new_one(client):
    parts = parts_of(client, 4)
    there, _ = parts.split_sums("test", parts.map("test", one_part, 1, list(np.ones((4, 3)))))
    lost = Column(parts, there.futures, ["tcp://127.0.0.1:1", *there.workers[1:]])
    assert parts.workers_of([None, lost]) == there.workers
    futures = parts.map("test", one_part, 1, lost)
    wait(futures)
    assert parts.workers(futures) == there.workers


def test_a_worker_gets_the_graph_of_its_own_blocks_only():
    blocks = da.ones((10, 2), chunks=(1, 2)).map_blocks(np.negative).to_delayed().ravel()
    some = culled([blocks[3], blocks[7]])
    assert len(some[0].dask) < len(blocks[3].dask) / 2
    np.testing.assert_array_equal(dask.compute(*some, scheduler="sync"), -np.ones((2, 1, 2)))


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=40), st.integers(1, 6), st.data())
def test_the_farthest_codes_are_those_of_one_machine(rows, count, data):
    """Codes and distances with many ties, in parts merged in any order."""
    distances, codes = np.array(rows).T
    codes = codes[:, None].astype(np.uint8)
    expected = codes[farthest_distinct(codes, distances, count)]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(rows))))) or [len(rows)]
    parts = [
        farthest_part(count, codes[a:b], Assignment(codes, codes, distances[a:b]), a)
        for a, b in pairwise([0, *cuts, len(rows)])
        if b > a
    ]
    parts = data.draw(st.permutations(parts))
    half = len(parts) // 2
    some = [farthest_of_all(count, *parts[:half], None)] if half else []
    np.testing.assert_array_equal(farthest_of_all(count, *some, *parts[half:])[2], expected)

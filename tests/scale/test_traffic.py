"""What a fit on a cluster costs: bytes between workers, tasks, and what workers hold. None grows more than it must."""

import time
from functools import partial

import dask.array as da
import numpy as np
import pytest
from dask.sizeof import sizeof
from made_views import SMALL, as_dask, leave_rows_on_workers, planted, use_small_parts

from bitmosaic import HSIC
from bitmosaic.binary_kmeans import as_bytes
from bitmosaic.pruning import Assignment
from bitmosaic.scale import clustering
from bitmosaic.scale.blocks import ClusterBlocks
from bitmosaic.scale.clustering import ClusterProblem
from bitmosaic.scale.data import code_column
from bitmosaic.solver.steps import Frobenius
from bitmosaic.solver.sums import Sums

pytestmark = pytest.mark.filterwarnings("ignore:The objective still fell")
ROWS = 1024  # of a part
FEW, MANY = 5, 20  # parts
TASKS = 2.5  # for each part and step: one, one that keeps the rows, and a few that add up


def sent_to_workers(client):
    """Bytes that workers have sent to each other so far, as written to the wire."""

    def sent(dask_worker):
        new = sum(entry["compressed"] for entry in dask_worker.transfer_outgoing_log if entry["who"] in workers)
        dask_worker.transfer_outgoing_log.clear()  # it holds the last thousand only
        dask_worker.sent_before = getattr(dask_worker, "sent_before", 0) + new
        return dask_worker.sent_before

    workers = set(client.scheduler_info()["workers"])
    return sum(client.run(sent).values())


def computed(client):
    """Tasks that have been computed so far."""

    def count(dask_scheduler):
        return sum(prefix.state_counts["memory"] for prefix in dask_scheduler.task_prefixes.values())

    return client.run_on_scheduler(count)


def held(client):
    """Bytes of results on the workers."""
    return sum(client.run(lambda dask_worker: sum(map(sizeof, dask_worker.data.values()))).values())


def random_codes(block_id):
    return np.random.default_rng(block_id[0]).integers(256, size=(ROWS, 16), dtype=np.uint8)


def clustering_round(client, n_parts):
    """Bytes and tasks of one round of centers and assignment, the third."""
    chunks = ((ROWS,) * n_parts, (16,))
    codes = code_column(da.map_blocks(random_codes, chunks=chunks, meta=np.empty((0, 0), np.uint8)), as_bytes)
    problem, rng, step, S = ClusterProblem(codes, Frobenius(np.ones(128))), np.random.default_rng(0), None, None
    for _ in range(3):
        before = sent_to_workers(client), computed(client)
        Q = rng.choice(np.array([-1, 1], np.int8), (100, 128))
        step = problem.step(Q, np.ones(128), step, step and step.labels, S)
        S = step.S
    return sent_to_workers(client) - before[0], computed(client) - before[1]


def training_iteration(client, n_parts, train_size):
    """Bytes and tasks of the second iteration: new codes, their sums, and two rounds of clustering."""
    seen = {}

    def look(done, total):
        seen[done] = sent_to_workers(client), computed(client)

    parameters = SMALL | {"n_bits": 128, "n_anchors": 60, "tol": 0, "train_size": train_size}
    HSIC(**parameters).fit(as_dask(partial(planted, ROWS * n_parts), ROWS), progress=look)
    return seen[4][0] - seen[3][0], seen[4][1] - seen[3][1]


def test_bytes_between_workers_do_not_grow_with_the_rows_in_a_clustering_round(client):
    (few, _), (many, tasks) = clustering_round(client, FEW), clustering_round(client, MANY)
    assert many < 1.5 * max(few, 8 * 100 * 128)  # the sums of one worker
    assert tasks <= TASKS * MANY


@pytest.mark.parametrize(("train_size", "most"), [(1.0, TASKS), (0.5, 2 * TASKS)], ids=["all rows", "some rows"])
def test_bytes_between_workers_do_not_grow_with_the_rows_in_an_iteration(client, monkeypatch, train_size, most):
    use_small_parts(monkeypatch)
    leave_rows_on_workers(monkeypatch)
    (few, _), (many, tasks) = (training_iteration(client, n_parts, train_size) for n_parts in (FEW, MANY))
    assert many < 1.5 * max(few, 8 * 3 * 60 * 128)
    assert tasks <= most * MANY * 4  # new codes, their sums, and two rounds


def gram_pass(client, n_parts, monkeypatch):
    """Bytes of the pass that adds up the products of all similarities."""
    seen = []
    add_up = ClusterBlocks.add_up

    def watched(blocks, work):
        before = sent_to_workers(client)
        total = add_up(blocks, work)
        seen.append(sent_to_workers(client) - before)
        return total

    monkeypatch.setattr(ClusterBlocks, "add_up", watched)
    parameters = SMALL | {"n_anchors": 60, "max_iter": 1}
    HSIC(**parameters).fit(as_dask(partial(planted, ROWS * n_parts), ROWS))
    monkeypatch.undo()
    return max(seen)


def test_bytes_between_workers_do_not_grow_with_the_rows_while_products_are_added_up(client, monkeypatch):
    def measured(n_parts):
        use_small_parts(monkeypatch)
        leave_rows_on_workers(monkeypatch)
        return gram_pass(client, n_parts, monkeypatch)

    few, many = measured(FEW), measured(MANY)
    assert many < 1.5 * max(few, 8 * (3 * 60) ** 2)


def test_the_scheduler_forgets_old_rounds(client, monkeypatch):
    monkeypatch.setattr(clustering, "CHAIN", 3)
    chunks = ((ROWS,) * FEW, (16,))
    codes = code_column(da.map_blocks(random_codes, chunks=chunks, meta=np.empty((0, 0), np.uint8)), as_bytes)
    problem, rng, step = ClusterProblem(codes, Frobenius(np.ones(128))), np.random.default_rng(0), None
    known = []
    for _ in range(20):
        Q = rng.choice(np.array([-1, 1], np.int8), (10, 128))
        step = problem.step(Q, np.ones(128), step, step and step.labels, step and step.S)
        known.append(client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)))
    assert max(known) < 12 * FEW  # of 20 rounds with as many tasks each; it forgets when it has the time


def test_workers_hold_no_more_than_codes_and_labels(client, monkeypatch):
    use_small_parts(monkeypatch)
    n = ROWS * MANY
    model = HSIC(**SMALL | {"n_bits": 128, "train_size": 2000}).fit(as_dask(partial(planted, n), ROWS))
    end = time.monotonic() + 3
    while held(client) >= 21 * n and time.monotonic() < end:
        time.sleep(0.01)
    assert model.codes_.nbytes + model.labels_.nbytes == 20 * n <= held(client) < 21 * n


def test_dask_is_told_how_large_sums_and_assignments_are():
    sums, assignment = Sums(10), Assignment(np.zeros((4, 2), "u1"), np.zeros(5000, "i4"), np.zeros(5000, "i4"))
    sums.add([np.zeros((100, 128))])
    assert sizeof((None, sums)) >= 8 * 100 * 128
    assert sizeof(assignment) >= 8 * 5000

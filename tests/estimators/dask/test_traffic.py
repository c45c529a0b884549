"""Cost of a fit on a cluster: bytes between workers, number of tasks, and memory of the workers."""

from functools import partial

import dask.array as da
import numpy as np
import pytest
from dask.sizeof import sizeof
from made_views import SMALL, as_dask, leave_rows_on_workers, planted, soon, use_small_parts

from bitmosaic import HSIC
from bitmosaic.estimators.binary_kmeans import as_bytes
from bitmosaic.estimators.dask import clustering
from bitmosaic.estimators.dask.clustering import ClusterBlocks, ClusterProblem
from bitmosaic.estimators.dask.data import code_column
from bitmosaic.hamming.codes import Assignment
from bitmosaic.solver.blocks import Sums
from bitmosaic.solver.steps import Frobenius

pytestmark = pytest.mark.filterwarnings("ignore:The objective still fell")
ROWS = 1024  # of a part
FEW, MANY = 4, 12  # parts
TASKS = 2.5  # per part and step: one task, one that splits its result, and a few that merge


def sent_to_workers(client):
    """Bytes that workers have sent to each other so far."""

    def sent(dask_worker):
        new = sum(entry["compressed"] for entry in dask_worker.transfer_outgoing_log if entry["who"] in workers)
        dask_worker.transfer_outgoing_log.clear()  # Dask keeps only the last thousand entries
        dask_worker.sent_before = getattr(dask_worker, "sent_before", 0) + new
        return dask_worker.sent_before

    workers = set(client.scheduler_info()["workers"])
    return sum(client.run(sent).values())


def computed(client):
    """Number of tasks computed so far."""

    def count(dask_scheduler):
        return sum(prefix.state_counts["memory"] for prefix in dask_scheduler.task_prefixes.values())

    return client.run_on_scheduler(count)


def held(client):
    """Bytes of results on the workers."""
    return sum(client.run(lambda dask_worker: sum(map(sizeof, dask_worker.data.values()))).values())


def known_tasks(client):
    """Number of tasks that the scheduler knows."""
    return client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))


def random_codes(block_id):
    return np.random.default_rng(block_id[0]).integers(256, size=(ROWS, 16), dtype=np.uint8)


def clustering_round(client, n_parts):
    """Bytes and tasks of the third clustering round."""
    chunks = ((ROWS,) * n_parts, (16,))
    codes = code_column(client, da.map_blocks(random_codes, chunks=chunks, meta=np.empty((0, 0), np.uint8)), as_bytes)
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
    assert many < 1.5 * max(few, 8 * 100 * 128)  # size of the sums of one worker
    assert tasks <= TASKS * MANY


def test_bytes_between_workers_do_not_grow_with_the_rows_in_an_iteration(client, monkeypatch):
    use_small_parts(monkeypatch)
    leave_rows_on_workers(monkeypatch)
    (few, _), (many, tasks) = (training_iteration(client, n_parts, 0.5) for n_parts in (FEW, MANY))
    assert many < 1.5 * max(few, 12 * 3 * 60 * 128)  # sums in float64 and projections in float32
    assert tasks <= 2 * TASKS * MANY * 4  # new codes, their sums, and two rounds


def gram_pass(client, n_parts, monkeypatch):
    """Bytes of the pass that sums the products of all similarities."""
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


def test_bytes_between_workers_do_not_grow_with_the_rows_in_the_gram_pass(client, monkeypatch):
    def measured(n_parts):
        use_small_parts(monkeypatch)
        leave_rows_on_workers(monkeypatch)
        return gram_pass(client, n_parts, monkeypatch)

    few, many = measured(FEW), measured(MANY)
    assert many < 1.5 * max(few, 8 * (3 * 60) ** 2)


def test_the_scheduler_releases_old_rounds(client, monkeypatch):
    monkeypatch.setattr(clustering, "CHAIN", 3)
    chunks = ((ROWS,) * FEW, (16,))
    codes = code_column(client, da.map_blocks(random_codes, chunks=chunks, meta=np.empty((0, 0), np.uint8)), as_bytes)
    problem, rng, step = ClusterProblem(codes, Frobenius(np.ones(128))), np.random.default_rng(0), None
    for _ in range(12):
        Q = rng.choice(np.array([-1, 1], np.int8), (10, 128))
        step = problem.step(Q, np.ones(128), step, step and step.labels, step and step.S)
        assert soon(lambda: known_tasks(client) < 12 * FEW)  # a busy scheduler releases tasks late


def test_workers_hold_only_codes_and_labels(client, monkeypatch):
    use_small_parts(monkeypatch)
    n = ROWS * MANY
    model = HSIC(**SMALL | {"n_bits": 128, "train_size": 2000}).fit(as_dask(partial(planted, n), ROWS))
    soon(lambda: held(client) < 21 * n)
    assert model.codes_.nbytes + model.labels_.nbytes == 20 * n <= held(client) < 21 * n


def test_sizeof_includes_the_arrays_of_sums_and_assignments():
    sums, assignment = Sums(10), Assignment(np.zeros((4, 2), "u1"), np.zeros(5000, "i4"), np.zeros(5000, "i4"))
    sums.add([np.zeros((100, 128))])
    assert sizeof((None, sums)) >= 8 * 100 * 128
    assert sizeof(assignment) >= 8 * 5000

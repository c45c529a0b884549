"""Views that are made inside the blocks of Dask arrays, the same rows in memory, and both ways to learn from them."""

import os
import signal
import time
from functools import cache, partial

import dask.array as da
import numpy as np
from distributed.scheduler import ALL_TASK_STATES

from bitmosaic.scale import data as cluster_data
from bitmosaic.scale import rows as cluster_rows
from bitmosaic.solver import data as local_data
from planted_views import blobs, lacking

N = 5500
SMALL = {"n_clusters": 4, "n_bits": 32, "n_anchors": 40, "n_init": 2, "max_iter": 2, "cluster_iter": 2}
SMALL["random_state"] = 0


@cache
def planted(n=N, spread=0.7, dtype="f4", gaps=False):
    """Views of planted clusters; with `gaps`, some rows lack one. Not for writing."""
    views, _ = blobs(n, spread=spread, seed=1)
    if gaps:
        views["b"] = lacking(views["b"], slice(40, n, 7))
    if dtype == "i2":
        views = {name: np.rint(100 * X) for name, X in views.items()}
    return {name: X.astype(dtype) for name, X in views.items()}


FAINT = partial(planted)  # no clear clusters: codes and labels are easily upset
APART = partial(planted, spread=4.0)
GAPS = partial(planted, gaps=True)


def spoilt(make, view, row, column, value):
    """The views that `make()` gives, with one other value."""
    views = dict(make())
    views[view] = views[view].copy()
    views[view][row, column] = value
    return views


def as_dask(make, rows=1024, columns=-1, block=None):
    """The views that `make()` gives as Dask arrays with such chunks; a worker makes each block."""
    return {
        name: da.map_blocks(
            block or made_block,
            make=make,
            view=name,
            chunks=da.core.normalize_chunks((rows, columns), X.shape),
            meta=np.empty((0, 0), X.dtype),
        )
        for name, X in make().items()
    }


def made_block(make, view, block_info):
    return make()[view][tuple(slice(*edges) for edges in block_info[None]["array-location"])]


def troubled_block(make, view, block_info, marker, pid=None):
    """As :func:`made_block`. Once the marker is there, the block of row 4500 of view b is not: the disk is gone. Or the
    block of row 1500 presses Ctrl-C in the process `pid`, and others take their time."""
    start, stop = block_info[None]["array-location"][0]
    if view == "b" and marker.exists():
        if pid is None and start <= 4500 < stop:
            raise OSError("the disk is gone")
        if pid is not None and start <= 1500 < stop:
            os.kill(pid, signal.SIGINT)
        time.sleep(0 if pid is None else 0.5)
    return made_block(make, view, block_info)


def marking(marker, step):
    """A progress function that makes the marker when a fit has come so far."""
    return lambda done, total: marker.touch() if done == step else None


def use_small_parts(patch):
    """Parts of a block or more, so that a few thousand rows are several."""
    patch.setattr(cluster_rows, "LEAST_BLOCKS", 1)


def leave_rows_on_workers(patch):
    """Already so few rows as there are in these tests are learned from where they are."""
    for module in (cluster_data, local_data):
        patch.setattr(module, "FEW_ROWS", 2048)


def assert_same_fit(model, local):
    """What a fit on a cluster has learned, and what the fit on one machine has."""
    assert model.objective_history_ == local.objective_history_
    for name in ("cluster_centers_", "view_weights_", "bit_weights_", "labels_", "codes_"):
        found, expected = np.asarray(getattr(model, name)), getattr(local, name)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected, err_msg=name)


def states_on(dask_scheduler):
    return {str(key): task.state for key, task in dask_scheduler.tasks.items()}


def assert_soon(client, states, seconds):
    """No task on the cluster is in one of these states, in a while."""
    end = time.monotonic() + seconds
    while True:
        left = [key for key, state in client.run_on_scheduler(states_on).items() if state in states]
        if not left or time.monotonic() > end:
            break
        time.sleep(0.01)
    assert left == []


def assert_nothing_runs(client):
    assert_soon(client, {"waiting", "queued", "no-worker", "processing"}, 0.3)


def assert_nothing_left(client):
    """The cluster remembers nothing, once it has let go of what is not wanted any more."""
    assert_soon(client, ALL_TASK_STATES, 3)

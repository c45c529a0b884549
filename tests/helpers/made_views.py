"""Views created in the blocks of Dask arrays, the same rows in memory, and checks of a Dask cluster."""

import os
import signal
import time
from functools import cache, partial

import dask.array as da
import numpy as np
from planted_views import blobs, lacking

from bitmosaic.estimators.dask import data as cluster_data
from bitmosaic.estimators.dask import rows as cluster_rows
from bitmosaic.solver import blocks as local_data

N = 5500
SMALL = {"n_clusters": 4, "n_bits": 32, "n_anchors": 40, "n_init": 2, "max_iter": 2, "cluster_iter": 2}
SMALL["random_state"] = 0


@cache
def planted(n=N, spread=0.7, dtype="f4", gaps=False):
    """Views of planted clusters; with `gaps`, some rows lack one. Cached: do not write to them."""
    views, _ = blobs(n, spread=spread, seed=1)
    if gaps:
        views["b"] = lacking(views["b"], slice(40, n, 7))
    if dtype == "i2":
        views = {name: np.rint(100 * X) for name, X in views.items()}
    return {name: X.astype(dtype) for name, X in views.items()}


FAINT = partial(planted)  # no clear clusters: codes and labels are sensitive to rounding
APART = partial(planted, spread=4.0)
GAPS = partial(planted, gaps=True)


def spoiled(make, view, row, column, value):
    """The views of `make()` with one value replaced."""
    views = dict(make())
    views[view] = views[view].copy()
    views[view][row, column] = value
    return views


def as_dask(make, rows=1024, columns=-1, block=None):
    """The views of `make()` as Dask arrays with these chunks; the workers create the blocks."""
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
    """Like :func:`made_block`, with trouble in view b once the file `marker` exists.

    Without `pid`, the block of row 4500 raises an OSError. With `pid`, the block of row 1500 sends SIGINT to that
    process, and all blocks are slow.
    """
    start, stop = block_info[None]["array-location"][0]
    if view == "b" and marker.exists():
        if pid is None and start <= 4500 < stop:
            raise OSError("the disk is gone")
        if pid is not None and start <= 1500 < stop:
            os.kill(pid, signal.SIGINT)
        time.sleep(0 if pid is None else 0.5)
    return made_block(make, view, block_info)


def marking(marker, step):
    """A progress function that creates the marker when a fit has reached this step."""
    return lambda done, total: marker.touch() if done == step else None


def use_small_parts(patch):
    """Allow parts of one block, so that a few thousand rows have several parts."""
    patch.setattr(cluster_rows, "LEAST_BLOCKS", 1)


def leave_rows_on_workers(patch):
    """Lower the limit above which training rows stay on the workers."""
    for module in (cluster_data, local_data):
        patch.setattr(module, "FEW_ROWS", 2048)


def assert_same_fit(model, local):
    """Check that a fit on a cluster is identical to a fit on one machine."""
    assert model.objective_history_ == local.objective_history_
    for name in ("cluster_centers_", "view_weights_", "bit_weights_", "labels_", "codes_"):
        found, expected = np.asarray(getattr(model, name)), getattr(local, name)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected, err_msg=name)


def states_on(dask_scheduler):
    return {str(key): task.state for key, task in dask_scheduler.tasks.items()}


def soon(condition, seconds=60):
    """Wait until condition() is true, for up to a minute on a busy machine."""
    end = time.monotonic() + seconds
    while not (held := condition()) and time.monotonic() < end:
        time.sleep(0.01)
    return held


def assert_nothing_left(client):
    """Check that the scheduler releases every task."""
    soon(lambda: not client.run_on_scheduler(states_on))
    assert client.run_on_scheduler(states_on) == {}

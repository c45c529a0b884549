"""A fit survives the death of a worker with the same labels. An interrupted fit leaves nothing on the cluster."""

import os
import signal
import time
from collections import Counter
from contextlib import contextmanager, suppress
from functools import partial
from threading import Thread

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, WorkerPlugin, wait
from made_views import (
    FAINT,
    SMALL,
    as_dask,
    assert_nothing_left,
    assert_same_fit,
    leave_rows_on_workers,
    marking,
    soon,
    states_on,
    troubled_block,
    use_small_parts,
)

from bitmosaic import HSIC, BinaryKMeans
from bitmosaic.errors import ClusterError
from bitmosaic.estimators.dask.fit import RESULT, fit_on_cluster, new_name

pytestmark = pytest.mark.filterwarnings("ignore:The objective still fell")


class Killer(WorkerPlugin):
    """Kills a worker process when it starts the nth of its tasks of a step, once per step."""

    name = "killer"

    def __init__(self, folder, **deaths):
        self.folder, self.deaths, self.begun = folder, deaths, Counter()

    def transition(self, key, start, finish, **kwargs):
        step = step_of(key)
        if finish == "executing" and step in self.deaths:
            self.begun[step] += 1
            if self.begun[step] >= self.deaths[step] and not (self.folder / step).exists():
                (self.folder / step).touch()
                os.kill(os.getpid(), signal.SIGKILL)


def step_of(key):
    """Return the first word of the step of a task; None for tasks that split or merge results."""
    name = (key[0] if isinstance(key, tuple) else key).split("-")
    return name[1] if name[0] == "bitmosaic" and not {"rows", "sums"} & set(name[2:]) else None


@contextmanager
def deaths(client, folder, **steps):
    """Inside the block, a worker dies in each of these steps."""
    client.register_plugin(Killer(folder, **steps))
    yield
    client.unregister_worker_plugin("killer")
    assert sorted(path.name for path in folder.iterdir()) == sorted(steps)


@pytest.fixture(scope="module")
def cluster_of_victims():
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", silence_logs=50) as cluster:
        yield cluster


@pytest.fixture
def cluster_to_kill(cluster_of_victims):
    """One cluster for all deaths: dead workers are restarted."""
    cluster_of_victims.wait_for_workers(2, timeout=60)
    return cluster_of_victims


@pytest.fixture(autouse=True)
def rows_stay(monkeypatch):
    use_small_parts(monkeypatch)
    leave_rows_on_workers(monkeypatch)


@pytest.fixture(scope="module")
def local():
    with pytest.MonkeyPatch.context() as patch:
        leave_rows_on_workers(patch)
        return HSIC(**SMALL).fit(FAINT())


# ---- workers that die


def test_labels_are_the_same_when_a_worker_dies_in_each_phase(cluster_to_kill, local, tmp_path):
    phases = {"all": 1, "on": 2}  # each death costs the start of a process
    with Client(cluster_to_kill) as client, deaths(client, tmp_path, **phases):
        assert_same_fit(HSIC(**SMALL).fit(as_dask(FAINT)), local)


def test_the_error_of_dead_workers_says_what_to_do(cluster_to_kill, tmp_path):
    def allow(number, dask_scheduler):
        dask_scheduler.allowed_failures = number

    with Client(cluster_to_kill) as client:
        client.run_on_scheduler(allow, 0)
        with (
            deaths(client, tmp_path, all=1),
            pytest.raises(ClusterError, match="workers died while computing a block of the views") as e,
        ):
            HSIC(**SMALL).fit(as_dask(FAINT))
        assert "Make the chunks of the arrays smaller" in str(e.value)
        assert_nothing_left(client)
        client.run_on_scheduler(allow, 3)  # the default


def test_a_fit_continues_without_a_worker_that_is_not_restarted(cluster_to_kill, local, tmp_path):
    """The last test of this cluster."""
    for nanny in cluster_to_kill.workers.values():
        nanny.close_gracefully("a test")  # the nanny does not restart the worker
    with Client(cluster_to_kill) as client:
        with deaths(client, tmp_path, assign=3):
            model = HSIC(**SMALL).fit(as_dask(FAINT))
        assert len(client.scheduler_info()["workers"]) == 1
        assert_same_fit(model, local)


# ---- interrupted and failed fits


@pytest.mark.parametrize("step", [0, 3], ids=["sampling", "iterations"])
def test_ctrl_c_in_the_middle_of_a_pass_leaves_nothing_running(client, tmp_path, step):
    marker = tmp_path / "pressed"
    views = as_dask(FAINT, block=partial(troubled_block, marker=marker, pid=os.getpid()))
    with pytest.raises(KeyboardInterrupt) as caught:
        HSIC(**SMALL).fit(views, progress=marking(marker, step))
    assert_nothing_left(client)  # even if the traceback is stored, as in a notebook
    del caught


def slow_codes(block_id, pid):
    if block_id[0] == 2:
        os.kill(pid, signal.SIGINT)
    time.sleep(0.3)
    return np.zeros((1000, 16), np.uint8)


def test_ctrl_c_while_codes_are_clustered_leaves_nothing_running(client):
    chunks = ((1000,) * 6, (16,))
    codes = da.map_blocks(slow_codes, pid=os.getpid(), chunks=chunks, meta=np.empty((0, 0), np.uint8))
    with pytest.raises(KeyboardInterrupt) as caught:
        BinaryKMeans(3, random_state=0).fit(codes)
    assert_nothing_left(client)
    del caught


def test_the_end_of_a_fit_releases_futures_that_are_still_referenced(client):
    with fit_on_cluster():
        kept = [client.submit(abs, -1, key=new_name(step)) for step in ("step", RESULT)]
        wait(kept)
    assert soon(lambda: list(client.run_on_scheduler(states_on)) == [kept[1].key])
    with suppress(ZeroDivisionError), fit_on_cluster():
        kept = [client.submit(abs, -1, key=new_name(step)) for step in ("step", RESULT)]
        raise ZeroDivisionError
    assert_nothing_left(client)


def test_a_failed_fit_is_released_whatever_keys_the_user_has(client, tmp_path):
    own = [client.submit(abs, -1, key=key) for key in (7, (1, 2), ("x", 0))]
    (tmp_path / "gone").touch()
    with pytest.raises(ClusterError, match="the disk is gone") as caught:
        HSIC(**SMALL).fit(as_dask(FAINT, block=partial(troubled_block, marker=tmp_path / "gone")))
    assert client.gather(own) == [1, 1, 1]
    del own
    assert_nothing_left(client)
    del caught


def test_a_failed_fit_does_not_touch_another_fit_of_the_same_client(client, tmp_path):
    """The other fit runs completely inside a progress callback of this one, which then fails."""
    codes = da.zeros((600, 2), dtype="u1", chunks=(300, 2))
    others = []

    def meanwhile(done, total):
        if done == 3:
            thread = Thread(target=lambda: others.append(BinaryKMeans(1).fit(codes)))
            thread.start()
            thread.join()
            (tmp_path / "gone").touch()

    views = as_dask(FAINT, block=partial(troubled_block, marker=tmp_path / "gone"))
    with pytest.raises(ClusterError, match="the disk is gone"):
        HSIC(**SMALL).fit(views, progress=meanwhile)
    assert others[0].labels_.compute().tolist() == [0] * 600


@pytest.mark.parametrize("how", ["restart", "close"])
def test_a_restarted_or_closed_client_raises_an_error(how):
    def act(done, total):
        if done == 3:
            client.restart(wait_for_workers=False) if how == "restart" else client.close()

    threads = {"processes": False, "dashboard_address": "127.0.0.1:0", "silence_logs": 50}
    with (
        LocalCluster(2, threads_per_worker=1, **threads) as cluster,
        Client(cluster) as client,
        pytest.raises(ClusterError, match="The fit lost its scheduler"),
    ):
        HSIC(**SMALL).fit(as_dask(FAINT), progress=act)

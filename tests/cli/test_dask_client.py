"""The Dask client of a command: started or connected, checked and closed; one error if that fails."""

import os
import subprocess
import sys

import pytest
from distributed import Client, LocalCluster, get_client

import bitmosaic
from bitmosaic.cli import dask_client
from bitmosaic.cli.dask_client import connected
from bitmosaic.errors import ClusterError, MissingExtraError
from bitmosaic.io.threads import available_threads


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", silence_logs=50) as cluster:
        yield cluster


def test_without_a_cluster_there_is_no_client():
    with connected() as client:
        assert client is None


def test_dask_is_imported_only_if_a_cluster_is_used():
    probe = (
        "import sys; import bitmosaic.cli, bitmosaic.pipeline, bitmosaic.estimators.dask\n"
        "from bitmosaic.cli.dask_client import connected\n"
        "with connected(): print([name for name in ('dask', 'distributed') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def process_of(dask_worker):
    return os.getpid(), dask_worker.state.nthreads


def test_workers_on_this_machine_are_processes_that_end_with_the_block():
    def use():
        with connected(workers=2) as client:
            assert get_client() is client
            found.extend(client.run(process_of).values())
            raise KeyboardInterrupt

    found = []
    with pytest.raises(KeyboardInterrupt):
        use()
    pids, threads = zip(*found, strict=True)
    assert len({os.getpid(), *pids}) == 3
    assert threads == (max(1, available_threads() // 2),) * 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_the_cluster_at_an_address_keeps_running_when_the_block_ends(cluster):
    for _ in range(2):
        with connected(cluster.scheduler_address) as client:
            assert client.submit(sum, [1, 2]).result() == 3
    assert len(cluster.workers) == 2


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nonsense", ""])
def test_an_unreachable_address_is_named(address, monkeypatch):
    monkeypatch.setattr(dask_client, "CONNECT_SECONDS", 0.5)
    with pytest.raises(ClusterError, match=f"{address!r} cannot be reached"), connected(address):
        pass


def test_a_cluster_without_workers_is_refused(monkeypatch):
    monkeypatch.setattr(dask_client, "WORKER_SECONDS", 0.5)
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0", silence_logs=50) as empty,
        pytest.raises(ClusterError, match="has no workers after"),
        connected(empty.scheduler_address),
    ):
        pass


def test_if_dask_is_missing_the_error_has_the_pip_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'bitmosaic\[dask\]'"), connected(workers=2):
        pass


def test_every_worker_must_have_the_same_bitmosaic(cluster, monkeypatch):
    monkeypatch.setattr(dask_client, "__version__", "9.9")
    expected = (
        rf"has bitmosaic 9\.9, but 2 of 2 workers have another version, such as {bitmosaic.__version__} at tcp://"
    )
    with pytest.raises(MissingExtraError, match=expected), connected(cluster.scheduler_address):
        pass


def test_a_worker_without_bitmosaic_is_named(cluster):
    def forget():
        sys.modules["bitmosaic"] = None

    with Client(cluster) as client:
        address = next(iter(client.scheduler_info()["workers"]))
        client.run(forget, workers=[address])
    with (
        pytest.raises(MissingExtraError, match=f"1 of 2 workers have another version, such as none at {address}"),
        connected(cluster.scheduler_address),
    ):
        pass

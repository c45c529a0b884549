"""A Dask cluster of two processes, started once for all tests of this folder, and a client of it for each."""

import dask
import pytest
from distributed import Client, LocalCluster

from bitmosaic.scale.cluster import NO_STEALING

pytest.register_assert_rewrite("made_views")  # so that its assertions tell what they found


@pytest.fixture(scope="session")
def two_workers():
    options = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "silence_logs": 50}
    with dask.config.set(NO_STEALING), LocalCluster(n_workers=2, **options) as cluster:  # traffic is counted
        yield cluster


@pytest.fixture
def client(two_workers):
    with Client(two_workers) as client:
        yield client

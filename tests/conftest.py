"""Fixtures shared by several folders of tests.

A suite that runs in the background of a shell ignores Ctrl-C, and so would the commands it starts: the handler is set
again. Hypothesis has no deadline: the machine may be busy, and a kernel may have to be compiled first. It tries the
same examples in every run.
"""

import os
import shutil
import signal

import pytest
from hypothesis import settings

signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("untimed", deadline=None, derandomize=True)
settings.load_profile("untimed")
pytest.register_assert_rewrite("made_views")


@pytest.fixture(scope="session")
def two_workers():
    """A Dask cluster of two processes."""
    dask, distributed = pytest.importorskip("dask"), pytest.importorskip("distributed")
    from bitmosaic.cli.dask_client import NO_STEALING

    options = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "silence_logs": 50}
    with dask.config.set(NO_STEALING), distributed.LocalCluster(n_workers=2, **options) as cluster:
        yield cluster


@pytest.fixture
def client(two_workers):
    from distributed import Client

    with Client(two_workers) as client:
        yield client


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    """A run of 120 images in three clusters that equal their folders. Some names contain markup."""
    from explored import HOSTILE
    from image_kinds import write_images

    from bitmosaic import pipeline

    root = tmp_path_factory.mktemp("explored")
    folder = write_images(root / "images", 40)
    (folder / "disc").rename(folder / "<b>disc</b>".replace("/", "\u2215"))
    for number, name in enumerate(HOSTILE):
        os.rename(folder / "stripes" / f"{number:04d}.png", folder / "stripes" / name)
    return pipeline.cluster(folder, root / "run", 3, views=("hog", "ch"), labels="folder").folder


@pytest.fixture
def run(finished_run, tmp_path):
    """A copy of the run for one test, which may change any of its files."""
    from bitmosaic.run.folder import Run

    shutil.copytree(finished_run, tmp_path / "run")
    return Run(tmp_path / "run")


@pytest.fixture(scope="session")
def run_with_copies(tmp_path_factory):
    """A folder with `images`, of which some are copies, and a `run` of them."""
    from copied_images import write_scenes

    from bitmosaic import pipeline

    root = tmp_path_factory.mktemp("copies")
    pipeline.cluster(write_scenes(root / "images"), root / "run", 3, views=("hog", "ch"))
    return root

"""extract, fit and cluster with --workers and --scheduler give the results of one machine."""

import os
import signal
import subprocess
import sys
import time

import pytest
from image_kinds import write_images
from typed import run

from bitmosaic import pipeline
from bitmosaic.cli.dask_client import connected
from bitmosaic.views import read_views

COMMAND = [sys.executable, "-c", "from bitmosaic.cli import main; main()"]
N_EACH = 20
VIEWS = ("--view", "ch", "--view", "hog")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with images, one of them bad, and a run made of them on one machine."""
    place = tmp_path_factory.mktemp("place")
    write_images(place / "photos", N_EACH)
    (place / "photos" / "bad.png").write_bytes(b"bad")
    run("cluster", "photos", "-c", 3, *VIEWS, "--out", "alone", cwd=place)
    return place


@pytest.fixture(scope="module")
def scheduler(two_workers):
    return two_workers.scheduler_address


def check_same_run(ours, theirs):
    for name in ("clusters.csv", "skipped.csv", "codes.npy", "labels.npy", "distances.npy"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name


def test_cluster_with_workers_makes_the_same_run(place):
    done = run("cluster", "photos", "-c", 3, *VIEWS, "--out", "together", "--workers", 2, cwd=place)
    assert done.stderr == ""
    assert "60 images, 3 clusters" in done.stdout
    assert "Skipped 1 unreadable image: " in done.stdout
    for name in ("ch.npy", "hog.npy", "digests.npy", "paths.jsonl", "manifest.json", "extraction.json"):
        assert (place / "together/views" / name).read_bytes() == (place / "alone/views" / name).read_bytes()
    check_same_run(place / "together", place / "alone")
    again = run("cluster", "photos", "-c", 3, *VIEWS, "--out", "together", cwd=place)  # without workers
    assert again.stdout == done.stdout.replace(f"{place}{os.sep}", "")  # workers need absolute paths


def test_a_run_interrupted_on_one_machine_is_resumed_on_a_cluster(place, scheduler):
    def interrupt(stage, done, total):
        if stage == "learning codes and clusters":
            raise KeyboardInterrupt

    arguments = [place / "photos", place / "moved", 3]
    with pytest.raises(KeyboardInterrupt):
        pipeline.cluster(*arguments, views=("ch", "hog"), progress=interrupt)
    assert (place / "moved/views/hog.npy").is_file()
    with connected(scheduler) as client:
        assert pipeline.cluster(*arguments, views=("ch", "hog"), client=client).complete
    check_same_run(place / "moved", place / "alone")


def test_ctrl_c_ends_the_workers_and_the_same_command_resumes(place):
    write_images(place / "many", 200)  # the interrupt must come before the end, also on a busy machine
    command = ["extract", "many", "--out", "interrupted", *VIEWS, "--workers", 2]
    started = subprocess.Popen(
        [*COMMAND, *map(str, command)], cwd=place, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while not (place / ".interrupted.extracting").exists():
        time.sleep(0.01)
        assert started.poll() is None
    os.killpg(started.pid, signal.SIGINT)  # Ctrl-C reaches every process of a terminal
    _, errors = started.communicate(timeout=300)
    assert errors == "Interrupted. Run the same command again to resume.\n"
    assert started.returncode != 0
    assert not (place / "interrupted").exists()
    run(*command[:-2], cwd=place)  # also without workers
    assert read_views(place / "interrupted").n_rows == 600


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["extract", "photos", "--workers", 2, "--scheduler", "tcp://a:9"], "either --scheduler or --workers"),
        (["cluster", "photos", "-c", 2, "--scheduler", "nonsense"], "'nonsense' cannot be reached"),
        (["fit", "alone", "-c", 2, "--workers", 0], "--workers"),
    ],
)
def test_a_cluster_that_cannot_be_used_is_one_line(command, message, place):
    done = run(*command, "--out", "none", cwd=place, fails=True)
    assert message in done.stderr
    assert not (place / "none").exists()


def test_an_error_on_a_worker_is_one_line(place, scheduler):
    strict = run("extract", "photos", "--out", "x", *VIEWS, "--strict", "--scheduler", scheduler, cwd=place, fails=True)
    assert strict.stderr.startswith("Error: Cannot read the image bad.png: ")
    assert strict.stderr.count("\n") == 1

"""extract, fit and cluster with --workers and --scheduler, as a person types them: the results of one machine."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from distributed import LocalCluster

from bitmosaic import pipeline
from bitmosaic.scale.cluster import connected
from bitmosaic.views import read_rows, read_views
from pictures import write_pictures

COMMAND = [sys.executable, "-c", "from bitmosaic.cli import main; main()"]
VIEWS = ("--view", "ch", "--view", "hog")


def run(*arguments, cwd, fails=False):
    done = subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, cwd=cwd, timeout=120)
    assert (done.returncode != 0) == fails, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with pictures, one of them bad, and a run made of them on one machine."""
    place = tmp_path_factory.mktemp("place")
    write_pictures(place / "photos", 100)
    (place / "photos" / "bad.png").write_bytes(b"bad")
    run("cluster", "photos", "-c", 3, *VIEWS, "--out", "alone", cwd=place)
    return place


@pytest.fixture(scope="module")
def scheduler():
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", silence_logs=50) as cluster:
        yield cluster.scheduler_address


def same_run(ours, theirs):
    for name in ("clusters.csv", "skipped.csv", "codes.npy", "labels.npy", "distances.npy"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name


def test_cluster_with_workers_makes_the_run_of_one_machine(place):
    done = run("cluster", "photos", "-c", 3, *VIEWS, "--out", "together", "--workers", 2, cwd=place)
    assert done.stderr == ""
    assert "300 images, 3 clusters" in done.stdout
    assert json.loads((place / "together/views/manifest.json").read_text())["format"] == "bitmosaic-parts"
    same_run(place / "together", place / "alone")
    again = run("cluster", "photos", "-c", 3, *VIEWS, "--out", "together", cwd=place)  # with or without, it is one run
    assert again.stdout == done.stdout


def test_a_run_begun_on_one_machine_goes_on_with_a_cluster(place, scheduler):
    def stop(stage, done, total):
        if stage == "learning codes and clusters":
            raise KeyboardInterrupt

    arguments = [place / "photos", place / "moved", 3]
    with pytest.raises(KeyboardInterrupt):
        pipeline.cluster(*arguments, views=("ch", "hog"), progress=stop)
    assert (place / "moved/views/hog.npy").is_file()
    with connected(scheduler) as client:
        assert pipeline.cluster(*arguments, views=("ch", "hog"), client=client).complete
    same_run(place / "moved", place / "alone")


def test_extract_and_fit_at_a_scheduler_do_the_same_in_two_steps(place, scheduler):
    address = ["--scheduler", scheduler]
    done = run("extract", "photos", "--out", "views", *VIEWS, "--json", *address, cwd=place)
    assert json.loads(done.stdout) == {"views": {"ch": 64, "hog": 1152}, "images": 300, "folder": "views"}
    assert done.stderr == ""
    ours, theirs = read_views(place / "views"), read_views(place / "alone/views")
    for name in ours:
        np.testing.assert_array_equal(read_rows(ours[name], slice(0, 300)), read_rows(theirs[name], slice(0, 300)))
    fitted = json.loads(run("fit", "views", "-c", 3, "--out", "fitted", "--json", *address, cwd=place).stdout)
    assert fitted["complete"]
    np.testing.assert_array_equal(np.load(place / "fitted/labels.npy"), np.load(place / "alone/labels.npy"))
    run("fit", "views", "-c", 3, "--out", "here", cwd=place)  # parts are views like any others
    np.testing.assert_array_equal(np.load(place / "here/labels.npy"), np.load(place / "fitted/labels.npy"))


def test_a_stop_ends_the_workers_in_one_line_and_the_same_command_goes_on(place):
    command = ["extract", "photos", "--out", "stopped", *VIEWS, "--workers", 2]
    started = subprocess.Popen(
        [*COMMAND, *map(str, command)], cwd=place, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while not list(place.glob(".stopped.extracting/parts-*")):
        time.sleep(0.01)
        assert started.poll() is None
    os.killpg(started.pid, signal.SIGINT)  # as Ctrl-C does: to every process of the terminal
    _, errors = started.communicate(timeout=60)
    assert started.returncode != 0
    assert errors == "Stopped. The same command goes on where it was.\n"
    assert not (place / "stopped").exists()
    run(*command, cwd=place)
    assert read_views(place / "stopped").n_rows == 300


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            ["extract", "photos", "--workers", 2, "--scheduler", "tcp://a:9"],
            "got both a scheduler and a number of workers",
        ),
        (["cluster", "photos", "-c", 2, "--scheduler", "nonsense"], "'nonsense' cannot be reached"),
        (["fit", "alone", "-c", 2, "--workers", 0], "--workers"),
    ],
)
def test_a_cluster_that_cannot_be_had_is_one_clear_line(command, message, place):
    done = run(*command, "--out", "none", cwd=place, fails=True)
    assert message in done.stderr
    assert not (place / "none").exists()


def test_an_error_on_a_worker_is_one_line(place, scheduler):
    strict = run("extract", "photos", "--out", "x", *VIEWS, "--strict", "--scheduler", scheduler, cwd=place, fails=True)
    assert strict.stderr.startswith("Error: Cannot read the picture bad.png: ")
    assert strict.stderr.count("\n") == 1

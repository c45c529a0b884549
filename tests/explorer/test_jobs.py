"""Background jobs run once and report their progress."""

import threading
import time

import pytest

from bitmosaic.explorer.api import Job


def wait(job):
    while not job.ready():
        time.sleep(0.001)


def test_work_runs_once_for_several_callers():
    calls = []
    job = Job(lambda progress: calls.append(1) or time.sleep(0.05) or "done")
    threads = [threading.Thread(target=wait, args=(job,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert job.result() == "done"
    assert calls == [1]


def test_stage_shows_the_progress():
    go_on = threading.Event()

    def work(progress):
        progress("halfway", 1, 2)
        go_on.wait()

    job = Job(work)
    assert not job.ready()
    while job.stage == ("starting", 0, 0):
        time.sleep(0.001)
    assert job.stage == ("halfway", 1, 2)
    go_on.set()
    wait(job)


def test_an_error_is_raised_once_and_the_work_retried():
    tries = []

    def work(progress):
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("no")
        return "yes"

    job = Job(work)
    with pytest.raises(ValueError, match="no"):
        wait(job)
    wait(job)
    assert job.result() == "yes"

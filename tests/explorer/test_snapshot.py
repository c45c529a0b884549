"""What is exported is a run at one moment, whoever writes to it; nothing is needed but to read."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from bitmosaic.errors import BusyFolderError, UnwritableFileError
from bitmosaic.explorer import snapshot
from bitmosaic.explorer.clusters import Pictures
from bitmosaic.explorer.snapshot import clusters_now
from bitmosaic.exports.tables import table
from bitmosaic.files import LOCK, locked


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(snapshot, "PAUSE", 0.01)


def test_a_run_is_locked_while_it_is_read_and_not_afterwards(run, monkeypatch):
    of = Pictures.of
    seen = []
    monkeypatch.setattr(Pictures, "of", lambda run: seen.append((run.folder / LOCK).exists()) or of(run))
    clusters_now(run.folder)
    assert seen == [True]
    assert not (run.folder / LOCK).exists()


def test_a_run_that_others_work_on_is_waited_for_and_then_refused(run):
    code = f"import sys\nfrom bitmosaic.files import locked\nwith locked({str(run.folder)!r}): print(1, flush=True)"
    code += "; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(BusyFolderError, match="another bitmosaic is busy"):
            clusters_now(run.folder)
        threading.Timer(0.05, other.stdin.close).start()
        assert len(clusters_now(run.folder).labels) == 120


@pytest.mark.parametrize("problem", ["read-only", "full disk"])
def test_a_run_that_cannot_be_locked_is_read_all_the_same(run, monkeypatch, problem):
    if problem == "read-only":
        access = os.access
        monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and access(path, mode))
    else:

        def full(folder):
            raise UnwritableFileError(f"{folder} cannot be written (No space left on device).")

        monkeypatch.setattr(snapshot, "locked", full)
    assert len(clusters_now(run.folder).labels) == 120


def test_a_run_that_changes_while_it_is_read_without_a_lock_is_read_again(run, monkeypatch):
    monkeypatch.setattr(snapshot, "_lock", lambda *_: False)
    labels = np.array(run.column("labels"))
    of, left = Pictures.of, [2]

    def and_change(run):
        pictures = of(run)
        if left[0]:
            left[0] -= 1
            run.write_columns(labels=labels)
        return pictures

    monkeypatch.setattr(Pictures, "of", and_change)
    clusters_now(run.folder)
    assert left == [0]
    left[0] = 10**6
    with pytest.raises(BusyFolderError, match="others keep writing"):
        clusters_now(run.folder)


def test_what_is_written_afterwards_does_not_appear_in_an_export(run):
    Pictures.of(run).log.append({"do": "merge", "clusters": [0, 1], "into": 0}, 0)
    clusters = clusters_now(run.folder)
    before = {key: list(values) for key, values in table(clusters).items()}
    codes = np.array(clusters.pictures.codes)
    n = len(codes)
    with locked(run.folder):
        run.write_columns(codes=np.zeros_like(codes), labels=np.zeros(n, np.int32), distances=np.zeros(n, np.float32))
    assert {key: list(values) for key, values in table(clusters).items()} == before
    np.testing.assert_array_equal(clusters.pictures.codes, codes)

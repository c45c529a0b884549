"""`clusters_now` reads a run at one moment, under its lock. Read access is enough."""

import subprocess
import sys
import threading

import numpy as np
import pytest

from bitmosaic.errors import BusyFolderError, UnwritableFileError
from bitmosaic.io.files import LOCK, locked
from bitmosaic.pipeline.export.formats import table
from bitmosaic.run import clusters as clusters_module
from bitmosaic.run.clusters import ImageFacts, clusters_now


def test_a_run_is_locked_while_it_is_read_and_not_afterwards(run, monkeypatch):
    of = ImageFacts.of
    seen = []
    monkeypatch.setattr(ImageFacts, "of", lambda run: seen.append((run.folder / LOCK).exists()) or of(run))
    clusters_now(run.folder)
    assert seen == [True]
    assert not (run.folder / LOCK).exists()


def test_a_run_that_is_locked_by_another_process_is_waited_for_and_then_refused(run, monkeypatch):
    code = f"import sys\nfrom bitmosaic.io.files import locked\nwith locked({str(run.folder)!r}): print(1, flush=True)"
    code += "; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with monkeypatch.context() as patched:
            patched.setattr(clusters_module, "LOCK_WAIT", 0.1)
            with pytest.raises(BusyFolderError, match="another bitmosaic is busy"):
                clusters_now(run.folder)
        threading.Timer(0.05, other.stdin.close).start()
        assert len(clusters_now(run.folder).labels) == 120


def test_a_run_that_cannot_be_locked_is_read_without_the_lock(run, monkeypatch):
    def full(folder, wait):
        raise UnwritableFileError(f"{folder} cannot be written (No space left on device).")

    monkeypatch.setattr(clusters_module, "locked", full)
    assert len(clusters_now(run.folder).labels) == 120


def test_later_writes_do_not_change_clusters_that_were_read(run):
    ImageFacts.of(run).log.append({"do": "merge", "clusters": [0, 1], "into": 0}, 0)
    clusters = clusters_now(run.folder)
    before = {key: list(values) for key, values in table(clusters).items()}
    codes = np.array(clusters.facts.codes)
    n = len(codes)
    with locked(run.folder):
        run.write_columns(codes=np.zeros_like(codes), labels=np.zeros(n, np.int32), distances=np.zeros(n, np.float32))
    assert {key: list(values) for key, values in table(clusters).items()} == before
    np.testing.assert_array_equal(clusters.facts.codes, codes)

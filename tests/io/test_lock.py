"""The folder lock: one process at a time, released by a kill."""

import errno
import os
import signal
import subprocess
import sys

import pytest
from filelock import FileLock

from bitmosaic.errors import BusyFolderError, UnwritableFileError
from bitmosaic.io.files import LOCK, locked, write_whole

HOLD = """
import sys, time
from bitmosaic.io.files import locked
with locked(sys.argv[1]):
    print(1, flush=True)
    time.sleep(99)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of the folder."""
    command = [sys.executable, "-c", HOLD, tmp_path / "run"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"1\n"
        yield process
        process.kill()


def test_a_second_process_gets_an_error_at_once(holder, tmp_path):
    with (
        pytest.raises(BusyFolderError, match=r"another bitmosaic is busy in \S*run\. Wait for it"),
        locked(tmp_path / "run"),
    ):
        pass


def test_a_kill_releases_the_lock(holder, tmp_path):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert (tmp_path / "run" / LOCK).exists()
    with locked(tmp_path / "run"):
        pass
    assert not list((tmp_path / "run").iterdir())


def test_the_same_process_cannot_lock_a_folder_twice(tmp_path):
    with locked(tmp_path):
        for _ in range(2):
            with pytest.raises(BusyFolderError), locked(tmp_path):
                pass
    with locked(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_a_folder_made_for_a_lock_is_removed_if_it_stays_empty(tmp_path):
    with pytest.raises(RuntimeError), locked(tmp_path / "deep" / "run"):
        raise RuntimeError
    assert not (tmp_path / "deep" / "run").exists()
    with locked(tmp_path / "run"):
        (tmp_path / "run" / "result").touch()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["result"]


def test_a_file_cannot_be_locked(tmp_path):
    (tmp_path / "file").write_text("kept")
    with (
        pytest.raises(UnwritableFileError, match=r"file cannot be written \((File exists|Not a directory)\)"),
        locked(tmp_path / "file"),
    ):
        pass


@pytest.mark.parametrize("problem", [OSError(errno.ENOLCK, "No locks available"), NotImplementedError()])
def test_file_systems_without_locks_are_used_unlocked(tmp_path, monkeypatch, problem):
    def no_locks(lock):
        raise problem

    monkeypatch.setattr(FileLock, "_acquire", no_locks)
    with locked(tmp_path):
        write_whole(tmp_path / "file", b"1")
    assert (tmp_path / "file").read_bytes() == b"1"


def test_a_full_disk_is_one_clear_error(tmp_path, monkeypatch):
    def full(lock):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(FileLock, "_acquire", full)
    with pytest.raises(UnwritableFileError, match=r"cannot be written \(No space left on device"), locked(tmp_path):
        pass

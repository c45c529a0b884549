"""Files that appear whole or not at all, and folders for one process at a time."""

import errno
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bitmosaic import files
from bitmosaic.errors import BusyFolderError, FileFormatError, UnwritableFileError
from bitmosaic.files import (
    LOCK,
    beside,
    locked,
    new_folder,
    refuse_links,
    remove,
    remove_unfinished,
    result_file,
    whole_file,
    write_whole,
)
from small_disk import largest_file

HOLD = """
import sys, time
from bitmosaic.files import locked
with locked(sys.argv[1]):
    print(1, flush=True)
    time.sleep(99)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that works in the folder."""
    command = [sys.executable, "-c", HOLD, tmp_path / "run"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"1\n"
        yield process
        process.kill()


def test_who_comes_second_is_told_who_works_there(holder, tmp_path):
    who = rf"process {holder.pid} on {re.escape(socket.gethostname())}, since 20\S+ \S+: -c \S*run\. Wait for it"
    with pytest.raises(BusyFolderError, match=who), locked(tmp_path / "run"):
        pass


def test_the_lock_of_a_killed_process_holds_nobody_and_says_nothing_of_it(holder, tmp_path):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert (tmp_path / "run" / LOCK).exists()
    with locked(tmp_path / "run"):
        assert json.loads((tmp_path / "run" / LOCK).read_text())["process"] == os.getpid()
    assert not (tmp_path / "run").exists() or not list((tmp_path / "run").iterdir())


def test_a_folder_made_for_a_lock_goes_if_nothing_comes_of_it(tmp_path):
    with pytest.raises(RuntimeError), locked(tmp_path / "run"):
        raise RuntimeError
    assert not (tmp_path / "run").exists()
    with locked(tmp_path / "run"):
        (tmp_path / "run" / "result").touch()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["result"]


@pytest.mark.parametrize("rubbish", [b"", b"{", b"[1]", b'{"process": 1}', b"\xff", b"[" * 9999])
def test_a_lock_that_says_nothing_still_holds(tmp_path, rubbish, monkeypatch):
    monkeypatch.setattr(files, "_TRIES", 2)
    with locked(tmp_path):
        (tmp_path / LOCK).write_bytes(rubbish)
        with pytest.raises(BusyFolderError, match=r"is busy in \S+\. Wait for it"), locked(tmp_path):
            pass


def test_who_has_just_taken_a_lock_is_waited_for_until_it_says_who_it_is(tmp_path):
    with open(tmp_path / LOCK, "wb", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        holder = {"process": 7, "host": "here", "since": "now", "command": "bitmosaic"}
        timer = threading.Timer(0.1, lambda: file.write(json.dumps(holder).encode()))
        timer.start()
        with pytest.raises(BusyFolderError, match="process 7 on here, since now: bitmosaic"), locked(tmp_path):
            pass
        timer.join()


def test_who_takes_the_lock_of_a_killed_process_is_not_taken_for_it(holder, tmp_path):
    """Between the lock and the name, which two system calls make, the file has the name of the dead."""
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    with open(tmp_path / "run" / LOCK, "r+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        timer = threading.Timer(0.1, lambda: file.write(files._me()))
        timer.start()
        with pytest.raises(BusyFolderError, match=f"process {os.getpid()} on"), locked(tmp_path / "run"):
            pass
        timer.join()


@pytest.mark.parametrize("gone", [FileExistsError, FileNotFoundError])
def test_a_folder_that_goes_while_it_is_locked_is_made_again(tmp_path, monkeypatch, gone):
    """Its last holder removes it between two looks at it: mkdir says that it is there, is_dir that it is not."""
    mkdir = files.Path.mkdir

    def vanishes(path, *how, **options):
        monkeypatch.setattr(files.Path, "mkdir", mkdir)
        raise gone(errno.EEXIST, "File exists", str(path))

    monkeypatch.setattr(files.Path, "mkdir", vanishes)
    with locked(tmp_path / "run"):
        assert (tmp_path / "run" / LOCK).exists()


def test_a_file_is_no_folder_to_lock_and_is_told_at_once(tmp_path):
    (tmp_path / "file").write_text("kept")
    with pytest.raises(UnwritableFileError, match=r"file cannot be written \(File exists\)"), locked(tmp_path / "file"):
        pass


def test_a_lock_that_is_removed_while_it_is_waited_for_is_made_anew(tmp_path, monkeypatch):
    take = files._take

    def removed_meanwhile(descriptor):
        monkeypatch.setattr(files, "_take", take)
        (tmp_path / LOCK).unlink()  # by the process that held it, as the last it does
        return take(descriptor)

    monkeypatch.setattr(files, "_take", removed_meanwhile)
    with locked(tmp_path), pytest.raises(BusyFolderError), locked(tmp_path):
        pass


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).symlink_to(tmp_path / "precious")
    with pytest.raises(UnwritableFileError, match="cannot be written"), locked(tmp_path / "run"):
        pass
    assert (tmp_path / "precious").read_text() == "kept"


def test_where_files_cannot_be_locked_work_goes_on(tmp_path, monkeypatch):
    def no_locks(descriptor, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", no_locks)
    with locked(tmp_path):
        write_whole(tmp_path / "file", b"1")
    assert (tmp_path / "file").read_bytes() == b"1"


def test_what_is_left_unfinished_goes_and_what_is_being_written_stays(tmp_path):
    (tmp_path / "below").mkdir()
    left = [beside(tmp_path / "a"), beside(tmp_path / "below" / "a")]
    for path in left:
        path.touch()
    with whole_file(tmp_path / "b") as file:
        file.write(b"1")
        remove_unfinished(tmp_path, below=False)
        assert [path.exists() for path in left] == [False, True]
        remove_unfinished(tmp_path)
    assert not left[1].exists()
    assert (tmp_path / "b").read_bytes() == b"1"


def test_a_folder_that_was_left_unfinished_goes_and_one_that_is_being_filled_stays(tmp_path):
    left, link = beside(tmp_path / "a"), beside(tmp_path / "b")
    (tmp_path / "dear").mkdir()
    (left / "below").mkdir(parents=True)
    link.symlink_to(tmp_path / "dear")
    with new_folder(beside(tmp_path / "c")) as filled:
        with result_file(tmp_path / "file"):
            pass
        assert sorted(tmp_path.iterdir()) == sorted([filled, tmp_path / "file", tmp_path / "dear"])
    remove_unfinished(tmp_path)
    assert sorted(tmp_path.iterdir()) == [tmp_path / "dear", tmp_path / "file"]


def test_what_is_removed_is_waited_for_by_nobody_and_leads_nowhere(tmp_path):
    (tmp_path / "dear").mkdir()
    (tmp_path / "dear" / "file").touch()
    (tmp_path / "folder" / "below").mkdir(parents=True)
    os.mkfifo(tmp_path / "folder" / "below" / "pipe")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "dear")
    for name in ("folder", "pipe", "link", "nothing"):
        remove(tmp_path / name)
        remove(tmp_path / name, gently=True)
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "dear", tmp_path / "dear" / "file"]


def test_where_files_cannot_be_locked_only_what_is_old_was_left(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_take", lambda descriptor: None)
    new, old = beside(tmp_path / "a"), beside(tmp_path / "b")
    new.touch()
    old.touch()
    os.utime(old, (time.time() - 2 * files._LEFT_FOR_GOOD,) * 2)
    remove_unfinished(tmp_path)
    assert list(tmp_path.iterdir()) == [new]


def test_a_lock_that_goes_between_two_looks_at_it_is_made_anew(tmp_path, monkeypatch):
    stat, looks = os.stat, []

    def gone_once(path, **options):
        if Path(path).name == LOCK and not looks:
            looks.append(path)
            os.unlink(path)
        return stat(path, **options)

    monkeypatch.setattr(files.os, "stat", gone_once)
    with locked(tmp_path):
        assert looks
        assert (tmp_path / LOCK).exists()


def test_who_cannot_say_who_it_is_leaves_the_lock_of_another_alone(tmp_path, monkeypatch):
    flock, write, other = files.fcntl.flock, os.write, []

    def late(descriptor, how):
        """Meanwhile the one who held it is gone, and another has come."""
        if not other:
            (tmp_path / LOCK).unlink()
            other.append(os.open(tmp_path / LOCK, os.O_RDWR | os.O_CREAT))
            flock(other[0], how)
        flock(descriptor, how)

    def full(descriptor, content):
        if descriptor != other[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, content)

    monkeypatch.setattr(files, "_TRIES", 2)
    monkeypatch.setattr(files.fcntl, "flock", late)
    monkeypatch.setattr(files.os, "write", full)
    with pytest.raises(BusyFolderError), locked(tmp_path):
        pass
    assert os.path.samestat(os.fstat(other[0]), os.stat(tmp_path / LOCK))
    os.close(other[0])


def test_who_cannot_say_who_it_is_leaves_no_lock(tmp_path, monkeypatch):
    def full(descriptor, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "write", full)
    with pytest.raises(UnwritableFileError, match="No space left on device"), locked(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_is_one_sentence_and_the_old_file_stays(tmp_path, monkeypatch, number):
    write_whole(tmp_path / "file", b"old")

    def fail(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(
        UnwritableFileError, match=rf"^{tmp_path}/file cannot be written \({os.strerror(number)}\)\. Make"
    ):
        write_whole(tmp_path / "file", b"new")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


@pytest.mark.parametrize(("number", "fails"), [(errno.EINVAL, False), (errno.EACCES, False), (errno.EIO, True)])
def test_a_folder_that_need_not_be_synced_is_no_failure_and_one_that_cannot_is(tmp_path, monkeypatch, number, fails):
    def fail(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    if fails:
        with pytest.raises(OSError, match=os.strerror(number)):
            files.sync_folder(tmp_path)
    else:
        files.sync_folder(tmp_path)


NOISE = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    "write",
    [
        lambda file: Image.fromarray(NOISE).save(file, "JPEG"),
        lambda file: Image.fromarray(NOISE).save(file, "PNG"),
        lambda file: np.lib.format.write_array(file, NOISE),
        lambda file: np.savez_compressed(file, NOISE),
    ],
)
@pytest.mark.parametrize("missing", [1, 1000])
def test_a_disk_that_is_full_at_the_very_end_of_a_file_is_noticed(tmp_path, write, missing):
    """Pillow, given a descriptor, took a write of the first part for one of the whole."""
    with whole_file(tmp_path / "whole") as file:
        write(file)
    size = (tmp_path / "whole").stat().st_size
    with (
        largest_file(size - missing),
        pytest.raises(UnwritableFileError, match=r"half cannot be written"),
        whole_file(tmp_path / "half") as file,
    ):
        write(file)
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]


@pytest.mark.parametrize("nth", [1, 2])
def test_links_are_looked_for_in_folders_that_another_process_removes_meanwhile(tmp_path, monkeypatch, nth):
    (tmp_path / "work" / "views").mkdir(parents=True)
    scandir, calls = os.scandir, []

    def gone_by_then(path):
        calls.append(path)
        if len(calls) == nth:
            monkeypatch.undo()
            remove(tmp_path / "work")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", gone_by_then)
    refuse_links(tmp_path / "work")
    assert len(calls) == nth
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("name", ["a", "b/c", "."])
def test_links_are_refused_wherever_they_are(tmp_path, name):
    (tmp_path / "dear").mkdir()
    (tmp_path / "work" / "b").mkdir(parents=True)
    refuse_links(tmp_path / "work")
    if name == ".":
        remove(tmp_path / "work")
    (tmp_path / "work" / name).symlink_to(tmp_path / "dear")
    with pytest.raises(FileFormatError, match="is a link"):
        refuse_links(tmp_path / "work")
    if name != ".":
        refuse_links(tmp_path / "work", below=False)

"""What is being written has a lock until it has its place; what was left has none, and goes without waiting."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bitmosaic import files
from bitmosaic.errors import BusyFolderError
from bitmosaic.files import beside, new_folder, remove, remove_unfinished, result_file, whole_file, whole_files
from bitmosaic.views import read_views, write_views

CLEAR = "import sys; from bitmosaic.files import remove_unfinished; remove_unfinished(sys.argv[1])"
VIEWS = {name: np.arange(12.0).reshape(4, 3) for name in ("a", "b", "c")}


def clear_elsewhere(folder):
    """As another process does it."""
    subprocess.run([sys.executable, "-c", CLEAR, folder], check=True)


def open_files():
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


@pytest.mark.parametrize("clear", [remove_unfinished, clear_elsewhere])
def test_views_that_are_written_out_stay_while_others_are_written(tmp_path, clear):
    before = open_files()
    write_views(tmp_path, VIEWS, progress=lambda done, total: clear(tmp_path) if done == total else None)
    assert open_files() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy", "b.npy", "c.npy", "manifest.json"]
    np.testing.assert_array_equal(read_views(tmp_path)["a"], VIEWS["a"])


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_file_is_locked_until_it_has_its_name(tmp_path, monkeypatch, number):
    """Whoever comes between the last byte and the rename takes nothing away."""
    replace = os.replace

    def late(source, target):
        remove_unfinished(tmp_path)
        replace(source, target)

    monkeypatch.setattr(files.os, "replace", late)
    before = open_files()
    with whole_files(tmp_path) as begin:
        for name in ("0", "1", "2")[: number + 1]:
            with begin(name) as file:
                file.write(name.encode())
    assert open_files() == before
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {str(n): str(n) for n in range(number + 1)}
    with whole_file(tmp_path / "one") as file:
        file.write(b"1")
    assert (tmp_path / "one").read_bytes() == b"1"


def test_the_last_of_several_files_comes_when_the_others_are_on_the_disk(tmp_path, monkeypatch):
    done, replace = [], os.replace
    monkeypatch.setattr(files, "sync_folder", lambda folder: done.append("sync"))
    monkeypatch.setattr(files.os, "replace", lambda old, new: done.append(Path(new).name) or replace(old, new))
    with whole_files(tmp_path) as begin:
        for name in ("b", "a", "last"):
            with begin(name):
                pass
    assert done == ["b", "a", "sync", "last", "sync"]


def test_of_several_files_none_appears_when_one_fails_and_no_lock_stays(tmp_path):
    before = open_files()
    with pytest.raises(RuntimeError), whole_files(tmp_path) as begin:  # noqa: PT012
        with begin("a") as file:
            file.write(b"1")
        with begin("b"):
            raise RuntimeError
    assert not list(tmp_path.iterdir())
    assert open_files() == before


def test_without_locks_a_file_is_closed_before_it_is_renamed(tmp_path, monkeypatch):
    """As on Windows, where an open file cannot be."""
    replace, before, seen = os.replace, open_files(), []
    monkeypatch.setattr(files, "fcntl", None)
    monkeypatch.setattr(files.os, "replace", lambda old, new: seen.append(open_files()) or replace(old, new))
    with whole_file(tmp_path / "a") as file:
        file.write(b"1")
    assert seen == [before]
    assert (tmp_path / "a").read_bytes() == b"1"


def test_a_file_that_is_taken_away_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    take, calls = files._take, []

    def late(descriptor):
        calls.append(descriptor)
        if len(calls) == 1:
            remove_unfinished(tmp_path)
        if len(calls) == 4:  # another looks at it in this moment, and is about to remove it
            return False
        return take(descriptor)

    monkeypatch.setattr(files, "_take", late)
    for name in ("a", "b"):
        with whole_file(tmp_path / name) as file:
            file.write(b"1")
    assert len(calls) == 5
    remove_unfinished(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_files_that_are_always_taken_away_are_told_of(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_take", lambda descriptor: False)
    with pytest.raises(BusyFolderError, match=r"others clear .* over and over"), whole_file(tmp_path / "a"):
        pass


# ---- what was left


def test_a_pipe_that_was_left_is_not_waited_for(tmp_path):
    os.mkfifo(beside(tmp_path / "a"))
    subprocess.run([sys.executable, "-c", CLEAR, tmp_path], check=True, timeout=60)
    assert not list(tmp_path.iterdir())


def test_where_the_system_has_no_locks_a_fresh_file_stays(tmp_path, monkeypatch):
    def no_locks(descriptor, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", no_locks)
    fresh = beside(tmp_path / "a")
    fresh.touch()
    remove_unfinished(tmp_path)
    assert fresh.exists()


def test_a_link_to_nowhere_that_was_left_goes(tmp_path):
    (tmp_path / ".bitmosaic-x.tmp").symlink_to(tmp_path / "nowhere")
    remove_unfinished(tmp_path)
    assert not os.path.lexists(tmp_path / ".bitmosaic-x.tmp")


def test_a_result_leaves_what_is_below_its_folder_alone(tmp_path):
    """A user may have named any folder, and below it any other work."""
    (tmp_path / "below").mkdir()
    left = [beside(tmp_path / "a"), beside(tmp_path / "below" / "a")]
    for path in left:
        path.touch()
    with result_file(tmp_path / "file"):
        pass
    assert [path.exists() for path in left] == [False, True]


@pytest.mark.parametrize("place", ["folder", "folder/2"])
def test_what_cannot_be_removed_gently_stays_and_all_else_goes(tmp_path, monkeypatch, place):
    (tmp_path / "folder").mkdir()
    for name in "123":
        (tmp_path / "folder" / name).touch()
    unlink = os.unlink

    def stuck(path, **options):
        if Path(path).name == "2":
            raise PermissionError(errno.EPERM, "Operation not permitted", path)
        unlink(path, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", stuck)
        with pytest.raises(PermissionError):
            remove(tmp_path / "folder" / "2")
        remove(tmp_path / place, gently=True)
    left = [path.name for path in sorted((tmp_path / "folder").iterdir())]
    assert left == (["2"] if place == "folder" else ["1", "2", "3"])


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_folder_that_the_disk_has_lost_is_a_failure(tmp_path, monkeypatch, number):
    def fail(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=os.strerror(number)):
        files.sync_folder(tmp_path)


def test_a_folder_that_is_being_filled_stays(tmp_path):
    with new_folder(beside(tmp_path / "a")) as folder:
        clear_elsewhere(tmp_path)
        assert folder.exists()
    clear_elsewhere(tmp_path)
    assert not folder.exists()

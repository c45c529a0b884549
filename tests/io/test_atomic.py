"""Atomic writes: a file is complete or it does not exist, also on a full disk."""

import errno
import os
import stat
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_disk import largest_file

from bitmosaic.errors import UnwritableFileError
from bitmosaic.io import files as atomic
from bitmosaic.io.files import (
    ABANDONED,
    beside,
    remove,
    remove_unfinished,
    result_file,
    result_path,
    sync_folder,
    whole_file,
    whole_files,
    write_whole,
)


def failing(number):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_failing_disk_is_one_clear_error_and_the_old_file_stays(tmp_path, monkeypatch, number):
    write_whole(tmp_path / "file", b"old")
    monkeypatch.setattr(os, "fsync", failing(number))
    with pytest.raises(
        UnwritableFileError, match=rf"^{tmp_path}/file cannot be written \({os.strerror(number)}\)\. Free"
    ):
        write_whole(tmp_path / "file", b"new")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


NOISE = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    "write",
    [
        lambda file: Image.fromarray(NOISE).save(file, "JPEG"),
        lambda file: np.lib.format.write_array(file, NOISE),
    ],
)
def test_a_disk_that_is_full_at_the_end_of_a_file_is_noticed(tmp_path, write):
    """Pillow, writing to a descriptor, does not notice a partial write."""
    with whole_file(tmp_path / "whole") as file:
        write(file)
    size = (tmp_path / "whole").stat().st_size
    with (
        largest_file(size - 1),
        pytest.raises(UnwritableFileError, match=r"half cannot be written"),
        whole_file(tmp_path / "half") as file,
    ):
        write(file)
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]


def test_several_files_appear_together_and_the_last_after_the_others_are_on_disk(tmp_path, monkeypatch):
    done, replace = [], os.replace
    monkeypatch.setattr(atomic, "sync_folder", lambda folder: done.append("sync"))
    monkeypatch.setattr(os, "replace", lambda old, new: done.append(Path(new).name) or replace(old, new))
    with whole_files(tmp_path) as begin:
        for name in ("b", "a", "last"):
            with begin(name) as file:
                file.write(name.encode())
            assert not (tmp_path / name).exists()
    assert done == ["b", "a", "sync", "last", "sync"]
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: name for name in ("b", "a", "last")}


def test_none_of_several_files_appears_when_one_fails(tmp_path):
    with pytest.raises(RuntimeError), whole_files(tmp_path) as begin:  # noqa: PT012
        with begin("a") as file:
            file.write(b"1")
        with begin("b"):
            raise RuntimeError
    assert not list(tmp_path.iterdir())


def test_a_file_written_by_name_replaces_the_old_one_with_the_mode_of_the_umask(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    previous = os.umask(0o022)
    try:
        with result_path(tmp_path / "file") as path:
            path.write_bytes(b"new")
            path.chmod(0o600)
            assert (tmp_path / "file").read_bytes() == b"old"
    finally:
        os.umask(previous)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"new"}
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644
    with pytest.raises(RuntimeError), result_path(tmp_path / "file") as path:  # noqa: PT012
        path.write_bytes(b"half")
        raise RuntimeError
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"new"}


@pytest.mark.parametrize("open_file", [result_file, result_path])
def test_a_result_is_written_to_the_target_of_a_symlink(tmp_path, open_file):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    with open_file(tmp_path / "link") as file:
        file.write(b"new") if open_file is result_file else file.write_bytes(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


@pytest.mark.parametrize("open_file", [whole_file, result_file, result_path])
def test_a_folder_or_a_device_is_not_replaced_by_a_file(tmp_path, open_file):
    for path in (tmp_path, os.devnull):
        with (
            pytest.raises(UnwritableFileError, match=r"cannot be written to .*: it is a folder or a device"),
            open_file(path),
        ):
            pass


# ---- temporary files of killed processes


def test_temporary_files_of_killed_processes_are_removed(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "target").mkdir()
    beside(tmp_path / "a").touch()
    (beside(tmp_path / "a") / "inside").mkdir(parents=True)
    beside(tmp_path / "a").symlink_to(tmp_path / "target")
    beside(tmp_path / "below" / "a").touch()
    remove_unfinished(tmp_path, below=False)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["below", "target"]
    assert list((tmp_path / "below").iterdir())
    remove_unfinished(tmp_path)
    assert not list((tmp_path / "below").iterdir())


def test_a_result_removes_only_abandoned_temporary_files_beside_it(tmp_path):
    """Another process may be writing another result to the same folder."""
    (tmp_path / "below").mkdir()
    new, old, below = (beside(tmp_path / name) for name in ("a", "b", "below/c"))
    for path in (new, old, below):
        path.touch()
    for path in (old, below):
        os.utime(path, (time.time() - 2 * ABANDONED,) * 2)
    with result_file(tmp_path / "file"):
        pass
    assert [path.exists() for path in (new, old, below)] == [True, False, True]


def test_removing_a_symlink_keeps_its_target(tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "file").touch()
    (tmp_path / "folder" / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for name in ("folder", "link", "nothing"):
        remove(tmp_path / name)
        remove(tmp_path / name, ignore_errors=True)
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "target", tmp_path / "target" / "file"]


# ---- folders


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_disk_error_while_syncing_a_folder_is_raised(tmp_path, monkeypatch, number):
    monkeypatch.setattr(os, "fsync", failing(number))
    with pytest.raises(OSError, match=os.strerror(number)):
        sync_folder(tmp_path)


@pytest.mark.parametrize("call", ["fsync", "open"])
def test_a_system_that_cannot_sync_folders_is_accepted(tmp_path, monkeypatch, call):
    monkeypatch.setattr(os, call, failing(errno.EACCES))  # as os.open of a folder does on Windows
    sync_folder(tmp_path)

"""Files that are replaced together are all old or all new after a kill at any step."""

import errno
import os
from contextlib import suppress
from pathlib import Path

import pytest

from bitmosaic.errors import BusyFolderError, UnwritableFileError
from bitmosaic.io.files import announce, finish_publishing, locked, publish

NAMES = ("sheets", "chart", "labels", "manifest")
CALLS = ("rename", "replace", "unlink", "rmdir")


class Killed(BaseException):
    """No code catches it, like a kill."""


@pytest.fixture
def folder(tmp_path):
    """Old files, and new files in the hidden folder: another sheet, and no chart."""
    (tmp_path / "sheets").mkdir()
    (tmp_path / "sheets" / "1").write_text("old")
    for name in NAMES[1:]:
        (tmp_path / name).write_text("old")
    work = tmp_path / ".work"
    (work / "sheets").mkdir(parents=True)
    (work / "sheets" / "2").write_text("new")
    for name in ("labels", "manifest"):
        (work / name).write_text("new")
    (tmp_path / "other").write_text("stays")
    return tmp_path


def content(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


NEW = {"sheets/2": "new", "labels": "new", "manifest": "new", "other": "stays"}


def test_files_that_were_not_announced_stay_hidden(folder):
    before = content(folder)
    publish(folder, folder / ".work", NAMES)
    finish_publishing(folder, folder / ".work", NAMES)
    assert content(folder) == before


def test_announced_files_are_moved_and_files_without_a_new_version_removed(folder):
    announce(folder / ".work", NAMES)
    publish(folder, folder / ".work", NAMES)
    assert content(folder) == NEW
    assert not (folder / ".work").exists()


@pytest.mark.parametrize("last", range(12))
def test_after_a_kill_at_any_step_the_next_process_finishes(folder, monkeypatch, last):
    announce(folder / ".work", NAMES)
    left = last

    def dying(call):
        def do(*arguments, **options):
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return call(*arguments, **options)

        return do

    with monkeypatch.context() as patched:
        for name in CALLS:
            patched.setattr(os, name, dying(getattr(os, name)))
        with suppress(Killed):
            publish(folder, folder / ".work", NAMES)
    finish_publishing(folder, folder / ".work", NAMES)
    found = {name: text for name, text in content(folder).items() if not name.startswith(".work")}
    assert found == NEW


def test_the_manifest_is_moved_last(folder, monkeypatch):
    announce(folder / ".work", NAMES)
    moved = []
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda path, place: moved.append(path.name) or replace(path, place))
    publish(folder, folder / ".work", NAMES)
    assert moved == ["sheets", "labels", "manifest"]


def test_a_folder_that_another_process_publishes_is_busy(folder):
    announce(folder / ".work", NAMES)
    with locked(folder), pytest.raises(BusyFolderError, match="another bitmosaic is busy"):
        finish_publishing(folder, folder / ".work", NAMES)
    assert content(folder)["manifest"] == "old"


def test_a_reader_without_write_access_gets_an_error_that_new_files_wait(folder, monkeypatch):
    announce(folder / ".work", NAMES)
    before = content(folder)

    def refuse(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        with pytest.raises(
            UnwritableFileError,
            match=r"^New files wait in \S+ and cannot be moved to their names \(Read-only file system\)",
        ):
            finish_publishing(folder, folder / ".work", NAMES)
    assert content(folder) == before

"""Files that are replaced together are all old or all new to whoever reads after a kill, wherever that was."""

import errno
import os
from contextlib import suppress
from pathlib import Path

import pytest

from bitmosaic.errors import BusyFolderError, UnwritableFileError
from bitmosaic.files import locked
from bitmosaic.publishing import announce, finish_publishing, publish

NAMES = ("sheets", "chart", "labels", "manifest")
CALLS = ("rename", "replace", "unlink", "rmdir")


class Killed(BaseException):
    """Nobody handles it, as nobody handles a kill."""


@pytest.fixture
def folder(tmp_path):
    """Old files, and new ones in the hidden folder: another sheet, no chart any more."""
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


def test_what_was_not_announced_stays_where_it_is(folder):
    before = content(folder)
    publish(folder, folder / ".work", NAMES)
    finish_publishing(folder, folder / ".work", NAMES)
    assert content(folder) == before


def test_what_was_announced_appears_and_what_has_no_successor_goes(folder):
    announce(folder / ".work", NAMES)
    publish(folder, folder / ".work", NAMES)
    assert content(folder) == NEW
    assert not (folder / ".work").exists()


@pytest.mark.parametrize("last", range(12))
def test_killed_at_any_step_the_next_to_come_finishes(folder, monkeypatch, last):
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


def test_the_manifest_comes_last(folder, monkeypatch):
    announce(folder / ".work", NAMES)
    moved = []
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda path, place: moved.append(path.name) or replace(path, place))
    publish(folder, folder / ".work", NAMES)
    assert moved == ["sheets", "labels", "manifest"]


def test_who_comes_while_another_publishes_is_told_so(folder):
    announce(folder / ".work", NAMES)
    with locked(folder), pytest.raises(BusyFolderError, match="another bitmosaic is busy"):
        finish_publishing(folder, folder / ".work", NAMES)
    assert content(folder)["manifest"] == "old"


def test_who_may_only_read_is_told_that_new_files_wait(folder, monkeypatch):
    announce(folder / ".work", NAMES)
    before = content(folder)

    def refuse(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        with pytest.raises(
            UnwritableFileError,
            match=r"^New files must take their places in \S+ before it is read, and cannot \(Read-only file system\)",
        ):
            finish_publishing(folder, folder / ".work", NAMES)
    assert content(folder) == before

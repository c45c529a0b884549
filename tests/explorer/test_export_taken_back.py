"""An export of links that fails at its end keeps nothing, or says what is there."""

import errno
import os
from pathlib import Path

import pytest

from bitmosaic.errors import ExportError
from bitmosaic.explorer.clusters import Clusters, Pictures
from bitmosaic.exports import links
from bitmosaic.exports.kinds import export

NOTHING_KEPT = (
    r"Of 120 pictures 120 were exported to .*out, then it stopped: .*Input/output error.* Nothing of it was kept"
)


def failure():
    return OSError(errno.EIO, "Input/output error")


@pytest.fixture(params=["new", "empty"])
def place(request, tmp_path):
    """Where the links go: a folder to be made, or one that is there."""
    if request.param == "empty":
        (tmp_path / "out").mkdir()
    return tmp_path / "out"


def sync_fails_at(monkeypatch, folder, more=lambda: None):
    sync = links.sync_folder

    def fail(path):
        if Path(path) == folder:
            more()
            raise failure()
        sync(path)

    monkeypatch.setattr(links, "sync_folder", fail)


def above(place):
    """The folder that is synced last."""
    return place if place.exists() else place.parent


def test_an_export_that_may_not_last_is_taken_back_and_can_be_tried_again(run, place, tmp_path, monkeypatch):
    clusters, before = Clusters(Pictures.of(run)), sorted(tmp_path.iterdir())
    with monkeypatch.context() as patched:
        sync_fails_at(patched, above(place))
        with pytest.raises(ExportError, match=NOTHING_KEPT):
            export(clusters, place, "links")
    assert sorted(tmp_path.iterdir()) == before
    assert not place.exists() or not list(place.iterdir())
    assert export(clusters, place, "links").facts["links"] == 120


@pytest.mark.parametrize("stop", [failure(), KeyboardInterrupt()])
def test_an_export_that_stops_midway_into_a_folder_leaves_it_empty(run, tmp_path, monkeypatch, stop):
    clusters, moved, rename = Clusters(Pictures.of(run)), [], Path.rename
    (tmp_path / "out").mkdir()

    def fail_at_the_third(path, target):
        moved.append(target)
        if len(moved) == 3:
            raise stop
        return rename(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", fail_at_the_third)
        with pytest.raises((ExportError, KeyboardInterrupt)) as caught:
            export(clusters, tmp_path / "out", "links")
    assert isinstance(caught.value, KeyboardInterrupt) or "Nothing of it was kept" in str(caught.value)
    assert len(moved) == 5  # two of them back
    assert not list((tmp_path / "out").iterdir())
    assert export(clusters, tmp_path / "out", "links").facts["links"] == 120


def test_what_cannot_be_taken_back_is_named(run, place, monkeypatch):
    clusters, renamed = Clusters(Pictures.of(run)), Path.rename

    def stuck(path, target):
        raise failure()

    with monkeypatch.context() as patched:
        sync_fails_at(patched, above(place), lambda: patched.setattr(Path, "rename", stuck))
        with pytest.raises(ExportError, match=r"stopped at its end .* could not be taken back\. Remove it") as caught:
            export(clusters, place, "links")
    assert Path.rename is renamed
    assert "Nothing of it was kept" not in str(caught.value)
    named = str(caught.value).partition("), and ")[2].partition(" could not")[0]
    assert os.path.exists(named)
    assert Path(named) == place or Path(named).parent == place

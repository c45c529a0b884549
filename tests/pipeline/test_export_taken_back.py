"""An export of links that fails at its end is undone, or the error names the leftovers."""

import errno
import os
from pathlib import Path

import pytest

from bitmosaic.errors import ExportError
from bitmosaic.pipeline.export import export, links
from bitmosaic.run.clusters import Clusters, ImageFacts

NOTHING_KEPT = r"The export to .*out failed after 120 of 120 images: .*Input/output error.* Nothing was kept"


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


def test_an_export_that_cannot_be_synced_is_undone_and_can_be_repeated(run, place, tmp_path, monkeypatch):
    clusters, before = Clusters(ImageFacts.of(run)), sorted(tmp_path.iterdir())
    with monkeypatch.context() as patched:
        sync_fails_at(patched, above(place))
        with pytest.raises(ExportError, match=NOTHING_KEPT):
            export(clusters, place, "links")
    assert sorted(tmp_path.iterdir()) == before
    assert not place.exists() or not list(place.iterdir())
    assert export(clusters, place, "links").facts["links"] == 120


@pytest.mark.parametrize("stop", [failure(), KeyboardInterrupt()])
def test_an_export_interrupted_while_moving_leaves_the_folder_empty(run, tmp_path, monkeypatch, stop):
    clusters, moved, rename = Clusters(ImageFacts.of(run)), [], Path.rename
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
    assert isinstance(caught.value, KeyboardInterrupt) or "Nothing was kept" in str(caught.value)
    assert len(moved) == 5  # two of them were moved back
    assert not list((tmp_path / "out").iterdir())
    assert export(clusters, tmp_path / "out", "links").facts["links"] == 120


def test_the_error_names_files_that_could_not_be_moved_back(run, place, monkeypatch):
    clusters, renamed = Clusters(ImageFacts.of(run)), Path.rename

    def stuck(path, target):
        raise failure()

    with monkeypatch.context() as patched:
        sync_fails_at(patched, above(place), lambda: patched.setattr(Path, "rename", stuck))
        with pytest.raises(ExportError, match=r"failed at its end .* could not be moved back\. Remove it") as caught:
            export(clusters, place, "links")
    assert Path.rename is renamed
    assert "Nothing was kept" not in str(caught.value)
    named = str(caught.value).partition("), and ")[2].partition(" could not")[0]
    assert os.path.exists(named)
    assert Path(named) == place or Path(named).parent == place

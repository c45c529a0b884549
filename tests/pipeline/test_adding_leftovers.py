"""Leftovers of an interrupted addition are not published with the next one."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from image_kinds import write_images

from bitmosaic import pipeline
from bitmosaic.io import files as atomic
from bitmosaic.pipeline.adding import WORK
from bitmosaic.run.folder import Run
from bitmosaic.views import write_views

OPTIONS = {"views": ("ch",), "max_side": 16}
NEW = {"a": np.random.default_rng(1).normal(size=(7, 5))}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("leftovers")
    first, more = write_images(root / "first", 6), write_images(root / "more", 3, seed=9)
    pipeline.cluster(first, root / "run", 3, **OPTIONS)
    write_views(root / "views", {"a": np.random.default_rng(0).normal(size=(60, 5))})
    pipeline.fit(root / "views", root / "of views", 3)
    return root, first, more


@pytest.fixture
def run(made, tmp_path):
    return Run(shutil.copytree(made[0] / "run", tmp_path / "run"))


@pytest.fixture
def of_views(made, tmp_path):
    return Run(shutil.copytree(made[0] / "of views", tmp_path / "run"))


def leave(run, name):
    path = run.folder / "additions" / WORK / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"of another")
    return path


def test_centers_of_an_interrupted_update_are_not_published_with_the_next_addition(made, run):
    leave(run, "centers.npy")
    added = pipeline.add(run, made[2], update=False)
    assert added.folder.name == "0001"
    assert not (added.folder / "centers.npy").exists()


def test_features_in_memory_do_not_use_leftover_features(of_views):
    leave(of_views, "views/extraction.json")
    added = pipeline.add(of_views, NEW)
    assert added.folder.name == "0001"
    assert not (added.folder / "views" / "extraction.json").exists()


def test_calling_cluster_again_does_not_remove_files_of_a_running_addition(made, run, monkeypatch):
    """Each has a lock of its own: one that of the run, the other that of its additions."""
    _, first, more = made
    replace, asked = os.replace, []

    def meanwhile(source, target):
        if Path(target).name in ("manifest.json", "codes.npy") and target not in asked:
            asked.append(target)
            with monkeypatch.context() as patched:
                patched.setattr(atomic.os, "replace", replace)
                pipeline.cluster(first, run.folder, 3, **OPTIONS)
        replace(source, target)

    monkeypatch.setattr(atomic.os, "replace", meanwhile)
    assert pipeline.add(run, more).images == 9
    assert len(asked) >= 3

"""Finished work survives a power loss.

A file is safe if it was synced after its last change, and its folder and the folders above after it was named. Marks
of finished work (a manifest, the rename of a folder, `.ready`) are checked when they appear.
"""

import json
import os
import shutil
import stat
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from image_kinds import write_images
from planted_views import blobs

from bitmosaic import HSIC, pipeline
from bitmosaic.estimators import checkpoint
from bitmosaic.estimators.model_file import read_model
from bitmosaic.io.files import LOCK, is_unfinished
from bitmosaic.pipeline import extraction
from bitmosaic.pipeline.export import export
from bitmosaic.run.clusters import Clusters, ImageFacts
from bitmosaic.run.edits import EditLog
from bitmosaic.run.folder import REFIT, Run
from bitmosaic.solver import loop
from bitmosaic.views import Views, write_views
from bitmosaic.views.folder import RECIPE

VIEWS = ("ch", "cm")
# A power loss ends all locks. Damaged thumbnails and maps are computed again.
TRANSIENT = (LOCK, "thumbnails.sqlite", "map.npz")
# Work folders. They are removed after use, and again if they reappear after a power loss.
WORK = (REFIT, ".adding", ".views.extracting", "checkpoint")
MARKS = ("manifest.json", RECIPE, ".ready")


class InterruptedWorkError(Exception):
    pass


class Disk:
    """Records what os.fsync has written to disk."""

    def __init__(self):
        self.files = {}  # (device, inode): (size, time of change)
        self.folders = {}  # (device, inode): {name: inode}
        self.marks = []  # names of what was marked as finished, in order

    def keep(self, descriptor):
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            self.folders[key(status)] = {entry.name: entry.inode() for entry in os.scandir(descriptor)}
        else:
            self.files[key(status)] = status.st_size, status.st_mtime_ns

    def forget(self, path, **options):
        """A new file may get the inode of a removed one, and is not on disk yet."""
        with suppress(OSError):
            self.files.pop(key(os.stat(path, follow_symlinks=False, **options)), None)

    def synced_size(self, path):
        return self.files.get(key(os.stat(path)), (0, 0))[0]

    def lacks(self, path, ignored=()):
        """All content and entries of a file or a folder that a power loss could destroy."""
        path = Path(path)
        if path.is_symlink():
            return []
        status = path.stat()
        if not path.is_dir():
            # An empty file has no content to lose.
            known = not status.st_size or self.files.get(key(status)) == (status.st_size, status.st_mtime_ns)
            return [] if known else [f"content of {path}"]
        there = {entry.name: entry.inode() for entry in os.scandir(path)}
        there = {name: inode for name, inode in there.items() if not is_transient(name) and name not in ignored}
        known = self.folders.get(key(status), {})
        lost = [f"{path / name} in its folder" for name, inode in there.items() if known.get(name) != inode]
        # The folder `additions` is created for its lock, and removed if it stays empty.
        stays = [
            f"{path / name}, gone" for name in known.keys() - there if not is_transient(name, "additions", *ignored)
        ]
        return [*lost, *stays, *(what for name in there for what in self.lacks(path / name))]

    def marks_finished(self, source, target):
        """Check before a rename that all files covered by the mark or the folder are on disk."""
        source, target = Path(source), Path(target)
        if source.is_dir():
            assert self.lacks(source) == []
            self.marks.append(target.name)
        elif target.name in MARKS and not self.appears_later(source, target):
            assert self.lacks(target.parent, ignored=MARKS) == []
            assert self.lacks(source) == []
            self.marks.append(target.name)
        if target.name == ".ready":
            assert self.lacks(target.parent.parent / "history") == []
            assert self.has_entries(target.parent.parent, "history", REFIT)

    def appears_later(self, source, target):
        """Whether a later mark covers this one: the end of a refit, or the rename of a folder of links."""
        return (target.parent / REFIT / ".ready").exists() or any(map(is_unfinished, (source.parent, target.parent)))

    def has_entries(self, folder, *names):
        known = self.folders.get(key(os.stat(folder)), {})
        return all(known.get(name) == os.stat(folder / name).st_ino for name in names)


def key(status):
    return status.st_dev, status.st_ino


def is_transient(name, *others):
    return name in (*TRANSIENT, *WORK, *others) or is_unfinished(name)


@pytest.fixture
def disk(monkeypatch):
    disk = Disk()
    fsync, mkdir, unlink = os.fsync, os.mkdir, os.unlink

    def keep(descriptor):
        fsync(descriptor)
        disk.keep(descriptor)

    def make(path, *options, **more):
        mkdir(path, *options, **more)
        disk.folders.pop(key(os.stat(path)), None)  # the inode may have been used before

    def remove(path, **options):
        if str(path).endswith(".ready"):  # all files of a refit are moved
            assert disk.lacks(Path(path).parent.parent) == []
            disk.marks.append("not ready")
        disk.forget(path, **options)
        unlink(path, **options)

    def watched(move):
        def do(source, target, **options):
            disk.marks_finished(source, target)
            disk.forget(target)
            move(source, target, **options)

        return do

    monkeypatch.setattr(os, "fsync", keep)
    monkeypatch.setattr(os, "mkdir", make)
    monkeypatch.setattr(os, "unlink", remove)
    monkeypatch.setattr(os, "rename", watched(os.rename))
    monkeypatch.setattr(os, "replace", watched(os.replace))
    return disk


@pytest.fixture
def place(tmp_path):
    """An empty folder for results."""
    (tmp_path / "results").mkdir()
    return tmp_path / "results"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("images"), 8)


def test_the_checks_notice_unsynced_files_and_names(disk, place):
    (place / "a").write_bytes(b"1")
    assert disk.lacks(place) == [f"{place / 'a'} in its folder", f"content of {place / 'a'}"]
    for path in (place / "a", place):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    assert disk.lacks(place) == []
    (place / "b").write_bytes(b"1")
    os.replace(place / "b", place / "a")
    assert disk.lacks(place) == [f"{place / 'a'} in its folder", f"content of {place / 'a'}"]
    (place / "a").unlink()
    assert disk.lacks(place) == [f"{place / 'a'}, gone"]


def test_a_run_is_on_disk_after_clustering_adding_editing_and_refitting(disk, place, folder, tmp_path):
    run = pipeline.cluster(folder, place / "deep" / "run", 3, views=VIEWS, labels="folder")
    assert disk.lacks(place) == []
    assert disk.marks == ["manifest.json", "manifest.json", RECIPE, "views", *["manifest.json"] * 4]

    disk.marks.clear()
    run = pipeline.add(run, write_images(tmp_path / "new", 4, seed=1), update=True).run
    assert (run.folder / "additions" / "0001" / "centers.npy").exists()
    assert disk.lacks(place) == []
    assert disk.marks == ["manifest.json", RECIPE, "views", "manifest.json", "0001"]

    log = EditLog(run.folder, run.column("labels"), run.next_number, run.fitted_column("labels"))
    for version, edit in enumerate([{"do": "name", "cluster": 0, "name": "a"}, {"do": "move", "rows": [0], "to": 1}]):
        log.append(edit, version)
        assert disk.lacks(place) == []

    (run.folder / "how-many.png").touch()  # a refit without `auto` removes it
    disk.marks.clear()
    refitted = pipeline.refit(run).run
    assert (refitted.folder / "history" / "0001" / "edits.jsonl").stat().st_size
    assert not (refitted.folder / "how-many.png").exists()
    assert disk.lacks(place) == []
    assert disk.marks == [*["manifest.json"] * 4, ".ready", ".replaced", "clusters", "not ready"]

    disk.marks.clear()
    again = pipeline.refit(refitted).run
    assert len(list((again.folder / "history").iterdir())) == 2
    assert disk.lacks(place) == []
    assert disk.marks[-1] == "not ready"


def test_a_resumed_refit_syncs_the_folder_created_by_the_killed_one(disk, place, folder):
    """The killed process may not have synced the folder of the history."""
    run = pipeline.cluster(folder, place / "run", 3, views=VIEWS)
    (run.folder / "history" / "0001").mkdir(parents=True)
    pipeline.refit(run)
    assert disk.lacks(place) == []


def test_extracted_views_are_on_disk(disk, place, folder):
    pipeline.extract(folder, place / "deep" / "views", VIEWS)
    assert disk.lacks(place) == []
    assert disk.marks == ["manifest.json", RECIPE, "views"]


def test_views_that_are_written_are_on_disk_before_their_manifest(disk, place):
    write_views(place / "deep" / "views", {"a": np.ones((3, 2))}, paths=["x", "y", "z"])
    write_views(place / "deep" / "views", {"a": np.zeros((4, 2))})  # overwrite
    assert disk.lacks(place) == []
    assert disk.marks == ["manifest.json"] * 2


def test_predictions_are_on_disk(disk, place, folder, tmp_path):
    run = pipeline.cluster(folder, tmp_path / "run", 3, views=VIEWS)
    pipeline.predict(run, folder, place / "deep" / "out")
    assert sorted(path.name for path in (place / "deep" / "out").iterdir())[0] == "predictions.csv"
    assert disk.lacks(place) == []


def test_a_saved_model_is_on_disk(disk, place):
    views, _ = blobs(200, seed=1)
    model = HSIC(4, n_bits=32, random_state=0).fit(views)
    for _ in range(2):  # new, and in the place of the old one
        model.save(place / "model.safetensors")
        assert disk.lacks(place) == []


@pytest.mark.parametrize(("source", "there"), [("zip", False), ("npy", True), ("folder", False), ("folder", True)])
def test_exported_links_and_copies_are_on_disk(disk, place, folder, tmp_path, source, there):
    images = folder
    if source == "zip":
        images = tmp_path / "images.zip"
        with zipfile.ZipFile(images, "w") as archive:
            for path in sorted(folder.rglob("*.png")):
                archive.write(path, path.relative_to(folder))
    elif source == "npy":
        images = tmp_path / "images.npy"
        np.save(images, np.random.default_rng(0).integers(0, 256, (20, 16, 16, 3), dtype=np.uint8))
    run = pipeline.cluster(images, tmp_path / "run", 3, views=VIEWS)
    out = place if there else place / "deep" / "links"
    done = export(Clusters(ImageFacts.of(run)), out, "links")
    assert done.facts["links" if source == "folder" else "copies"] == len(run.paths)
    assert disk.lacks(place) == []


def test_tables_are_on_disk(disk, place, folder, tmp_path):
    clusters = Clusters(ImageFacts.of(pipeline.cluster(folder, tmp_path / "run", 3, views=VIEWS)))
    for kind in ("csv", "parquet", "coco", "fiftyone", "codes", "labels"):
        export(clusters, place / kind, kind)
    assert disk.lacks(place) == []


# ---- interrupted


def test_all_images_that_an_interrupted_extraction_counts_are_on_disk(disk, place, folder, monkeypatch):
    monkeypatch.setattr(extraction, "BATCH", 5)
    work = place / ".views.extracting"
    bad = shutil.copytree(folder, place / "images")
    (bad / "disc" / "0000.png").write_bytes(b"not an image")

    def interrupt(stage, done, total):
        if stage == extraction.STAGE and done >= 15:
            raise InterruptedWorkError

    with pytest.raises(InterruptedWorkError):
        pipeline.extract(bad, place / "views", VIEWS, progress=interrupt)
    state = json.loads((work / "state.json").read_bytes())
    assert state["next"] == 15
    assert state["left_out"]
    for path in work.rglob("*.*"):
        if path.name not in TRANSIENT:
            assert disk.synced_size(path) == path.stat().st_size > 0
    assert disk.has_entries(work, *(path.name for path in work.iterdir() if path.name != LOCK))
    assert disk.has_entries(work / "views", "ch.npy", "cm.npy", "digests.npy")
    assert disk.has_entries(place, work.name)


def test_all_codes_that_an_interrupted_fit_counts_are_on_disk(disk, place, monkeypatch):
    monkeypatch.setattr(checkpoint, "EVERY", 0.0)
    monkeypatch.setattr(checkpoint, "COST", 0.0)
    monkeypatch.setattr(loop, "PART_BLOCKS", 1)
    views, _ = blobs(5000, seed=1)

    class Fragile:
        """Its last blocks cannot be read."""

        def __init__(self, values):
            self.values, self.shape, self.dtype = values, values.shape, values.dtype

        def __getitem__(self, rows):
            if isinstance(rows, slice) and rows.stop - rows.start > checkpoint.LOOKED_AT and rows.start >= 3 * 1024:
                raise InterruptedWorkError
            return self.values[rows]

    first, *others = views.values()
    options = {"n_bits": 32, "n_anchors": 40, "max_iter": 2, "train_size": 1000, "random_state": 0}
    with pytest.raises(InterruptedWorkError):
        HSIC(4, **options).fit(Views(tuple(views), (Fragile(first), *others)), checkpoint=place / "deep" / "kept")
    kept = place / "deep" / "kept"
    n_bytes = read_model(kept / "codes.safetensors", checkpoint.KIND)[1]["n_bytes"]
    assert disk.synced_size(kept / "codes.unfinished") >= n_bytes > 0
    for name in ("loop.safetensors", "codes.safetensors"):
        assert disk.lacks(kept / name) == []
    assert disk.has_entries(kept, "codes.unfinished", "loop.safetensors", "codes.safetensors")
    assert disk.has_entries(place, "deep")
    assert disk.has_entries(place / "deep", "kept")


def test_an_interrupted_run_counts_only_stages_that_are_on_disk(disk, place, folder):
    def interrupt(stage, done, total):
        if stage == "drawing clusters" and done == 2:
            raise InterruptedWorkError

    with pytest.raises(InterruptedWorkError):
        pipeline.cluster(folder, place / "run", 3, views=VIEWS, progress=interrupt)
    assert Run(place / "run").done("tables")
    assert disk.marks == ["manifest.json", "manifest.json", RECIPE, "views", *["manifest.json"] * 3]

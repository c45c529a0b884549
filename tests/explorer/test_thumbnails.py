"""Thumbnails show the right image, are made once and cached in the run, for any source and after any damage."""

import io
import shutil
import sqlite3
import tarfile
import time
from contextlib import closing

import numpy as np
import pytest
from image_kinds import write_images
from PIL import Image

from bitmosaic import pipeline
from bitmosaic.explorer import thumbnails
from bitmosaic.explorer.thumbnails import FILE, Thumbnails
from bitmosaic.run import images as run_images
from bitmosaic.run.folder import Run


def pixels(jpeg):
    return np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"), float)


def original(run, row):
    return np.asarray(Image.open(f"{run.manifest.arguments['source']}/{run.paths[row]}").convert("RGB"), float)


def test_a_thumbnail_shows_the_image_of_its_row(run):
    kept = Thumbnails(run)
    for row in (0, 57, 119):
        assert np.abs(pixels(kept.get(row)) - original(run, row)).mean() < 12
        assert kept.size(row) == (24, 24)


def test_cached_thumbnails_remain_without_the_images(run, monkeypatch):
    Thumbnails(run).many(range(10))
    monkeypatch.setattr(run_images, "find_source", lambda *_: None)
    kept = Thumbnails(run)
    assert sorted(kept.many(range(20))) == list(range(10))
    assert kept.available
    assert kept.get(50) is None
    assert kept.large(3) == kept.get(3)
    assert kept.large(50) is None


def test_a_compressed_archive_is_read_once(tmp_path, monkeypatch):
    folder = write_images(tmp_path / "images", 8)
    with tarfile.open(tmp_path / "images.tar.xz", "w:xz") as archive:
        archive.add(folder, "images")
    run = pipeline.cluster(tmp_path / "images.tar.xz", tmp_path / "run", 3, views=("ch",))
    seen = []
    Thumbnails(run).prepare(lambda *stage: seen.append(stage))
    assert seen[-1] == ("reading images", 24, 24)
    monkeypatch.setattr(run_images, "find_source", lambda *_: pytest.fail("read again"))
    kept = Thumbnails(run)
    kept.prepare()
    assert sorted(kept.many(range(24))) == list(range(24))


def test_a_large_image_keeps_its_aspect_ratio(tmp_path):
    folder = write_images(tmp_path / "images", 8)
    Image.new("RGB", (2000, 1000), "red").save(folder / "disc" / "0000.png")
    run = pipeline.cluster(folder, tmp_path / "run", 3, views=("ch",))
    kept = Thumbnails(run)
    assert pixels(kept.get(0)).shape == (64, 128, 3)
    assert pixels(kept.large(0)).shape == (800, 1600, 3)


def test_a_damaged_cache_is_rebuilt(run):
    (run.folder / FILE).write_bytes(b"no database " * 1000)
    assert Thumbnails(run).get(0) is not None
    assert (run.folder / FILE).read_bytes().startswith(b"SQLite format 3")


def test_a_partly_damaged_cache_or_another_schema_is_rebuilt(run):
    Thumbnails(run).many(range(120))
    file = run.folder / FILE
    content = bytearray(file.read_bytes())
    content[4096:] = bytes(len(content) - 4096)
    file.write_bytes(content)
    assert sorted(Thumbnails(run).many(range(120))) == list(range(120))
    file.unlink()
    with sqlite3.connect(file) as other:
        other.execute("CREATE TABLE thumbnails (something TEXT)")
    other.close()
    assert Thumbnails(run).get(0) is not None
    assert Thumbnails(run).made(0) is not None


def test_a_locked_cache_delays_only_briefly(run):
    Thumbnails(run).get(0)
    with closing(sqlite3.connect(run.folder / FILE, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        begun = time.perf_counter()
        assert Thumbnails(run).get(0) is not None
        assert time.perf_counter() - begun < 3
        other.execute("ROLLBACK")


def test_a_read_only_run_has_thumbnails(run, monkeypatch):
    monkeypatch.setattr(thumbnails, "FILE", "no/such/folder.sqlite")
    kept = Thumbnails(run)
    assert kept.get(0) is not None
    assert kept.get(0) == kept.get(0)


def test_an_unreadable_image_is_left_out(run, tmp_path):
    folder = tmp_path / "moved"
    shutil.copytree(run.manifest.arguments["source"], folder)
    (folder / run.paths[5]).write_bytes(b"not an image")
    recipe = run.views_folder / "extraction.json"
    assert recipe.is_file(), [f.name for f in run.views_folder.iterdir()]
    recipe.write_text(recipe.read_text().replace(run.manifest.arguments["source"], str(folder)))
    assert sorted(Thumbnails(Run(run.folder)).many([4, 5, 6])) == [4, 6]

"""Thumbnails: right pictures for rows, made once, kept in the run, whatever the source and however it ends."""

import io
import shutil
import sqlite3
import tarfile

import numpy as np
import pytest
from PIL import Image

from bitmosaic import pipeline, run_pictures
from bitmosaic.explorer import thumbnails
from bitmosaic.explorer.thumbnails import FILE, Thumbnails
from bitmosaic.run import Run
from pictures import write_pictures


def pixels(jpeg):
    return np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"), float)


def original(run, row):
    return np.asarray(Image.open(f"{run.manifest['arguments']['source']}/{run.paths[row]}").convert("RGB"), float)


def test_a_thumbnail_shows_the_picture_of_its_row(run):
    kept = Thumbnails(run)
    for row in (0, 57, 119):
        assert np.abs(pixels(kept.get(row)) - original(run, row)).mean() < 12
        assert kept.size(row) == (24, 24)


def test_thumbnails_are_there_after_the_pictures_are_gone(run, monkeypatch):
    Thumbnails(run).many(range(10))
    monkeypatch.setattr(run_pictures, "find_source", lambda *_: None)
    kept = Thumbnails(run)
    assert sorted(kept.many(range(20))) == list(range(10))
    assert kept.available
    assert kept.get(50) is None
    assert kept.large(3) == kept.get(3)
    assert kept.large(50) is None


def test_a_compressed_archive_is_read_once_for_all(tmp_path, monkeypatch):
    folder = write_pictures(tmp_path / "pictures", 8)
    with tarfile.open(tmp_path / "pictures.tar.xz", "w:xz") as archive:
        archive.add(folder, "pictures")
    run = pipeline.cluster(tmp_path / "pictures.tar.xz", tmp_path / "run", 3, views=("ch",))
    seen = []
    Thumbnails(run).prepare(lambda *stage: seen.append(stage))
    assert seen[-1] == ("reading pictures", 24, 24)
    monkeypatch.setattr(run_pictures, "find_source", lambda *_: pytest.fail("read again"))
    kept = Thumbnails(run)
    kept.prepare()
    assert sorted(kept.many(range(24))) == list(range(24))


def test_a_large_picture_keeps_its_proportions(tmp_path):
    folder = write_pictures(tmp_path / "pictures", 8)
    Image.new("RGB", (2000, 1000), "red").save(folder / "disc" / "0000.png")
    run = pipeline.cluster(folder, tmp_path / "run", 3, views=("ch",))
    kept = Thumbnails(run)
    assert pixels(kept.get(0)).shape == (64, 128, 3)
    assert pixels(kept.large(0)).shape == (800, 1600, 3)


def test_a_damaged_cache_is_made_anew(run):
    (run.folder / FILE).write_bytes(b"no database " * 1000)
    assert Thumbnails(run).get(0) is not None
    assert (run.folder / FILE).read_bytes().startswith(b"SQLite format 3")


def test_a_cache_damaged_in_its_middle_or_of_another_kind_is_made_anew(run):
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


@pytest.mark.parametrize(
    "script",
    [
        "CREATE VIEW thumbnails AS SELECT 0 AS row, 9 AS width, 9 AS height, zeroblob(9) AS jpeg",
        "CREATE TABLE thumbnails (row INTEGER PRIMARY KEY, width INTEGER, height INTEGER, jpeg BLOB);"
        "CREATE TRIGGER t AFTER INSERT ON thumbnails BEGIN SELECT RAISE(FAIL, 'no'); END",
        "CREATE TABLE thumbnails (row INTEGER PRIMARY KEY, width INTEGER, height INTEGER, jpeg BLOB);"
        "INSERT INTO thumbnails VALUES (0, 'wide', NULL, '<html>')",
        "CREATE TABLE thumbnails (row INTEGER PRIMARY KEY, width INTEGER, height INTEGER, jpeg BLOB);"
        "INSERT INTO thumbnails VALUES (0, 24, 24, zeroblob(100000000))",
    ],
)
def test_a_cache_that_was_made_by_others_does_nothing_of_its_own(run, script):
    other = sqlite3.connect(run.folder / FILE)
    other.executescript(script)
    other.close()
    kept = Thumbnails(run)
    assert np.abs(pixels(kept.get(0)) - original(run, 0)).mean() < 12
    assert kept.size(0) == (24, 24)
    assert Thumbnails(run).made(0) == kept.get(0)


def test_a_run_that_cannot_be_written_has_thumbnails_all_the_same(run, monkeypatch):
    monkeypatch.setattr(thumbnails, "FILE", "no/such/folder.sqlite")
    kept = Thumbnails(run)
    assert kept.get(0) is not None
    assert kept.get(0) == kept.get(0)


def test_a_picture_that_has_gone_bad_is_absent(run, tmp_path):
    folder = tmp_path / "moved"
    shutil.copytree(run.manifest["arguments"]["source"], folder)
    (folder / run.paths[5]).write_bytes(b"no picture")
    recipe = run.views_folder / "extraction.json"
    assert recipe.is_file(), [f.name for f in run.views_folder.iterdir()]
    recipe.write_text(recipe.read_text().replace(run.manifest["arguments"]["source"], str(folder)))
    assert sorted(Thumbnails(Run(run.folder)).many([4, 5, 6])) == [4, 6]

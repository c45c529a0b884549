"""Thumbnails: right pictures for rows, made once, kept in the run, whatever the source and however it ends."""

import io
import os
import shutil
import sqlite3
import struct
import tarfile
import time
from contextlib import closing

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


@pytest.mark.parametrize("kind", ["EPS", "PNG", "large", "cut", "text"])
def test_only_small_jpegs_come_out_of_a_cache(run, kind):
    file = io.BytesIO()
    Image.new("RGB", (200, 200) if kind == "large" else (24, 24)).save(file, kind if kind in ("EPS", "PNG") else "JPEG")
    content = {"cut": file.getvalue()[:20], "text": b"<script>alert(1)</script>"}.get(kind, file.getvalue())
    first = Thumbnails(run)
    with first._file:
        first._file.execute("INSERT INTO thumbnails VALUES (0, 24, 24, ?)", [content])
    kept = Thumbnails(run)
    assert kept.made(0) is None
    assert np.abs(pixels(kept.many([0])[0]) - original(run, 0)).mean() < 12
    assert kept.made(0) == kept.get(0)


@pytest.mark.parametrize("n_more", [0, 1])
def test_a_thumbnail_of_many_bytes_is_made_anew_before_it_is_read(run, n_more):
    small = Thumbnails(run).get(0)
    file = sqlite3.connect(run.folder / FILE)
    with closing(file), file:  # a small JPEG, with something behind it
        content = small.ljust(thumbnails.LONGEST + 1 if n_more else thumbnails.LONGEST // 2, b"x")
        file.execute("UPDATE thumbnails SET jpeg = ? WHERE row = 0", [content])
    assert len(Thumbnails(run).get(0)) == (len(small) if n_more else len(content))


@pytest.fixture
def opened(monkeypatch):
    """Every connection that is opened, in order."""
    files, connect = [], sqlite3.connect
    monkeypatch.setattr(thumbnails.sqlite3, "connect", lambda *a, **k: files.append(connect(*a, **k)) or files[-1])
    return files


def is_open(file):
    try:
        file.total_changes  # noqa: B018
    except sqlite3.ProgrammingError:
        return False
    return True


def test_a_file_that_is_no_cache_does_not_stay_open(run, opened):
    (run.folder / FILE).write_bytes(b"no database " * 1000)
    Thumbnails(run)
    assert [is_open(file) for file in opened] == [False, True]


def test_a_cache_found_damaged_does_not_stay_open(run, opened):
    kept = Thumbnails(run)
    kept.many(range(120))
    content = (run.folder / FILE).read_bytes()
    (run.folder / FILE).write_bytes(content[:4096] + bytes(len(content) - 4096))
    Thumbnails(run).many(range(120))
    assert [is_open(file) for file in opened] == [True, False, True]


def test_nobody_waits_long_for_another_explorer_that_writes(run):
    Thumbnails(run).get(0)
    with closing(sqlite3.connect(run.folder / FILE, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        begun = time.perf_counter()
        assert Thumbnails(run).get(0) is not None
        assert time.perf_counter() - begun < 3
        other.execute("ROLLBACK")


def journal_of(victim, path):
    """A journal that SQLite takes for that of a process that died in the midst of writing to several files."""
    magic = bytes.fromhex("d9d505f920a163d7")
    with closing(sqlite3.connect(path)) as file:
        n_pages, page = (file.execute(f"PRAGMA {what}").fetchone()[0] for what in ("page_count", "page_size"))
    begin = (magic + struct.pack(">5I", 0, 0, n_pages, 512, page)).ljust(512, b"\0")
    name = str(victim).encode()
    end = struct.pack(">I", 2**30 // page + 1) + name + struct.pack(">2I", len(name), sum(name)) + magic
    return begin + end


def test_a_journal_does_not_delete_the_files_of_others(run, tmp_path):
    Thumbnails(run).get(0)
    (tmp_path / "victim").write_text("dear")
    journal = journal_of(tmp_path / "victim", run.folder / FILE)
    (run.folder / f"{FILE}-journal").write_bytes(journal)
    assert Thumbnails(run).get(0) is not None
    assert (tmp_path / "victim").read_text() == "dear"
    assert not (run.folder / f"{FILE}-journal").exists()


def test_a_cache_that_a_killed_process_was_writing_to_is_as_before(run):
    first = Thumbnails(run)
    first.many(range(5))
    with first._lock:  # as it would be left by a kill: what was begun is there, with its journal
        first._file.execute("PRAGMA cache_size = 1")
        first._file.execute("BEGIN IMMEDIATE")
        first._file.executemany(
            "INSERT INTO thumbnails VALUES (?, 1, 1, zeroblob(9999))", [(n,) for n in range(50, 99)]
        )
        left = {path.name: path.read_bytes() for path in run.folder.glob(f"{FILE}*")}
        first._file.rollback()
    assert len(left) == 2
    for name, content in left.items():
        (run.folder / name).write_bytes(content)
    kept = Thumbnails(run)
    assert [kept.made(row) is not None for row in (0, 4, 50, 98)] == [True, True, False, False]


@pytest.mark.parametrize("kind", ["", "-journal", "-wal", "-shm"])
@pytest.mark.parametrize("pipe", [True, False])
def test_sqlite_waits_for_no_pipe_and_writes_through_no_link(run, tmp_path, kind, pipe):
    first = Thumbnails(run)
    first._file.execute("PRAGMA journal_mode = WAL")
    first.get(0)
    first._file.close()
    place = run.folder / f"{FILE}{kind}"
    place.unlink(missing_ok=True)
    (tmp_path / "victim").write_bytes(b"dear")
    os.mkfifo(place) if pipe else place.symlink_to(tmp_path / "victim")
    assert Thumbnails(run).get(0) is not None
    assert (tmp_path / "victim").read_bytes() == b"dear"


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

"""Workers make the views folder of one machine bit for bit, also after an interruption or the death of a worker."""

import gc
import os
import shutil
import signal
import tarfile
import time
import zipfile

import numpy as np
import pytest
from image_kinds import write_images
from PIL import Image

from bitmosaic import pipeline
from bitmosaic.cli.dask_client import connected
from bitmosaic.errors import ImageError, InvalidDataError
from bitmosaic.images.files import FileSource
from bitmosaic.pipeline import extraction
from bitmosaic.pipeline import extraction_workers as extract_workers

VIEWS = ("ch", "wt")  # without kernels: each worker would compile them


@pytest.fixture(scope="module")
def client():
    with connected(workers=2) as client:
        yield client


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(extract_workers, "STEP", 8)
    monkeypatch.setattr(extract_workers, "IN_FLIGHT", 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """60 good images, and two bad ones."""
    folder = write_images(tmp_path_factory.mktemp("place") / "photos", 20)
    (folder / "disc" / "0003x.png").write_bytes(b"\x89PNG\r\n\x1a\n cut")
    (folder / "stripes" / "9999.jpg").write_bytes(b"not an image")
    return folder


def same(ours, theirs):
    """Both views folders have the same files with the same bytes."""
    assert {path.name: path.read_bytes() for path in ours.iterdir()} == {
        path.name: path.read_bytes() for path in theirs.iterdir()
    }


def tasks(client):
    """How many tasks the scheduler knows; it may take a moment until all are forgotten."""
    for _ in range(100):
        found = client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))
        if not found:
            break
        time.sleep(0.05)
    return found


def as_folder(folder, place):
    return folder


def as_relative_paths(folder, place):
    return [os.path.relpath(path) for path in sorted(folder.rglob("*.*"))]


def as_zip(folder, place):
    with zipfile.ZipFile(place / "photos.zip", "w") as archive:
        for path in sorted(folder.rglob("*.*")):
            archive.write(path, path.relative_to(folder))
    return place / "photos.zip"


def as_tar_gz(folder, place):
    with tarfile.open(place / "photos.tar.gz", "w:gz") as archive:
        archive.add(folder, ".")
    return place / "photos.tar.gz"


def as_npy(folder, place):
    images = [np.asarray(Image.open(path)) for path in sorted(folder.rglob("00[012]?.png"))]
    np.save(place / "photos.npy", np.stack(images))
    return place / "photos.npy"


@pytest.mark.parametrize("make", [as_folder, as_relative_paths, as_zip, as_tar_gz, as_npy])
def test_workers_make_the_views_folder_of_one_machine(make, folder, tmp_path, client):
    src = make(folder, tmp_path)
    labels = None if make is as_npy else "folder"
    seen = []
    options = {"labels": labels, "client": client}
    pipeline.extract(src, tmp_path / "ours", VIEWS, **options, progress=lambda *step: seen.append(step))
    pipeline.extract(src, tmp_path / "theirs", VIEWS, labels=labels)
    same(tmp_path / "ours", tmp_path / "theirs")
    n = 60 if make is as_npy else 62
    steps = [step for step in seen if step[0] == "extracting features"]
    assert [steps[0][1:], steps[-1][1:]] == [(0, n), (n, n)]
    # Two tasks per worker thread, because each task reads a compressed archive from its beginning.
    assert len(steps) - 1 == (4 if make is as_tar_gz else 8)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []
    assert tasks(client) == 0


def test_a_finished_views_folder_is_not_made_again(folder, tmp_path, client):
    pipeline.extract(folder, tmp_path / "views", VIEWS)
    before = [path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*"))]
    pipeline.extract(folder, tmp_path / "views", VIEWS, client=client)
    assert [path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*"))] == before
    with pytest.raises(InvalidDataError, match="was made with the views"):
        pipeline.extract(folder, tmp_path / "views", ("ch",), client=client)


def test_add_recognizes_the_images_of_a_run_that_workers_made(tmp_path, client):
    folder = write_images(tmp_path / "photos", 8)
    pipeline.extract(folder, tmp_path / "views", ("ch",), client=client)
    run = pipeline.fit(tmp_path / "views", tmp_path / "run", 3)
    added = pipeline.add(run, folder)
    assert (added.images, added.known, added.recognizes) == (0, 24, True)


def stop_after(n_images):
    def stop(stage, done, total):
        if stage == "extracting features" and done >= n_images:
            raise KeyboardInterrupt

    return stop


def test_workers_resume_an_extraction_that_was_interrupted_here(folder, tmp_path, client, monkeypatch):
    monkeypatch.setattr(extraction, "BATCH", 8)
    out = tmp_path / "views"
    with pytest.raises(KeyboardInterrupt):
        pipeline.extract(folder, out, VIEWS, progress=stop_after(24))
    assert not out.exists()
    seen = []
    pipeline.extract(folder, out, VIEWS, client=client, progress=lambda *step: seen.append(step))
    assert next(done for stage, done, _ in seen if stage == "extracting features") == 24
    pipeline.extract(folder, tmp_path / "whole", VIEWS)
    same(out, tmp_path / "whole")


def test_strict_stops_at_an_unreadable_image(folder, tmp_path, client):
    with pytest.raises(ImageError, match=r"Cannot read the image (disc/0003x\.png|stripes/9999\.jpg): "):
        pipeline.extract(folder, tmp_path / "views", ("ch",), strict=True, client=client)
    assert tasks(client) == 0
    pipeline.extract(folder, tmp_path / "views", ("ch",), client=client)
    lines = (tmp_path / "views" / "skipped.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["path", "disc/0003x.png", "stripes/9999.jpg"]


def test_a_failing_part_leaves_no_task(folder, tmp_path, client):
    photos = shutil.copytree(folder, tmp_path / "photos")
    (photos / "disc" / "0003x.png").unlink()  # the other bad image is the last of all
    gc.disable()  # an error's frames and the futures in them are a cycle
    try:
        with pytest.raises(ImageError, match=r"stripes/9999\.jpg"):
            pipeline.extract(photos, tmp_path / "views", ("ch",), strict=True, client=client)
        assert tasks(client) == 0
    finally:
        gc.enable()


def test_the_error_names_an_archive_that_workers_do_not_see(folder, tmp_path, client):
    archive = as_zip(folder, tmp_path)

    def lose(stage, done, total):
        if stage == "extracting features":
            archive.unlink()

    expected = r"Images \d+ to \d+, \w+/\d+\.png to .*, could not be extracted: Every worker must be able to read"
    with pytest.raises(InvalidDataError, match=expected):
        pipeline.extract(archive, tmp_path / "views", ("ch",), progress=lose, client=client)
    assert tasks(client) == 0


def test_a_worker_that_sees_other_images_is_an_error(folder, tmp_path, client, monkeypatch):
    monkeypatch.setattr(FileSource, "image_signature", lambda *_: (123, 0))  # in this process, not on the workers
    with pytest.raises(
        InvalidDataError, match=r"must see the same images at .*photos; .* sees none or other images there"
    ):
        pipeline.extract(folder, tmp_path / "views", ("ch",), client=client)


def test_names_that_are_not_utf8_are_preserved(tmp_path, client):
    folder = write_images(tmp_path / "photos", 4)
    (folder / "disc" / "0000.png").rename(folder / "disc" / "\udcff\n.png")
    views = pipeline.extract(folder, tmp_path / "views", ("ch",), client=client)
    assert "disc/\udcff\n.png" in views.paths
    assert views.n_rows == 12


def test_bad_input_is_refused_before_any_work(folder, tmp_path, client):
    with pytest.raises(InvalidDataError, match=r"an array has none\. Save it with numpy\.save"):
        pipeline.extract(np.zeros((4, 9, 9), np.uint8), tmp_path / "views", ("ch",), client=client)
    (tmp_path / "bad").mkdir()
    for i in range(20):
        (tmp_path / "bad" / f"{i}.png").write_bytes(b"bad")
    with pytest.raises(InvalidDataError, match=r"none of 20 was \(0\.png: "):
        pipeline.extract(tmp_path / "bad", tmp_path / "views", ("ch",), client=client)
    assert [path.name for path in tmp_path.iterdir()] == ["bad"]


# The last test: a restarted worker imports everything again.
def test_a_worker_that_dies_does_not_change_the_result(folder, tmp_path, client):
    victims = list(client.run(os.getpid).values())[:1]

    def kill(stage, done, total):
        if stage == "extracting features" and done >= 8 and victims:
            os.kill(victims.pop(), signal.SIGKILL)

    pipeline.extract(folder, tmp_path / "views", VIEWS, client=client, progress=kill)
    assert not victims
    pipeline.extract(folder, tmp_path / "whole", VIEWS)
    same(tmp_path / "views", tmp_path / "whole")

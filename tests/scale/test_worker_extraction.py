"""Features extracted on workers: those of one machine to the last bit, whatever dies, stops or fails meanwhile."""

import gc
import os
import shutil
import signal
import tarfile
import time
import zipfile

import numpy as np
import pytest
from PIL import Image

from bitmosaic import worker_extraction
from bitmosaic.errors import ImageError, InvalidDataError, ParameterError
from bitmosaic.extraction import extract_views
from bitmosaic.scale.cluster import connected
from bitmosaic.views import read_rows, read_views
from bitmosaic.worker_extraction import extract_on_workers, part_size
from pictures import write_pictures

VIEWS = ("ch", "hog", "lbp")


@pytest.fixture(scope="module")
def client():
    with connected(workers=2) as client:
        yield client


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(worker_extraction, "STEP", 8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """60 good pictures, and two bad ones."""
    folder = write_pictures(tmp_path_factory.mktemp("place") / "photos", 20)
    (folder / "disc" / "0003x.png").write_bytes(b"\x89PNG\r\n\x1a\n cut")
    (folder / "stripes" / "9999.jpg").write_bytes(b"no picture")
    return folder


def same(ours, theirs):
    assert (ours.names, ours.widths, ours.paths) == (theirs.names, theirs.widths, theirs.paths)
    for name in ours:
        np.testing.assert_array_equal(read_rows(ours[name], slice(0, None)), read_rows(theirs[name], slice(0, None)))
    if theirs.labels is None:
        assert ours.labels is None
    else:
        np.testing.assert_array_equal(ours.labels, theirs.labels)


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


def as_list(folder, place):
    paths = sorted(folder.rglob("*.*"))
    (place / "list.txt").write_text("".join(f"{os.path.relpath(path, place)}\n" for path in paths))
    return place / "list.txt"


def as_relative_paths(folder, place):
    return [os.path.relpath(path) for path in sorted(folder.rglob("*.*"))]


def as_zip(folder, place):
    with zipfile.ZipFile(place / "photos.zip", "w") as archive:
        for path in sorted(folder.rglob("*.*")):
            archive.write(path, path.relative_to(folder))
    return place / "photos.zip"


def as_tar(folder, place, mode="w"):
    with tarfile.open(place / "photos.tar", mode) as archive:
        archive.add(folder, ".")
    return place / "photos.tar"


def as_tar_gz(folder, place):
    return as_tar(folder, place, "w:gz")


def as_npy(folder, place):
    pictures = [np.asarray(Image.open(path)) for path in sorted(folder.rglob("00[012]?.png"))]
    np.save(place / "photos.npy", np.stack(pictures))
    return place / "photos.npy"


@pytest.mark.parametrize("make", [as_folder, as_list, as_relative_paths, as_zip, as_tar, as_tar_gz, as_npy])
def test_workers_make_the_features_of_one_machine_to_the_bit(make, folder, tmp_path, client):
    src = make(folder, tmp_path)
    labels = None if make is as_npy else "folder"
    seen = []
    ours = extract_on_workers(
        client, src, tmp_path / "ours", VIEWS, labels=labels, progress=lambda *step: seen.append(step)
    )
    theirs = extract_views(src, tmp_path / "theirs", VIEWS, labels=labels)
    same(ours, theirs)
    assert len(list((tmp_path / "ours" / "parts").iterdir())) == 8
    for name in ("skipped.csv", "extraction.json"):
        assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes()
    n = 60 if make is as_npy else 62
    assert [seen[-9], seen[-1]] == [("extracting features", 0, n), ("extracting features", n, n)]
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_a_finished_folder_is_taken_as_it_is_wherever_it_was_made(folder, tmp_path, client):
    ours = extract_on_workers(client, folder, tmp_path / "ours", VIEWS)
    theirs = extract_views(folder, tmp_path / "theirs", VIEWS)
    before = [path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*"))]
    same(extract_views(folder, tmp_path / "ours", VIEWS), ours)
    same(extract_on_workers(client, folder, tmp_path / "theirs", VIEWS), theirs)
    assert [path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*"))] == before
    with pytest.raises(InvalidDataError, match="was made with the views"):
        extract_on_workers(client, folder, tmp_path / "theirs", ("ch",))


def stop_after(n_pictures):
    def stop(stage, done, total):
        if stage == "extracting features" and done >= n_pictures:
            raise KeyboardInterrupt

    return stop


def test_what_was_stopped_goes_on_with_the_parts_that_are_there(folder, tmp_path, client):
    out = tmp_path / "views"
    with pytest.raises(KeyboardInterrupt):
        extract_on_workers(client, folder, out, VIEWS, progress=stop_after(24))
    assert tasks(client) == 0
    assert not out.exists()
    made = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob(".views.extracting/parts-*/parts/part-*")}
    assert len(made) >= 3
    views = extract_on_workers(client, folder, out, VIEWS)
    same(views, extract_views(folder, tmp_path / "whole", VIEWS))
    assert {name: (out / "parts" / name).stat().st_mtime_ns for name in made} == made


def test_parts_of_another_recipe_are_not_used(folder, tmp_path, client):
    with pytest.raises(KeyboardInterrupt):
        extract_on_workers(client, folder, tmp_path / "views", VIEWS, mirror=False, progress=stop_after(24))
    views = extract_on_workers(client, folder, tmp_path / "views", VIEWS)
    same(views, extract_views(folder, tmp_path / "whole", VIEWS))


def test_a_worker_that_dies_costs_time_only(folder, tmp_path, client):
    victims = list(client.run(os.getpid).values())[:1]

    def kill(stage, done, total):
        if stage == "extracting features" and done >= 8 and victims:
            os.kill(victims.pop(), signal.SIGKILL)

    views = extract_on_workers(client, folder, tmp_path / "views", VIEWS, progress=kill)
    assert not victims
    same(views, extract_views(folder, tmp_path / "whole", VIEWS))
    client.wait_for_workers(2, timeout=20)


def test_strict_stops_at_a_picture_that_cannot_be_read(folder, tmp_path, client):
    with pytest.raises(ImageError, match=r"Cannot read the picture (disc/0003x\.png|stripes/9999\.jpg): "):
        extract_on_workers(client, folder, tmp_path / "views", ("ch",), strict=True)
    assert tasks(client) == 0
    extract_on_workers(client, folder, tmp_path / "views", ("ch",))
    lines = (tmp_path / "views" / "skipped.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["path", "disc/0003x.png", "stripes/9999.jpg"]


def test_nothing_is_left_of_the_parts_before_the_one_that_fails(folder, tmp_path, client):
    photos = shutil.copytree(folder, tmp_path / "photos")
    (photos / "disc" / "0003x.png").unlink()  # the other bad picture is the last of all
    gc.disable()  # an error's frames and the futures in them are a cycle
    try:
        with pytest.raises(ImageError, match=r"stripes/9999\.jpg"):
            extract_on_workers(client, photos, tmp_path / "views", ("ch",), strict=True)
        assert tasks(client) == 0
    finally:
        gc.enable()


def test_pictures_that_workers_do_not_see_are_named(folder, tmp_path, client):
    archive = as_zip(folder, tmp_path)

    def lose(stage, done, total):
        if stage == "extracting features":
            archive.unlink()

    expected = r"Pictures \d+ to \d+, \w+/\d+\.png to .*, could not be extracted: Every worker must be able to read"
    with pytest.raises(InvalidDataError, match=expected):
        extract_on_workers(client, archive, tmp_path / "views", ("ch",), progress=lose)
    assert tasks(client) == 0


def test_a_folder_that_is_not_there_on_a_worker_is_no_folder_of_bad_pictures(folder, tmp_path, client):
    photos = shutil.copytree(folder, tmp_path / "photos")

    def lose(stage, done, total):
        if stage == "extracting features":
            photos.rename(tmp_path / "elsewhere")

    with pytest.raises(InvalidDataError, match=r"must see the same pictures at .*photos; .* sees none there"):
        extract_on_workers(client, photos, tmp_path / "views", ("ch",), progress=lose)


def test_names_that_are_not_utf8_come_back_as_they_are(tmp_path, client):
    folder = write_pictures(tmp_path / "photos", 4)
    (folder / "disc" / "0000.png").rename(folder / "disc" / "\udcff\n.png")
    views = extract_on_workers(client, folder, tmp_path / "views", ("ch",))
    same(views, extract_views(folder, tmp_path / "whole", ("ch",)))
    assert "disc/\udcff\n.png" in views.paths


def test_bad_input_is_refused_before_any_work(folder, tmp_path, client):
    with pytest.raises(InvalidDataError, match=r"an array has none\. Save it with numpy\.save"):
        extract_on_workers(client, np.zeros((4, 9, 9), np.uint8), tmp_path / "views", ("ch",))
    with pytest.raises(ParameterError, match="neither 'path' nor 'label'; got 'path'"):
        extract_on_workers(client, folder, tmp_path / "views", ("path=model.onnx",))
    (tmp_path / "bad").mkdir()
    for i in range(20):
        (tmp_path / "bad" / f"{i}.png").write_bytes(b"bad")
    with pytest.raises(InvalidDataError, match=r"none of 20 was \(0\.png: "):
        extract_on_workers(client, tmp_path / "bad", tmp_path / "views", ("ch",))
    assert [path.name for path in tmp_path.iterdir()] == ["bad"]


def test_a_whole_folder_of_parts_reads_without_a_cluster(folder, tmp_path, client):
    extract_on_workers(client, folder, tmp_path / "views", VIEWS, labels="folder")
    views = read_views(tmp_path / "views")
    assert (views.n_rows, set(views.labels)) == (60, {"disc", "noise", "stripes"})


@pytest.mark.parametrize(
    ("n_pictures", "expected"), [(1, 256), (65_536, 256), (65_537, 512), (100_000, 512), (10**6, 4096), (10**9, 8192)]
)
def test_parts_grow_with_the_collection(n_pictures, expected):
    assert part_size(n_pictures, 256, 8192) == expected

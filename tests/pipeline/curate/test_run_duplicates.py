"""find_duplicates: the groups, the copy to keep, and the files that are written."""

import shutil

import numpy as np
import pytest
from copied_images import scene
from PIL import Image, ImageFilter

from bitmosaic import pipeline
from bitmosaic.errors import MissingFileError, ParameterError
from bitmosaic.pipeline import duplicates as module
from bitmosaic.pipeline.duplicates import Copy, Duplicates, Finder, draw_duplicates, find_duplicates, sharpness
from bitmosaic.run.folder import Run


def files_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def names(found):
    return sorted([copy.path for copy in group] for group in found.groups)


def clustered(folder, out):
    return pipeline.cluster(folder, out, 2, views=("hog", "ch"))


@pytest.mark.parametrize("way", ["images", "both"])
def test_copies_are_grouped_with_the_largest_first(run, way):
    found = find_duplicates(run, way=way)
    assert (found.way, found.radius) == (way, 12)
    assert names(found) == [["01.png", "poor.jpg"], ["02.png", "twin.png"], ["large.png", "00.png", "small.png"]]
    assert found.n_others == 4


def test_the_table_has_the_reasons(run):
    table = find_duplicates(run).table()
    assert list(table) == ["group", "keep", "path", "distance", "width", "height", "sharpness", "bytes", "reason"]
    lines = {path: i for i, path in enumerate(table["path"])}
    large, small, twin = lines["large.png"], lines["small.png"], lines["twin.png"]
    assert (table["keep"][large], table["reason"][large], table["distance"][large]) == (True, "largest", 0)
    assert (table["keep"][small], table["reason"][small]) == (False, "smaller")
    assert (table["width"][small], table["height"][small]) == (24, 24)
    assert table["group"][large] == table["group"][small] != table["group"][twin]
    assert (table["keep"][twin], table["reason"][twin], table["distance"][twin]) == (False, "later", 0)
    assert table["reason"][lines["02.png"]] == "first of equals"
    assert sum(table["keep"]) == 3


def test_of_equal_sizes_the_sharpest_then_the_largest_file_is_kept(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    noisy = np.clip(scene(1, 64) + np.random.default_rng(0).normal(0, 6, (64, 64, 3)), 0, 255).astype(np.uint8)
    Image.fromarray(noisy).filter(ImageFilter.GaussianBlur(1)).save(folder / "a-blurred.png")
    Image.fromarray(noisy).save(folder / "b-sharp.png")
    Image.fromarray(scene(2, 64)).save(folder / "c.png", compress_level=9)
    Image.fromarray(scene(2, 64)).save(folder / "d-large.png", compress_level=0)
    found = find_duplicates(clustered(folder, tmp_path / "run"))
    reasons = {copy.path: copy.reason for group in found.groups for copy in group}
    assert reasons == {
        "a-blurred.png": "less sharp",
        "b-sharp.png": "sharpest",
        "c.png": "smaller file",
        "d-large.png": "largest file",
    }


def test_sharpness_is_the_variance_of_the_laplacian():
    image = np.zeros((9, 9, 3), np.uint8)
    image[4, 4] = 100
    laplacian = np.zeros((9, 9))
    laplacian[4, 4], laplacian[[3, 5, 4, 4], [4, 4, 3, 5]] = -400, 100
    assert sharpness(image) == pytest.approx(laplacian.var())
    assert sharpness(np.full((5, 7, 3), 9, np.uint8)) == 0


def test_only_the_perceptual_hashes_are_written(run, images, monkeypatch):
    before, sources = files_of(run.folder), files_of(images)
    first = find_duplicates(run)
    after = files_of(run.folder)
    assert {str(path) for path in after.keys() - before.keys()} == {"perceptual_hashes.npz"}
    assert all(after[path] == content for path, content in before.items())
    assert files_of(images) == sources
    monkeypatch.setattr(module, "perceptual_hash", None)  # the stored hashes are used
    assert find_duplicates(Run(run.folder)) == first


def test_damaged_perceptual_hashes_are_computed_again(run):
    expected = find_duplicates(run)
    for damage in (b"", b"PK\x03\x04 not a zip"):
        (run.folder / "perceptual_hashes.npz").write_bytes(damage)
        assert find_duplicates(run) == expected


def test_without_images_features_are_compared_and_the_first_is_kept(run, images):
    shutil.rmtree(images)
    found = find_duplicates(run)
    assert found.way == "features"
    assert ["02.png", "twin.png"] in names(found)
    group = next(group for group in found.groups if group[0].path == "02.png")
    assert [copy.reason for copy in group] == ["first: the images cannot be read", "later"]
    assert (group[0].width, group[0].sharpness, group[0].bytes) == (None, None, None)
    with pytest.raises(MissingFileError, match=r"--source FOLDER\), or compare features"):
        find_duplicates(run, way="images")


def test_moved_images_are_found_by_source(run, images, tmp_path):
    expected = find_duplicates(run)
    (run.folder / "perceptual_hashes.npz").unlink()
    images.rename(tmp_path / "moved")
    assert find_duplicates(run, source=tmp_path / "moved") == expected


def test_a_missing_image_is_not_the_one_to_keep(run, images):
    find_duplicates(run)
    (images / "large.png").unlink()
    group = next(group for group in find_duplicates(run).groups if len(group) == 3)
    assert [copy.path for copy in group] == ["00.png", "large.png", "small.png"]
    assert [copy.reason for copy in group] == ["largest", "cannot be read", "smaller"]


def test_images_of_an_archive_have_sizes(images, tmp_path):
    archive = shutil.make_archive(tmp_path / "images", "zip", images)
    found = find_duplicates(clustered(archive, tmp_path / "of archive"))
    sizes = {copy.path: copy.bytes for group in found.groups for copy in group}
    assert sizes == {path: (images / path).stat().st_size for path in sizes}
    assert len(sizes) == 7


@pytest.mark.parametrize(("n_groups", "n_drawn", "words"), [(200, 200, ""), (203, 200, ", the first 200")])
def test_a_sheet_shows_ten_copies_of_each_of_the_first_200_groups(run, tmp_path, monkeypatch, n_groups, n_drawn, words):
    drawn = []
    monkeypatch.setattr(module, "group_sheet", lambda *content: drawn.append(content) or Image.new("RGB", (1, 1)))
    copies = [Copy(row, f"{row:02d}.png", row, 48, 48, 1.0, 100, "first of equals") for row in range(12)]
    groups = [copies[: 10 + number % 2] for number in range(n_groups)]
    draw_duplicates(run, Duplicates("images", 12, groups), tmp_path / "sheet.png")
    ((title, shown),) = drawn
    assert title == f"{n_groups} groups of near-duplicates{words}; keep the framed one"
    assert [len(tiles) for _, tiles in shown] == [10] * n_drawn
    captions = [caption for caption, _ in shown]
    assert captions[:2] == ["0: first of equals, 9 bits", "1: first of equals, 10 bits, 11 in all"]


def test_only_some_rows_can_be_compared(run):
    finder = Finder(run)
    among = np.array([path != "twin.png" for path in run.paths])
    for way in ("images", "both", "features"):
        rows = [row for group in finder.groups(way, among=among)[1] for row in group.tolist()]
        assert "twin.png" not in {run.paths[row] for row in rows}
        assert len(finder.groups(way)[1]) == len(finder.groups(way, among=among)[1]) + 1


def test_bad_arguments_are_refused(run):
    with pytest.raises(ParameterError, match="way must be one of images, features, both; got 'magic'"):
        find_duplicates(run, way="magic")
    with pytest.raises(ParameterError, match="from 0 to 127 bits; got 128"):
        find_duplicates(run, 128)

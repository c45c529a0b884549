"""duplicates, outliers and sample: their output, their files and their errors."""

import csv
import json
import os

import numpy as np
import pyarrow.parquet as pq
import pytest
from copied_images import copy_run, scene, write_scenes
from PIL import Image
from typed import call

from bitmosaic import pipeline
from bitmosaic.errors import InvalidDataError, MissingFileError, ParameterError, UnwritableFileError
from bitmosaic.images import open_images
from bitmosaic.pipeline.curation import draw_sample
from bitmosaic.run.clusters import Clusters, ImageFacts
from bitmosaic.run.folder import Run


@pytest.fixture
def run(run_with_copies, tmp_path):
    copy_run(run_with_copies, tmp_path)
    return Run(tmp_path / "run")


@pytest.fixture
def images(run, tmp_path):
    return tmp_path / "images"


def lines_of(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


COMMANDS = ("duplicates", "outliers", "sample")
FEW = {"duplicates": [], "outliers": ["-n", 5], "sample": ["-n", 5]}


# ---- duplicates


def test_duplicates_are_printed_with_the_copy_to_keep(run):
    output = call("duplicates", run.folder)
    assert "3 groups of near-duplicates, 4 images besides those to keep (by perceptual hashes within 12 bits)" in output
    assert "keep\t0 bits\t96×96\tlargest\tlarge.png" in output
    assert "\tsmaller\tsmall.png" in output


def test_the_same_table_is_written_as_csv_and_parquet(run, tmp_path):
    assert "Wrote" in call("duplicates", run.folder, "--out", tmp_path / "d.csv")
    call("duplicates", run.folder, "--out", tmp_path / "d.parquet")
    lines, table = lines_of(tmp_path / "d.csv"), pq.read_table(tmp_path / "d.parquet").to_pydict()
    assert list(lines[0]) == list(table)
    assert [line["path"] for line in lines] == table["path"]
    assert [line["keep"] == "True" for line in lines] == table["keep"]
    assert len(lines) == 7


def test_links_show_each_group_with_the_copy_to_keep_first(run, images, tmp_path):
    before = {path: path.read_bytes() for path in images.iterdir()}
    assert "7 links" in call("duplicates", run.folder, "--out", tmp_path / "links")
    folders = sorted(path for path in (tmp_path / "links").iterdir() if path.is_dir())
    assert [folder.name for folder in folders] == ["0000", "0001", "0002"]
    found = {tuple(sorted(os.listdir(folder))) for folder in folders}
    assert ("1 keep large.png", "2 00.png", "3 small.png") in found
    for link in (tmp_path / "links").glob("*/*"):
        assert link.is_symlink()
        assert link.resolve() in before
    assert {path: path.read_bytes() for path in images.iterdir()} == before
    with pytest.raises(InvalidDataError, match="links is not empty"):
        call("duplicates", run.folder, "--out", tmp_path / "links")


def test_duplicates_as_json(run):
    facts = json.loads(call("duplicates", run.folder, "--radius", 6, "--by", "images", "--json"))
    assert (facts["by"], facts["radius"]) == ("images", 6)
    best = next(group for group in facts["groups"] if len(group) == 3)[0]
    assert (best["path"], best["width"], best["reason"]) == ("large.png", 96, "largest")
    assert best["bytes"] > 0


def test_finding_no_duplicates_is_not_an_error(run, tmp_path):
    for name in ("d.csv", "links"):
        out = call("duplicates", run.folder, "--by", "features", "--radius", 0, "--out", tmp_path / name, "--json")
        assert "groups" in json.loads(out)


# ---- outliers


def test_outliers_are_farthest_from_the_centers_of_the_edited_clusters(run, tmp_path):
    log = ImageFacts.of(run).log
    log.append({"do": "merge", "clusters": [0, 1], "into": 0}, 0)
    log.append({"do": "name", "cluster": 0, "name": "mixed"}, 1)
    call("outliers", run.folder, "-n", 8, "--out", tmp_path / "o.csv")
    lines = lines_of(tmp_path / "o.csv")
    clusters = Clusters(ImageFacts.of(run))
    expected = np.argsort(-clusters.outlier_scores, kind="stable")[:8]
    assert [line["path"] for line in lines] == [run.paths[row] for row in expected]
    assert {line["cluster"] for line in lines} <= {"0", "2"}
    assert {line["name"] for line in lines if line["cluster"] == "0"} <= {"mixed"}
    assert [float(line["score"]) for line in lines] == sorted((float(line["score"]) for line in lines), reverse=True)


def test_outliers_are_printed_as_text_or_json(run):
    printed = call("outliers", run.folder, "-n", 3).splitlines()
    assert printed[0].split("\t") == ["path", "cluster", "name", "distance", "score"]
    assert len(printed) == 4
    listed = json.loads(call("outliers", run.folder, "-n", 3, "--json"))["outliers"]
    assert [line.split("\t")[0] for line in printed[1:]] == [entry["path"] for entry in listed]


# ---- sample


def test_a_sample_is_a_list_that_other_commands_can_read(run, images, tmp_path):
    call("sample", run.folder, "-n", 9, "--out", tmp_path / "s.txt")
    source = open_images(tmp_path / "s.txt")
    assert len(source) == 9
    assert {os.path.dirname(path) for path in source.paths} == {str(images)}
    assert source.read(0).shape[2] == 3


def test_a_sample_is_balanced_and_the_same_for_the_same_seed(run):
    listed = json.loads(call("sample", run.folder, "-n", 9, "--json"))["images"]
    assert sorted(entry["cluster"] for entry in listed[:3]) == [0, 1, 2]
    assert [entry["path"] for entry in listed] == [run.paths[row] for row in draw_sample(run, 9, 0).rows]
    other = json.loads(call("sample", run.folder, "-n", 9, "--seed", 1, "--json"))["images"]
    assert [entry["path"] for entry in listed] != [entry["path"] for entry in other]


# ---- all of them


@pytest.mark.parametrize("command", COMMANDS)
def test_a_sheet_shows_the_images(run, tmp_path, command):
    assert "Wrote" in call(command, run.folder, *FEW[command], "--sheet", tmp_path / "sheet.png")
    sheet = np.asarray(Image.open(tmp_path / "sheet.png").convert("RGB"))
    assert sheet.shape[1] > 600
    assert len(np.unique(sheet.reshape(-1, 3), axis=0)) > 1000  # images, not only text


@pytest.mark.parametrize("command", ["outliers", "sample"])
def test_links_come_in_the_order_of_the_list(run, tmp_path, command):
    call(command, run.folder, "-n", 12, "--out", tmp_path / "links")
    links = sorted(path.name for path in (tmp_path / "links").iterdir() if path.is_symlink())
    listed = json.loads(call(command, run.folder, "-n", 12, "--json"))
    paths = [entry["path"] for entry in listed[{"outliers": "outliers", "sample": "images"}[command]]]
    assert links == [f"{i:02d} {path}" for i, path in enumerate(paths, 1)]


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unusable_output_path_is_refused_before_the_work(run, tmp_path, command):
    with pytest.raises(ParameterError, match=r"or a new folder for links; got d\.json"):
        call(command, run.folder, "--out", tmp_path / "d.json")
    with pytest.raises(ParameterError, match=r"--sheet must be a file named \*\.png or .*; got s\.gif"):
        call(command, run.folder, "--sheet", tmp_path / "s.gif")
    with pytest.raises(MissingFileError, match="does not exist"):
        call(command, run.folder, "--out", tmp_path / "nowhere" / "d.csv")
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(UnwritableFileError, match="it is a folder or a device"):
        call(command, run.folder, "--out", tmp_path / "d.csv")
    assert not (run.folder / "perceptual_hashes.npz").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_run_or_missing_images_are_one_line(run, images, tmp_path, command):
    with pytest.raises(MissingFileError, match="there is none in"):
        call(command, tmp_path / "nothing")
    images.rename(tmp_path / "moved")
    with pytest.raises(MissingFileError, match="Pass their folder: --source FOLDER"):
        call(command, run.folder, *FEW[command], "--sheet", tmp_path / "sheet.png")
    with pytest.raises(MissingFileError, match="Pass their folder: --source FOLDER"):
        call(command, run.folder, *FEW[command], "--out", tmp_path / "links")
    call(command, run.folder, *FEW[command], "--sheet", tmp_path / "sheet.png", "--source", tmp_path / "moved")


def test_a_sample_cannot_be_larger_than_the_run(run):
    with pytest.raises(ParameterError, match=rf"from 1 to the number of images, {len(run.paths)}; got 1,000"):
        call("sample", run.folder)


def test_untrusted_names_are_escaped_on_the_terminal(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for i, name in enumerate(["a\x1b[31m\tb.png", "c\nd.png", "e.png", "f.png"]):
        Image.fromarray(scene(i // 2)).save(folder / name)
    run = pipeline.cluster(folder, tmp_path / "run", 2, views=("hog",))
    for output in (call("duplicates", run.folder), call("sample", run.folder, "-n", 4)):
        assert "\x1b" not in output
        assert r"c\nd.png" in output


# ---- names with line breaks


@pytest.mark.parametrize("name", ["two\nlines.png", "an end\r"])
@pytest.mark.parametrize("command", ["outliers", "sample"])
def test_a_list_keeps_names_with_line_breaks(tmp_path, command, name):
    folder = write_scenes(tmp_path / "images")
    (folder / "large.png").rename(folder / name)
    run = pipeline.cluster(folder, tmp_path / "run", 3, views=("ch",))
    out, n = tmp_path / "x.txt", run.n_images
    assert "x.txt: paths are separated by NUL bytes" in call(command, run.folder, "-n", n, "--out", out).replace(
        "\n", " "
    )
    assert call(command, run.folder, "-n", n, "--out", out, "--json")
    assert sorted(open_images(out).paths) == sorted(str(folder / path) for path in run.paths)
    assert str(folder / name) in open_images(out).paths

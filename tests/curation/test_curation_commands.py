"""duplicates, outliers and sample as they are typed: what they print and write, and what they say when it is wrong."""

import csv
import json
import os

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from bitmosaic import pipeline
from bitmosaic.curation import draw_sample, find_outliers
from bitmosaic.errors import InvalidDataError, MissingFileError, ParameterError
from bitmosaic.explorer.clusters import Clusters, Pictures
from bitmosaic.images import open_images
from copied_pictures import write_scenes
from typed import call


def lines_of(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


COMMANDS = ("duplicates", "outliers", "sample")
FEW = {"duplicates": [], "outliers": ["-n", 5], "sample": ["-n", 5]}


# ---- duplicates


def test_duplicates_are_printed_with_what_to_keep(run):
    output = call("duplicates", run.folder)
    assert "3 groups of near-duplicates, 4 pictures beside those to keep (by fingerprints within 12 bits)" in output
    assert "keep\t0 bits\t96×96\tlargest\tlarge.png" in output
    assert "\tsmaller\tsmall.png" in output


def test_the_same_table_is_written_as_csv_and_parquet(run, tmp_path):
    assert "wrote" in call("duplicates", run.folder, "--out", tmp_path / "d.csv")
    call("duplicates", run.folder, "--out", tmp_path / "d.parquet")
    lines, table = lines_of(tmp_path / "d.csv"), pq.read_table(tmp_path / "d.parquet").to_pydict()
    assert list(lines[0]) == list(table)
    assert [line["path"] for line in lines] == table["path"]
    assert [line["keep"] == "True" for line in lines] == table["keep"]
    assert len(lines) == 7


def test_links_show_each_group_with_the_one_to_keep_first(run, pictures, tmp_path):
    before = {path: path.read_bytes() for path in pictures.iterdir()}
    assert "7 links" in call("duplicates", run.folder, "--out", tmp_path / "links")
    folders = sorted(path for path in (tmp_path / "links").iterdir() if path.is_dir())
    assert [folder.name for folder in folders] == ["0000", "0001", "0002"]
    found = {tuple(sorted(os.listdir(folder))) for folder in folders}
    assert ("1 keep large.png", "2 00.png", "3 small.png") in found
    for link in (tmp_path / "links").glob("*/*"):
        assert link.is_symlink()
        assert link.resolve() in before
    assert {path: path.read_bytes() for path in pictures.iterdir()} == before
    with pytest.raises(InvalidDataError, match="links holds other things"):
        call("duplicates", run.folder, "--out", tmp_path / "links")


def test_json_has_everything(run):
    facts = json.loads(call("duplicates", run.folder, "--radius", 6, "--by", "pictures", "--json"))
    assert (facts["by"], facts["radius"]) == ("pictures", 6)
    best = next(group for group in facts["groups"] if len(group) == 3)[0]
    assert (best["path"], best["width"], best["reason"]) == ("large.png", 96, "largest")
    assert best["bytes"] > 0


def test_no_duplicates_are_no_error(run, tmp_path):
    for name in ("d.csv", "links"):
        out = call("duplicates", run.folder, "--by", "features", "--radius", 0, "--out", tmp_path / name, "--json")
        assert "groups" in json.loads(out)


# ---- outliers


def test_outliers_are_the_least_usual_of_their_clusters_as_edited(run, tmp_path):
    log = Pictures.of(run).log
    log.append({"do": "merge", "clusters": [0, 1], "into": 0}, 0)
    log.append({"do": "name", "cluster": 0, "name": "mixed"}, 1)
    call("outliers", run.folder, "-n", 8, "--out", tmp_path / "o.csv")
    lines = lines_of(tmp_path / "o.csv")
    clusters = Clusters(Pictures.of(run))
    expected = np.argsort(-clusters.outlier_scores, kind="stable")[:8]
    assert [line["path"] for line in lines] == [run.paths[row] for row in expected]
    assert {line["cluster"] for line in lines} <= {"0", "2"}
    assert {line["name"] for line in lines if line["cluster"] == "0"} <= {"mixed"}
    assert [float(line["score"]) for line in lines] == sorted((float(line["score"]) for line in lines), reverse=True)


def test_outliers_are_printed_or_as_json(run):
    printed = call("outliers", run.folder, "-n", 3).splitlines()
    assert printed[0].split("\t") == ["path", "cluster", "name", "distance", "score"]
    assert len(printed) == 4
    listed = json.loads(call("outliers", run.folder, "-n", 3, "--json"))["outliers"]
    assert [line.split("\t")[0] for line in printed[1:]] == [entry["path"] for entry in listed]


def test_all_are_outliers_at_most(run):
    assert len(find_outliers(run, 1000).rows) == len(run.paths)
    with pytest.raises(ParameterError, match="At least one outlier"):
        find_outliers(run, 0)


# ---- sample


def test_a_sample_is_a_list_that_other_commands_read(run, pictures, tmp_path):
    call("sample", run.folder, "-n", 9, "--out", tmp_path / "s.txt")
    source = open_images(tmp_path / "s.txt")
    assert len(source) == 9
    assert {os.path.dirname(path) for path in source.paths} == {str(pictures)}
    assert source.read(0).shape[2] == 3


def test_a_sample_is_balanced_and_the_same_for_the_same_seed(run):
    listed = json.loads(call("sample", run.folder, "-n", 9, "--json"))["pictures"]
    assert sorted(entry["cluster"] for entry in listed[:3]) == [0, 1, 2]
    assert [entry["path"] for entry in listed] == [run.paths[row] for row in draw_sample(run, 9, 0).rows]
    other = json.loads(call("sample", run.folder, "-n", 9, "--seed", 1, "--json"))["pictures"]
    assert [entry["path"] for entry in listed] != [entry["path"] for entry in other]


# ---- all of them


@pytest.mark.parametrize("command", COMMANDS)
def test_a_sheet_shows_the_pictures(run, tmp_path, command):
    assert "wrote" in call(command, run.folder, *FEW[command], "--sheet", tmp_path / "sheet.png")
    sheet = np.asarray(Image.open(tmp_path / "sheet.png").convert("RGB"))
    assert sheet.shape[1] > 600
    assert len(np.unique(sheet.reshape(-1, 3), axis=0)) > 1000  # pictures, not only text


@pytest.mark.parametrize("command", ["outliers", "sample"])
def test_links_come_in_the_order_of_the_list(run, tmp_path, command):
    call(command, run.folder, "-n", 12, "--out", tmp_path / "links")
    links = sorted(path.name for path in (tmp_path / "links").iterdir() if path.is_symlink())
    listed = json.loads(call(command, run.folder, "-n", 12, "--json"))
    paths = [entry["path"] for entry in listed[{"outliers": "outliers", "sample": "pictures"}[command]]]
    assert links == [f"{i:02d} {path}" for i, path in enumerate(paths, 1)]


@pytest.mark.parametrize("command", COMMANDS)
def test_what_cannot_be_written_is_refused_before_the_work(run, tmp_path, command):
    with pytest.raises(ParameterError, match=r"or a new folder for links; got d\.json"):
        call(command, run.folder, "--out", tmp_path / "d.json")
    with pytest.raises(ParameterError, match=r"A sheet is a \.png; got s\.gif"):
        call(command, run.folder, "--sheet", tmp_path / "s.gif")
    with pytest.raises(MissingFileError, match="into a folder that is there"):
        call(command, run.folder, "--out", tmp_path / "nowhere" / "d.csv")
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(ParameterError, match="is a folder with the name of a file"):
        call(command, run.folder, "--out", tmp_path / "d.csv")
    assert not (run.folder / "fingerprints.npz").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_run_or_missing_pictures_are_one_sentence(run, pictures, tmp_path, command):
    with pytest.raises(MissingFileError, match="there is none in"):
        call(command, tmp_path / "nothing")
    pictures.rename(tmp_path / "moved")
    with pytest.raises(MissingFileError, match="Say where they are: --source PICTURES"):
        call(command, run.folder, *FEW[command], "--sheet", tmp_path / "sheet.png")
    with pytest.raises(MissingFileError, match="Say where they are: --source PICTURES"):
        call(command, run.folder, *FEW[command], "--out", tmp_path / "links")
    call(command, run.folder, *FEW[command], "--sheet", tmp_path / "sheet.png", "--source", tmp_path / "moved")


def test_more_than_there_are_cannot_be_drawn(run):
    with pytest.raises(ParameterError, match=rf"from 1 to all {len(run.paths)} pictures; got 1,000"):
        call("sample", run.folder)


def test_hostile_names_do_nothing_to_a_terminal(tmp_path):
    from bitmosaic import pipeline
    from copied_pictures import scene

    folder = tmp_path / "pictures"
    folder.mkdir()
    for i, name in enumerate(["a\x1b[31m\tb.png", "c\nd.png", "e.png", "f.png"]):
        Image.fromarray(scene(i // 2)).save(folder / name)
    run = pipeline.cluster(folder, tmp_path / "run", 2, views=("hog",))
    for output in (call("duplicates", run.folder), call("sample", run.folder, "-n", 4)):
        assert "\x1b" not in output
        assert r"c\nd.png" in output


def test_a_suffix_that_nobody_knows_is_refused(run, tmp_path):
    for command in ("outliers", "sample", "duplicates"):
        with pytest.raises(ParameterError, match=r"or a new folder for links; got lab.xyz"):
            call(command, run.folder, "--out", tmp_path / "lab.xyz")


# ---- names with line breaks


@pytest.mark.parametrize("name", ["two\nlines.png", "an end\r"])
@pytest.mark.parametrize("command", ["outliers", "sample"])
def test_a_list_holds_names_with_line_breaks_whole(tmp_path, command, name):
    folder = write_scenes(tmp_path / "pictures")
    (folder / "large.png").rename(folder / name)
    run = pipeline.cluster(folder, tmp_path / "run", 3, views=("ch",))
    out, n = tmp_path / "x.txt", run.n_images
    assert "x.txt: NUL bytes end its paths" in call(command, run.folder, "-n", n, "--out", out).replace("\n", " ")
    assert call(command, run.folder, "-n", n, "--out", out, "--json")
    assert sorted(open_images(out).paths) == sorted(str(folder / path) for path in run.paths)
    assert str(folder / name) in open_images(out).paths


def test_a_list_of_plain_names_has_a_line_for_each(run, tmp_path):
    assert "NUL" not in call("outliers", run.folder, "-n", 5, "--out", tmp_path / "x.txt")
    assert (tmp_path / "x.txt").read_bytes().count(b"\n") == 5

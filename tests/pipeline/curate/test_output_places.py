"""Outputs never replace files of the run, folders, devices or pipes."""

import os

import numpy as np
import pytest
from typed import call

from bitmosaic import HSIC
from bitmosaic.errors import InvalidDataError, ParameterError, UnwritableFileError
from bitmosaic.explorer.report import write_report


def content(folder):
    return {
        path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "perceptual_hashes.npz"
    }


COMMANDS = {
    "export": lambda run, images, out: call("export", run, out, "--as", "csv"),
    "report": lambda run, images, out: call("report", run, "--out", out),
    "duplicates": lambda run, images, out: call("duplicates", run, "--out", out),
    "outliers": lambda run, images, out: call("outliers", run, "--out", out),
    "sample": lambda run, images, out: call("sample", run, "-n", 5, "--out", out),
    "search": lambda run, images, out: call("search", run, images / "large.png", "--out", out),
    "sheet": lambda run, images, out: call("outliers", run, "--sheet", out),
    "links": lambda run, images, out: call("export", run, out, "--as", "links"),
    "predict": lambda run, images, out: call("predict", run, images, "--out", out),
}


# ---- files of the run


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("export", "views/hog.npy"),
        ("report", "report.html"),
        ("duplicates", "groups"),
        ("sample", "clusters.parquet"),
        ("search", "clusters.parquet"),
        ("sheet", "overview.png"),
        ("predict", "new"),
    ],
)
def test_an_output_inside_the_run_folder_is_refused(run, images, command, name):
    before = content(run.folder)
    with pytest.raises(InvalidDataError, match=r"Outputs go outside the run folder, .* got .* Choose another"):
        COMMANDS[command](run.folder, images, run.folder / name)
    assert content(run.folder) == before


@pytest.mark.parametrize("way", ["a link to the run", "a link to a file of it", "the current folder"])
def test_links_and_relative_paths_into_the_run_folder_are_refused(run, images, tmp_path, monkeypatch, way):
    (tmp_path / "link").symlink_to(run.folder)
    (tmp_path / "x.csv").symlink_to(run.folder / "clusters.csv")
    monkeypatch.chdir(run.folder)
    out = {
        "a link to the run": tmp_path / "link" / "clusters.csv",
        "a link to a file of it": tmp_path / "x.csv",
        "the current folder": "clusters.csv",
    }[way]
    before = content(run.folder)
    with pytest.raises(InvalidDataError, match="outside the run folder"):
        COMMANDS["export"](run.folder, images, out)
    assert content(run.folder) == before


# ---- special files


def test_pipes_are_not_replaced(run, images, tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "link.csv").symlink_to(tmp_path / "pipe.csv")
    before = os.lstat(tmp_path / "pipe.csv")
    for command in ("export", "report", "outliers", "search"):
        for name in ("pipe.csv", "link.csv"):
            with pytest.raises(UnwritableFileError, match="Choose another name"):
                COMMANDS[command](run.folder, images, tmp_path / name)
    after = os.lstat(tmp_path / "pipe.csv")
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    assert (tmp_path / "link.csv").is_symlink()


# ---- links


@pytest.mark.parametrize("there", [True, False], ids=["to a file", "to nothing yet"])
def test_symlinks_are_followed(run, images, tmp_path, there):
    (tmp_path / "far").mkdir()
    if there:
        (tmp_path / "far" / "kept.csv").write_text("old")
    (tmp_path / "x.csv").symlink_to("far/kept.csv")
    (tmp_path / "model").symlink_to("far/model")
    COMMANDS["export"](run.folder, images, tmp_path / "x.csv")
    run.model.save(tmp_path / "model")
    assert (tmp_path / "x.csv").is_symlink()
    assert (tmp_path / "far" / "kept.csv").read_text().startswith("path,cluster")
    assert (tmp_path / "model").is_symlink()
    assert np.array_equal(HSIC.load(tmp_path / "far" / "model").labels_, run.model.labels_)


# ---- the size limit of a report


@pytest.mark.parametrize("limit", [0, np.nan, np.inf])
def test_a_report_needs_a_positive_and_finite_limit(run, tmp_path, limit):
    with pytest.raises(ParameterError, match="max_bytes must be a positive finite number such as 20e6, got"):
        write_report(run, tmp_path / "x.html", limit)

"""cluster, extract, fit, predict, evaluate and info: their output, their files and their errors."""

import csv
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from image_kinds import write_images
from typed import run

# A first run imports all modules: the user "nobody" may not have permission to read them.
AS_NOBODY = """
import os, sys
from bitmosaic import cli, pipeline
pipeline.extract("good", "first", ["ch"])  # imports what this user may not read
if os.geteuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
sys.argv[0] = "bitmosaic"
cli.main()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with images, and a run made of them."""
    place = tmp_path_factory.mktemp("place")
    write_images(place / "photos", 12)
    run("cluster", "photos", "--clusters", 3, "--labels", "folder", "--view", "ch", "--view", "hog", cwd=place)
    return place


def test_cluster_prints_its_result_and_nothing_else(place):
    done = run("cluster", "photos", "-c", 3, "--labels", "folder", "--view", "ch", "--view", "hog", cwd=place)
    assert done.stderr == ""
    assert "36 images, 3 clusters" in done.stdout
    assert "ACC 1.000" in done.stdout
    assert "overview.png" in done.stdout


def test_extract_and_fit_give_the_same_labels_as_cluster(place):
    views = ["--view", "ch", "--view", "hog"]
    done = run("extract", "photos", "--out", "views", "--labels", "folder", *views, "--json", cwd=place)
    assert json.loads(done.stdout) == {"views": {"ch": 64, "hog": 1152}, "images": 36, "folder": "views"}
    result = json.loads(run("fit", "views", "--clusters", 3, "--out", "fitted", "--json", cwd=place).stdout)
    assert result["complete"]
    labels = np.load(place / "run" / "labels.npy")
    np.testing.assert_array_equal(np.load(place / "fitted" / "labels.npy"), labels)
    of_run = json.loads(run("fit", "run", "--clusters", 2, "--out", "two", "--json", cwd=place).stdout)
    assert len(of_run["sizes"]) == 2


def test_mirroring_is_turned_off_for_all_views_or_for_one_view(place):
    ways = {
        "default": ["--view", "hog"],
        "plain": ["--view", "hog", "--no-mirror"],
        "one": ["--view", "hog?mirror=false"],
    }
    features = {}
    for folder, options in ways.items():
        run("extract", "photos", "--out", folder, *options, cwd=place)
        features[folder] = np.load(place / folder / "hog.npy")
    assert (features["default"] >= features["plain"] - 1e-6).all()  # the maximum over an image and its mirror image
    assert (features["default"] > features["plain"] + 1e-3).any()
    np.testing.assert_array_equal(features["one"], features["plain"])


def test_predict_prints_or_writes_a_cluster_and_a_confidence_per_image(place):
    write_images(place / "new", 2, seed=5)
    (place / "new" / "bad.jpg").write_bytes(b"not an image")
    done = run("predict", "run", "new", cwd=place)
    head, *rows = done.stdout.splitlines()
    assert head.split("\t") == ["cluster", "confidence", "path"]
    assert [row.split("\t")[2] for row in rows] == [
        f"{kind}/000{i}.png" for kind in ("disc", "noise", "stripes") for i in (0, 1)
    ]
    assert "skipped bad.jpg" in done.stderr
    result = json.loads(run("predict", "run", "new", "--json", "--out", "table", cwd=place).stdout)
    assert [str(row["cluster"]) for row in result["predictions"]] == [row.split("\t")[0] for row in rows]
    assert result["skipped"][0]["path"] == "bad.jpg"
    assert (place / "table" / "predictions.csv").read_text().startswith("path,cluster,distance,margin,confidence")
    assert "bad.jpg" in (place / "table" / "skipped.csv").read_text()


def test_evaluate_and_info_describe_a_run(place):
    assert json.loads(run("evaluate", "run", "--json", cwd=place).stdout)["acc"] == 1.0
    assert "NMI 1.000" in run("evaluate", "run", cwd=place).stdout
    assert "36 images, 3 clusters" in run("info", "run", cwd=place).stdout
    assert "gist" in run("info", cwd=place).stdout
    assert "lbp" in json.loads(run("info", "--json", cwd=place).stdout)["extractors"]


def test_info_estimates_a_fit_of_a_run_or_a_file(place):
    done = run("info", "run", "--plan", "--clusters", 3, "--threads", 1, cwd=place)
    title, time, memory, disk = done.stdout.splitlines()
    assert title == "36 rows of ch (64), hog (1152) into 3 clusters, 1 thread"
    assert time.startswith("time")
    assert time.count(" s") == 4
    assert memory.startswith("memory")
    assert "views as float32 175 kB" in disk
    np.save(place / "one.npy", np.zeros((500, 20), np.float32))
    plan = json.loads(run("info", "one.npy", "--plan", "--preset", "fast", "--json", cwd=place).stdout)
    assert plan["views_bytes"] == 500 * 20 * 4
    assert plan["n_clusters"] == 10
    assert plan["seconds"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cluster", "nowhere", "-c", 3], "there is nothing at nowhere"),
        (["cluster", "photos", "-c", 3, "--view", "sift", "--out", "x"], "Unknown extractor 'sift'"),
        (["cluster", "photos", "-c", 99, "--out", "x"], "n_samples=36 should be >= n_clusters=99"),
        (
            ["cluster", "photos", "-c", 4, "--view", "ch", "--view", "hog"],
            "has labels folder, clusters 3, now asked for: labels not given, clusters 4",
        ),
        (["cluster", "photos", "-c", 3, "--view", "deep=photos/none.onnx", "--out", "x"], "none.onnx"),
        (["predict", "photos", "photos"], "A run folder has a manifest.json"),
        (["evaluate", "run", "--labels", "nowhere.csv"], "there is no file nowhere.csv"),
        (["info", "--plan"], "--plan needs views"),
        (["info", "run/manifest.json"], "is a file. For a file of views, add --plan"),
        (["info", "run", "--plan", "--memory-limit", "lots"], "such as '512MB'"),
        (["fit", "photos/disc", "-c", 2, "--out", "x"], "holds none"),
    ],
)
def test_a_mistake_is_reported_in_one_line(arguments, message, place):
    done = run(*arguments, cwd=place, fails=True)
    assert done.returncode == 1
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (place / "x").exists()


def test_a_missing_option_is_named(place):
    done = run("cluster", "photos", cwd=place, fails=True)
    assert done.returncode == 2
    assert "--clusters" in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="needs Unix permissions")
def test_images_without_read_permission_are_skipped_with_the_cause():
    with tempfile.TemporaryDirectory() as folder:  # other users cannot enter pytest's folders
        place = Path(folder)
        write_images(place / "good", 2)
        photos = write_images(place / "photos", 4)
        (photos / "noise" / "0001.png").chmod(0)
        (photos / "stripes" / "0002.png").rename(photos / "stripes" / "no suffix")
        (photos / "stripes" / "no suffix").chmod(0)
        if os.geteuid() == 0:
            for entry in (place, *place.rglob("*")):
                os.chown(entry, 65534, 65534)
        (photos / "disc").chmod(0)
        # No fit: this user has no cache of compiled kernels.
        command = [sys.executable, "-c", AS_NOBODY, "extract", "photos", "--view", "ch", "--out", "views"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=place, timeout=300)
        (photos / "disc").chmod(0o700)  # so that it can be removed
        assert done.returncode == 0, done.stderr
        assert "6 images, views: ch" in done.stdout
        rows = list(csv.reader((place / "views" / "skipped.csv").open()))
    names = ("disc", "noise/0001.png", "stripes/no suffix")
    assert rows == [["path", "cause"], *([name, "permission denied"] for name in names)]


def test_auto_prints_the_number_of_clusters_and_its_stability(place):
    views = ["--view", "ch", "--view", "hog"]
    done = run("cluster", "photos", "--clusters", "auto", "--out", "auto", *views, cwd=place)
    assert done.stderr == ""
    assert "36 images, 3 clusters" in done.stdout
    assert "Number of clusters: 3 (" in done.stdout
    assert "how-many.png" in done.stdout
    assert "36 images, auto clusters" not in run("info", "auto", cwd=place).stdout


@pytest.mark.parametrize("count", ["0", "many"])
def test_clusters_must_be_a_number_or_auto(place, count):
    done = run("cluster", "photos", f"--clusters={count}", cwd=place, fails=True)
    assert "expected a whole number from 1, or auto" in " ".join(done.stderr.replace("│", " ").split())

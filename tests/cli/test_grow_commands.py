"""add, and info about additions."""

import json
from dataclasses import replace

import pytest
from image_kinds import write_images
from typed import call

from bitmosaic import pipeline


@pytest.fixture
def run(tmp_path):
    write_images(tmp_path / "more", 3, seed=5)
    return pipeline.cluster(write_images(tmp_path / "first", 6), tmp_path / "run", 3, views=("ch",)).folder


def test_add_prints_the_counts_and_the_next_command(run, tmp_path):
    text = call("add", run, tmp_path / "more")
    assert "Added 9 images, 0 already in the run, 0 unreadable; the run now has 27 images" in text
    assert "Clusters: " in text
    assert "too few to tell" in text
    assert f"bitmosaic export {run} all.csv" in text
    again = call("add", run, tmp_path / "more")
    assert "Added 0 images, 9 already in the run" in again
    assert "No new images. The run is unchanged." in again
    about = call("info", run)
    assert "Added since: 9 images, 27 in total" in about
    assert f"0001  {json.loads((run / 'additions/0001/manifest.json').read_text())['at'][:10]}  9 images from" in about


def test_add_lists_the_twelve_clusters_with_most_new_images(run, tmp_path, monkeypatch):
    sizes = {number: 10 + number for number in range(15)}
    added = replace(pipeline.add(run, tmp_path / "more"), sizes=sizes)
    monkeypatch.setattr(pipeline, "add", lambda *_, **__: added)
    listed = ", ".join(f"{number} ({10 + number})" for number in range(14, 2, -1))
    assert f"Clusters: {listed} and 3 more\n" in call("add", run, tmp_path / "more")


def test_info_lists_the_last_five_additions(run, tmp_path):
    for image in sorted((tmp_path / "more").rglob("*.png"))[:7]:
        pipeline.add(run, image.rename(tmp_path / f"{image.parent.name}-{image.name}"))
    lines = call("info", run).splitlines()
    listed = [line.split()[0] for line in lines if " 1 image from " in line]
    assert listed == ["0003", "0004", "0005", "0006", "0007"]


def test_json_has_the_counts_and_the_drift(run, tmp_path):
    facts = json.loads(call("add", run, tmp_path / "more", "--update", "--json"))
    assert (facts["images"], facts["known"], facts["total"], sum(facts["sizes"].values())) == (9, 0, 27, 9)
    assert facts["drift"]["refit_due"] is False
    about = json.loads(call("info", run, "--json"))
    assert [addition["updated"] for addition in about["additions"]] == [True]
    assert (about["total"], about["drift"]["images"]) == (27, 9)

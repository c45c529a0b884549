"""add, and info about additions."""

import json

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


def test_json_has_the_counts_and_the_drift(run, tmp_path):
    facts = json.loads(call("add", run, tmp_path / "more", "--update", "--json"))
    assert (facts["images"], facts["known"], facts["total"], sum(facts["sizes"].values())) == (9, 0, 27, 9)
    assert facts["drift"]["refit_due"] is False
    about = json.loads(call("info", run, "--json"))
    assert [addition["updated"] for addition in about["additions"]] == [True]
    assert (about["total"], about["drift"]["images"]) == (27, 9)

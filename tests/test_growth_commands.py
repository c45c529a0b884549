"""bitmosaic add and what info says of it, as from the shell; bench growth on a few pictures."""

import json

import pytest
from typer.testing import CliRunner

from bitmosaic import pipeline
from bitmosaic.bench.growth import measure
from bitmosaic.cli import app
from bitmosaic.images import quiet
from pictures import write_pictures


@pytest.fixture
def run(tmp_path):
    write_pictures(tmp_path / "more", 3, seed=5)
    return pipeline.cluster(write_pictures(tmp_path / "first", 6), tmp_path / "run", 3, views=("ch",)).folder


def said(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_add_says_what_came_and_what_is_next(run, tmp_path):
    text = said("add", run, tmp_path / "more")
    assert "9 pictures added, 0 known already, 0 could not be read; the run has 27 now" in text
    assert "Into clusters: " in text
    assert "too few to tell" in text
    assert f"bitmosaic export {run} all.csv" in text
    again = said("add", run, tmp_path / "more")
    assert "0 pictures added, 9 known already" in again
    assert "Nothing was new, and nothing was changed." in again
    about = said("info", run)
    assert "Added since: 9 pictures, 27 in all" in about
    assert f"0001  {json.loads((run / 'additions/0001/manifest.json').read_text())['at'][:10]}  9 pictures of" in about


def test_json_has_it_all(run, tmp_path):
    facts = json.loads(said("add", run, tmp_path / "more", "--update", "--json"))
    assert (facts["images"], facts["known"], facts["total"], sum(facts["sizes"].values())) == (9, 0, 27, 9)
    assert facts["drift"]["refit_due"] is False
    about = json.loads(said("info", run, "--json"))
    assert [addition["updated"] for addition in about["additions"]] == [True]
    assert (about["total"], about["drift"]["pictures"]) == (27, 9)


def test_growth_is_measured_in_the_same_order_of_pictures(tmp_path):
    first, more = write_pictures(tmp_path / "first", 8), write_pictures(tmp_path / "more", 4, seed=5)
    done = measure(str(first), str(more), tmp_path / "out", 3, 2, quiet)
    assert len(done.agreement) == 4
    assert len(done.between_seeds) == 1
    assert done.truth.tolist() == ["disc"] * 4 + ["noise"] * 4 + ["stripes"] * 4
    assert done.nmi(done.added).min() > 0.6
    assert done.nmi(done.fitted).min() > 0.6
    assert done.add > 0
    assert done.new_run > 0

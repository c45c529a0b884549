"""Synthetic codes of a run, and the searches measured on them."""

import json

import numpy as np
import pytest
from image_kinds import write_images
from typer.testing import CliRunner

from bitmosaic import pipeline
from bitmosaic.bench import search as search_bench
from bitmosaic.bench.search import CodeMaker
from bitmosaic.cli import app
from bitmosaic.errors import InvalidDataError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("bench-search")
    return pipeline.cluster(write_images(place / "photos", 25), place / "run", 3, views=("ch", "hog"))


def test_synthetic_codes_depend_only_on_the_seed(run):
    rows = np.arange(10, 70)
    codes = CodeMaker(run, rows, seed=1, n_threads=1).make(2500)
    assert (codes.shape, codes.dtype) == ((2500, 16), np.uint8)
    np.testing.assert_array_equal(CodeMaker(run, rows, seed=1, n_threads=3).make(1300), codes[:1300])
    for maker, stream in ((CodeMaker(run, rows, seed=2), 0), (CodeMaker(run, rows, seed=1), 1)):
        assert (maker.make(2500, stream) != codes).any()


def test_synthetic_codes_are_mixtures_of_their_rows(run, monkeypatch):
    monkeypatch.setattr(search_bench, "NOISE", 0.0)
    monkeypatch.setattr(search_bench, "NEAREST", 0)  # each row is moved toward itself, or an equal code
    rows = np.array([3, 8, 40])
    codes = CodeMaker(run, rows).make(64)
    assert {code.tobytes() for code in codes} == {code.tobytes() for code in np.asarray(run.column("codes"))[rows]}


def test_search_is_compared_with_faiss_on_synthetic_codes(run, monkeypatch):
    pytest.importorskip("faiss")
    monkeypatch.setattr(search_bench, "HELD_OUT", 20)
    monkeypatch.setattr(search_bench, "SINGLE", 2)
    arguments = ["bench", "search", str(run.folder), "--rows", "40,600", "-k", "1,10", "--queries", "15"]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "faiss.IndexBinaryFlat ÷ NeighborIndex" in " ".join(done.output.split())
    told = json.loads(CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False).output)
    assert [built["n_codes"] for built in told["builds"]] == [40, 600]
    assert all(built["same_rows"] for built in told["builds"])
    assert len(told["results"]) == 2 * 3 * 2 * 2  # codes, questions, queries, together or one by one
    assert all(result["same"] for result in told["results"])


def test_a_small_run_is_refused(run):
    with pytest.raises(InvalidDataError, match="a run of at least 2,000 images; this one has 75"):
        search_bench.make_codes(run, 100, 0, 1, print)

"""The paper's tables and figures: one command for each, on stored runs."""

import csv

import pytest
from planted_views import blobs
from typer.testing import CliRunner

from bitmosaic.bench.baselines import METHODS
from bitmosaic.bench.experiment import Case, Run, RunFile
from bitmosaic.cli import app
from bitmosaic.views import Views, write_views

BOTH = ("lbp", "gist")
EACH = (("lbp",), ("gist",), BOTH)
SIZES = {"data": 1000, "centroids": 100, "projection": 10}


def stored_runs():
    """Made-up runs of every experiment: (experiment, data set, method, views, n_clusters, n_bits)."""
    for method in METHODS:
        yield "middle", "cifar10", method, BOTH, 4, None
    for method in ("k-means", "HSIC"):
        for views in EACH:
            yield "middle", "cifar10", method, views, 4, None
            yield "large", "cifar10", method, views, 4, None
            for n_bits in (16, 32):
                yield "bits", "cifar10", method, views, 4, n_bits
        for n_clusters in (2, 4, 6):
            yield "clusters", "cifar10", method, BOTH, n_clusters, None
    for data in ("one", "two"):
        for method in ("MVKM", "HSIC"):
            yield "multiview", data, method, BOTH, 4, None


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with small views, and with stored runs of every experiment."""
    folder = tmp_path_factory.mktemp("paper")
    arrays, truth = blobs(n=160)
    views = Views(BOTH, tuple(arrays.values())[:2], labels=truth)
    write_views(folder / "views", views)
    (folder / "runs").mkdir()
    files = {}
    for experiment, data, method, chosen, n_clusters, n_bits in stored_runs():
        file = files.setdefault(experiment, RunFile(folder / "runs" / f"{experiment}.jsonl"))
        labels = truth % n_clusters if n_clusters < 4 else truth
        run = Run(data, method, 0, 2.0, "test", labels, truth, chosen, n_clusters, n_bits, cpu_seconds=1.0, sizes=SIZES)
        file.add(run, Case(data, truth, lambda seed: views))
    return folder


def invoke(*arguments):
    done = CliRunner().invoke(app, ["bench", *map(str, arguments)])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


@pytest.mark.parametrize("name", ["table1", "table2", "table3", "table4", "table5", "multiview"])
def test_a_table_is_shown_and_written_as_markdown_and_csv(place, name):
    shown = invoke(name, place / "runs", "--out", place / "out")
    assert "HSIC" in shown
    files = {path.suffix: path.read_text() for path in (place / "out").glob(f"{name}*")}
    assert set(files) == {".md", ".csv"}
    assert files[".md"].count("|") > 20
    rows = list(csv.DictReader(files[".csv"].splitlines()))
    assert {"k-means", "HSIC"} <= {row["method"] for row in rows} or name == "multiview"


def test_table_1_has_every_method(place):
    invoke("table1", place / "runs", "--out", place / "out")
    rows = csv.DictReader((place / "out" / "table1.csv").read_text().splitlines())
    assert {row["method"] for row in rows} == set(METHODS)


@pytest.mark.parametrize("name", ["fig3", "fig4"])
def test_a_figure_is_drawn_as_png_and_svg(place, name):
    invoke(name, place / "runs", "--out", place / "out")
    assert (place / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (place / "out" / f"{name}.svg").read_text()


def test_figure_2_is_drawn_from_features_and_codes(place):
    shown = invoke(
        "fig2", place / "views", "--out", place / "out", "--classes", "3", "--per-class", "20", "--bits", "32"
    )
    assert "fig2.png" in "".join(shown.split())
    assert (place / "out" / "fig2.svg").stat().st_size > 1000


def test_times_are_wall_clock_or_cpu_seconds(place):
    assert "Seconds on" in invoke("table2", place / "runs")
    assert "Processor seconds on" in invoke("table2", place / "runs", "--cpu")


def test_missing_runs_are_named_with_the_command_that_makes_them(tmp_path):
    done = CliRunner().invoke(app, ["bench", "table3", str(tmp_path)])
    assert "bitmosaic bench run large --root DATA" in str(done.exception)

"""The paper's tables and figures from beginning to end, on a small set: `bench run`, then a command each."""

import csv

import pytest
from typer.testing import CliRunner

from bitmosaic.bench.baselines import METHODS
from bitmosaic.cli import app
from bitmosaic.views import Views, write_views
from planted_views import blobs

TOP = "seeds = 1\njobs = 2\ncap_seconds = 60\n"
DATA = '[data.{name}]\npath = "views"\n'
EXPERIMENTS = {
    "middle": '[[runs]]\n[[runs]]\nmethods = ["k-means", "HSIC"]\nviews = "each"\n',
    "large": '[[runs]]\nmethods = ["k-means", "HSIC"]\nviews = "both"\n',
    "bits": '[[runs]]\nmethods = ["HSIC", "k-means"]\nn_bits = [16, 32]\n'
    '[[runs]]\nmethods = ["HSIC", "ITQ+bk-means"]\nviews = "each"\nn_bits = [16, 32]\n',
    "clusters": '[[runs]]\nmethods = ["HSIC", "k-means"]\nn_clusters = [2, 4, 6]\n',
    "multiview": '[[runs]]\nmethods = ["MVKM", "HSIC"]\n',
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with runs of every experiment."""
    folder = tmp_path_factory.mktemp("paper")
    views, truth = blobs(n=160)
    arrays = dict(zip(("lbp", "gist"), views.values(), strict=False))
    write_views(folder / "views", Views(tuple(arrays), tuple(arrays.values()), labels=truth))
    for name, runs in EXPERIMENTS.items():
        sets = ("one", "two") if name == "multiview" else ("cifar10",)
        (folder / f"{name}.toml").write_text(TOP + "".join(DATA.format(name=s) for s in sets) + runs)
        invoke("run", folder / f"{name}.toml", "--out", folder / "runs")
    return folder


def invoke(*arguments):
    done = CliRunner().invoke(app, ["bench", *map(str, arguments)])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


@pytest.mark.parametrize("name", ["table1", "table2", "table3", "table4", "table5", "multiview"])
def test_a_table_is_shown_and_written_as_markdown_csv_and_latex(place, name):
    shown = invoke(name, place / "runs", "--out", place / "out")
    assert "HSIC" in shown
    files = {path.suffix: path.read_text() for path in (place / "out").glob(f"{name}*")}
    assert set(files) == {".md", ".csv", ".tex"}
    assert files[".md"].count("|") > 20
    assert r"\toprule" in files[".tex"]
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


def test_times_are_those_of_the_clock_or_of_the_processor(place):
    assert "Seconds on" in invoke("table2", place / "runs")
    assert "Processor seconds on" in invoke("table2", place / "runs", "--cpu")


def test_the_published_tables_are_shown_by_themselves(tmp_path):
    assert "0.3865" in invoke("published", "--out", tmp_path)  # ACC of HSIC on all views
    assert len(list(tmp_path.iterdir())) == 6


def test_runs_that_are_missing_are_named_with_the_command_that_makes_them(tmp_path):
    done = CliRunner().invoke(app, ["bench", "table3", str(tmp_path)])
    assert "bitmosaic bench run large --root DATA" in str(done.exception)

"""`bench speed`: every method runs in a separate process on small views."""

import json
import warnings

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from bitmosaic.bench import speed
from bitmosaic.bench.speed import METHODS, Result, best_of, concatenated, speed_table
from bitmosaic.cli import app
from bitmosaic.cli.options import choose_names, parse_numbers
from bitmosaic.errors import ParameterError
from bitmosaic.views import Views, write_views


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two views of 900 rows, five clusters that are easy to find."""
    rng = np.random.default_rng(0)
    y = rng.integers(5, size=900)
    arrays = tuple((8 * np.eye(5, d)[y] + rng.normal(size=(900, d))).astype(np.float32) for d in (6, 10))
    place = tmp_path_factory.mktemp("speed") / "views"
    write_views(place, Views(("a", "b"), arrays, labels=y))
    return place


def printed(table):
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table)
    return console.export_text()


def test_all_methods_find_the_clusters_and_are_measured(folder, tmp_path, monkeypatch):
    def run(task, cap, n_threads, in_own_process=speed.in_own_process):
        """Only one method runs in a separate process: each start takes seconds."""
        if (task["method"], task["n_clusters"]) == ("MiniBatchKMeans", 5):
            return in_own_process(task, cap, n_threads)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return speed.fit_once(**task)

    monkeypatch.setattr(speed, "in_own_process", run)
    out = tmp_path / "speed.json"
    done = CliRunner().invoke(
        app, ["bench", "speed", str(folder), "--clusters", "5,8", "--repeats", "1", "--threads", "1", "--out", str(out)]
    )
    assert done.exit_code == 0, done.output
    told = json.loads(out.read_text())
    assert told["threads"] == 1
    assert [(r["method"], r["n_clusters"]) for r in told["results"]] == [(m, c) for c in (5, 8) for m in METHODS]
    for r in told["results"]:
        assert 0 < r["seconds"] < 60
        assert r["cpu_seconds"] > 0
        assert r["n_rows"] == 900
        if r["method"].startswith("HSIC") and r["n_clusters"] == 5:
            assert r["nmi"] == pytest.approx(1)
        assert r["nmi"] > 0.5
        assert r["method"] in done.output


def test_a_slow_method_is_cut_off_and_not_run_again(folder, monkeypatch):
    asked = []

    def watched(task, cap, n_threads, real=speed.in_own_process):
        asked.append((task["method"], task["n_clusters"]))
        if task["method"] == "KMeans":
            return real(task, 0.01, n_threads)
        return {"seconds": 1.0, "cpu_seconds": 1.0, "peak_bytes": 1, "labels": [0] * 400}

    monkeypatch.setattr(speed, "in_own_process", watched)
    results = speed.measure(str(folder), ["HSIC fast", "KMeans"], [6, 3], [400], 2, 100, 1, lambda *told: None)
    assert asked == [("HSIC fast", 3), ("KMeans", 3), ("HSIC fast", 3), ("HSIC fast", 6), ("HSIC fast", 6)]
    assert [r.seconds is None for r in results] == [False, True, False, True]
    assert {r.n_rows for r in results} == {400}
    text = printed(speed_table(results))
    assert text.count("cut off") == 2
    assert "KMeans: over 100 s with 400 rows and 3 clusters" in text


def test_the_best_time_and_the_mean_scores_are_reported():
    truth = np.array([0, 0, 1, 1])
    turns = [
        {"seconds": 3.0, "cpu_seconds": 4.0, "peak_bytes": 10, "labels": [0, 0, 1, 1]},
        {"seconds": 2.0, "cpu_seconds": 5.0, "peak_bytes": 30, "labels": [0, 0, 0, 0]},
    ]
    assert best_of("KMeans", 4, 2, turns, truth, "") == Result("KMeans", 4, 2, 2.0, 4.0, 30, 0.5, 0.75)
    assert best_of("KMeans", 4, 2, turns, None, "").nmi is None


def test_ratios_are_relative_to_hsic():
    results = [Result("HSIC", 10, 2, 2.0, 2.0, 10**6, 0.5, 0.6), Result("KMeans", 10, 2, 5.0, 9.0, 2 * 10**6)]
    text = printed(speed_table(results))
    assert "2.5×" in text
    assert "1.0×" in text


def test_peers_get_the_views_side_by_side():
    views = Views(("a", "b"), (np.array([[1, 2], [3, 4]]), np.array([[5.0], [6.0]])))
    X = concatenated(views)
    assert X.dtype == np.float32
    np.testing.assert_array_equal(X, [[1, 2, 5], [3, 4, 6]])


def test_unknown_methods_and_numbers_are_refused():
    assert choose_names("kmeans, hsic fast", METHODS) == ["HSIC fast", "KMeans"]
    with pytest.raises(ParameterError, match=r"Expected names from HSIC, HSIC fast, .*; got 'dbscan'"):
        choose_names("dbscan", METHODS)
    assert parse_numbers("--rows", "1_000,5") == [1000, 5]
    for wrong in ("", "a", "0", "5,-1"):
        with pytest.raises(ParameterError, match=r"--rows takes whole numbers from 1, separated by commas"):
            parse_numbers("--rows", wrong)


def test_a_failed_method_reports_its_error(folder):
    with pytest.raises(Exception, match=r"KMeans failed: .*n_samples=3 should be >= n_clusters=5"):
        speed.measure(str(folder), ["KMeans"], [5], [3], 1, 100, 1, lambda *told: None)

"""Running experiments: storing, cutting off and resuming runs."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from datetime import datetime

import numpy as np
import pytest
from planted_views import blobs
from typer.testing import CliRunner

from bitmosaic.bench import runner
from bitmosaic.bench.experiment import load, read_experiment
from bitmosaic.bench.runner import run_experiment
from bitmosaic.cli import app
from bitmosaic.errors import BitmosaicError, BusyFolderError, InvalidDataError
from bitmosaic.io.files import locked
from bitmosaic.views import Views, write_views


@pytest.fixture
def root(tmp_path):
    views, truth = blobs(n=200)
    write_views(tmp_path / "blobs", Views(tuple(views), tuple(views.values()), labels=truth))
    return tmp_path


def experiment(root, methods='["k-means"]', top="seeds = 3", runs=""):
    text = f'{top}\n[data.blobs]\npath = "blobs"\n[[runs]]\nmethods = {methods}\n{runs}\n'
    (root / "small.toml").write_text(text)
    return read_experiment(str(root / "small.toml"))


@pytest.fixture
def in_process(monkeypatch):
    """Methods run in this process, which saves the seconds of starting one."""

    def measured(self, group, seeds):
        task = {"data": group.data.name, "path": group.data.path, "choice": asdict(group.data.choice)}
        task |= {"views": group.views, "method": group.method, "n_clusters": group.n_clusters, "n_bits": group.n_bits}
        yield from (figures for figures in runner.fit_all(task | {"seeds": seeds}) if "seed" in figures)

    monkeypatch.setattr(runner._Running, "_measured", measured)


def run(root, *args, told=None, bars=None, **kwargs):
    asked = experiment(root, *args, **kwargs)
    told, bars = [] if told is None else told, [] if bars is None else bars
    return run_experiment(asked, root / "runs" / "small.jsonl", lambda *bar: bars.append(bar), told.append)


def test_labels_times_memory_and_sizes_of_each_seed_are_stored(root):
    told, bars = [], []
    runs = run(root, '["HSIC"]', top="seeds = 2", told=told, bars=bars)
    stored = load(root / "runs" / "small.jsonl")
    assert [r.key for r in runs] == [("blobs", "HSIC", seed, ("a", "b", "c"), 4, 128) for seed in range(2)]
    assert {r.key for r in stored} == {r.key for r in runs}
    for r in stored:
        assert r.labels.shape == r.truth.shape == (200,)
        assert r.seconds > 0
        assert r.cpu_seconds > 0
        assert r.peak_bytes >= 0
        assert r.scores["nmi"] > 0.5
        assert r.sizes["data"] > 0
    assert bars[-1] == ("blobs", 2, 2)
    assert [line.split(":")[0] for line in told] == ["HSIC, on blobs[a,b,c], 4 clusters, 128 bits"]


def test_the_same_seed_gives_the_labels_of_the_method_itself(root, in_process):
    from bitmosaic.bench.baselines import make

    runs = run(root, top="seeds = 2")
    views, _ = blobs(n=200)
    for r in runs:
        assert np.array_equal(r.labels, make("k-means", 4, random_state=r.seed).fit_predict(views))


def test_stored_runs_are_not_repeated(root, in_process, monkeypatch):
    before = run(root, top="seeds = 2")
    after = run(root, top="seeds = 3")
    assert [r.seconds for r in after[:2]] == [r.seconds for r in before]
    monkeypatch.setattr(runner._Running, "_measured", None)  # nothing may be started
    assert len(run(root, top="seeds = 3")) == 3


def test_runs_of_other_code_are_repeated(root, in_process, monkeypatch):
    (before,) = run(root, top="seeds = 1")
    monkeypatch.setattr(runner, "made_by", lambda method: "other code")
    (after,) = run(root, top="seeds = 1")
    assert after.made_by == "other code, 1 thread" != before.made_by
    assert after.seconds != before.seconds


def test_other_data_of_the_same_name_are_refused(root, in_process):
    run(root, top="seeds = 1")
    views, truth = blobs(n=200, seed=1)
    write_views(root / "blobs2", Views(tuple(views), tuple(views.values()), labels=truth))
    (root / "small.toml").write_text('[data.blobs]\npath = "blobs2"\n[[runs]]\nmethods = ["k-means"]\n')
    with pytest.raises(InvalidDataError, match="contains runs on other data with the name 'blobs'"):
        run_experiment(
            read_experiment(str(root / "small.toml")), root / "runs" / "small.jsonl", lambda *a: None, lambda line: None
        )


def test_a_method_over_its_time_is_cut_off(root):
    (cut,) = run(root, top="seeds = 2\ncap_seconds = 1e-9")
    assert (cut.cut_off, cut.labels) == ("time", None)


def test_a_method_over_its_memory_is_cut_off_once_and_again_only_under_another_cap(root, monkeypatch):
    told = []
    (cut,) = run(root, top='seeds = 2\ncap_memory = "20MB"', told=told)
    assert (cut.cut_off, cut.labels) == ("memory", None)
    assert told == ["k-means, on blobs[a,b,c], 4 clusters: cut off: memory"]
    assert [r.cut_off for r in run(root, top="seeds = 2")] == ["", ""]


def test_a_folder_of_runs_has_one_runner_at_a_time(root):
    (root / "runs").mkdir()
    with locked(root / "runs"), pytest.raises(BusyFolderError, match="another bitmosaic is busy"):
        run(root)


def test_a_worker_ends_with_the_process_that_started_it(root):
    asked = experiment(root, top="seeds = 1")
    group = asked.groups[0]
    task = {"data": "blobs", "path": str(group.data.path), "choice": asdict(group.data.choice), "views": group.views}
    task |= {"method": "k-means", "n_clusters": 4, "n_bits": None, "seeds": list(range(20_000))}
    command = [sys.executable, "-m", "bitmosaic.bench.runner", json.dumps(task)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as worker:
        worker.stdin.close()
        assert worker.wait(60) == 1


def test_failed_runs_are_repeated(root, in_process, monkeypatch):
    watched = runner._Running._measured
    monkeypatch.setattr(runner._Running, "_measured", lambda *a: iter([{"seed": 0, "cut_off": "failed: by chance"}]))
    (failed,) = run(root, top="seeds = 1")
    assert failed.cut_off == "failed: by chance"
    monkeypatch.setattr(runner._Running, "_measured", watched)
    monkeypatch.setattr(runner, "datetime", type("Later", (), {"now": lambda zone: datetime(2030, 1, 1, tzinfo=zone)}))
    (again,) = run(root, top="seeds = 1")
    assert again.labels is not None


def test_a_process_killed_by_the_system_is_out_of_memory():
    assert runner._cause(-9, []) == "memory"
    assert runner._cause(1, ["Traceback", "ValueError: no", " \n"]) == "failed: ValueError: no"
    assert "code 3" in runner._cause(3, [])


def test_ctrl_c_does_not_store_a_failure(root):
    """Also while workers are starting."""
    experiment(root, '["k-means", "AMGL"]', top="seeds = 50")
    command = [sys.executable, "-c", "from bitmosaic.cli import main; main()", "bench", "run", str(root / "small.toml")]
    out = root / "runs"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*command, "--out", str(out)], start_new_session=True, **pipes) as process:
        while not (out / "small.jsonl").exists():
            time.sleep(0.01)
            assert process.poll() is None
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of its processes
        _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    assert b"Traceback" not in said
    assert all(not r.cut_off for r in load(out / "small.jsonl"))


def test_methods_of_one_module_have_the_same_code_version():
    assert runner.made_by("k-means") == runner.made_by("k-means++")
    assert runner.made_by("k-means") != runner.made_by("NMF")


@pytest.mark.parametrize(
    "part", ["estimators/hsic", "solver/constrained/rules", "hamming/codes", "bench/baselines/base"]
)
def test_the_code_version_changes_with_every_part_that_methods_use(tmp_path, monkeypatch, part):
    monkeypatch.setattr(runner.bitmosaic, "__file__", str(tmp_path / "__init__.py"))
    versions = set()
    for used, other in ("ab", "bb", "bc"):
        for name, code in {"bench/baselines/base": "", part: used, "explorer/map": other}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / f"{name}.py").write_text(code)
        versions.add(runner.made_by.__wrapped__("k-means"))
    assert len(versions) == 2  # the code of the explorer does not count


def test_only_runs_of_the_last_code_version_are_loaded(root, in_process):
    run(root, top="seeds = 3")
    lines = (root / "runs" / "small.jsonl").read_text().splitlines()
    newer = json.loads(lines[1]) | {"made_by": "newer code"}
    (root / "runs" / "small.jsonl").write_text("\n".join([*lines, json.dumps(newer)]) + "\n")
    assert [(r.seed, r.made_by) for r in load(root / "runs" / "small.jsonl")] == [(0, "newer code")]


@pytest.mark.parametrize("kept", [20, -20])
def test_a_truncated_line_is_repeated(root, in_process, kept):
    """Also if it is the first line of the file."""
    before = run(root, top="seeds = 2")
    file = root / "runs" / "small.jsonl"
    file.write_bytes(file.read_bytes()[:kept])
    after = run(root, top="seeds = 2")
    assert [r.labels.tolist() for r in after] == [r.labels.tolist() for r in before]
    assert {r.key for r in load(file)} == {r.key for r in before}


def test_slow_methods_get_fewer_seeds(root, in_process):
    assert len(run(root, top="seeds = 4\nslow_seconds = 1e-9\nslow_seeds = 2")) == 2


def test_a_failed_method_is_reported_and_the_others_are_kept(root):
    views, truth = blobs(n=200)
    views["a"][3] = np.nan
    write_views(root / "holes", Views(tuple(views), tuple(views.values()), labels=truth))
    text = 'seeds = 1\njobs = 2\n[data.holes]\npath = "holes"\n[[runs]]\nmethods = ["k-means", "HSIC"]\n'
    (root / "small.toml").write_text(text)
    done = CliRunner().invoke(app, ["bench", "run", str(root / "small.toml"), "--out", str(root / "runs")])
    assert isinstance(done.exception, BitmosaicError)
    assert "failed: k-means (failed: KMeans needs complete views" in str(done.exception)
    cut_off = {r.method: bool(r.cut_off) for r in load(root / "runs" / "small.jsonl")}
    assert cut_off == {"k-means": True, "HSIC": False}


def test_the_command_runs_and_stores(root, in_process):
    experiment(root, '["k-means", "k-means++"]', top="seeds = 3")
    command = ["bench", "run", str(root / "small.toml"), "--out", str(root / "runs"), "--seeds", "1"]
    done = CliRunner().invoke(app, [*command, "--methods", "k-means"])
    assert done.exit_code == 0, done.output
    assert "1 runs of 1 combinations" in " ".join(done.output.split())
    first = json.loads((root / "runs" / "small.jsonl").read_text().splitlines()[1])
    assert (first["method"], first["views"]) == ("k-means", ["a", "b", "c"])

"""explore, report and export as they are typed: what they print, and what they say when something is wrong."""

import json
import shutil
import socket

import numpy as np
import pytest

from bitmosaic.errors import FileFormatError, InvalidDataError, MissingExtraError, MissingFileError, ParameterError
from bitmosaic.explorer import commands, server
from bitmosaic.explorer.clusters import Pictures
from bitmosaic.run import Run
from typed import call


@pytest.fixture
def served(monkeypatch):
    """What explore would serve, and in which browser window it would open."""
    calls = {}
    monkeypatch.setattr(server, "serve", lambda app, listener: calls.update(port=listener.getsockname()[1]))
    monkeypatch.setattr("webbrowser.open", lambda url: calls.update(url=url))
    return calls


def test_explore_says_where_it_is_and_opens_the_browser(run, served):
    output = call("explore", run.folder, "--port", 0)
    assert f"http://127.0.0.1:{served['port']}/" in output
    assert served["url"] == f"http://127.0.0.1:{served['port']}/"


def test_explore_takes_a_free_port_where_the_usual_one_is_taken(run, served, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        monkeypatch.setattr(commands, "USUAL_PORT", taken)
        call("explore", run.folder, "--no-browser")
        assert served["port"] != taken
        assert "url" not in served
        with pytest.raises(ParameterError, match=f"{taken} is taken. Try --port 0"):
            call("explore", run.folder, "--port", taken)


def test_explore_warns_where_others_can_reach_it(run, served):
    output = call("explore", run.folder, "--port", 0, "--host", "0.0.0.0", "--no-browser")
    assert "Everybody who reaches this address" in output
    assert f"http://{socket.gethostname()}:" in output


def test_an_address_of_another_machine_is_one_sentence(run, served):
    with pytest.raises(ParameterError, match=r"an address of this machine; 192\.0\.2\.1:0 cannot be had"):
        call("explore", run.folder, "--port", 0, "--host", "192.0.2.1")


def test_report_says_what_is_inside(run, tmp_path):
    output = call("report", run.folder, "--out", tmp_path / "r.html")
    assert "3 clusters, 120 pictures inside" in output
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")


def test_exports_follow_the_edits(run, tmp_path):
    log = Pictures.of(run).log
    log.append({"do": "merge", "clusters": [0, 1], "into": 0}, 0)
    assert "120 pictures in 2 clusters; 1 edit honoured" in call("export", run.folder, tmp_path / "t.csv")
    facts = json.loads(call("export", run.folder, tmp_path / "links", "--json"))
    assert facts == {"kind": "links", "folders": 2, "links": 120, "copies": 0, "missing": 0, "edits": 1, "notes": []}
    assert len(list((tmp_path / "links").glob("*/*"))) == 120


@pytest.mark.parametrize("command", ["explore", "report", "export"])
def test_pictures_that_have_moved_are_found_where_one_says(run, served, tmp_path, command):
    source = run.manifest["arguments"]["source"]
    shutil.copytree(source, tmp_path / "moved")
    recipe = run.views_folder / "extraction.json"
    recipe.write_text(recipe.read_text().replace(source, str(tmp_path / "gone")))
    outputs = {"explore": ["--port", 0], "report": ["--out", tmp_path / "r.html"], "export": [tmp_path / "links"]}
    output = call(command, run.folder, *outputs[command], "--source", tmp_path / "moved")
    expected = {"explore": "Exploring", "report": "120 pictures inside", "export": "120 links"}
    assert expected[command] in output


@pytest.mark.parametrize("command", ["explore", "report", "export"])
def test_a_run_that_was_stopped_or_is_damaged_is_one_sentence(run, served, tmp_path, command):
    arguments = [tmp_path / "t.csv"] if command == "export" else []
    codes = run.folder / "codes.npy"
    whole = codes.read_bytes()
    codes.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FileFormatError, match=r"codes\.npy is not a whole \.npy file"):
        call(command, run.folder, *arguments)
    manifest = json.loads((run.folder / "manifest.json").read_text())
    del manifest["seconds"]["tables"]
    (run.folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InvalidDataError, match="stopped before its clusters were written"):
        call(command, run.folder, *arguments)
    with pytest.raises(MissingFileError, match=r"there is none in"):
        call(command, tmp_path / "nothing", *arguments)


@pytest.mark.parametrize(("command", "package"), [("explore", "starlette"), ("report", "jinja2")])
def test_a_missing_package_is_named_with_the_cure(run, monkeypatch, command, package):
    real = commands.importlib.util.find_spec
    monkeypatch.setattr(commands.importlib.util, "find_spec", lambda name: None if name == package else real(name))
    with pytest.raises(MissingExtraError, match=rf"{command} needs {package}: pip install 'bitmosaic\[web\]'"):
        call(command, run.folder)


def test_columns_of_another_length_are_not_exported(run):
    np.save(run.folder / "distances.npy", np.zeros(7, np.float32))
    with pytest.raises(FileFormatError, match="must have a row for each of 120 images"):
        Run(run.folder).column("distances")

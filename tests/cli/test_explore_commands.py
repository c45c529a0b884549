"""explore, report and export: their output and their errors."""

import json
import shutil
import socket

import pytest
from image_kinds import write_images
from typed import call

from bitmosaic import pipeline
from bitmosaic.cli import explore
from bitmosaic.errors import FileFormatError, InvalidDataError, MissingExtraError, MissingFileError, ParameterError
from bitmosaic.explorer import server
from bitmosaic.run.clusters import ImageFacts
from bitmosaic.run.folder import Run


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """A run of 120 images in three clusters."""
    root = tmp_path_factory.mktemp("explored")
    return pipeline.cluster(write_images(root / "images", 40), root / "run", 3, views=("ch",)).folder


@pytest.fixture
def run(finished_run, tmp_path):
    shutil.copytree(finished_run, tmp_path / "run")
    return Run(tmp_path / "run")


@pytest.fixture
def served(monkeypatch):
    """The port that `explore` would serve, and the URL it would open in the browser."""
    calls = {}
    monkeypatch.setattr(server, "serve", lambda app, listener: calls.update(port=listener.getsockname()[1]))
    monkeypatch.setattr("webbrowser.open", lambda url: calls.update(url=url))
    return calls


def test_explore_prints_its_url_and_opens_the_browser(run, served):
    output = call("explore", run.folder, "--port", 0)
    assert f"http://127.0.0.1:{served['port']}/" in output
    assert served["url"] == f"http://127.0.0.1:{served['port']}/"


def test_explore_takes_a_free_port_if_the_default_one_is_in_use(run, served, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        monkeypatch.setattr(explore, "DEFAULT_PORT", taken)
        call("explore", run.folder, "--no-browser")
        assert served["port"] != taken
        assert "url" not in served
        with pytest.raises(ParameterError, match=f"Port {taken} is used by another program.*--port 0"):
            call("explore", run.folder, "--port", taken)


def test_explore_warns_if_others_can_reach_it(run, served):
    output = call("explore", run.folder, "--port", 0, "--host", "0.0.0.0", "--no-browser")
    assert "Anyone who can reach this address" in output
    assert f"http://{socket.gethostname()}:" in output


def test_an_address_of_another_machine_is_refused(run, served):
    with pytest.raises(ParameterError, match=r"Cannot listen on 192\.0\.2\.1:0 .* must be an address of this machine"):
        call("explore", run.folder, "--port", 0, "--host", "192.0.2.1")


def test_report_prints_the_number_of_clusters_and_images(run, tmp_path):
    output = call("report", run.folder, "--out", tmp_path / "r.html")
    assert "3 clusters, 120 images inside" in output
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")


def test_exports_follow_the_edits(run, tmp_path):
    log = ImageFacts.of(run).log
    log.append({"do": "merge", "clusters": [0, 1], "into": 0}, 0)
    assert "120 images in 2 clusters; 1 edit applied" in call("export", run.folder, tmp_path / "t.csv")
    facts = json.loads(call("export", run.folder, tmp_path / "links", "--json"))
    assert facts == {"kind": "links", "folders": 2, "links": 120, "copies": 0, "missing": 0, "edits": 1, "notes": []}
    assert len(list((tmp_path / "links").glob("*/*"))) == 120


@pytest.mark.parametrize("command", ["explore", "report", "export"])
def test_moved_images_are_found_with_source(run, served, tmp_path, command):
    source = run.manifest.arguments["source"]
    shutil.copytree(source, tmp_path / "moved")
    recipe = run.views_folder / "extraction.json"
    recipe.write_text(recipe.read_text().replace(source, str(tmp_path / "gone")))
    outputs = {"explore": ["--port", 0], "report": ["--out", tmp_path / "r.html"], "export": [tmp_path / "links"]}
    output = call(command, run.folder, *outputs[command], "--source", tmp_path / "moved")
    expected = {"explore": "Exploring", "report": "120 images inside", "export": "120 links"}
    assert expected[command] in output


@pytest.mark.parametrize("command", ["explore", "report", "export"])
def test_an_interrupted_or_damaged_run_is_refused(run, served, tmp_path, command):
    arguments = [tmp_path / "t.csv"] if command == "export" else []
    codes = run.folder / "codes.npy"
    whole = codes.read_bytes()
    codes.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FileFormatError, match=r"codes\.npy is not a whole \.npy file"):
        call(command, run.folder, *arguments)
    manifest = json.loads((run.folder / "manifest.json").read_text())
    del manifest["seconds"]["tables"]
    (run.folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InvalidDataError, match="interrupted before the end of its stage 'tables'"):
        call(command, run.folder, *arguments)
    with pytest.raises(MissingFileError, match=r"there is none in"):
        call(command, tmp_path / "nothing", *arguments)


@pytest.mark.parametrize(("command", "package"), [("explore", "starlette"), ("report", "jinja2")])
def test_a_missing_package_is_named_with_the_pip_command(run, monkeypatch, command, package):
    real = explore.importlib.util.find_spec
    monkeypatch.setattr(explore.importlib.util, "find_spec", lambda name: None if name == package else real(name))
    with pytest.raises(MissingExtraError, match=rf"{command} needs {package}: pip install 'bitmosaic\[web\]'"):
        call(command, run.folder)

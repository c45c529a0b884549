"""The program as a whole: start, exit codes, one-line errors, untrusted names; and the benchmark commands."""

import io
import os
import runpy
import subprocess
import sys
import tarfile
from contextlib import redirect_stdout
from functools import partial

import numpy as np
import pytest
import scipy.io
from image_kinds import write_images
from PIL import Image
from typed import run

from bitmosaic import cli
from bitmosaic.errors import BitmosaicError

COMMAND = [sys.executable, "-c", "from bitmosaic.cli import main; main()"]


def start(*arguments, **options):
    """Run a command in its own process."""
    command = [*COMMAND, *(a if isinstance(a, bytes) else str(a) for a in arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


@pytest.fixture(scope="module")
def blobs(tmp_path_factory):
    """Three planted clusters in a multi-view .mat file."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], 40)
    cells = np.empty((1, 2), object)
    cells[0, 0] = rng.normal(size=(120, 5)) + 8 * np.eye(3, 5)[y]
    cells[0, 1] = rng.normal(size=(120, 4)) + 8 * np.eye(3, 4)[y]
    path = tmp_path_factory.mktemp("data") / "blobs.mat"
    scipy.io.savemat(path, {"X": cells, "Y": y[:, None] + 1})
    return path


def test_demo_makes_a_run_folder_with_scores_and_sheets(tmp_path):
    done = run("demo", cwd=tmp_path)
    assert "1,797 images, 10 clusters" in done.stdout
    assert float(done.stdout.split("NMI")[1].split()[0]) > 0.75
    assert "29 kB of codes" in done.stdout
    with Image.open(tmp_path / "bitmosaic-demo/run/overview.png") as image:
        assert len(image.convert("L").getcolors()) > 100  # digits, not an empty sheet
    assert len(list((tmp_path / "bitmosaic-demo/run/clusters").iterdir())) == 10


def test_version_and_help_import_no_heavy_libraries():
    probe = (
        "import sys; sys.argv = ['bitmosaic', '--help']\n"
        "from bitmosaic.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([m for m in ('sklearn', 'numba', 'scipy', 'numpy', 'PIL') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60)
    assert done.stderr.strip() == "[]"
    assert "demo" in done.stdout
    assert run("--version").stdout.startswith("bitmosaic 0.")


def test_processes_of_a_command_import_nothing_from_the_current_folder(tmp_path):
    (tmp_path / "colorsys.py").write_text("raise SystemExit('run by a worker')")
    probe = (
        "import subprocess, sys; sys.argv = ['bitmosaic', '--version']\n"
        "from bitmosaic.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "subprocess.run([sys.executable, '-c', 'import colorsys; print(colorsys.__file__)'], check=True)"
    )
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    command = [sys.executable, "-c", probe]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, env=plain)
    assert (done.returncode, done.stderr) == (0, "")
    assert str(tmp_path) not in done.stdout


def test_bench_quality_compares_hsic_with_kmeans_and_does_not_repeat_stored_runs(blobs, tmp_path):
    pytest.importorskip("faiss")
    methods = "KMeans,KMeans-balanced,KMeans-raw,KMeans-L2,LSC-K,MVSC,HSIC,HSIC.paper"  # EVoC compiles for a minute
    options = ["--spoil", "--search", "--seeds", 1, "--methods", methods]
    command = ["bench", "quality", blobs, *options, "--out", tmp_path / "raw.jsonl"]
    done = run(*command)
    for row in ("KMeans", "KMeans-balanced", "KMeans-raw", "HSIC", "HSIC.paper", "blobs + noise", "blobs + weak view"):
        assert f" {row} " in done.stdout
    assert "1.000±.000" in done.stdout
    assert "HSIC against the best KMeans, 1 cases: NMI 0 ahead, 1 level, 0 behind; ACC 0 ahead," in done.stdout
    assert "precision@20" in done.stdout

    from bitmosaic.bench.experiment import load
    from bitmosaic.bench.quality import summarize

    summary = summarize(load(tmp_path / "raw.jsonl"))
    assert summary["blobs", "KMeans"]["nmi"] == (1.0, 0.0)
    # methods; HSIC with an extra view; HSIC on two single views: alone, and beside two kinds of noise
    assert len(summary) == 8 + 6 + 6
    assert run(*command).stdout == done.stdout  # the same seconds: no run was repeated


def test_bench_features_reports_its_progress(tmp_path):
    pytest.importorskip("skimage")
    from bitmosaic.bench.features import measure, ratios

    last = {}
    images = write_images(tmp_path / "images", 3)
    contest = measure(images, 8, 2, 1, lambda *step: last.update({step[0]: step[1:]}))
    assert contest.n_images == 8
    assert set(ratios(contest)) == {"lbp", "hog", "whole extraction against lbp+hog"}
    assert last == {"finding images": (9, 9), "reading images": (8, 8), "measuring": (20, 20)}


def test_bench_memory_prints_the_peak():
    pytest.importorskip("resource")
    done = run("bench", "memory", "--rows", "2000", "--clusters", 4, "--limit", "400MB")
    (line,) = (line.split() for line in done.stdout.splitlines() if line.strip().startswith("2,000"))
    assert float(line[3]) < 500  # MB: the limit, the outputs, and compiled kernels
    assert float(line[5]) > 0.99  # NMI


def test_errors_of_the_process_that_bench_memory_starts_are_raised(monkeypatch, tmp_path):
    from bitmosaic.bench import memory

    def in_process(command, **options):  # saves the seconds of starting one
        monkeypatch.setattr(sys, "argv", command[2:])
        with redirect_stdout(io.StringIO()) as printed:
            runpy.run_path(memory.__file__, run_name="__main__")
        return subprocess.CompletedProcess(command, 0, printed.getvalue())

    monkeypatch.setattr(memory.subprocess, "run", in_process)
    with pytest.raises(BitmosaicError, match="nowhere"):
        memory.measure(tmp_path / "nowhere", 100, 2, "400MB", "auto")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "quality", "nowhere.mat"], "nowhere.mat"),
        (["bench", "quality"], "No data to measure"),
        (["bench", "quality", "--blobs", "--methods", "kmeans"], "Add it to --methods"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_1(arguments, message, tmp_path):
    check_error(run(*arguments, cwd=tmp_path, fails=True), message)


def test_data_without_classes_is_refused(tmp_path):
    np.save(tmp_path / "only.npy", np.zeros((10, 2)))
    check_error(run("bench", "quality", tmp_path / "only.npy", fails=True), "Scores need true labels")


def check_error(done, *parts):
    """Standard error is one line that contains all these parts."""
    (line,) = done.stderr.strip().splitlines()
    assert (done.returncode, line[:7], "[Errno" in line) == (1, "Error: ", False)
    assert [part for part in parts if part not in line] == []


def test_errors_of_the_system_are_one_line(tmp_path):
    images = write_images(tmp_path / "images", 2)
    (tmp_path / "file").touch()
    long, below_file = tmp_path / ("a" * 300), tmp_path / "file" / "run"
    check_error(run("cluster", images, "-c", 2, "--out", long, fails=True), "File name too long")
    check_error(run("info", long, fails=True), "File name too long", str(long))
    check_error(run("info", below_file, fails=True), str(below_file))
    (tmp_path / "run" / "manifest.json").mkdir(parents=True)
    check_error(run("info", tmp_path / "run", fails=True), "Is a directory", "manifest.json")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root can read everything")
def test_a_folder_without_permission_is_one_line(tmp_path):
    (tmp_path / "closed").mkdir(mode=0)
    check_error(run("info", tmp_path / "closed" / "run", fails=True), "Permission denied")


def test_a_full_disk_is_one_line(tmp_path):
    resource = pytest.importorskip("resource")
    limits = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (100, 100))
    images = write_images(tmp_path / "images", 2)
    done = start("extract", images, "--view", "ch", "--out", tmp_path / "views", preexec_fn=limits)
    check_error(done, "cannot be written (File too large)")


def test_too_little_memory_is_one_line(monkeypatch, capsys):
    def app(prog_name):
        raise MemoryError

    monkeypatch.setattr(cli, "app", app)
    with pytest.raises(SystemExit, match="1"):
        cli.main()
    assert capsys.readouterr().err.startswith("Error: Out of memory.")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse these names")
def test_untrusted_names_are_escaped_on_the_terminal(tmp_path):
    images = sorted(write_images(tmp_path / "images", 2).rglob("*.png"))
    names = [f"{i}\x1b]0;owned\x07\n\u202e\udcff.png" for i in range(len(images))]
    with tarfile.open(tmp_path / "new.tar", "w") as archive:
        for path, name in zip(images, names, strict=True):
            archive.add(path, name)
        archive.add(__file__, "not\x1b[2Jimage.png")
    folder = os.fsencode(tmp_path) + b"/run\xff\x1b[2J"
    made = run("cluster", tmp_path / "images", "--clusters", 2, "--view", "ch", "--out", folder)
    outputs = [made, run("info", folder), run("predict", folder, tmp_path / "new.tar")]
    outputs.append(run("export", folder, os.fsencode(tmp_path) + b"/tab\xff.csv"))
    for done in outputs:
        assert all(letter.isprintable() or letter in "\n\t" for letter in done.stdout + done.stderr)
    assert r"run\xff\x1b[2J/clusters.csv" in outputs[1].stdout
    assert r"0\x1b]0;owned\x07\n\u202e\xff.png" in outputs[2].stdout
    assert r"skipped not\x1b[2Jimage.png" in outputs[2].stderr
    assert r"tab\xff.csv: 6 " in outputs[3].stdout
    check_error(run("info", folder + b"/nothing\n", fails=True), r"run\xff\x1b[2J/nothing\n")


def commands_of(group, path=()):
    for name, command in group.commands.items():
        yield from commands_of(command, (*path, name)) if hasattr(command, "commands") else [(*path, name), command]


def test_the_help_of_every_option_shows_its_default():
    import typer

    hidden = []
    found = list(commands_of(typer.main.get_command(cli.app)))
    for path, command in zip(found[::2], found[1::2], strict=True):
        for option in (part for part in command.params if part.param_type_name == "option" and part.name != "help"):
            has_text = isinstance(option.show_default, str) or option.default not in (None, [], ())
            if not (has_text or option.required or option.is_flag):
                hidden.append((*path, option.name))
    assert len(found) > 60
    assert hidden == []

"""The command line as a person uses it: real processes, exit codes, one-line errors."""

import os
import subprocess
import sys
import tarfile
from functools import partial

import numpy as np
import pytest
import scipy.io
from PIL import Image

from bitmosaic import cli
from pictures import write_pictures

COMMAND = [sys.executable, "-c", "from bitmosaic.cli import main; main()"]


def run(*arguments, cwd=None, **options):
    command = [*COMMAND, *(a if isinstance(a, bytes) else str(a) for a in arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300, **options)


@pytest.fixture(scope="module")
def blobs(tmp_path_factory):
    """Three planted clusters as a .mat file of the kind that researchers share."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], 40)
    cells = np.empty((1, 2), object)
    cells[0, 0] = rng.normal(size=(120, 5)) + 8 * np.eye(3, 5)[y]
    cells[0, 1] = rng.normal(size=(120, 4)) + 8 * np.eye(3, 4)[y]
    path = tmp_path_factory.mktemp("data") / "blobs.mat"
    scipy.io.savemat(path, {"X": cells, "Y": y[:, None] + 1})
    return path


def test_demo_makes_a_run_folder_with_scores_and_pictures(tmp_path):
    done = run("demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1,797 images, 10 clusters" in done.stdout
    assert float(done.stdout.split("NMI")[1].split()[0]) > 0.75
    assert "29 kB of codes" in done.stdout
    with Image.open(tmp_path / "bitmosaic-demo/run/overview.png") as picture:
        assert len(picture.convert("L").getcolors()) > 100  # digits, not an empty sheet
    assert len(list((tmp_path / "bitmosaic-demo/run/clusters").iterdir())) == 10


def test_version_and_help_answer_without_heavy_imports(tmp_path):
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


def test_what_a_command_starts_imports_nothing_from_the_current_folder(tmp_path):
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


def test_bench_quality_tells_hsic_beside_kmeans_and_goes_on_from_the_stored_labels(blobs, tmp_path):
    command = ["bench", "quality", blobs, "--spoil", "--seeds", 1, "--out", tmp_path / "raw.jsonl"]
    done = run(*command)
    assert done.returncode == 0, done.stderr
    for row in ("KMeans", "KMeans-balanced", "KMeans-raw", "HSIC", "HSIC.paper", "blobs + noise", "blobs + copy of"):
        assert f" {row} " in done.stdout
    assert "1.000±.000" in done.stdout

    from bitmosaic.bench.quality import summarise
    from bitmosaic.bench.runs import load

    summary = summarise(load(tmp_path / "raw.jsonl"))
    assert summary["blobs", "KMeans"]["nmi"] == (1.0, 0.0)
    assert len(summary) == 5 + 4
    assert run(*command).stdout == done.stdout  # the seconds, too: nothing ran again


def test_bench_features_tells_how_far_it_is(tmp_path):
    pytest.importorskip("skimage")
    from bitmosaic.bench.features import measure, ratios

    last = {}
    pictures = write_pictures(tmp_path / "pictures", 3)
    contest = measure(pictures, 8, 2, 1, lambda *step: last.update({step[0]: step[1:]}))
    assert contest.n_images == 8
    assert set(ratios(contest)) == {"lbp", "hog", "whole extraction against lbp+hog"}
    assert last == {"finding pictures": (9, 9), "reading pictures": (8, 8), "measuring": (20, 20)}


def test_bench_memory_stays_under_its_limit():
    pytest.importorskip("resource")
    done = run("bench", "memory", "--rows", "20_000,5000", "--clusters", 4, "--limit", "400MB")
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if line.strip().startswith(("5,000", "20,000"))]
    assert [line[:2] for line in lines] == [["5,000", "9"], ["20,000", "36"]]
    for _, _, seconds, peak, _, nmi in lines:
        assert float(seconds) > 0
        assert 10 < float(peak) < 500  # the limit, the outputs, and compiled kernels
        assert float(nmi) > 0.99


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "quality", "nowhere.mat"], "nowhere.mat"),
        (["bench", "quality"], "nothing to measure"),
        (["bench", "quality", "--blobs", "--methods", "kmeans"], "Add it to --methods"),
        (["bench", "memory", "--rows", "2000", "--limit", "1MB"], "memory_limit must be at least"),
        (["bench", "memory", "--rows", "999,2000"], "at least 1000; got 999"),
        (["bench", "memory", "--rows", "2000", "--train-size", "lots"], "a share up to 1.0; got 'lots'"),
        (["bench", "memory", "--rows", "2000", "--folder", "nowhere"], "a folder that is there; got 'nowhere'"),
        (["bench", "memory", "--rows", "2000", "--clusters", "3000"], "n_clusters=3000"),
        (["bench", "memory", "--rows", "2000", "--limit", "lots"], "such as '512MB'"),
    ],
)
def test_bad_input_ends_in_one_line_and_exit_code_1(arguments, message, tmp_path):
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_data_without_classes_is_refused(tmp_path):
    np.save(tmp_path / "only.npy", np.zeros((10, 2)))
    done = run("bench", "quality", tmp_path / "only.npy")
    assert done.returncode == 1
    assert "Scores need true classes" in done.stderr


def one_sentence(done, *parts):
    (line,) = done.stderr.strip().splitlines()
    assert (done.returncode, line[:7], "[Errno" in line) == (1, "Error: ", False)
    assert [part for part in parts if part not in line] == []


def test_what_the_system_refuses_is_one_sentence(tmp_path):
    pictures = write_pictures(tmp_path / "pictures", 2)
    (tmp_path / "file").touch()
    long = tmp_path / ("a" * 300)
    one_sentence(run("cluster", pictures, "--clusters", 2, "--out", long), "File name too long", "Choose another")
    one_sentence(run("info", long), "File name too long", str(long))
    one_sentence(run("info", tmp_path / "file" / "run"), str(tmp_path / "file" / "run"))
    (tmp_path / "run" / "manifest.json").mkdir(parents=True)
    one_sentence(run("info", tmp_path / "run"), "Only regular files are read", "manifest.json is a folder")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_folder_without_permission_is_one_sentence(tmp_path):
    (tmp_path / "closed").mkdir(mode=0)
    one_sentence(run("info", tmp_path / "closed" / "run"), "Permission denied")


def test_a_demo_on_a_full_disk_is_one_sentence(tmp_path):
    resource = pytest.importorskip("resource")
    limits = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (100, 100))
    environment = os.environ | {"NUMBA_CACHE_DIR": "/dev/null"}
    done = run("demo", "--out", tmp_path / "demo", preexec_fn=limits, env=environment)
    one_sentence(done, f"{tmp_path / 'demo'} cannot be written (File too large)")


def test_too_little_memory_is_one_sentence(monkeypatch, capsys):
    def app():
        raise MemoryError

    monkeypatch.setattr(cli, "app", app)
    with pytest.raises(SystemExit, match="1"):
        cli.main()
    assert capsys.readouterr().err.startswith("Error: There must be enough memory")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_names_that_others_have_given_do_nothing_to_a_terminal(tmp_path):
    strict = os.environ | {"PYTHONIOENCODING": "utf-8:strict"}
    pictures = sorted(write_pictures(tmp_path / "pictures", 2).rglob("*.png"))
    names = [f"{i}\x1b]0;owned\x07\n\u202e\udcff.png" for i in range(len(pictures))]
    with tarfile.open(tmp_path / "new.tar", "w") as archive:
        for path, name in zip(pictures, names, strict=True):
            archive.add(path, name)
        archive.add(__file__, "no\x1b[2Jpicture.png")
    folder = os.fsencode(tmp_path) + b"/run\xff\x1b[2J"
    made = run("cluster", tmp_path / "pictures", "--clusters", 2, "--view", "ch", "--out", folder, env=strict)
    outputs = [made, run("info", folder, env=strict), run("predict", folder, tmp_path / "new.tar", env=strict)]
    outputs.append(run("export", folder, os.fsencode(tmp_path) + b"/tab\xff.csv", env=strict))
    for done in outputs:
        assert done.returncode == 0, done.stderr
        assert all(letter.isprintable() or letter in "\n\t" for letter in done.stdout + done.stderr)
    assert r"run\xff\x1b[2J/clusters.csv" in outputs[1].stdout
    assert r"0\x1b]0;owned\x07\n\u202e\xff.png" in outputs[2].stdout
    assert r"skipped no\x1b[2Jpicture.png" in outputs[2].stderr
    assert r"tab\xff.csv: 6 pictures" in outputs[3].stdout
    one_sentence(run("info", folder + b"/nothing\n", env=strict), r"run\xff\x1b[2J/nothing\n")

"""search: every kind of query, compared with brute force."""

import csv
import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
from image_kinds import KINDS, make_image, write_images
from PIL import Image
from typed import call

from bitmosaic import pipeline
from bitmosaic.errors import BitmosaicError, FileFormatError, InvalidDataError, MissingFileError
from bitmosaic.hamming.codes import hamming_distances_numpy
from bitmosaic.pipeline import searching
from bitmosaic.pipeline.searching import search
from bitmosaic.run.edits import EditLog
from bitmosaic.run.folder import Run


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Images of three kinds, a run of them, and some that it has not seen."""
    place = tmp_path_factory.mktemp("place")
    write_images(place / "photos", 30)
    write_images(place / "new", 2, seed=1)
    pipeline.cluster(place / "photos", place / "run", 3, views=("ch", "hog"))
    return place


@pytest.fixture
def run(place):
    return Run(place / "run")


def brute_force(run, codes, k=None, radius=None):
    for distances in hamming_distances_numpy(codes, np.asarray(run.column("codes"))):
        rows = np.argsort(distances, kind="stable")[:k]
        yield rows if radius is None else rows[distances[rows] <= radius], distances


def assert_found(found, run, codes, **limits):
    assert len(found.rows) == len(codes)
    for rows, near, (expected, distances) in zip(
        found.rows, found.distances, brute_force(run, codes, **limits), strict=True
    ):
        np.testing.assert_array_equal(rows, expected)
        np.testing.assert_array_equal(near, distances[expected])


# ---- in Python


def test_new_images_find_the_nearest_images_of_the_run(run, place):
    found = search(run, place / "new", k=7)
    assert found.queries.names == [f"{kind}/{i:04d}.png" for kind in KINDS for i in range(2)]
    assert_found(found, run, found.queries.codes, k=7)
    for name, rows in zip(found.queries.names, found.rows, strict=True):
        assert {run.paths[row].split("/")[0] for row in rows} == {name.split("/")[0]}


def test_an_image_file_of_the_run_has_its_code(run, place):
    found = search(run, place / "photos" / "disc" / "0003.png", k=90)
    row = run.paths.index("disc/0003.png")
    np.testing.assert_array_equal(found.queries.codes[0], run.column("codes")[row])
    assert row in found.rows[0][found.distances[0] == 0]


@pytest.mark.parametrize("limits", [{"k": 5}, {"radius": 9}])
def test_an_image_of_the_run_is_not_among_its_own_results(run, limits):
    row = run.paths.index("noise/0004.png")
    found = search(run, "noise/0004.png", **limits)
    (expected, distances) = next(brute_force(run, np.asarray(run.column("codes"))[[row]], radius=limits.get("radius")))
    expected = expected[expected != row][: limits.get("k")]
    np.testing.assert_array_equal(found.rows[0], expected)
    np.testing.assert_array_equal(found.distances[0], distances[expected])


def test_codes_can_be_an_array_a_npy_file_or_hexadecimal_lines(run, tmp_path):
    codes = np.random.default_rng(0).integers(256, size=(4, 16), dtype=np.uint8)
    np.save(tmp_path / "codes.npy", codes)
    np.save(tmp_path / "one.npy", codes[0])
    (tmp_path / "codes.txt").write_text("\n".join(["", *(code.tobytes().hex().upper() for code in codes), ""]))
    for what in (codes, codes.view(np.uint64), tmp_path / "codes.npy", tmp_path / "codes.txt"):
        assert_found(search(run, what, k=9), run, codes, k=9)
    assert_found(search(run, tmp_path / "one.npy", k=9), run, codes[:1], k=9)


def test_all_within_a_radius_with_and_without_an_index(run, monkeypatch):
    codes = np.asarray(run.column("codes"))[::9] ^ np.uint8(1)
    for worth in (1, 1000):
        monkeypatch.setattr(searching, "WORTH_AN_INDEX", worth)
        assert_found(search(run, codes, radius=20), run, codes, radius=20)
        assert_found(search(run, codes, radius=0), run, codes, radius=0)
        assert_found(search(run, codes, k=200), run, codes, k=200)


def test_unreadable_images_of_a_list_are_skipped(run, place, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"not an image")
    (tmp_path / "list.txt").write_text(f"{place / 'new' / 'disc' / '0000.png'}\nbad.png\n")
    found = search(run, tmp_path / "list.txt", k=3)
    assert len(found.rows) == 1
    assert [path.endswith("bad.png") for path, _ in found.queries.skipped] == [True]


def test_bad_queries_are_refused(run, place, tmp_path):
    with pytest.raises(MissingFileError, match=r"neither an image of .* nor a file or folder"):
        search(run, "nowhere.png")
    with pytest.raises(InvalidDataError, match="must have 128 bits, as those of the run; got 64"):
        search(run, np.zeros((2, 8), np.uint8))
    (tmp_path / "codes.txt").write_text("00" * 16 + "\n" + "00" * 8)
    with pytest.raises(FileFormatError, match=r"32 hexadecimal digits.* line 2 of .* has 64 bits"):
        search(run, tmp_path / "codes.txt")
    (tmp_path / "codes.txt").write_text("00" * 16 + "\nzebra\n")
    with pytest.raises(FileFormatError, match=r"line 2 of .* has other characters"):
        search(run, tmp_path / "codes.txt")
    (tmp_path / "bad.png").write_bytes(b"not an image")
    with pytest.raises(InvalidDataError, match="At least one image must be readable"):
        search(run, tmp_path / "bad.png")
    with pytest.raises(InvalidDataError, match="at least one code"):
        search(run, np.zeros((0, 16), np.uint8))


def test_a_run_of_features_is_searched_by_its_own_rows(run, place, tmp_path):
    (views := tmp_path / "views").mkdir()
    for name in ("ch", "hog"):
        shutil.copy(place / "run" / "views" / f"{name}.npy", views)
    fitted = pipeline.fit(views, tmp_path / "bare", 3)
    assert len(search(fitted, "5", k=4).rows[0]) == 4
    with pytest.raises(MissingFileError, match="New images need the extractors of the run"):
        search(fitted, place / "new")


# ---- as a command


@pytest.fixture
def command(place, monkeypatch):
    monkeypatch.chdir(place)
    return lambda *arguments: call("search", *arguments)


def test_the_command_prints_bits_cluster_and_path(command, place, run):
    lines = command("run", "new/disc/0000.png", "-k", 3).splitlines()
    found = search(run, place / "new/disc/0000.png", k=3)
    labels = run.column("labels")
    assert lines[0] == "new/disc/0000.png: 3 results"
    assert lines[1].split() == ["bits", "cluster", "path"]
    expected = [[str(d), str(labels[r]), run.paths[r]] for d, r in zip(found.distances[0], found.rows[0], strict=True)]
    assert [line.split() for line in lines[2:]] == expected
    far = hamming_distances_numpy(np.asarray(run.column("codes")), np.zeros((1, 16), np.uint8)).min() - 1
    (place / "zeros.txt").write_text("00" * 16)
    assert command("run", "zeros.txt", "--radius", far) == "00" * 16 + ": 0 results\n"


def test_the_command_writes_tables_with_cluster_names_and_a_sheet(command, place, tmp_path):
    shutil.copytree(place / "run", tmp_path / "run")
    run = Run(tmp_path / "run")
    labels = np.asarray(run.column("labels"))
    EditLog(run.folder, labels, 3).append({"do": "name", "cluster": int(labels[0]), "name": "red discs"}, 0)
    files = [f"--out={tmp_path / 'found.csv'}", f"--sheet={tmp_path / 'sheet.png'}"]
    assert command(tmp_path / "run", "new", "-k", 4, *files).splitlines()[0] == "24 results for 6 queries"
    with (tmp_path / "found.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["query", "rank", "row", "path", "distance", "cluster", "name"]
    assert [row["rank"] for row in rows[:5]] == ["1", "2", "3", "4", "1"]
    assert {row["name"] for row in rows if row["path"].startswith("disc")} == {"red discs"}
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width > 800
    command(tmp_path / "run", "new", f"--out={tmp_path / 'found.parquet'}")
    assert pq.read_table(tmp_path / "found.parquet").num_rows == 6 * 20


def test_the_command_prints_json(command, run):
    (query,) = json.loads(command("run", "stripes/0001.png", "-k", 2, "--json"))["queries"]
    assert query["query"] == "stripes/0001.png"
    assert query["code"] == run.column("codes")[run.paths.index("stripes/0001.png")].tobytes().hex()
    assert list(query["found"][0]) == ["row", "path", "distance", "cluster", "name"]
    assert len(query["found"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nowhere"], "neither an image of run nor a file"),
        (["nowhere", "new"], "there is none in nowhere"),
        (["run", "new", "-k", 3, "--radius", 3], "Give either -k or --radius, not both"),
        (["run", "new", "--out", "found.txt"], r"--out must be a file named \*.csv or \*.parquet; got found.txt"),
        (["run", "new", "--sheet", "found.csv"], "--sheet must be a file named"),
    ],
)
def test_the_command_refuses_bad_input(command, arguments, message):
    with pytest.raises(BitmosaicError, match=message):
        command(*arguments)


def test_the_sheet_shows_queries_and_results(place, run):
    found = search(run, place / "new" / "disc", k=12)
    sheet = np.asarray(found.sheet())
    blank = np.asarray(searching.neighbors_sheet("", [(n, None, [(0, None)] * 12) for n in found.queries.names]))
    assert sheet.shape == blank.shape
    red = (sheet[..., 0] > 150) & (sheet[..., 1] < 90)
    assert red[:, :90].any()
    assert red[:, 120:].mean() > 0.02
    rng = np.random.default_rng(0)
    codes = search(run, run.column("codes")[:1] ^ rng.integers(2, size=(1, 16), dtype=np.uint8), k=2)
    assert codes.sheet().height < 250
    assert make_image("disc", rng).shape == (24, 24, 3)

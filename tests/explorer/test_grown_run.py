"""The explorer, reports and exports over a run that has grown: every picture there, each with its own content."""

import csv
import io
import json
import shutil
import tarfile
from urllib.request import urlopen

import numpy as np
import pytest
from PIL import Image

from bitmosaic import pipeline
from bitmosaic.edits import EditLog, StaleEditError
from bitmosaic.errors import BitmosaicError, FileFormatError
from bitmosaic.explorer.clusters import Clusters, Pictures
from bitmosaic.explorer.pages import Pages
from bitmosaic.explorer.report import write_report
from bitmosaic.explorer.thumbnails import Thumbnails
from bitmosaic.exports.kinds import export
from bitmosaic.files import write_json
from bitmosaic.reading import read_json
from bitmosaic.refitting import refit
from bitmosaic.run import Run
from bitmosaic.run_pictures import RunPictures
from explored import serving
from pictures import write_pictures


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Pictures of a folder, then as many from an archive and from an array, all under the same names."""
    root = tmp_path_factory.mktemp("grown")
    first = write_pictures(root / "first", 8)
    more = write_pictures(root / "more", 8, seed=4)
    with tarfile.open(root / "more.tar.gz", "w:gz") as archive:
        for path in sorted(more.rglob("*.png")):
            archive.add(path, str(path.relative_to(more)))
    array = np.stack([np.asarray(Image.open(p)) for p in sorted(write_pictures(root / "x", 2, seed=6).rglob("*.png"))])
    np.save(root / "array.npy", array)
    run = pipeline.cluster(first, root / "run", 3, views=("ch", "hog"), labels="folder")
    pipeline.add(run, root / "more.tar.gz")
    return root, pipeline.add(run, root / "array.npy").run.folder


@pytest.fixture
def grown(made, tmp_path):
    root, folder = made
    return root, Run(shutil.copytree(folder, tmp_path / "run"))


def original(root, run, row):
    if row < 48:
        return np.asarray(Image.open(root / ("first" if row < 24 else "more") / run.paths[row]))
    return np.load(root / "array.npy")[int(run.paths[row])]


def test_every_row_has_the_picture_of_its_own_source(grown):
    root, run = grown
    assert len(run.paths) == 54
    assert run.paths[:24] == run.paths[24:48]
    pictures = RunPictures(run)
    found = dict(pictures.each(range(54), lambda image: image))
    assert sorted(found) == list(range(54))
    for row, image in found.items():
        np.testing.assert_array_equal(image, original(root, run, row))
    contents = dict(pictures.contents([3, 30, 50]))
    assert contents[3] == (root / "first" / run.paths[3]).read_bytes()
    assert contents[30] == (root / "more" / run.paths[30]).read_bytes()
    np.testing.assert_array_equal(contents[50], original(root, run, 50))
    assert pictures.place(3) == str(root / "first" / run.paths[3])
    assert (pictures.place(30), pictures.place(50)) == (None, None)
    assert pictures.read_only_in_order() == list(range(24, 48))


def test_a_source_that_is_gone_leaves_the_others(grown):
    root, run = grown
    recipe = run.additions[0].views_folder / "extraction.json"
    write_json(recipe, read_json(recipe) | {"source": str(root / "nowhere.tar")})
    assert sorted(RunPictures(run).thumbnails(range(54), 8)) == [*range(24), *range(48, 54)]
    given = RunPictures(run, root / "more")  # the pictures of the run are said to be there now
    np.testing.assert_array_equal(next(given.each([5], lambda image: image))[1], original(root, run, 24 + 5))
    assert len(dict(given.each(range(54), lambda image: 0))) == 54


def test_thumbnails_made_before_are_kept_and_those_of_new_rows_made(made, tmp_path):
    root, _ = made
    run = pipeline.cluster(root / "more.tar.gz", tmp_path / "run", 3, views=("ch",))
    Thumbnails(run).prepare()
    grown = pipeline.add(run, root / "first").run
    seen = []
    kept = Thumbnails(grown)
    kept.prepare(lambda *step: seen.append(step))
    assert not any(stage == "reading pictures" and total for stage, _, total in seen)
    with Image.open(io.BytesIO(kept.get(30))) as jpeg:
        close = np.abs(np.asarray(jpeg, float) - np.asarray(Image.open(root / "first" / grown.paths[30]), float))
    assert close.mean() < 12


def test_edits_made_before_hold_for_new_pictures(made, tmp_path):
    root, _ = made
    run = pipeline.cluster(root / "first", tmp_path / "run", 3, views=("ch", "hog"), labels="folder")
    log = Pictures.of(run).log
    log.append({"do": "name", "cluster": 0, "name": "first"}, 0)
    log.append({"do": "merge", "clusters": [1, 2], "into": 1}, 1)
    log.append({"do": "move", "rows": [0, 1], "to": None}, 2)
    before = Clusters(Pictures.of(run))
    now = Clusters(Pictures.of(pipeline.add(run, root / "more").run))
    np.testing.assert_array_equal(now.labels[:24], before.labels)
    assert set(now.labels[24:].tolist()) == {0, 1}
    assert now.names == before.names
    assert now.numbers == [0, 1, 3]
    log = Pictures.of(Run(run.folder)).log
    log.append({"do": "move", "rows": [40], "to": 3}, 3)
    assert Clusters(Pictures.of(Run(run.folder))).labels[40] == 3


def test_the_head_of_the_log_is_that_of_the_labels_of_the_fit(grown):
    _, run = grown
    fitted = np.asarray(run.fitted_column("labels"))
    assert Pictures.of(run).log.head == EditLog(run.folder, fitted, 3).head


def test_an_explorer_that_is_open_sees_what_is_added(made, tmp_path):
    root, _ = made
    run = pipeline.cluster(root / "first", tmp_path / "run", 3, views=("ch", "hog"), labels="folder")
    pages = Pages(run)
    assert (pages.overview()["images"], pages.search("0003.png")["pictures"]["total"]) == (24, 3)
    pipeline.add(run, root / "more")
    assert sum(cluster["size"] for cluster in pages.all_clusters()["clusters"]) == 48
    assert (pages.overview()["images"], pages.search("0003.png")["pictures"]["total"]) == (48, 6)
    assert pages.picture(47)["path"] == "stripes/0007.png"
    while not pages.places.ready():
        pass
    assert len(pages.map()["rows"]) == 48


def test_the_server_shows_a_grown_run(grown):
    root, run = grown
    with serving(run) as url:
        with urlopen(f"{url}/api/run") as answer:
            assert json.load(answer)["images"] == 54
        for row in (3, 30, 50):
            for place in ("thumb", "image"):
                with urlopen(f"{url}/{place}/{row}") as answer, Image.open(answer) as jpeg:
                    off = np.abs(np.asarray(jpeg, float) - original(root, run, row))
                assert off.mean() < 12


def test_tables_links_and_reports_have_everything(grown, tmp_path):
    root, run = grown
    clusters = Clusters(Pictures.of(run))
    export(clusters, tmp_path / "all.csv")
    assert len((tmp_path / "all.csv").read_text().splitlines()) == 55
    made = export(clusters, tmp_path / "links").facts
    assert (made["links"], made["copies"], made["missing"]) == (24, 30, 0)
    files = [path for path in (tmp_path / "links").rglob("*") if path.is_file() and path.suffix == ".png"]
    assert len(files) == 54
    contents = {path.read_bytes() for path in files if path.is_symlink()}
    assert contents == {path.read_bytes() for path in (root / "first").rglob("*.png")}
    assert write_report(run, tmp_path / "report.html").pictures == 54


def test_several_centers_of_one_number_are_one_cluster(grown):
    _, run = grown
    write_json(run.folder / "manifest.json", read_json(run.folder / "manifest.json") | {"ids": [4, 1, 4]})
    numbers = np.array([4, 1, 4], np.int32)
    for folder in (run.folder, *(addition.folder for addition in run.additions)):
        np.save(folder / "labels.npy", numbers[np.load(folder / "labels.npy")])
    run = Run(run.folder)
    clusters = Clusters(Pictures.of(run))
    assert clusters.numbers == [1, 4]
    codes, numbers = clusters.pictures.codes, np.array(clusters.numbers)
    table = clusters.distances_to(codes, numbers)
    np.testing.assert_allclose(table[np.arange(54), (clusters.labels == 4).astype(int)], clusters.distances, atol=1e-4)
    np.testing.assert_array_equal(numbers[table.argmin(1)], clusters.labels)
    log = clusters.pictures.log
    assert log.append({"do": "move", "rows": [0], "to": None}, 0)["to"] == 5


def test_a_table_says_from_which_addition_a_picture_came(grown, tmp_path):
    _, run = grown
    export(Clusters(Pictures.of(run)), tmp_path / "all.csv")
    with (tmp_path / "all.csv").open(newline="") as file:
        assert [row["addition"] for row in csv.DictReader(file)] == ["0"] * 24 + ["1"] * 24 + ["2"] * 6


def test_pictures_of_an_array_do_not_take_the_names_of_links(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "first").mkdir()
    for i in range(12):
        Image.fromarray(rng.integers(0, 255, (24, 24, 3), np.uint8)).save(tmp_path / "first" / f"{i}.png")
    run = pipeline.cluster(tmp_path / "first", tmp_path / "run", 2, views=("ch", "cm"))
    np.save(tmp_path / "more.npy", rng.integers(0, 255, (12, 24, 24, 3), np.uint8))
    run = pipeline.add(run, tmp_path / "more.npy").run
    made = export(Clusters(Pictures.of(run)), tmp_path / "links").facts
    assert (made["links"], made["copies"], made["missing"]) == (12, 12, 0)


def test_an_explorer_recovers_from_a_moment_in_which_the_run_could_not_be_read(grown, monkeypatch):
    _, run = grown
    pages = Pages(run)
    refit(Run(run.folder))
    with monkeypatch.context() as patched:
        patched.setattr(Pictures, "of", lambda run: (_ for _ in ()).throw(FileFormatError("not now")))
        with pytest.raises(BitmosaicError):
            pages.overview()
    assert pages.overview()["images"] == 54


def test_an_edit_of_clusters_from_before_a_refit_is_refused(grown):
    _, run = grown
    pages = Pages(run)
    refit(Run(run.folder))
    with pytest.raises(StaleEditError, match="was refitted meanwhile"):
        pages.edit({"do": "name", "cluster": 0, "name": "x"}, 0)

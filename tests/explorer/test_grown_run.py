"""The explorer, reports and exports of a run with additions."""

import csv
import io
import json
import shutil
import tarfile
from urllib.request import urlopen

import numpy as np
import pytest
from explored import serving
from image_kinds import write_images
from PIL import Image

from bitmosaic import pipeline
from bitmosaic.errors import BitmosaicError, FileFormatError, StaleEditError
from bitmosaic.explorer.api import Api
from bitmosaic.explorer.report import write_report
from bitmosaic.explorer.thumbnails import Thumbnails
from bitmosaic.io.files import write_json
from bitmosaic.io.read import read_json
from bitmosaic.pipeline.export import export
from bitmosaic.pipeline.refitting import refit
from bitmosaic.run.clusters import Clusters, ImageFacts
from bitmosaic.run.edits import EditLog
from bitmosaic.run.folder import Run
from bitmosaic.run.images import RunImages


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of a folder, with images added from an archive (same names) and from an array."""
    root = tmp_path_factory.mktemp("grown")
    first = write_images(root / "first", 8)
    more = write_images(root / "more", 8, seed=4)
    with tarfile.open(root / "more.tar.gz", "w:gz") as archive:
        for path in sorted(more.rglob("*.png")):
            archive.add(path, str(path.relative_to(more)))
    array = np.stack([np.asarray(Image.open(p)) for p in sorted(write_images(root / "x", 2, seed=6).rglob("*.png"))])
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


def test_every_row_has_the_image_of_its_source(grown):
    root, run = grown
    assert len(run.paths) == 54
    assert run.paths[:24] == run.paths[24:48]
    images = RunImages(run)
    found = dict(images.each(range(54), lambda image: image))
    assert sorted(found) == list(range(54))
    for row, image in found.items():
        np.testing.assert_array_equal(image, original(root, run, row))
    contents = dict(images.contents([3, 30, 50]))
    assert contents[3] == (root / "first" / run.paths[3]).read_bytes()
    assert contents[30] == (root / "more" / run.paths[30]).read_bytes()
    np.testing.assert_array_equal(contents[50], original(root, run, 50))
    assert images.place(3) == str(root / "first" / run.paths[3])
    assert (images.place(30), images.place(50)) == (None, None)
    assert images.read_only_in_order() == list(range(24, 48))


def test_a_missing_source_does_not_affect_the_others(grown):
    root, run = grown
    recipe = run.additions[0].views_folder / "extraction.json"
    write_json(recipe, read_json(recipe) | {"source": str(root / "nowhere.tar")})
    assert sorted(RunImages(run).thumbnails(range(54), 8)) == [*range(24), *range(48, 54)]
    given = RunImages(run, root / "more")  # the new place of the images of the run
    np.testing.assert_array_equal(next(given.each([5], lambda image: image))[1], original(root, run, 24 + 5))
    assert len(dict(given.each(range(54), lambda image: 0))) == 54


def test_thumbnails_are_kept_and_those_of_new_rows_added(made, tmp_path):
    root, _ = made
    run = pipeline.cluster(root / "more.tar.gz", tmp_path / "run", 3, views=("ch",))
    Thumbnails(run).prepare()
    grown = pipeline.add(run, root / "first").run
    seen = []
    kept = Thumbnails(grown)
    kept.prepare(lambda *step: seen.append(step))
    assert not any(stage == "reading images" and total for stage, _, total in seen)
    with Image.open(io.BytesIO(kept.get(30))) as jpeg:
        close = np.abs(np.asarray(jpeg, float) - np.asarray(Image.open(root / "first" / grown.paths[30]), float))
    assert close.mean() < 12


def test_earlier_edits_apply_to_added_images(made, tmp_path):
    root, _ = made
    run = pipeline.cluster(root / "first", tmp_path / "run", 3, views=("ch", "hog"), labels="folder")
    log = ImageFacts.of(run).log
    log.append({"do": "name", "cluster": 0, "name": "first"}, 0)
    log.append({"do": "merge", "clusters": [1, 2], "into": 1}, 1)
    log.append({"do": "move", "rows": [0, 1], "to": None}, 2)
    before = Clusters(ImageFacts.of(run))
    now = Clusters(ImageFacts.of(pipeline.add(run, root / "more").run))
    np.testing.assert_array_equal(now.labels[:24], before.labels)
    assert set(now.labels[24:].tolist()) == {0, 1}
    assert now.names == before.names
    assert now.numbers == [0, 1, 3]
    log = ImageFacts.of(Run(run.folder)).log
    log.append({"do": "move", "rows": [40], "to": 3}, 3)
    assert Clusters(ImageFacts.of(Run(run.folder))).labels[40] == 3


def test_edit_log_head_depends_on_the_fitted_labels(grown):
    _, run = grown
    fitted = np.asarray(run.fitted_column("labels"))
    assert ImageFacts.of(run).log.head == EditLog(run.folder, fitted, 3).head


def test_an_open_explorer_shows_added_images(made, tmp_path):
    root, _ = made
    run = pipeline.cluster(root / "first", tmp_path / "run", 3, views=("ch", "hog"), labels="folder")
    api = Api(run)
    assert (api.overview()["images"], api.search("0003.png")["images"]["total"]) == (24, 3)
    pipeline.add(run, root / "more")
    assert sum(cluster["size"] for cluster in api.all_clusters()["clusters"]) == 48
    assert (api.overview()["images"], api.search("0003.png")["images"]["total"]) == (48, 6)
    assert api.image(47)["path"] == "stripes/0007.png"
    while not api.map_job.ready():
        pass
    assert len(api.map()["rows"]) == 48


def test_the_server_shows_a_grown_run(grown):
    root, run = grown
    with serving(run) as url:
        with urlopen(f"{url}/api/run") as answer:
            assert json.load(answer)["images"] == 54
        for row in (3, 30, 50):
            for place in ("thumb", "large"):
                with urlopen(f"{url}/{place}/{row}") as answer, Image.open(answer) as jpeg:
                    off = np.abs(np.asarray(jpeg, float) - original(root, run, row))
                assert off.mean() < 12


def test_tables_links_and_reports_have_everything(grown, tmp_path):
    root, run = grown
    clusters = Clusters(ImageFacts.of(run))
    export(clusters, tmp_path / "all.csv")
    assert len((tmp_path / "all.csv").read_text().splitlines()) == 55
    made = export(clusters, tmp_path / "links").facts
    assert (made["links"], made["copies"], made["missing"]) == (24, 30, 0)
    files = [path for path in (tmp_path / "links").rglob("*") if path.is_file() and path.suffix == ".png"]
    assert len(files) == 54
    contents = {path.read_bytes() for path in files if path.is_symlink()}
    assert contents == {path.read_bytes() for path in (root / "first").rglob("*.png")}
    assert write_report(run, tmp_path / "report.html").images == 54


def test_several_centers_with_one_number_are_one_cluster(grown):
    _, run = grown
    write_json(run.folder / "manifest.json", read_json(run.folder / "manifest.json") | {"ids": [4, 1, 4]})
    numbers = np.array([4, 1, 4], np.int32)
    for folder in (run.folder, *(addition.folder for addition in run.additions)):
        np.save(folder / "labels.npy", numbers[np.load(folder / "labels.npy")])
    run = Run(run.folder)
    facts = ImageFacts.of(run)
    clusters = Clusters(facts)
    assert clusters.numbers == [1, 4]
    codes, numbers = facts.codes, np.array(clusters.numbers)
    table = clusters.distances_to(codes, numbers)
    np.testing.assert_allclose(table[np.arange(54), (clusters.labels == 4).astype(int)], clusters.distances, atol=1e-4)
    np.testing.assert_array_equal(numbers[table.argmin(1)], clusters.labels)
    assert facts.log.append({"do": "move", "rows": [0], "to": None}, 0)["to"] == 5


def test_a_table_has_the_addition_of_each_image(grown, tmp_path):
    _, run = grown
    export(Clusters(ImageFacts.of(run)), tmp_path / "all.csv")
    with (tmp_path / "all.csv").open(newline="") as file:
        assert [row["addition"] for row in csv.DictReader(file)] == ["0"] * 24 + ["1"] * 24 + ["2"] * 6


def test_images_of_an_array_get_unique_link_names(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "first").mkdir()
    for i in range(12):
        Image.fromarray(rng.integers(0, 255, (24, 24, 3), np.uint8)).save(tmp_path / "first" / f"{i}.png")
    run = pipeline.cluster(tmp_path / "first", tmp_path / "run", 2, views=("ch", "cm"))
    np.save(tmp_path / "more.npy", rng.integers(0, 255, (12, 24, 24, 3), np.uint8))
    run = pipeline.add(run, tmp_path / "more.npy").run
    made = export(Clusters(ImageFacts.of(run)), tmp_path / "links").facts
    assert (made["links"], made["copies"], made["missing"]) == (12, 12, 0)


def test_an_explorer_recovers_after_an_unreadable_run(grown, monkeypatch):
    _, run = grown
    api = Api(run)
    refit(Run(run.folder))
    with monkeypatch.context() as patched:
        patched.setattr(ImageFacts, "of", lambda run: (_ for _ in ()).throw(FileFormatError("not now")))
        with pytest.raises(BitmosaicError):
            api.overview()
    assert api.overview()["images"] == 54


def test_an_edit_from_before_a_refit_is_refused(grown):
    _, run = grown
    api = Api(run)
    refit(Run(run.folder))
    with pytest.raises(StaleEditError, match="was refitted since"):
        api.edit({"do": "name", "cluster": 0, "name": "x"}, 0)

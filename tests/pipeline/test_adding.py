"""add: known images are recognized, no old feature is read, and an interrupted addition is resumed."""

import json
import shutil

import numpy as np
import pytest
from image_kinds import write_images
from PIL import Image

from bitmosaic import HSIC, pipeline
from bitmosaic.errors import (
    BitmosaicError,
    BusyFolderError,
    InvalidDataError,
    MissingFileError,
    ViewMismatchError,
)
from bitmosaic.hamming.codes import hamming_distances_numpy
from bitmosaic.images import open_images
from bitmosaic.io.files import locked, write_json
from bitmosaic.io.read import read_json
from bitmosaic.pipeline import extraction
from bitmosaic.pipeline.adding import WORK
from bitmosaic.run.clusters import Clusters, ImageFacts
from bitmosaic.run.folder import Run
from bitmosaic.views import write_views

VIEWS = ("ch", "hog")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("adding")
    first, more = write_images(root / "first", 12), write_images(root / "more", 6, seed=9)
    pipeline.cluster(first, root / "run", 3, views=VIEWS, labels="folder", max_side=16)
    return root, first, more


@pytest.fixture
def grown(made, tmp_path):
    """A copy of a run for one test, its images, and new images."""
    root, first, more = made
    return Run(shutil.copytree(root / "run", tmp_path / "run")), first, more


def files_of(folder):
    """Every file with its content; the time in a manifest set aside."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            if path.name == "manifest.json":
                content = json.dumps({key: value for key, value in json.loads(content).items() if key != "at"})
            found[str(path.relative_to(folder))] = content
    return found


def test_new_images_are_appended_to_every_column(grown):
    run, _, more = grown
    before = {name: np.array(run.column(name)) for name in ("codes", "labels", "distances")}
    files = files_of(run.folder)
    added = pipeline.add(run, more)
    now = added.run
    after = files_of(run.folder)
    assert {path: after[path] for path in files} == files  # existing files are not changed
    assert all(path.startswith("additions/0001/") for path in after.keys() - files.keys())
    assert (added.images, added.known, added.skipped, now.n_images, now.n_fitted) == (18, 0, 0, 54, 36)
    for name, values in before.items():
        np.testing.assert_array_equal(now.column(name)[:36], values)
        assert len(now.column(name)) == 54
    predicted, _ = pipeline.predict(run, more)
    assert [predicted["path"], predicted["cluster"].tolist()] == [
        list(now.paths[36:]),
        now.column("labels")[36:].tolist(),
    ]
    np.testing.assert_array_equal(now.column("distances")[36:], predicted["distance"])
    np.testing.assert_array_equal(now.model.transform(now.views), now.column("codes"))
    assert now.views.labels[36:].tolist() == [path.split("/")[0] for path in now.paths[36:]]
    assert sum(added.sizes.values()) == 18
    assert pipeline.evaluate(now)["acc"] > 0.9


def test_adding_the_same_folder_again_adds_nothing(grown):
    run, first, more = grown
    pipeline.add(run, more)
    before = files_of(run.folder)
    for again, count in ((more, 18), (first, 36)):
        added = pipeline.add(run, again)
        assert (added.images, added.known, added.folder) == (0, count, None)
        assert files_of(run.folder) == before


def test_known_images_are_recognized_by_content_and_listed(grown, tmp_path):
    run, first, more = grown
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    shutil.copy(first / "disc" / "0003.png", mixed / "a.png")
    Image.open(first / "disc" / "0004.png").save(mixed / "b.bmp")  # other bytes, the same pixels
    shutil.copy(more / "noise" / "0000.png", mixed / "c.png")
    shutil.copy(more / "noise" / "0000.png", mixed / "d.png")
    (mixed / "e.png").write_bytes(b"\x89PNG\r\n\x1a\nno")
    added = pipeline.add(run, mixed)
    assert (added.images, added.known, added.skipped) == (1, 3, 1)
    known = (added.folder / "known.csv").read_text().split()
    assert known == ["path,same_as", "a.png,disc/0003.png", "b.bmp,disc/0004.png", "d.png,c.png"]
    assert (added.folder / "skipped.csv").read_text().splitlines()[1].startswith("e.png,")
    assert added.run.paths[36:] == ("c.png",)


def test_no_feature_of_an_old_image_is_read(grown):
    run, _, more = grown
    for name in VIEWS:
        (run.folder / "views" / f"{name}.npy").unlink()
    assert pipeline.add(run, more).images == 18


def test_without_content_hashes_all_images_are_new(grown):
    run, first, _ = grown
    manifest = run.folder / "views" / "manifest.json"
    write_json(manifest, json.loads(manifest.read_text()) | {"digests": False})
    added = pipeline.add(run, first)
    assert (added.images, added.known, added.recognizes) == (36, 0, False)
    assert pipeline.add(run, first).known == 36  # by those of the addition


@pytest.mark.parametrize(("stage", "times"), [("extracting features", 2), ("encoding and assigning", 1)])
def test_an_interrupted_addition_is_resumed(grown, monkeypatch, stage, times):
    run, _, more = grown
    monkeypatch.setattr(extraction, "BATCH", 4)
    whole = files_of(pipeline.add(Run(shutil.copytree(run.folder, run.folder.with_name("whole"))), more).folder)
    seen = []

    def stop(now, done, total):
        seen.append((now, done))
        if now == stage and sum(name == stage for name, _ in seen) == times + 1:
            raise KeyboardInterrupt

    try:
        pipeline.add(run, more, progress=stop)
    except KeyboardInterrupt:
        assert not Run(run.folder).additions or stage == "encoding and assigning"
    seen.clear()
    again = pipeline.add(run, more, progress=lambda *step: seen.append(step[:2]))
    assert files_of(run.folder / "additions" / "0001") == whole
    assert not (run.folder / "additions" / WORK).exists()
    if stage == "extracting features" and again.images:
        assert next(done for name, done in seen if name == stage) == 4 * times


def test_an_addition_interrupted_with_other_images_starts_again(grown, tmp_path, monkeypatch):
    run, _, more = grown
    monkeypatch.setattr(extraction, "BATCH", 4)
    other = write_images(tmp_path / "other", 4, seed=77)

    def stop(now, done, total):
        if now == "encoding and assigning":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pipeline.add(run, other, update=True, progress=stop)
    added = pipeline.add(run, more)
    assert added.images == 18
    assert not (added.folder / "centers.npy").exists()
    assert pipeline.add(run, other).images == 12


def test_only_one_addition_at_a_time(grown):
    run, _, more = grown
    with locked(run.folder / "additions"), pytest.raises(BusyFolderError, match="another bitmosaic is busy"):
        pipeline.add(run, more)


def test_an_update_moves_centers_but_no_old_image(grown):
    run, _, more = grown
    labels = np.array(run.column("labels"))
    added = pipeline.add(run, more, update=True)
    moved = added.run
    codes, numbers = moved.column("codes"), moved.column("labels")
    for number in range(3):
        ones = np.unpackbits(codes[numbers == number], axis=1).mean(0)
        center = np.unpackbits(moved.centers[number])
        assert (center[ones > 0.5] == 1).all()
        assert (center[ones < 0.5] == 0).all()
    np.testing.assert_array_equal(numbers[:36], labels)
    np.testing.assert_array_equal(run.model.cluster_centers_, moved.model.cluster_centers_)
    twice = pipeline.add(moved, open_images([more / "disc" / "0000.png"]), update=True)
    assert twice.known == 1


def test_the_next_update_starts_from_the_sums_of_the_last(grown, tmp_path):
    run, _, more = grown
    pipeline.add(run, more, update=True)
    third = pipeline.add(run, write_images(tmp_path / "third", 5, seed=3), update=True).run
    assert third.moved.counts.sum() == 36 + 18 + 15
    signs = 2 * np.unpackbits(third.column("codes"), axis=1).astype(int) - 1
    np.testing.assert_array_equal(third.moved.bit_sums.sum(0), signs.sum(0))


def test_added_images_outside_of_any_folder_have_no_label(grown, tmp_path):
    run, _, more = grown
    (tmp_path / "flat").mkdir()
    for path in more.rglob("*.png"):
        shutil.copy(path, tmp_path / "flat" / f"{path.parent.name}-{path.name}")
    now = pipeline.add(run, tmp_path / "flat").run
    clusters = Clusters(ImageFacts.of(now))
    assert clusters.facts.classes == ["disc", "noise", "stripes"]
    assert [clusters.facts.label(row) for row in (0, 36, 53)] == ["disc", None, None]
    assert sum(count for number in clusters.numbers for _, count in clusters.labels_within(number)) == 36
    assert clusters.scores == pipeline.evaluate(now) == run.manifest.scores
    assert pipeline.refit(now).run.manifest.scores["acc"] > 0.9


# ---- views


def test_a_views_folder_with_content_hashes_is_added_like_its_images(grown, tmp_path):
    run, first, more = grown
    pipeline.extract([*sorted(more.glob("*/*")), first / "disc" / "0000.png"], tmp_path / "views", VIEWS, max_side=16)
    added = pipeline.add(run, tmp_path / "views")
    assert (added.images, added.known, added.recognizes) == (18, 1, True)
    labels = pipeline.predict(run, more)[0]["cluster"]
    np.testing.assert_array_equal(added.run.column("labels")[36:], labels)
    assert pipeline.add(run, tmp_path / "views").known == 19


def test_views_made_with_other_options_are_refused(grown, tmp_path):
    run, _, more = grown
    pipeline.extract(more, tmp_path / "views", VIEWS, max_side=16, mirror=False)
    with pytest.raises(ViewMismatchError, match="made with other options"):
        pipeline.add(run, tmp_path / "views")


@pytest.fixture
def of_views(tmp_path):
    """A run of features of unknown making."""
    rng = np.random.default_rng(0)
    write_views(tmp_path / "views", {"a": rng.normal(size=(60, 5)), "b": rng.normal(size=(60, 3))})
    return pipeline.fit(tmp_path / "views", tmp_path / "run", 3)


def test_views_in_memory_and_in_files_are_added_to_a_run_of_views(of_views, tmp_path):
    rng = np.random.default_rng(1)
    new = {"b": rng.normal(size=(7, 3)), "a": rng.normal(size=(7, 5))}  # in another order
    run = pipeline.add(of_views, new).run
    assert run.n_images == 67
    model = HSIC.load(run.folder / "model.safetensors")
    np.testing.assert_array_equal(run.column("labels")[60:], model.predict(new))
    assert run.views["a"][60:].tolist() == new["a"].tolist()
    np.savez(tmp_path / "more.npz", **new)
    assert pipeline.add(run, tmp_path / "more.npz").images == 7
    assert pipeline.add(run, tmp_path / "more.npz").known == 7  # the same file is not added twice
    assert pipeline.add(run, tmp_path / "views").known == 60  # nor the views of the run itself
    assert Run(run.folder).n_images == 74


@pytest.mark.parametrize("views", [{"a": np.ones((2, 5))}, {"a": np.ones((2, 5)), "b": np.ones((2, 4))}])
def test_views_with_other_names_or_widths_are_refused(of_views, views):
    with pytest.raises(
        ViewMismatchError, match=r"must have the names and widths of the run's views, \{'a': 5, 'b': 3\}"
    ):
        pipeline.add(of_views, views)
    assert not (of_views.folder / "additions").exists() or not Run(of_views.folder).additions


# ---- errors


def test_an_unfinished_run_is_refused(grown):
    run, _, more = grown
    manifest = read_json(run.folder / "manifest.json")
    del manifest["seconds"]["sheets"]
    write_json(run.folder / "manifest.json", manifest)
    with pytest.raises(InvalidDataError, match="was interrupted"):
        pipeline.add(Run(run.folder), more)


def test_unreadable_images_are_an_error_and_change_nothing(grown, tmp_path):
    run, _, _ = grown
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.png").write_bytes(b"\x89PNG\r\n\x1a\nno")
    with pytest.raises(InvalidDataError, match="At least one image must be readable"):
        pipeline.add(run, tmp_path / "bad")
    assert Run(run.folder).additions == []
    with pytest.raises(MissingFileError):
        pipeline.add(run, tmp_path / "nowhere")


def test_a_grown_run_with_lost_files_is_not_made_again(grown):
    run, first, more = grown
    pipeline.add(run, more)
    (run.folder / "labels.npy").unlink()
    with pytest.raises(BitmosaicError, match="has additions or was refitted, and has lost files"):
        pipeline.cluster(first, run.folder, 3, views=VIEWS, labels="folder", max_side=16)


def test_cluster_numbers_of_centers_are_used_everywhere(grown):
    run, _, more = grown
    manifest = read_json(run.folder / "manifest.json") | {"ids": [7, 2, 7]}
    write_json(run.folder / "manifest.json", manifest)
    numbers = np.array([7, 2, 7], np.int32)
    np.save(run.folder / "labels.npy", numbers[np.load(run.folder / "labels.npy")])
    run = Run(run.folder)
    table = pipeline.predict(run, more)[0]
    added = pipeline.add(run, more)
    assert set(added.sizes) <= {2, 7}
    np.testing.assert_array_equal(added.run.column("labels")[36:], table["cluster"])
    codes = added.run.column("codes")[36:]
    weights = run.model.bit_weights_ / run.model.bit_weights_.mean()
    far = hamming_distances_numpy(codes, run.centers, weights)
    of_seven, of_two = far[:, [0, 2]].min(1), far[:, 1]
    np.testing.assert_array_equal(table["cluster"], np.where(of_two < of_seven, 2, 7))
    np.testing.assert_allclose(table["margin"], np.abs(of_two - of_seven), atol=1e-4)

"""refit: clusters keep their numbers, names and manual edits."""

import csv
import json
import shutil

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from bitmosaic import HSIC, pipeline
from bitmosaic.errors import BusyFolderError, InvalidDataError, ParameterError
from bitmosaic.estimators.metrics import clustering_scores
from bitmosaic.io.files import READY, beside, locked
from bitmosaic.pipeline import refitting, stages
from bitmosaic.pipeline.refitting import Before, refit
from bitmosaic.run.clusters import Clusters, ImageFacts
from bitmosaic.run.edits import EditLog
from bitmosaic.run.folder import REFIT, Run

DIGITS = (0, 1, 2, 3, 4, 6)
NEW = 6
EACH = 60


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """Five digits in five clusters, then a sixth digit added."""
    folder = tmp_path_factory.mktemp("digits")
    data = load_digits()
    for digit in DIGITS:
        place = folder / ("new" if digit == NEW else "old") / str(digit)
        place.mkdir(parents=True)
        for i, image in enumerate(data.images[data.target == digit][:EACH]):
            pixels = Image.fromarray((image * 15).astype(np.uint8)).resize((24, 24), Image.Resampling.BICUBIC)
            pixels.save(place / f"{i:03d}.png")
    run = pipeline.cluster(folder / "old", folder / "run", len(DIGITS) - 1, labels="folder", mirror=False)
    assert run.manifest.scores["acc"] > 0.9
    pipeline.add(run, folder / "new")
    return folder / "run"


@pytest.fixture
def run(grown, tmp_path):
    return Run(shutil.copytree(grown, tmp_path / "run"))


def edit(run, *edits):
    images = ImageFacts.of(run)
    for change in edits:
        images.log.append(change, len(images.log.entries()))


def members(run, digit):
    return np.flatnonzero(run.views.labels == str(digit))


def number_of(labels, rows):
    """The cluster that most of some rows are in."""
    return int(np.bincount(labels[rows]).argmax())


def test_old_clusters_keep_their_numbers_and_the_new_class_is_born(run):
    before = np.asarray(run.column("labels"))
    made = refit(run, n_clusters=len(DIGITS))
    after = np.asarray(made.run.column("labels"))
    assert made.lineage.counts["born"] == 1
    born = next(change for change in made.lineage.changes if change.event == "born")
    assert born.number == len(DIGITS) - 1 == number_of(after, members(run, NEW))
    old = np.arange(len(after)) < (len(DIGITS) - 1) * EACH
    assert np.mean(after[old] == before[old]) > 0.95
    assert clustering_scores(run.views.labels, after)["acc"] > 0.9
    assert made.run.n_fitted == made.run.n_images == len(after)
    with (made.run.folder / "lineage.csv").open(newline="") as file:
        rows = {int(row["number"]): row for row in csv.DictReader(file)}
    assert rows[born.number]["event"] == "born"
    assert "was born" in rows[born.number]["sentence"]
    assert (made.run.folder / "clusters" / f"{born.number:04d}.jpg").is_file()


def test_names_stay_on_their_clusters_and_the_log_of_edits_is_kept(run):
    number = number_of(np.asarray(run.column("labels")), members(run, 3))
    edit(run, {"do": "name", "cluster": number, "name": "threes"})
    old_log = (run.folder / "edits.jsonl").read_bytes()
    made = refit(run, n_clusters=len(DIGITS))
    clusters = Clusters(ImageFacts.of(made.run))
    assert clusters.names == {number: "threes"}
    assert number_of(clusters.labels, members(run, 3)) == number
    assert (run.folder / "history" / "0001" / "edits.jsonl").read_bytes() == old_log
    assert next(c for c in made.lineage.changes if c.number == number).name == "threes"


def test_clusters_merged_by_hand_stay_merged(run):
    labels = np.asarray(run.column("labels"))
    one, other = (number_of(labels, members(run, digit)) for digit in (1, 4))
    edit(run, {"do": "merge", "clusters": [one, other], "into": one})
    made = refit(run, n_clusters=len(DIGITS) - 1)  # five digits apart, two of six being one
    after = np.asarray(made.run.column("labels"))
    assert number_of(after, members(run, 1)) == number_of(after, members(run, 4)) == one
    assert other not in after
    assert len(np.unique(after)) == len(DIGITS) - 1
    assert np.count_nonzero(made.run.ids == one) == 2  # two centers, so that both are still recognized
    codes = np.asarray(made.run.column("codes"))[members(run, 4)]
    assert number_of(made.run.nearest_of_codes(codes)[0], slice(None)) == one


def test_images_moved_by_hand_stay_there_after_every_refit(run):
    labels = np.asarray(run.column("labels"))
    rows = members(run, 0)[:3]
    to = number_of(labels, members(run, 1))
    edit(run, {"do": "move", "rows": rows.tolist(), "to": to})
    made = refit(run)
    assert made.pinned == 3
    assert (np.asarray(made.run.column("labels"))[rows] == to).all()
    assert number_of(np.asarray(made.run.column("labels")), members(run, 0)[3:]) != to
    again = refit(made.run, n_clusters=len(DIGITS))
    assert (np.asarray(again.run.column("labels"))[rows] == to).all()
    assert sorted((run.folder / "history").iterdir())[1].name == "0002"


def test_a_cluster_made_by_hand_is_a_cluster_after_the_refit(run):
    rows = members(run, NEW)[:40]
    edit(run, {"do": "move", "rows": rows.tolist(), "to": None})
    made = refit(run)
    after = np.asarray(made.run.column("labels"))
    hand_made = len(DIGITS) - 1
    assert (after[rows] == hand_made).all()
    assert number_of(after, members(run, NEW)[40:]) == hand_made  # the others of its kind follow
    assert number_of(made.run.nearest_of_codes(np.asarray(made.run.column("codes"))[rows])[0], slice(None)) == hand_made


def test_numbers_of_lost_clusters_are_not_used_again(run):
    fewer = refit(run, n_clusters=3)
    assert len(np.unique(np.asarray(fewer.run.column("labels")))) == 3
    left = set(fewer.run.ids.tolist())
    more = refit(fewer.run, n_clusters=len(DIGITS))
    fresh = set(more.run.ids.tolist()) - left
    assert min(fresh) >= len(DIGITS) - 1
    clusters = Clusters(ImageFacts.of(more.run))
    assert sorted(clusters.numbers) == sorted(set(more.run.ids.tolist()))


def test_a_refit_without_new_images_changes_no_number(grown, tmp_path):
    run = Run(shutil.copytree(grown, tmp_path / "run"))
    made = refit(run)
    assert made.lineage.counts["died"] == made.lineage.counts["born"] == 0
    before = np.array(made.run.column("labels"))
    assert np.mean(before == np.asarray(refit(made.run).run.column("labels"))) > 0.97


def test_predict_evaluate_and_add_work_on_a_refitted_run(run, grown):
    made = refit(run, n_clusters=len(DIGITS)).run
    table, _ = pipeline.predict(made, grown.parent / "new")
    assert set(np.unique(table["cluster"])) <= set(made.ids.tolist())
    assert number_of(table["cluster"], slice(None)) == len(DIGITS) - 1
    assert pipeline.evaluate(made)["acc"] > 0.9
    assert pipeline.add(made, grown.parent / "new").images == 0


def test_cluster_returns_a_refitted_run_as_it_is(run, grown):
    shutil.rmtree(grown.parent / "other", ignore_errors=True)
    place = shutil.copytree(grown, grown.parent / "other")
    made = refit(Run(place), n_clusters=len(DIGITS)).run
    again = pipeline.cluster(grown.parent / "old", place, len(DIGITS) - 1, labels="folder", mirror=False)
    np.testing.assert_array_equal(again.column("labels"), made.column("labels"))


def test_n_clusters_must_hold_all_images_moved_by_hand(run):
    labels = np.asarray(run.column("labels"))
    one, other = (number_of(labels, members(run, digit)) for digit in (1, 0))
    for start, to in ((other, one), (one, other)):
        edit(run, {"do": "move", "rows": np.flatnonzero(labels == start)[:1].tolist(), "to": to})
    with pytest.raises(ParameterError, match="at least 2, because 2 clusters hold images moved by hand; got"):
        refit(run, n_clusters=1)
    assert not (run.folder / REFIT / "model.safetensors").exists()


def test_an_interrupted_run_is_refused(run):
    manifest = json.loads((run.folder / "manifest.json").read_text())
    del manifest["seconds"]["sheets"]
    (run.folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InvalidDataError, match="to finish it"):
        refit(run)


def test_a_fresh_refit_ignores_the_old_clusters_even_if_an_image_was_moved(grown, tmp_path):
    made = []
    for name, fresh in (("a", True), ("b", False)):
        run = Run(shutil.copytree(grown, tmp_path / name))
        row = members(run, 0)[0]
        edit(
            run, {"do": "move", "rows": [int(row)], "to": number_of(np.asarray(run.column("labels")), members(run, 1))}
        )
        made.append(refit(run, fresh=fresh, seed=7).run)
    assert not np.array_equal(*(np.asarray(run.column("codes")) for run in made))


@pytest.mark.parametrize("other", [1, 4])
def test_n_clusters_counts_merged_clusters_once(run, other):
    edit(run, {"do": "merge", "clusters": [0, other], "into": 0})
    made = refit(run, n_clusters=3)
    assert len(np.unique(np.asarray(made.run.column("labels")))) == 3


def test_a_cluster_made_by_hand_gets_an_unused_number(run):
    fewer = refit(run, n_clusters=4).run
    gone = set(range(5)) - set(fewer.ids.tolist())
    images = ImageFacts.of(fewer)
    made = images.log.append({"do": "move", "rows": [0, 1], "to": None}, len(images.log.entries()))
    assert made["to"] not in gone
    assert made["to"] == fewer.next_number


def test_reading_a_run_opened_before_a_refit_is_an_error(run):
    old = Run(run.folder)
    assert old.model.n_clusters_ == 5
    refit(run)
    with pytest.raises(InvalidDataError, match=r"was refitted since it was opened. Open it again"):
        old.column("labels")


def test_a_refitted_run_with_lost_files_is_not_made_again(grown):
    place = shutil.copytree(grown, grown.parent / "lost")
    shutil.rmtree(place / "additions")
    made = refit(Run(place)).run
    (made.folder / "model.safetensors").unlink()
    with pytest.raises(InvalidDataError, match="has additions or was refitted, and has lost files"):
        pipeline.cluster(grown.parent / "old", place, len(DIGITS) - 1, labels="folder", mirror=False)


@pytest.mark.parametrize("place", [".", "additions"])
def test_a_refit_locks_the_run(run, place):
    with locked(run.folder / place), pytest.raises(BusyFolderError, match="another bitmosaic is busy"):
        refit(run)


def test_a_refit_killed_while_publishing_is_finished_by_the_next_reader(run, monkeypatch):
    monkeypatch.setattr(refitting, "publish_refit", lambda folder: (folder / REFIT / READY).exists() and interrupted())
    with pytest.raises(KeyboardInterrupt):
        refit(run, n_clusters=len(DIGITS))  # announced, and nothing moved
    assert not (run.folder / "lineage.csv").exists()
    shutil.move(run.folder / REFIT / "labels.npy", run.folder / "labels.npy")
    for read in (lambda: run.column("codes"), lambda: run.column("labels"), lambda: run.model):
        with pytest.raises(InvalidDataError, match="was refitted since it was opened"):  # half old, half new
            read()
    found = Run(run.folder)
    assert found.manifest.absorbed == 1
    np.testing.assert_array_equal(found.column("labels"), found.ids[found.model.labels_])
    assert not (run.folder / REFIT).exists()
    assert "was born" in (run.folder / "lineage.csv").read_text()


def test_an_interrupted_refit_is_resumed(run, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(stages, "draw_clusters", interrupted)
        with pytest.raises(KeyboardInterrupt):
            refit(run, n_clusters=len(DIGITS))
    monkeypatch.setattr(HSIC, "fit", interrupted)
    made = refit(run, n_clusters=len(DIGITS))
    assert made.lineage.counts["born"] == 1
    with pytest.raises(KeyboardInterrupt):  # another refit starts again
        refit(run, n_clusters=4)


def interrupted(*_, **__):
    raise KeyboardInterrupt


@pytest.fixture
def stopped(run, monkeypatch):
    """A refit that was to find the number of clusters, and has drawn its chart."""
    with monkeypatch.context() as patched:
        patched.setattr(stages, "draw_clusters", interrupted)
        with pytest.raises(KeyboardInterrupt):
            refit(run, n_clusters="auto")
    assert (run.folder / REFIT / "how-many.png").exists()
    return run


def test_the_chart_of_another_interrupted_refit_is_not_published(stopped):
    made = refit(stopped, n_clusters=2)
    assert not (made.run.folder / "how-many.png").exists()
    assert not (made.run.folder / REFIT).exists()


def test_a_refit_removes_temporary_files(run):
    left = beside(run.folder / "manifest.json")
    left.touch()
    refit(run)
    assert not left.exists()


def test_an_interrupted_refit_with_other_arguments_starts_again(run, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(stages, "draw_clusters", interrupted)
        with pytest.raises(KeyboardInterrupt):
            refit(run)
    manifest = run.folder / REFIT / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"request": None}))
    fits = []
    fit = HSIC.fit
    monkeypatch.setattr(HSIC, "fit", lambda *given, **options: fits.append(1) or fit(*given, **options))
    assert refit(run).run.complete
    assert fits


def test_every_image_has_a_center_before_the_refit(run):
    before = Before.of(run)
    np.testing.assert_array_equal(before.numbers[before.center_of], before.labels)
    assert before.next_number == len(DIGITS) - 1
    assert EditLog(run.folder, np.asarray(run.column("labels")), 5).entries() == []

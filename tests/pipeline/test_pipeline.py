"""cluster, extract, fit, predict and evaluate, from a folder of images to a run folder."""

import csv
import sys
from dataclasses import fields

import numpy as np
import pyarrow.parquet as pq
import pytest
from image_kinds import KINDS, make_image, write_images
from PIL import Image

import bitmosaic
from bitmosaic import pipeline
from bitmosaic.errors import (
    BitmosaicError,
    FileFormatError,
    InvalidDataError,
    MissingFileError,
    ParameterError,
)
from bitmosaic.pipeline import extraction
from bitmosaic.views import read_views

VIEWS = ("hog", "ch", "cm")
COMMAND = [sys.executable, "-c", "from bitmosaic.cli import main; main()"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("images"), 40)


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    return pipeline.cluster(folder, tmp_path_factory.mktemp("runs") / "run", 3, views=VIEWS, labels="folder")


def test_a_run_folder_has_all_documented_files(run):
    with (run.folder / "clusters.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 120
    assert list(rows[0]) == ["path", "cluster", "distance", "margin", "label"]
    assert rows[0]["path"] == "disc/0000.png"
    table = pq.read_table(run.folder / "clusters.parquet").to_pydict()
    assert table["path"] == [row["path"] for row in rows]
    assert table["cluster"] == [int(row["cluster"]) for row in rows] == run.column("labels").tolist()
    np.testing.assert_array_equal(run.column("codes"), run.model.codes_)
    np.testing.assert_array_equal(run.column("labels"), run.model.labels_)
    assert run.manifest.scores["acc"] == 1.0
    assert sum(run.manifest.sizes) == run.manifest.images == 120
    assert run.complete
    with Image.open(run.folder / "overview.png") as image:
        assert image.width > 800
    assert len(list((run.folder / "clusters").glob("*.jpg"))) == 3
    assert (run.folder / "skipped.csv").read_text().splitlines() == ["path,cause"]


def test_the_features_in_the_views_folder_are_those_of_the_extractors(run, folder):
    from bitmosaic.features import extract, extractor
    from bitmosaic.images import open_images

    views = read_views(run.folder / "views")
    assert views.names == VIEWS
    assert views.labels.tolist() == [kind for kind in KINDS for _ in range(40)]
    images = [open_images(folder).read(i, 128) for i in (0, 50, 119)]
    for name, array in zip(views.names, extract([extractor(v, mirror=True) for v in VIEWS], images), strict=True):
        np.testing.assert_array_equal(views[name][[0, 50, 119]], array)


def test_the_same_call_returns_a_finished_run_without_working_again(run, folder, monkeypatch):
    monkeypatch.setattr(extraction, "extract", None)  # a call would fail
    again = pipeline.cluster(folder, run.folder, 3, views=VIEWS, labels="folder")
    assert again.manifest == run.manifest


def test_other_arguments_are_refused_and_the_features_can_be_used_again(run, folder, tmp_path):
    with pytest.raises(
        InvalidDataError, match=r"is resumed only with the arguments it was begun with; .* has clusters 3"
    ):
        pipeline.cluster(folder, run.folder, 4, views=VIEWS, labels="folder")
    other = pipeline.fit(run.folder / "views", tmp_path / "other", 4)
    assert len(other.manifest.sizes) == 4
    assert other.manifest.sheets == 4  # the images were found again
    assert pipeline.predict(other, folder)[0]["cluster"].tolist() == other.column("labels").tolist()


def test_new_images_are_assigned_to_their_clusters(run, tmp_path):
    new = write_images(tmp_path, 5, seed=9, suffix="bmp")  # another format, and the same pixels
    (new / "disc" / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    table, skipped = pipeline.predict(run, new)
    truth = [path.split("/")[0] for path in table["path"]]
    cluster_of = {kind: run.column("labels")[40 * i] for i, kind in enumerate(KINDS)}
    assert table["cluster"].tolist() == [cluster_of[kind] for kind in truth]
    assert ((table["confidence"] > 0) & (table["confidence"] <= 1)).all()
    assert [path for path, _ in skipped] == ["disc/broken.jpg"]


def test_scores_from_folders_tables_and_arrays_agree(run, tmp_path):
    truth = run.views.labels
    np.save(tmp_path / "truth.npy", truth)
    with (tmp_path / "truth.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["label", "path"])
        writer.writerows(reversed(list(zip(truth, run.paths, strict=True))))
    for labels in ("folder", tmp_path / "truth.npy", tmp_path / "truth.csv"):
        assert pipeline.evaluate(run, labels) == run.manifest.scores
    (tmp_path / "part.csv").write_text("path,label\ndisc/0000.png,disc\n")
    with pytest.raises(InvalidDataError, match=r"119 .*, such as disc/0001.png"):
        pipeline.evaluate(run, tmp_path / "part.csv")
    with pytest.raises(MissingFileError, match=r"no file nowhere.csv"):
        pipeline.evaluate(run, "nowhere.csv")


def test_a_skipped_path_with_commas_and_quotes_is_one_field_of_skipped_csv(tmp_path):
    folder = write_images(tmp_path / "images", 1)
    names = ['a "b", c.png', "d's, e.png", "f'g.png"]
    for name in names:
        (folder / name).touch()
    pipeline.extract(folder, tmp_path / "views", views=("ch",))
    with (tmp_path / "views" / "skipped.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["path", "cause"], *([name, "empty file"] for name in names)]


def test_bad_images_are_skipped_with_their_cause_unless_strict(tmp_path):
    folder = write_images(tmp_path / "images", 8)
    odd = folder / "disc" / ("with spaces\nand a newline ü " + "x" * 200 + ".png")
    (folder / "disc" / "0000.png").rename(odd)
    (folder / "empty.jpg").touch()
    (folder / "fake.png").write_text("not an image")
    (folder / "cut.png").write_bytes(odd.read_bytes()[:150])
    run = pipeline.cluster(folder, tmp_path / "run", 3, views=("ch",))
    assert run.manifest.images == 24
    with (run.folder / "skipped.csv").open(newline="") as file:
        causes = {row["path"]: row["cause"] for row in csv.DictReader(file)}
    assert set(causes) == {"empty.jpg", "fake.png", "cut.png"}
    assert causes["empty.jpg"] == "empty file"
    with (run.folder / "clusters.csv").open(newline="") as file:
        assert f"disc/{odd.name}" in [row["path"] for row in csv.DictReader(file)]
    with pytest.raises(Exception, match=r"cut\.png"):
        pipeline.cluster(folder, tmp_path / "strict", 3, views=("ch",), strict=True)
    with pytest.raises(InvalidDataError, match="3 of this run are not"):
        pipeline.cluster(folder, tmp_path / "run", 3, views=("ch",), strict=True)


def test_unknown_and_repeated_views_are_refused(folder, tmp_path):
    with pytest.raises(ParameterError, match=r"each name once; got \['ch', 'ch'\]"):
        pipeline.extract(folder, tmp_path / "views", ("ch", "ch"))
    with pytest.raises(ParameterError, match="Unknown extractor 'sift'"):
        pipeline.extract(folder, tmp_path / "views", ("sift",))
    with pytest.raises(ParameterError, match=r"takes other options: .*'size'"):
        pipeline.extract(folder, tmp_path / "views", ("ch?size=3",))
    with pytest.raises(ParameterError, match=r"NAME=MODEL.onnx"):
        pipeline.extract(folder, tmp_path / "views", ("deep=",))


def test_options_of_a_view_are_read_from_its_name(tmp_path):
    spec = extraction.ViewSpec.parse("deep=model.onnx?size=112&mean=0.5,0.5,0.5&output=pooled")
    assert (spec.name, spec.extractor) == ("deep", "onnx")
    assert spec.options | {"path": None} == {
        "path": None,
        "size": 112,
        "mean": [0.5, 0.5, 0.5],
        "output": "pooled",
    }


def test_every_option_that_changes_features_is_stored_and_read_back():
    options = extraction.ExtractOptions(("hog",), mirror=False, labels="folder", max_side=40)
    stored = extraction.as_json(options.recipe())
    assert extraction.ExtractOptions.from_recipe(stored).recipe() == options.recipe()
    # The option `mirror` is stored with each view; threads and strict reading do not change features.
    assert {part.name for part in fields(options)} == stored.keys() | {"mirror", "n_threads", "strict"}


def test_only_hand_made_features_are_mirrored_by_default():
    options = {text: extraction.ViewSpec.parse(text).options for text in ("hog", "hog?mirror=false", "own")}
    assert options == {"hog": {"mirror": True}, "hog?mirror=false": {"mirror": False}, "own": {}}
    assert extraction.ViewSpec.parse("hog", mirror=False).options == {"mirror": False}
    assert "mirror" not in extraction.ViewSpec.parse("deep=model.onnx").options
    assert extraction.ViewSpec.parse("deep=model.onnx?mirror=true", mirror=False).options["mirror"] is True


def test_mirrored_images_are_in_the_same_clusters(run, folder, tmp_path):
    mirrored = tmp_path / "mirrored"
    for file in sorted(folder.rglob("*.png")):
        there = mirrored / file.relative_to(folder)
        there.parent.mkdir(parents=True, exist_ok=True)
        Image.open(file).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(there)
    assert pipeline.predict(run, mirrored)[0]["cluster"].tolist() == run.column("labels").tolist()


def test_an_extraction_resumes_after_any_batch_with_the_same_bytes(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(extraction, "BATCH", 16)
    whole = tmp_path / "whole"
    pipeline.extract(folder, whole, VIEWS)

    class Stop(Exception):
        pass

    for after in (1, 8):
        part = tmp_path / f"part{after}"
        calls = []

        def stop(stage, done, total, calls=calls, after=after):
            if stage == "extracting features":
                calls.append(done)
            if len(calls) > after:
                raise Stop

        with pytest.raises(Stop):
            pipeline.extract(folder, part, VIEWS, progress=stop)
        with (tmp_path / f".part{after}.extracting" / "hog.f32").open("ab") as file:
            file.write(b"half a row")  # written, but not counted
        seen = []
        pipeline.extract(folder, part, VIEWS, progress=lambda *step, seen=seen: seen.append(step))
        first = next(done for stage, done, _ in seen if stage == "extracting features")
        assert first == min(16 * after, 120)  # nothing was extracted again
        for name in (*VIEWS,):
            assert (part / f"{name}.npy").read_bytes() == (whole / f"{name}.npy").read_bytes()
        assert not (tmp_path / f".part{after}.extracting").exists()


def test_an_extraction_interrupted_at_its_end_is_resumed(folder, tmp_path, monkeypatch):
    class Stop(Exception):
        pass

    def stop(*args, **kwargs):
        raise Stop

    for name in ("write_notes", "write_whole", "write_json", "sync_folder"):
        out = tmp_path / name
        with monkeypatch.context() as patch:
            patch.setattr(extraction, name, stop)
            with pytest.raises(Stop):
                pipeline.extract(folder, out, ("ch",))
        assert pipeline.extract(folder, out, ("ch",)).n_rows == 120
        assert not (tmp_path / f".{name}.extracting").exists()


def test_a_mistyped_argument_creates_no_folder(folder, tmp_path):
    for mistake in ({"views": ("hgo",)}, {"labels": "flder"}, {"seed": -1}, {"memory_limit": "lots"}):
        with pytest.raises(BitmosaicError):
            pipeline.cluster(folder, tmp_path / "run", 3, **({"views": ("ch",)} | mistake))
    with pytest.raises(InvalidDataError, match="n_samples=120 should be >= n_clusters=500"):
        pipeline.cluster(folder, tmp_path / "run", 500, views=("ch",))
    assert not (tmp_path / "run").exists()


def test_a_finished_run_of_other_images_is_refused(tmp_path):
    rng = np.random.default_rng(0)
    first = np.stack([make_image(kind, rng) for kind in KINDS * 5])
    pipeline.cluster(first, tmp_path / "run", 3, views=("ch",))
    with pytest.raises(InvalidDataError, match=r"other data \(changed since the run began\)"):
        pipeline.cluster(first[:12], tmp_path / "run", 3, views=("ch",))


def test_a_run_folder_inside_the_images_is_not_read_as_images(tmp_path):
    folder = write_images(tmp_path / "images", 4)
    pipeline.cluster(folder, folder / "run", 3, views=("ch",))
    assert pipeline.cluster(folder, tmp_path / "again", 3, views=("ch",)).manifest.images == 12


def test_a_custom_extractor_is_a_view_and_its_failure_is_an_error(folder, tmp_path):
    @bitmosaic.features.register("mean")
    class Mean:
        name, width = "mean", 3

        def __call__(self, images):
            return images.mean((1, 2)).astype(np.float32)

    @bitmosaic.features.register("broken")
    class Broken(Mean):
        name = "broken"

        def __call__(self, images):
            raise RuntimeError("no luck")

    run = pipeline.cluster(folder, tmp_path / "run", 3, views=("mean", "hog"))
    assert run.views.widths == (3, 1152)
    with pytest.raises(InvalidDataError, match=r"'broken' failed on images of \(24, 24, 3\): RuntimeError: no luck"):
        pipeline.cluster(folder, tmp_path / "other", 3, views=("broken",))


def test_missing_labels_are_refused(run, tmp_path):
    flat = tmp_path / "flat"
    flat.mkdir()
    for i, file in enumerate(sorted((write_images(tmp_path / "deep", 4)).rglob("*.png"))):
        file.rename(flat / f"{i}.png")
    with pytest.raises(InvalidDataError, match="several folders"):
        pipeline.cluster(flat, tmp_path / "run", 3, views=("ch",), labels="folder")
    with pytest.raises(InvalidDataError, match="several folders"):
        pipeline.evaluate(pipeline.cluster(flat, tmp_path / "run", 3, views=("ch",)))
    (tmp_path / "labels.txt").write_text("no labels")
    (tmp_path / "labels.csv").write_bytes(b"path,label\n\xff,\xfe\n")
    for name in ("labels.txt", "labels.csv"):
        with pytest.raises(FileFormatError, match=f"{name} cannot be read"):
            pipeline.evaluate(run, tmp_path / name)


def test_sheets_keep_the_proportions_of_images(tmp_path):
    wide = tmp_path / "wide"
    wide.mkdir()
    for i in range(6):
        Image.new("RGB", (400, 100), (255 * (i % 2), 0, 0)).save(wide / f"{i}.png")
    run = pipeline.cluster(wide, tmp_path / "run", 2, views=("ch",))
    with Image.open(run.folder / "overview.png") as sheet:
        tile = np.asarray(sheet)[56:128, 266:338]
    assert (tile[2, 36] == (236, 236, 234)).all()  # above the image
    assert tile[36, 36, 1] == 0


def test_cluster_opens_each_extractor_once(folder, tmp_path, monkeypatch):
    opened, open_extractor = [], extraction.extractor
    monkeypatch.setattr(
        extraction, "extractor", lambda name, **more: opened.append(name) or open_extractor(name, **more)
    )
    pipeline.cluster(folder, tmp_path / "run", 3, views=VIEWS)
    assert opened == list(VIEWS)


def test_changed_images_are_refused(tmp_path):
    folder = write_images(tmp_path / "images", 3)
    pipeline.extract(folder, tmp_path / "views", ("ch",))
    write_images(folder, 4, seed=1)
    with pytest.raises(InvalidDataError, match="made from one source in one way"):
        pipeline.extract(folder, tmp_path / "views", ("ch",))


def test_every_stage_reports_progress_to_its_end(folder, tmp_path):
    last = {}
    pipeline.cluster(folder, tmp_path / "run", 3, views=VIEWS, progress=lambda *step: last.update({step[0]: step[1:]}))
    assert list(last) == [
        *("finding images", "extracting features", "learning codes and clusters"),
        *("reading images", "drawing clusters"),
    ]
    assert all(done == total > 0 for done, total in last.values())


def test_a_run_with_auto_reports_and_draws_the_cluster_counts(folder, tmp_path):
    run = pipeline.cluster(folder, tmp_path / "auto", "auto", views=["ch", "hog"], n_threads=1)
    how_many = run.manifest.how_many
    assert len(run.manifest.sizes) == run.model.n_clusters_ == how_many["chosen"]
    assert how_many["low"] <= 3 <= how_many["high"] <= 4  # stripes of different phase are separate groups
    assert how_many["words"] == str(run.model.cluster_counts_)
    assert how_many["candidates"] == list(run.model.cluster_counts_.candidates)
    with Image.open(run.folder / "how-many.png") as chart:
        assert chart.size == (860, 460)
    assert pipeline.cluster(folder, tmp_path / "auto", "auto", views=["ch", "hog"]).manifest == run.manifest


@pytest.mark.parametrize("limit", ["0", 1000])
def test_a_memory_limit_that_is_too_low_is_refused_before_the_work(tmp_path, limit):
    folder = write_images(tmp_path / "images", 8)
    with pytest.raises(ParameterError, match=r"memory_limit must be at least .*MB"):
        pipeline.cluster(folder, tmp_path / "run", 3, views=("ch",), memory_limit=limit)
    np.save(tmp_path / "views.npy", np.random.default_rng(0).normal(size=(40, 8)))
    with pytest.raises(ParameterError, match=r"memory_limit must be at least .*MB"):
        pipeline.fit(tmp_path / "views.npy", tmp_path / "run", 3, memory_limit=limit)
    assert not (tmp_path / "run").exists()

"""Resuming: damaged work folders, lost files, a full disk, other data."""

import json
import os
import shutil

import numpy as np
import pytest
from image_kinds import write_images
from small_disk import largest_file

from bitmosaic import pipeline
from bitmosaic.errors import BitmosaicError, FileFormatError, InvalidDataError, ModelFileError, UnwritableFileError
from bitmosaic.io.files import beside
from bitmosaic.pipeline import extraction
from bitmosaic.run.tables import TABLE_WRITERS
from bitmosaic.views import write_views

VIEWS = ("ch", "cm")


class Stop(Exception):
    pass


def stop_at(wanted, after=1):
    """A progress that stops the command at the given call of a stage."""
    calls = []

    def progress(stage, done, total):
        calls.append(stage)
        if calls.count(wanted) >= after:
            raise Stop

    return progress


@pytest.fixture
def folder(tmp_path):
    return write_images(tmp_path / "images", 8)


@pytest.fixture
def views(tmp_path, folder):
    pipeline.extract(folder, tmp_path / "views", VIEWS)
    return tmp_path / "views"


def test_a_run_killed_while_its_manifest_was_written_starts_again(folder, tmp_path):
    (tmp_path / "run").mkdir()
    beside(tmp_path / "run" / "manifest.json").write_text('{"for')
    (tmp_path / "run" / ".lock").touch()
    assert pipeline.cluster(folder, tmp_path / "run", 3, views=VIEWS).complete
    assert not [path for path in (tmp_path / "run").rglob("*") if path.name.startswith(".")]


def test_a_folder_with_other_files_is_refused_and_not_changed(folder, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()
    with pytest.raises(InvalidDataError, match="holds other things"):
        pipeline.cluster(folder, tmp_path / "mine", 3, views=VIEWS)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["letter.txt"]
    with pytest.raises(InvalidDataError, match=r"letter\.txt is a file"):
        pipeline.cluster(folder, tmp_path / "mine" / "letter.txt", 3, views=VIEWS)


def write(name, content):
    return lambda work: (work / name).write_bytes(content)


def cut(name):
    return lambda work: os.truncate(work / name, 9)


def count_more(work):
    state = json.loads((work / "state.json").read_text())
    (work / "state.json").write_text(json.dumps(state | {"next": 24}))


@pytest.mark.parametrize(
    "spoil",
    [
        cut("views/ch.npy"),
        write("state.json", b'{"recipe": '),
        count_more,
    ],
)
def test_a_damaged_unfinished_extraction_starts_again(folder, views, tmp_path, monkeypatch, spoil):
    monkeypatch.setattr(extraction, "BATCH", 8)
    with pytest.raises(Stop):
        pipeline.extract(folder, tmp_path / "again", VIEWS, progress=stop_at("extracting features", 3))
    spoil(tmp_path / ".again.extracting")
    steps = []
    pipeline.extract(folder, tmp_path / "again", VIEWS, progress=lambda *step: steps.append(step))
    assert next(step for step in steps if step[0] == extraction.STAGE)[1] == 0
    for name in ("ch.npy", "cm.npy", "digests.npy", "paths.jsonl", "skipped.csv"):
        assert (tmp_path / "again" / name).read_bytes() == (views / name).read_bytes()


def test_an_extraction_is_resumed_after_a_full_disk(folder, views, tmp_path, monkeypatch):
    monkeypatch.setattr(extraction, "BATCH", 8)
    for limit in (1000, 6000, 12_000):
        out = tmp_path / f"limited{limit}"
        with largest_file(limit), pytest.raises(BitmosaicError, match=r"cannot be written.*File too large"):
            pipeline.extract(folder, out, VIEWS)
        pipeline.extract(folder, out, VIEWS)
        for name in VIEWS:
            assert (out / f"{name}.npy").read_bytes() == (views / f"{name}.npy").read_bytes()


def test_a_fit_is_not_resumed_with_other_views(views, tmp_path):
    with pytest.raises(Stop):
        pipeline.fit(views, tmp_path / "run", 3, progress=stop_at("drawing clusters"))
    table = pipeline.read_views(views)
    write_views(views, {name: np.array(table[name])[::-1] for name in VIEWS}, paths=table.paths[::-1])
    with pytest.raises(InvalidDataError, match=r"has other data \(changed since the run began\)"):
        pipeline.fit(views, tmp_path / "run", 3)


def test_lost_files_of_a_run_are_made_again_identically(views, tmp_path):
    whole = pipeline.fit(views, tmp_path / "run", 3)
    content = {path.name: path.read_bytes() for path in whole.folder.glob("*.*") if path.name != "manifest.json"}
    kept = whole.folder / "model.safetensors"
    for gone, left in (
        ("clusters.csv", None),
        ("codes.npy", 99),
        ("labels.npy", 0),
        ("overview.png", 9),
        ("model.safetensors", 999),
    ):
        before = kept.stat().st_mtime_ns
        (whole.folder / gone).unlink()
        if left is not None:
            (whole.folder / gone).write_bytes(content[gone][:left])
        assert pipeline.fit(views, tmp_path / "run", 3).complete
        assert all((whole.folder / name).read_bytes() == bytes_ for name, bytes_ in content.items())
        assert (kept.stat().st_mtime_ns == before) == (gone != "model.safetensors")


def test_a_views_folder_without_its_manifest_is_refused(folder, views, tmp_path):
    (views / "manifest.json").unlink()
    for again in (
        lambda: pipeline.fit(views, tmp_path / "run", 3),
        lambda: pipeline.extract(folder, views, VIEWS),
    ):
        with pytest.raises(FileFormatError, match=r"has lost it\. Copy the folder again"):
            again()


def test_a_views_folder_without_its_content_hashes_or_skipped_csv_is_refused(folder, tmp_path):
    with pytest.raises(Stop):
        pipeline.cluster(folder, tmp_path / "run", 3, views=VIEWS, progress=stop_at("learning codes and clusters"))
    for name in ("digests.npy", "skipped.csv"):
        file = tmp_path / "run" / "views" / name
        content = file.read_bytes()
        file.unlink()
        with pytest.raises(FileFormatError, match=name):
            pipeline.cluster(folder, tmp_path / "run", 3, views=VIEWS)
        file.write_bytes(content)
    shutil.rmtree(tmp_path / "run" / "views")
    assert pipeline.cluster(folder, tmp_path / "run", 3, views=VIEWS).complete
    assert file.exists()


def test_a_run_is_not_resumed_with_a_damaged_model(views, tmp_path):
    with pytest.raises(Stop):
        pipeline.fit(views, tmp_path / "run", 3, progress=stop_at("drawing clusters"))
    (tmp_path / "run" / "clusters.csv").unlink()
    model = tmp_path / "run" / "model.safetensors"
    good = model.read_bytes()
    model.write_bytes(good[:-9] + b"otherwise")
    with pytest.raises(ModelFileError, match="changed after it was written"):
        pipeline.fit(views, tmp_path / "run", 3)
    model.unlink()
    assert pipeline.fit(views, tmp_path / "run", 3).complete
    assert model.read_bytes() == good


def interrupted(*_):
    raise KeyboardInterrupt


def test_predictions_are_written_completely_into_their_own_folder(views, folder, tmp_path, monkeypatch):
    run = pipeline.fit(views, tmp_path / "run", 3)
    for taken in (run.folder, views):
        before = (taken / "skipped.csv").read_bytes() if taken == views else None
        with pytest.raises(InvalidDataError, match="without a run or views"):
            pipeline.predict(run, folder, taken)
        assert before is None or (taken / "skipped.csv").read_bytes() == before
    (tmp_path / "out").mkdir()
    beside(tmp_path / "out" / "predictions.csv").touch()
    pipeline.predict(run, folder, tmp_path / "out")
    names = ["predictions.csv", "predictions.parquet", "skipped.csv"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    with monkeypatch.context() as patched:
        patched.setitem(TABLE_WRITERS, ".parquet", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pipeline.predict(run, [sorted(folder.rglob("*.png"))[0]], tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["predictions.csv"]  # and none of other images
    with pytest.raises(InvalidDataError), largest_file(10**9):
        pipeline.predict(run, np.zeros((0, 8, 8, 3), np.uint8), tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with largest_file(500), pytest.raises(UnwritableFileError, match=r"predictions\.csv cannot be written"):
        pipeline.predict(run, folder, tmp_path / "new")
    assert not (tmp_path / "new").exists()

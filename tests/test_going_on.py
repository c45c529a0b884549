"""A command that was stopped, and what it finds when it goes on: half a start, lost or changed files, other data."""

import json
import os
import shutil

import numpy as np
import pytest

from bitmosaic import extraction, pipeline
from bitmosaic.edits import EditLog, UnwritableLogError
from bitmosaic.errors import BitmosaicError, FileFormatError, InvalidDataError, ModelFileError, UnwritableFileError
from bitmosaic.files import beside, write_json
from bitmosaic.run import TABLE_WRITERS, Run
from bitmosaic.views import write_views
from pictures import write_pictures
from small_disk import largest_file

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
    return write_pictures(tmp_path / "pictures", 8)


@pytest.fixture
def views(tmp_path, folder):
    extraction.extract_views(folder, tmp_path / "views", VIEWS)
    return tmp_path / "views"


def test_a_run_killed_while_its_manifest_was_written_is_begun_again(folder, tmp_path):
    (tmp_path / "run").mkdir()
    beside(tmp_path / "run" / "manifest.json").write_text('{"for')
    (tmp_path / "run" / ".lock").touch()
    assert pipeline.cluster(folder, tmp_path / "run", 3, views=VIEWS).complete
    assert not [path for path in (tmp_path / "run").rglob("*") if path.name.startswith(".")]


def test_a_folder_of_other_things_is_refused_and_left_as_it_was(folder, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()
    with pytest.raises(InvalidDataError, match="holds other things"):
        pipeline.cluster(folder, tmp_path / "mine", 3, views=VIEWS)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["letter.txt"]
    with pytest.raises(InvalidDataError, match=r"letter\.txt is a file"):
        pipeline.cluster(folder, tmp_path / "mine" / "letter.txt", 3, views=VIEWS)


@pytest.mark.parametrize("state", [None, '{"next": 16}', "[" * 99_999, '{"next": -9, "rows": -9, "skipped": 0}'])
@pytest.mark.parametrize("cut", ["ch.f32", "positions.i64"])
def test_features_that_are_shorter_than_counted_are_extracted_again(folder, views, tmp_path, monkeypatch, cut, state):
    """They were filled with zeros once."""
    monkeypatch.setattr(extraction, "BATCH", 8)
    with pytest.raises(Stop):
        extraction.extract_views(folder, tmp_path / "again", VIEWS, progress=stop_at("extracting features", 3))
    work = tmp_path / ".again.extracting"
    if state is None:
        (work / cut).write_bytes((work / cut).read_bytes()[:9])
    else:
        (work / "state.json").write_text(state)
    extraction.extract_views(folder, tmp_path / "again", VIEWS)
    for name in ("ch.npy", "cm.npy", "paths.jsonl"):
        assert (tmp_path / "again" / name).read_bytes() == (views / name).read_bytes()


def spoil_state(**changes):
    def spoil(work):
        state = json.loads((work / "state.json").read_text())
        (work / "state.json").write_text(json.dumps(state | changes).replace("Infinity", "1e400"))

    return spoil


def spoil_positions(first):
    def spoil(work):
        positions = np.fromfile(work / "positions.i64", "<i8")
        positions[0] = first
        positions.tofile(work / "positions.i64")

    return spoil


def spoil_skipped(line):
    def spoil(work):
        (work / "skipped.jsonl").write_bytes(line + b"\n")
        spoil_state(skipped=len(line) + 1, rows=15)(work)

    return spoil


@pytest.mark.parametrize(
    "spoil",
    [
        spoil_state(next=float("inf")),
        spoil_state(next=16.0),
        spoil_state(next=True),
        spoil_state(next=10**6),
        spoil_state(next=24),
        spoil_state(rows=10),
        spoil_positions(10**9),
        spoil_positions(-1),
        spoil_positions(5),
        spoil_skipped(b"[1, 2, 3, 4]"),
        spoil_skipped(b'["only a path"]'),
        spoil_skipped(b"[" * 99_999),
        spoil_skipped(b"\xff"),
    ],
)
def test_a_state_that_does_not_fit_its_files_is_not_believed(folder, views, tmp_path, monkeypatch, spoil):
    """Pictures were left out once, and paths mixed up."""
    monkeypatch.setattr(extraction, "BATCH", 8)
    with pytest.raises(Stop):
        extraction.extract_views(folder, tmp_path / "again", VIEWS, progress=stop_at("extracting features", 3))
    spoil(tmp_path / ".again.extracting")
    steps = []
    extraction.extract_views(folder, tmp_path / "again", VIEWS, progress=lambda *step: steps.append(step))
    assert next(step for step in steps if step[0] == extraction.STAGE)[1] == 0
    for name in ("ch.npy", "cm.npy", "paths.jsonl", "skipped.csv"):
        assert (tmp_path / "again" / name).read_bytes() == (views / name).read_bytes()


def test_a_full_disk_during_an_extraction_is_one_sentence_and_it_goes_on(folder, views, tmp_path, monkeypatch):
    monkeypatch.setattr(extraction, "BATCH", 8)
    for limit in range(1000, 20_000, 1700):
        out = tmp_path / f"limited{limit}"
        with largest_file(limit), pytest.raises(BitmosaicError, match=r"cannot be written.*File too large"):
            extraction.extract_views(folder, out, VIEWS)
        extraction.extract_views(folder, out, VIEWS)
        for name in VIEWS:
            assert (out / f"{name}.npy").read_bytes() == (views / f"{name}.npy").read_bytes()


def test_what_an_interrupted_extraction_had_not_written_does_not_come_later(folder, views, tmp_path, monkeypatch):
    """In a notebook, the files of an interrupted call live on in its traceback, with what is still to be written."""
    monkeypatch.setattr(extraction, "BATCH", 8)
    state, fsync = tmp_path / ".again.extracting" / "state.json", os.fsync

    def interrupt(descriptor):
        fsync(descriptor)
        if state.exists() and not os.path.isdir(f"/proc/self/fd/{descriptor}"):  # in the second batch
            raise Stop

    kept = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupt)
        try:
            extraction.extract_views(folder, tmp_path / "again", VIEWS)
        except Stop as stop:
            kept.append(stop)

    def forget(stage, done, total):
        if stage == "extracting features":
            kept.clear()

    assert kept
    extraction.extract_views(folder, tmp_path / "again", VIEWS, progress=forget)
    for name in ("ch.npy", "cm.npy", "paths.jsonl"):
        assert (tmp_path / "again" / name).read_bytes() == (views / name).read_bytes()


def test_an_extraction_that_another_process_has_finished_meanwhile_is_not_done_again(folder, tmp_path, monkeypatch):
    result, calls = extraction.Extraction.result, []

    def finished_after_the_first_look(job, progress):
        calls.append(job)
        if len(calls) == 1:
            extraction.extract_views(folder, tmp_path / "views", VIEWS)
            return None
        return result(job, progress)

    monkeypatch.setattr(extraction.Extraction, "result", finished_after_the_first_look)
    seen = []
    extraction.extract_views(folder, tmp_path / "views", VIEWS, progress=lambda *step: seen.append(step))
    assert [step[1:] for step in seen if step[0] == "extracting features"] == [(24, 24)]
    assert not (tmp_path / ".views.extracting").exists()


def test_a_fit_does_not_go_on_with_other_views(views, tmp_path):
    with pytest.raises(Stop):
        pipeline.fit(views, tmp_path / "run", 3, progress=stop_at("drawing clusters"))
    table = pipeline.read_views(views)
    write_views(views, {name: np.array(table[name])[::-1] for name in VIEWS}, paths=table.paths[::-1])
    with pytest.raises(InvalidDataError, match="has other data: they have changed since"):
        pipeline.fit(views, tmp_path / "run", 3)


def test_what_is_gone_from_a_run_is_made_again_and_the_same(views, tmp_path):
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


def test_what_could_not_be_removed_goes_the_next_time(folder, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        for module in (extraction, pipeline):
            patched.setattr(module, "remove", lambda *_, **__: None)  # as where the system refuses it
        run = pipeline.cluster(folder, tmp_path / "run", 3, views=VIEWS)
    assert (run.folder / ".views.extracting").exists()
    (run.folder / "checkpoint").mkdir(exist_ok=True)
    (run.folder / "checkpoint" / "loop.safetensors").touch()
    pipeline.cluster(folder, tmp_path / "run", 3, views=VIEWS)
    assert not {".views.extracting", "checkpoint"} & {path.name for path in run.folder.iterdir()}


def test_a_link_that_leads_nowhere_is_no_contact_sheet(folder, tmp_path):
    run = pipeline.cluster(folder, tmp_path / "run", 3, views=VIEWS)
    sheet = sorted((run.folder / "clusters").iterdir())[0]
    content = sheet.read_bytes()
    sheet.unlink()
    sheet.symlink_to("nowhere")
    pipeline.cluster(folder, tmp_path / "run", 3, views=VIEWS)
    assert not sheet.is_symlink()
    assert sheet.read_bytes() == content


def test_a_pipe_where_views_are_to_be_is_waited_for_by_nobody(folder, views, tmp_path):
    with pytest.raises(Stop):
        extraction.extract_views(folder, tmp_path / "again", VIEWS, progress=stop_at("writing features (MB)"))
    work = tmp_path / ".again.extracting"
    shutil.rmtree(work / "views")
    os.mkfifo(work / "views")
    extraction.extract_views(folder, tmp_path / "again", VIEWS)
    assert (tmp_path / "again" / "ch.npy").read_bytes() == (views / "ch.npy").read_bytes()


def test_an_extraction_that_has_lost_its_manifest_is_not_read_as_other_views(folder, views, tmp_path):
    (views / "manifest.json").unlink()
    for again in (
        lambda: pipeline.fit(views, tmp_path / "run", 3),
        lambda: extraction.extract_views(folder, views, VIEWS),
    ):
        with pytest.raises(FileFormatError, match=r"has lost it\. Copy it again from where it was made"):
            again()


@pytest.mark.parametrize("content", [None, b"\x93NUMPY"])
def test_an_extraction_that_has_lost_its_digests_says_so(folder, tmp_path, content):
    with pytest.raises(Stop):
        pipeline.cluster(folder, tmp_path / "run", 3, views=VIEWS, progress=stop_at("learning codes and clusters"))
    digests = tmp_path / "run" / "views" / "digests.npy"
    digests.unlink()
    if content is not None:
        digests.write_bytes(content)
    with pytest.raises(FileFormatError, match=r"digests\.npy"):
        pipeline.cluster(folder, tmp_path / "run", 3, views=VIEWS)
    shutil.rmtree(tmp_path / "run" / "views")
    assert pipeline.cluster(folder, tmp_path / "run", 3, views=VIEWS).complete
    assert digests.exists()


def test_skipped_csv_is_made_again_wherever_it_is_gone_or_cut(folder, tmp_path):
    (folder / "bad.png").write_bytes(b"no picture")
    run = pipeline.cluster(folder, tmp_path / "run", 3, views=VIEWS)
    here, there, model = (run.folder / name for name in ("skipped.csv", "views/skipped.csv", "model.safetensors"))
    content, made = here.read_bytes(), model.stat().st_mtime_ns
    assert b"bad.png" in content
    for gone in ([here], [here, there]):
        for path in gone:
            path.unlink()
        assert pipeline.cluster(folder, tmp_path / "run", 3, views=VIEWS).complete
        assert [here.read_bytes(), there.read_bytes()] == [content, content]
    for left in (0, 7, 12, len(content) - 1):
        there.write_bytes(content[:left])
        extraction.extract_views(folder, run.folder / "views", VIEWS)
        assert there.read_bytes() == content
    assert model.stat().st_mtime_ns == made


@pytest.mark.skipif(os.name == "nt", reason="folders cannot be closed so")
def test_a_finished_run_that_may_only_be_read_is_returned_as_it_is(views, tmp_path, monkeypatch):
    run = pipeline.fit(views, tmp_path / "run", 3)
    # Root may write everywhere: what the system says of a disk mounted for reading is put into its mouth.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    run.folder.chmod(0o555)
    try:
        before = run.folder.stat().st_mtime_ns
        assert pipeline.fit(views, tmp_path / "run", 3).complete
        assert run.folder.stat().st_mtime_ns == before  # no lock came and went
        with pytest.raises(InvalidDataError, match="has clusters 3"):
            pipeline.fit(views, tmp_path / "run", 2)
    finally:
        run.folder.chmod(0o755)


def test_a_run_goes_on_with_its_own_model_only(views, tmp_path):
    other = pipeline.fit(views, tmp_path / "other", 2, seed=1)
    with pytest.raises(Stop):
        pipeline.fit(views, tmp_path / "run", 3, progress=stop_at("drawing clusters"))
    (tmp_path / "run" / "clusters.csv").unlink()
    model = tmp_path / "run" / "model.safetensors"
    good = model.read_bytes()
    model.write_bytes((other.folder / "model.safetensors").read_bytes())
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    manifest["bytes"]["fit"]["model.safetensors"] = model.stat().st_size
    write_json(tmp_path / "run" / "manifest.json", manifest)
    with pytest.raises(InvalidDataError, match=r"model\.safetensors is another.*Remove the file"):
        pipeline.fit(views, tmp_path / "run", 3)
    manifest["bytes"]["fit"]["model.safetensors"] = len(good)
    write_json(tmp_path / "run" / "manifest.json", manifest)
    model.write_bytes(good[:-9] + b"otherwise")
    with pytest.raises(ModelFileError, match="changed after it was written"):
        pipeline.fit(views, tmp_path / "run", 3)
    model.unlink()
    assert pipeline.fit(views, tmp_path / "run", 3).complete
    assert model.read_bytes() == good


def interrupted(*_):
    raise KeyboardInterrupt


def test_predictions_go_whole_into_a_folder_that_is_no_run(views, folder, tmp_path, monkeypatch):
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
        patched.setitem(TABLE_WRITERS, "parquet", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pipeline.predict(run, [sorted(folder.rglob("*.png"))[0]], tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["predictions.csv"]  # and none of other pictures
    with pytest.raises(InvalidDataError), largest_file(10**9):
        pipeline.predict(run, np.zeros((0, 8, 8, 3), np.uint8), tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with largest_file(500), pytest.raises(UnwritableFileError, match=r"predictions\.csv cannot be written"):
        pipeline.predict(run, folder, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_an_edit_that_could_not_be_written_whole_is_not_there(views, tmp_path):
    run = pipeline.fit(views, tmp_path / "run", 3)
    log = EditLog(run.folder, Run(run.folder).column("labels"), 3)
    log.append({"do": "name", "cluster": 0, "name": "a"}, 0)
    written = log.path.read_bytes()
    with largest_file(len(written) + 20), pytest.raises(UnwritableLogError, match="nothing was changed"):
        log.append({"do": "name", "cluster": 1, "name": "b"}, 1)
    assert log.path.read_bytes() == written
    log.append({"do": "name", "cluster": 1, "name": "b"}, 1)
    assert len(log.entries()) == 2


def test_views_that_another_process_finishes_between_two_looks_are_found_and_not_refused(
    views, folder, tmp_path, monkeypatch
):
    """The folder was not there; then it was, with views in it that were taken for things of others."""
    listed = os.listdir

    def finished_meanwhile(place):
        if place != tmp_path / "late":
            return listed(place)
        monkeypatch.setattr(extraction.os, "listdir", listed)
        try:
            return listed(place)
        finally:
            views.rename(place)

    monkeypatch.setattr(extraction.os, "listdir", finished_meanwhile)
    assert extraction.extract_views(folder, tmp_path / "late", VIEWS).n_rows == 24

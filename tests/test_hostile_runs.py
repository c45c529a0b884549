"""Run folders, labels and recipes that others have changed: read, or refused in one sentence; caches are made anew."""

import json
import os
import shutil
from contextlib import suppress

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bitmosaic import HSIC, BinaryKMeans, pipeline
from bitmosaic.cli import _print_run
from bitmosaic.errors import BitmosaicError, FileFormatError, InvalidDataError, ModelFileError
from bitmosaic.explorer.clusters import Pictures
from bitmosaic.explorer.duplicates import duplicates_of
from bitmosaic.explorer.pages import Pages
from bitmosaic.explorer.placing import stored_places
from bitmosaic.explorer.snapshot import clusters_now
from bitmosaic.exports.kinds import export
from bitmosaic.images import quiet
from bitmosaic.model_file import read_model, write_model
from bitmosaic.reading import read_json
from bitmosaic.run import Run
from pictures import write_pictures


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("hostile")
    return pipeline.cluster(write_pictures(root / "pictures", 4), root / "run", 3, views=("ch",), max_side=16).folder


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


@pytest.mark.parametrize("text", ["[" * 100_000, "NaN", '{"a": Infinity}', "\ufeff{}", "\xff", "", "9" * 5000])
@pytest.mark.parametrize("name", ["manifest.json", "views/manifest.json", "views/extraction.json"])
def test_json_that_is_none_is_refused(folder, name, text):
    (folder / name).write_bytes(text.encode("latin1", "replace"))
    with pytest.raises(FileFormatError):  # noqa: PT012 - one of them reads it
        pipeline.run_views(run := Run(folder))
        Pictures.of(run)


@pytest.mark.parametrize("name", ["manifest.json", "views/manifest.json", "views/extraction.json"])
def test_json_without_end_is_refused(folder, name):
    os.truncate(folder / name, 2**40)  # takes no room on the disk
    with pytest.raises(FileFormatError, match="it has more than 32 MB"):  # noqa: PT012 - one of them reads it
        pipeline.run_views(run := Run(folder))
        Pictures.of(run)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("begun", None),
        ("bitmosaic", 3),
        ("images", True),
        ("images", 10**30),
        ("images", -1),
        ("view_weights", None),
        ("view_weights", {"ch": "1"}),
        ("view_weights", {"ch": 1e300}),
        ("sizes", [1, "2"]),
        ("scores", [1]),
        ("scores", {}),
        ("scores", {"acc": 1.0, "nmi": 1.0, "purity": 1.0}),
        ("view_weights", {"\ud800": 1.0}),
        ("view_weights", {"": 1.0}),
        ("how_many", {}),
        ("views_folder", "a\0b"),
        ("views_folder", "a" * 300),
        ("views_folder", "a/" * 3000),
        ("seconds", {"fit": []}),
        ("seconds", {"\ud800": 1.0}),
        ("arguments", []),
        ("arguments", {}),
        ("arguments", {"clusters": "\ud800"}),
        ("arguments", {"clusters": [3]}),
        ("arguments", {"clusters": 3, "views": [1]}),
        ("arguments", {"clusters": 3, "views": [{}]}),
        ("arguments", {"clusters": 3, "views": "ch"}),
    ],
)
def test_a_manifest_with_a_wrong_part_names_it(folder, key, value):
    manifest = read_json(folder / "manifest.json") | {key: value}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(FileFormatError, match=f"wrong one: '{key}'"):
        Run(folder)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("labels", lambda a: a + 1, "labels.npy does not fit"),
        ("labels", lambda a: a - 1, "labels.npy does not fit"),
        ("labels", lambda a: a.astype(float), "labels of int32; it holds float64"),
        ("codes", lambda a: a[:, :-1], "codes.npy does not fit"),
        ("codes", lambda a: a[:, 0], "must hold codes of uint8"),
        ("distances", lambda a: a * np.nan, "distances.npy does not fit"),
        ("distances", lambda a: a + np.float32(3e38), "distances.npy does not fit"),
        ("distances", lambda a: a[1:], "a row for each of 12 images"),
    ],
)
def test_columns_that_do_not_fit_the_run_are_refused(folder, name, change, message):
    np.save(folder / f"{name}.npy", change(np.load(folder / f"{name}.npy")))
    for use in (Pictures.of, lambda run: run.column(name)):
        with pytest.raises(FileFormatError, match=message):
            use(Run(folder))


@pytest.mark.parametrize("dtype", [">i8", ">u2", ">f8", ">U9"])
def test_true_classes_of_another_byte_order_are_in_every_table(folder, dtype):
    manifest = read_json(folder / "views" / "manifest.json")
    (folder / "views" / "manifest.json").write_text(json.dumps(manifest | {"labels": True}))
    np.save(folder / "views" / "labels.npy", (np.arange(12) % 5).astype(dtype))
    for kind in ("csv", "parquet"):
        export(clusters_now(folder), folder.with_name(f"table.{kind}"), kind)
    table = pq.read_table(folder.with_name("table.parquet"))
    assert [int(label) for label in table["label"].to_pylist()] == [*range(5), *range(5), 0, 1]


@pytest.mark.parametrize("header", [b"{'descr': '<i4', (((", b"{'descr': '<i4', 'shape': (-5,)}", b"\x93"])
def test_a_damaged_column_is_refused(folder, header):
    content = (folder / "labels.npy").read_bytes()
    (folder / "labels.npy").write_bytes(content[:10] + header + content[10 + len(header) :])
    with pytest.raises(FileFormatError, match=r"not a whole \.npy file"):
        Run(folder).column("labels")


def changed_npz(path, **arrays):
    with np.load(path) as stored:
        np.savez(path, **(dict(stored) | arrays))


@pytest.mark.parametrize(
    "arrays",
    [{"rows": np.array([99])}, {"rows": np.array([-1])}, {"x": np.zeros(3, np.uint16)}, {"y": np.zeros(12)}],
)
def test_a_map_of_other_pictures_is_not_used(folder, arrays):
    run = Run(folder)
    Pages(run)._place(quiet)
    assert stored_places(run) is not None
    changed_npz(folder / "map.npz", **arrays)
    assert stored_places(run) is None


@pytest.mark.parametrize(
    "arrays",
    [
        {"rows": np.array([0, 99])},
        {"sizes": np.array([2**62, 2**62])},
        {"sizes": np.array([-1])},
        {"radius": np.eye(2)},
    ],
)
def test_duplicates_that_were_changed_are_found_anew(folder, arrays):
    run = Run(folder)
    radius, groups = duplicates_of(run, run.column("codes"), quiet)
    changed_npz(folder / "duplicates.npz", **arrays)
    again, found = duplicates_of(run, run.column("codes"), quiet)
    assert (again, [group.rows.tolist() for group in found]) == (radius, [group.rows.tolist() for group in groups])


@pytest.mark.parametrize(
    "recipe",
    [
        {"views": [{"name": 1, "extractor": 2, "options": {}}], "max_side": 16},
        {"views": [{"name": "a", "extractor": "onnx", "options": {"path": 7}}], "max_side": 16},
        {"views": [{"name": "a", "extractor": "ch", "options": []}], "max_side": 16},
        {"views": [[]], "max_side": 16},
        {"views": [], "max_side": True},
        {"views": [], "max_side": 10**9},
        [],
    ],
)
def test_a_recipe_that_is_none_is_refused(folder, recipe):
    (folder / "views" / "extraction.json").write_text(json.dumps(recipe))
    with pytest.raises(FileFormatError, match=r"extraction\.json cannot be read"):
        pipeline.run_views(Run(folder))


@pytest.mark.parametrize("labels", [np.float64(3), np.zeros((12, 2)), np.full(12, 1e300), np.array([b"\xff"] * 12)])
def test_labels_that_are_none_are_refused(folder, labels):
    np.save(folder / "true.npy", labels)
    with pytest.raises(InvalidDataError, match="Labels must be"):
        pipeline.evaluate(Run(folder), folder / "true.npy")


@pytest.mark.parametrize("kind", ["HSIC", "BinaryKMeans"])
def test_bit_weights_that_leave_the_range_of_floats_are_refused(tmp_path, kind):
    X, path = np.random.default_rng(0).normal(size=(20, 4)), tmp_path / "model"
    if kind == "HSIC":
        HSIC(2, n_bits=16, n_anchors=4, random_state=0).fit([X]).save(path)
    else:
        BinaryKMeans(2, random_state=0).fit((X > 0).astype(np.uint8)).save(path)
    arrays, facts = read_model(path, kind)
    arrays["bit_weights"][3] = 1e300
    write_model(path, kind, arrays, facts)
    with pytest.raises(ModelFileError):
        (HSIC if kind == "HSIC" else BinaryKMeans).load(path)


@given(
    key=st.sampled_from(["begun", "arguments", "seconds", "images", "view_weights", "sizes", "scores", "how_many"]),
    value=st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.lists(st.integers() | st.text(max_size=3), max_size=3)
    | st.dictionaries(st.text(max_size=5), st.integers() | st.floats() | st.text(max_size=3), max_size=3),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
def test_any_value_in_the_manifest_of_a_run_is_shown_or_refused(folder, made, key, value):
    manifest = read_json(made / "manifest.json") | {key: value}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with suppress(BitmosaicError):
        run = Run(folder)
        _print_run(run, False)
        if run.done("tables"):
            json.dumps(Pages(run).overview(), allow_nan=False)


# ---- links that lead out


OPENED = (".refit", "additions", "history", "clusters", "checkpoint", "edits.jsonl", "thumbnails.sqlite")


@pytest.mark.parametrize("name", OPENED)
def test_a_run_that_would_write_through_a_link_is_refused(folder, tmp_path, name):
    (tmp_path / "elsewhere").mkdir()
    place = folder / name
    if place.is_dir():
        shutil.rmtree(place)
    place.symlink_to(tmp_path / "elsewhere" / ("" if "." not in name[1:] else "file"))
    with pytest.raises(FileFormatError, match=rf"{name} is a link\. Put a file or folder in its place"):
        Run(folder)
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("name", [".views.extracting", ".views.extracting/ch.f32"])
def test_an_extraction_does_not_delete_or_write_through_links(folder, made, tmp_path, name):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "dear").write_text("dear")
    shutil.rmtree(folder / "views")
    manifest = read_json(folder / "manifest.json")
    (folder / "manifest.json").write_text(json.dumps(manifest | {"seconds": {}}))
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).symlink_to(tmp_path / "elsewhere" / ("dear" if "ch" in name else ""))
    with pytest.raises(FileFormatError, match=rf"{name} is a link"):
        pipeline.cluster(made.parent / "pictures", folder, 3, views=("ch",), max_side=16)
    assert (tmp_path / "elsewhere" / "dear").read_text() == "dear"


@pytest.mark.parametrize("open_run", [Run, clusters_now, lambda folder: at_work(folder)])
@pytest.mark.parametrize("name", [".gone", ".replaced", "edits.jsonl", "clusters"])
def test_files_that_take_their_places_come_from_no_link_and_delete_nothing_elsewhere(folder, tmp_path, name, open_run):
    elsewhere = shutil.copytree(folder, tmp_path / "elsewhere")
    before = sorted(path for path in elsewhere.rglob("*"))
    (folder / ".refit").mkdir()
    (folder / ".refit" / ".ready").touch()
    (folder / ".refit" / name).symlink_to(elsewhere / ("manifest.json" if name == "edits.jsonl" else ""))
    with pytest.raises(FileFormatError, match=rf"\.refit/{name} is a link"):
        open_run(folder)
    assert sorted(path for path in elsewhere.rglob("*")) == before


def at_work(folder):
    with Run.at_work(folder, {}):
        pass


@pytest.mark.parametrize("name", ["additions/.adding", "additions/.adding/views", ".refit/clusters", "history/0001"])
def test_adding_and_refitting_do_not_write_through_links(folder, tmp_path, name):
    (tmp_path / "elsewhere").mkdir()
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).symlink_to(tmp_path / "elsewhere")
    more = write_pictures(tmp_path / "more", 1, seed=5)
    with pytest.raises(FileFormatError, match=rf"{name} is a link"):
        pipeline.add(Run(folder), more) if "add" in name else pipeline.refit(Run(folder))
    assert not list((tmp_path / "elsewhere").iterdir())

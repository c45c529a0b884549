"""Damaged run folders, labels and recipes are refused with one clear error. Damaged caches are ignored."""

import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
from pictures import write_pictures

from bitmosaic import HSIC, BinaryKMeans, pipeline
from bitmosaic.errors import FileFormatError, InvalidDataError, ModelFileError
from bitmosaic.estimators.model_file import read_model, write_model
from bitmosaic.explorer.map import make_map, store_map, stored_map
from bitmosaic.io.read import read_json
from bitmosaic.pipeline.export import export
from bitmosaic.run.clusters import ImageFacts, clusters_now
from bitmosaic.run.folder import Run
from bitmosaic.run.manifest import Manifest


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("hostile")
    return pipeline.cluster(write_pictures(root / "pictures", 4), root / "run", 3, views=("ch",), max_side=16).folder


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


@pytest.mark.parametrize("text", [b"", b"[" * 100_000, b"NaN", b"\xff", b'{"format": "bitm'])
@pytest.mark.parametrize("name", ["manifest.json", "views/manifest.json", "views/extraction.json"])
def test_damaged_or_cut_json_is_refused(folder, name, text):
    (folder / name).write_bytes(text)
    with pytest.raises(FileFormatError):  # noqa: PT012 - one of them reads it
        pipeline.run_views(run := Run(folder))
        ImageFacts.of(run)


@pytest.mark.parametrize(
    ("key", "value"), [("begun", None), ("images", "12"), ("seconds", []), ("scores", [1]), ("arguments", None)]
)
def test_a_manifest_with_an_invalid_field_names_it(folder, key, value):
    manifest = read_json(folder / "manifest.json") | {key: value}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(FileFormatError, match=f"is damaged: '{key}' is missing or of the wrong type"):
        Run(folder)


def test_a_manifest_of_another_version_or_format_is_refused(folder):
    manifest = read_json(folder / "manifest.json")
    (folder / "manifest.json").write_text(json.dumps(manifest | {"version": 2}))
    with pytest.raises(FileFormatError, match="is a run folder of version 2; this bitmosaic reads 1"):
        Run(folder)
    (folder / "manifest.json").write_text(json.dumps(manifest | {"format": "other"}))
    with pytest.raises(FileFormatError, match="is not a run folder"):
        Run(folder)


def test_a_manifest_is_read_back_as_it_was_written(folder, tmp_path):
    """The keys of a finished run are those of version 0.1.0."""
    stored = read_json(folder / "manifest.json")
    Manifest.read(folder).write(tmp_path)
    assert read_json(tmp_path / "manifest.json") == stored
    keys = {"format", "version", "bitmosaic", "python", "packages", "begun", "arguments", "seconds", "bytes", "images"}
    keys |= {"skipped", "view_weights", "iterations", "sizes", "mean_distances", "sheets"}
    assert stored.keys() == keys


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("labels", lambda a: a + 1, "labels.npy does not fit"),
        ("labels", lambda a: a - 1, "labels.npy does not fit"),
        ("labels", lambda a: a.astype(float), "must hold a vector of int32; it holds float64"),
        ("codes", lambda a: a[:, :-1], "codes.npy does not fit"),
        ("codes", lambda a: a[:, 0], "must hold a matrix of uint8; it holds uint8 of shape"),
        ("distances", lambda a: a * np.nan, "distances.npy does not fit"),
        ("distances", lambda a: a + np.float32(3e38), "distances.npy does not fit"),
        ("distances", lambda a: a[1:], "a row for each of 12 images"),
    ],
)
def test_columns_that_do_not_fit_the_run_are_refused(folder, name, change, message):
    np.save(folder / f"{name}.npy", change(np.load(folder / f"{name}.npy")))
    for use in (ImageFacts.of, lambda run: run.column(name)):
        with pytest.raises(FileFormatError, match=message):
            use(Run(folder))


@pytest.mark.parametrize("dtype", [">i8", ">u2", ">f8", ">U9"])
def test_true_labels_of_another_byte_order_are_in_every_table(folder, dtype):
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
def test_a_map_of_other_images_is_ignored(folder, arrays):
    run = Run(folder)
    store_map(run, make_map(np.asarray(run.column("codes"))))
    assert stored_map(run) is not None
    changed_npz(folder / "map.npz", **arrays)
    assert stored_map(run) is None


@pytest.mark.parametrize(
    "recipe",
    [
        {"views": [{"name": 1, "extractor": 2, "options": {}}], "max_side": 16},
        {"views": [], "max_side": 10**9},
        [],
    ],
)
def test_an_invalid_recipe_is_refused(folder, recipe):
    (folder / "views" / "extraction.json").write_text(json.dumps(recipe))
    with pytest.raises(FileFormatError, match=r"extraction\.json cannot be read"):
        pipeline.run_views(Run(folder))


@pytest.mark.parametrize("labels", [np.float64(3), np.zeros((12, 2)), np.full(12, 1e300), np.array([b"\xff"] * 12)])
def test_invalid_labels_are_refused(folder, labels):
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

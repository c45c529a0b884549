"""Damaged runs, additions, labels and recipes are refused with one clear error. Damaged caches are ignored."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from image_kinds import write_images

from bitmosaic import pipeline
from bitmosaic.errors import FileFormatError, InvalidDataError, MissingFileError
from bitmosaic.explorer.map import make_map, store_map, stored_map
from bitmosaic.io.read import read_json
from bitmosaic.pipeline.export import export
from bitmosaic.pipeline.extraction import extraction_options
from bitmosaic.run.clusters import Clusters, ImageFacts
from bitmosaic.run.folder import Run, read_additions
from bitmosaic.run.manifest import AdditionManifest, Manifest

ADDITION = "additions/0001"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of 12 images, to which 6 were added."""
    root = tmp_path_factory.mktemp("damaged")
    run = pipeline.cluster(write_images(root / "first", 4), root / "run", 3, views=("ch",), max_side=16)
    return pipeline.add(run, write_images(root / "more", 2, seed=1), update=True).run.folder


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


def change(path, **values):
    path.write_text(json.dumps(read_json(path) | values))


def use(folder):
    run = Run(folder)
    extraction_options(run)
    Clusters(ImageFacts.of(run))


def test_the_undamaged_run_is_read(folder):
    use(folder)


def test_a_run_of_version_0_1_0_is_complete_although_its_stage_sheets_was_called_pictures(folder):
    manifest = read_json(folder / "manifest.json")
    for part in ("seconds", "bytes"):
        manifest[part]["pictures"] = manifest[part].pop("sheets")
    change(folder / "manifest.json", **manifest)
    run = Run(folder)
    assert run.complete
    run.forget_lost_stages()
    assert run.complete


@pytest.mark.parametrize("text", [b"", b'{"format": "bitm'])
@pytest.mark.parametrize(
    "name", ["manifest.json", "views/manifest.json", "views/extraction.json", f"{ADDITION}/manifest.json"]
)
def test_truncated_json_is_refused(folder, name, text):
    (folder / name).write_bytes(text)
    with pytest.raises(FileFormatError):
        use(folder)


def test_a_manifest_without_a_required_field_is_refused(folder):
    manifest = read_json(folder / "manifest.json")
    del manifest["begun"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(FileFormatError, match=r"manifest\.json is incomplete .*'begun'"):
        Run(folder)


@pytest.mark.parametrize(("part", "what"), [("", "a run folder"), (ADDITION, "an addition to a run")])
def test_a_manifest_of_another_version_or_format_is_refused(folder, part, what):
    change(folder / part / "manifest.json", version=2)
    with pytest.raises(FileFormatError, match=f"is {what} of version 2; this bitmosaic reads 1. Update bitmosaic"):
        use(folder)
    change(folder / part / "manifest.json", version=1, format="other")
    with pytest.raises(FileFormatError, match=f"is not {what}") as caught:
        use(folder)
    assert ("bitmosaic cluster" in str(caught.value)) == (not part)


def test_an_addition_without_a_manifest_or_number_is_refused(folder):
    (folder / ADDITION / "manifest.json").unlink()
    with pytest.raises(MissingFileError, match=r"there is none in .*0001\. Copy the run again"):
        use(folder)
    (folder / ADDITION).rename(folder / "additions" / "0002")
    with pytest.raises(FileFormatError, match="numbered from 0001 on"):
        use(folder)


def test_more_than_9999_additions_are_read_in_the_order_of_their_numbers(tmp_path, monkeypatch):
    names = [f"{number:04}" for number in range(1, 10_003)]
    (tmp_path / "additions").mkdir()
    monkeypatch.setattr(Path, "iterdir", lambda folder: map(folder.joinpath, reversed(names)))
    monkeypatch.setattr(AdditionManifest, "read", str)
    assert [addition.folder.name for addition in read_additions(tmp_path)] == names


def test_a_manifest_is_read_back_as_it_was_written(folder, tmp_path):
    stored = read_json(folder / "manifest.json")
    Manifest.read(folder).write(tmp_path)
    assert read_json(tmp_path / "manifest.json") == stored


@pytest.mark.parametrize("part", ["", ADDITION])
@pytest.mark.parametrize(
    ("name", "damage"),
    [("labels", lambda a: a.astype(float)), ("codes", lambda a: a[:, 0]), ("distances", lambda a: a[1:])],
)
def test_columns_that_do_not_fit_the_run_are_refused(folder, part, name, damage):
    path = folder / part / f"{name}.npy"
    np.save(path, damage(np.load(path)))
    with pytest.raises(FileFormatError, match=rf"{name}\.npy must hold .*Copy the run again"):
        use(folder)


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01\x00v\x00{'descr': '<i4', (((", None])
def test_a_truncated_column_is_refused_without_a_word_about_pickles(folder, content):
    path = folder / "labels.npy"
    path.write_bytes(path.read_bytes()[:-3] if content is None else content)
    with pytest.raises(FileFormatError, match=r"labels\.npy is not a whole \.npy file") as caught:
        use(folder)
    assert "pickle" not in str(caught.value)


@pytest.mark.parametrize("dtype", [">i8", ">U9"])
def test_true_labels_of_another_byte_order_are_in_every_table(folder, dtype):
    shutil.rmtree(folder / "additions")
    change(folder / "views" / "manifest.json", labels=True)
    np.save(folder / "views" / "labels.npy", (np.arange(12) % 5).astype(dtype))
    for kind in ("csv", "parquet"):
        export(Clusters(ImageFacts.of(Run(folder))), folder.with_name(f"table.{kind}"), kind)
    table = pq.read_table(folder.with_name("table.parquet"))
    assert [int(label) for label in table["label"].to_pylist()] == [*range(5), *range(5), 0, 1]


def test_a_map_of_other_codes_or_damaged_is_ignored(folder):
    run = Run(folder)
    store_map(run, make_map(np.asarray(run.column("codes"))))
    assert stored_map(run) is not None
    np.save(folder / "codes.npy", ~np.load(folder / "codes.npy"))
    assert stored_map(Run(folder)) is None
    (folder / "map.npz").write_bytes(b"PK\x03\x04")
    assert stored_map(run) is None


@pytest.mark.parametrize("labels", [np.float64(3), np.zeros((18, 2)), np.array([b"\xff"] * 18)])
def test_invalid_labels_are_refused(folder, labels):
    np.save(folder / "true.npy", labels)
    with pytest.raises(InvalidDataError, match="Labels must be"):
        pipeline.evaluate(Run(folder), folder / "true.npy")

"""Damaged additions are refused with one clear error."""

import json
import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pictures import write_pictures

from bitmosaic import pipeline
from bitmosaic.cli.cluster import print_run
from bitmosaic.errors import BitmosaicError, FileFormatError
from bitmosaic.io.read import read_json
from bitmosaic.pipeline.adding import drift_of
from bitmosaic.run.clusters import Clusters, ImageFacts
from bitmosaic.run.folder import Run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("hostile")
    run = pipeline.cluster(write_pictures(root / "first", 4), root / "run", 3, views=("ch",), max_side=16)
    return pipeline.add(run, write_pictures(root / "more", 2, seed=1), update=True).run.folder


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


def use(folder):
    run = Run(folder)
    Clusters(ImageFacts.of(run))
    print_run(run, False)


def test_an_undamaged_addition_is_read(folder):
    use(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("images", 5),
        ("images", "6"),
        ("source", 3),
        ("at", None),
        ("format", "bitmosaic-run"),
        ("version", 2),
    ],
)
def test_an_invalid_field_of_the_manifest_is_refused(folder, key, value):
    path = folder / "additions" / "0001" / "manifest.json"
    path.write_text(json.dumps(read_json(path) | {key: value}))
    with pytest.raises(FileFormatError):
        use(folder)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("labels", lambda a: a + 3),
        ("labels", lambda a: -1 - a),
        ("labels", lambda a: a[1:]),
        ("labels", lambda a: a.astype(float)),
        ("codes", lambda a: a[:, 1:]),
        ("codes", lambda a: a[0]),
        ("distances", lambda a: a * np.nan),
        ("centers", lambda a: a[1:]),
        ("centers", lambda a: a.astype(np.int64)),
        ("bit_sums", lambda a: a + 10**6),
        ("counts", lambda a: -a),
        ("counts", lambda a: a.astype(object)),
        ("views/ch", lambda a: a[1:]),
        ("views/ch", lambda a: a[:, 1:]),
    ],
)
def test_arrays_that_do_not_fit_are_refused(folder, name, change):
    path = folder / "additions" / "0001" / f"{name}.npy"
    np.save(path, change(np.load(path)), allow_pickle=True)
    with pytest.raises(FileFormatError):
        use(folder)


@pytest.mark.parametrize("value", [-1, 3])
@pytest.mark.parametrize("use_labels", [drift_of, pipeline.refit])
def test_labels_that_no_cluster_has_are_refused(folder, use_labels, value):
    path = folder / "additions" / "0001" / "labels.npy"
    np.save(path, np.full_like(np.load(path), value))
    with pytest.raises(FileFormatError, match=r"labels\.npy does not fit the others"):
        use_labels(Run(folder))


@pytest.mark.parametrize("entry", ["0002", "other"])
def test_other_folders_beside_additions_are_refused(folder, entry):
    (folder / "additions" / entry).mkdir()
    with pytest.raises(BitmosaicError):
        use(folder)


def test_a_gap_between_additions_is_refused(folder):
    (folder / "additions" / "0001").rename(folder / "additions" / "0002")
    with pytest.raises(FileFormatError, match="numbered from 0001 on"):
        use(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [("absorbed", 2), ("absorbed", "1"), ("ids", [0, 1])],
)
def test_invalid_counts_in_the_manifest_of_the_run_are_refused(folder, key, value):
    path = folder / "manifest.json"
    path.write_text(json.dumps(read_json(path) | {key: value}))
    with pytest.raises(FileFormatError):
        use(folder)


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20, deadline=None)
def test_damaged_bytes_anywhere_are_read_or_refused(folder, made, data):
    files = sorted(path.relative_to(made) for path in (made / "additions").rglob("*") if path.is_file())
    part = data.draw(st.sampled_from(files))
    content = bytearray((made / part).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        if content:
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (folder / part).write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        use(folder)
    except BitmosaicError:
        pass
    finally:
        shutil.copy(made / part, folder / part)

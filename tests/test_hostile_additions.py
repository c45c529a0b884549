"""Additions that others have changed: read, or refused in one sentence."""

import json
import shutil
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bitmosaic import pipeline
from bitmosaic.cli import _print_run
from bitmosaic.drift import drift_of
from bitmosaic.errors import BitmosaicError, FileFormatError
from bitmosaic.explorer.clusters import Clusters, Pictures
from bitmosaic.reading import read_json
from bitmosaic.run import Run
from pictures import write_pictures


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
    Clusters(Pictures.of(run))
    _print_run(run, False)


def test_what_was_not_changed_is_read(folder):
    use(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("images", 0),
        ("images", 5),
        ("images", -1),
        ("images", "6"),
        ("images", 2**60),
        ("known", None),
        ("skipped", 1.5),
        ("source", 3),
        ("source", "\ud800"),
        ("at", None),
        ("at", "\x1b[2J"),
        ("updated", 1),
        ("format", "bitmosaic-run"),
        ("version", 2),
    ],
)
def test_a_wrong_part_of_the_manifest_is_refused(folder, key, value):
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


@pytest.mark.parametrize("value", [-1, 3, 2**31 - 1])
@pytest.mark.parametrize("go_on", [drift_of, pipeline.refit])
def test_labels_that_no_cluster_has_are_refused_by_whatever_goes_on_with_them(folder, go_on, value):
    path = folder / "additions" / "0001" / "labels.npy"
    np.save(path, np.full_like(np.load(path), value))
    with pytest.raises(FileFormatError, match=r"labels\.npy does not fit the others"):
        go_on(Run(folder))


@pytest.mark.parametrize("entry", ["0002", "0003", "other", "1", "0001 "])
def test_folders_that_are_no_additions_are_refused(folder, entry):
    (folder / "additions" / entry).mkdir()
    with pytest.raises(FileFormatError):
        use(folder)


def test_a_gap_between_additions_is_refused(folder):
    (folder / "additions" / "0001").rename(folder / "additions" / "0002")
    with pytest.raises(FileFormatError, match="numbered from 0001 on"):
        use(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [("absorbed", 2), ("absorbed", "1"), ("absorbed", -1), ("ids", [0, 1]), ("ids", [0, 1, -2]), ("ids", [2**40] * 3)],
)
def test_numbers_that_the_run_cannot_have_are_refused(folder, key, value):
    path = folder / "manifest.json"
    path.write_text(json.dumps(read_json(path) | {key: value}))
    with pytest.raises(FileFormatError):
        use(folder)


@given(
    key=st.sampled_from(["at", "source", "images", "known", "skipped", "updated", "drift", "fingerprint"]),
    value=st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers()),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
def test_any_value_in_the_manifest_is_shown_or_refused(folder, made, key, value):
    part = "additions/0001/manifest.json"
    (folder / part).write_text(json.dumps(read_json(made / part) | {key: value}))
    with suppress(BitmosaicError):
        use(folder)


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
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

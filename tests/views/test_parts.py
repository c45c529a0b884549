"""A views folder of Parquet parts reads like any other, and names the part that is missing, cut or changed."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from bitmosaic.errors import BitmosaicError, FileFormatError, MissingFileError
from bitmosaic.views import as_views, read_rows, read_views
from bitmosaic.views import parts as parts_module
from bitmosaic.views.parts import part_facts, part_path, write_part, write_parts_manifest

ROWS = [5, 0, 12, 1, 8]
N = sum(ROWS)
RNG = np.random.default_rng(0)
VIEWS = {"hog": RNG.normal(size=(N, 3)).astype(np.float32), "b c": RNG.normal(size=(N, 1)).astype(np.float32)}
PATHS = tuple(f"é/{i}.png" if i % 3 else f"\udcff/{i}.png" for i in range(N))  # some are not UTF-8
LABELS = tuple(f"class {i % 2}" for i in range(N))


@pytest.fixture(autouse=True)
def small_row_groups(monkeypatch):
    monkeypatch.setattr(parts_module, "GROUP_ROWS", 4)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "parts").mkdir()
    start = 0
    for number, n_rows in enumerate(ROWS):
        rows = slice(start, start + n_rows)
        views = {name: view[rows] for name, view in VIEWS.items()}
        write_part(part_path(tmp_path, number), views, PATHS[rows], LABELS[rows], {"number": number})
        start += n_rows
    write_parts_manifest(tmp_path, {"hog": 3, "b c": 1}, ROWS, labels=True)
    return tmp_path


def test_parts_are_read_as_one_matrix_for_each_view(folder):
    views = read_views(folder)
    assert (views.names, views.widths, views.n_rows) == (("hog", "b c"), (3, 1), N)
    assert views.paths == PATHS
    assert tuple(views.labels) == LABELS
    for name, matrix in VIEWS.items():
        assert views[name].dtype == np.float32
        for rows in (slice(0, N), slice(3, 20), slice(16, 18), np.array([0, 4, 5, 16, 17, 25]), slice(2, 2)):
            np.testing.assert_array_equal(read_rows(views[name], rows), matrix[rows])
    assert as_views({"one": views["hog"]}).widths == (3,)


def test_bare_views_open_no_part(folder):
    for path in (folder / "parts").iterdir():
        path.unlink()
    views = read_views(folder, bare=True)
    assert (views.n_rows, views.paths, views.labels) == (N, None, None)
    with pytest.raises(MissingFileError, match=r"all of its 5 parts; .*part-000002\.parquet is missing"):
        views["hog"][6:8]


def test_other_tools_read_a_part_with_its_paths(folder):
    table = pq.read_table(part_path(folder, 2))
    assert table.column_names == ["hog", "b c", "path", "label"]
    assert table.column("path").to_pylist()[:2] == ["é/5.png", r"\udcff/6.png"]
    np.testing.assert_array_equal(np.array(table.column("hog").to_pylist(), np.float32), VIEWS["hog"][5:17])


def test_facts_are_those_of_a_whole_part_only(folder):
    path = part_path(folder, 4)
    assert part_facts(path) == {"number": 4}
    path.write_bytes(path.read_bytes()[:-9])
    assert part_facts(path) is None
    assert part_facts(part_path(folder, 5)) is None


def cut(path):
    path.write_bytes(path.read_bytes()[:-9])


def other_rows(path):
    write_part(path, {name: view[:3] for name, view in VIEWS.items()}, PATHS[:3], LABELS[:3], {})


def other_width(path):
    write_part(path, {"hog": VIEWS["hog"][:8, :2], "b c": VIEWS["b c"][:8]}, PATHS[:8], LABELS[:8], {})


def other_view(path):
    write_part(path, {"hog": VIEWS["hog"][:8], "lbp": VIEWS["b c"][:8]}, PATHS[:8], LABELS[:8], {})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, "is not a whole Parquet file"),
        (other_rows, "must have 8 rows of the views hog, b c"),
        (other_width, "must have 8 rows of the views hog, b c"),
        (other_view, "must have 8 rows of the views hog, b c"),
        (lambda path: path.unlink(), "is missing"),
    ],
)
def test_a_damaged_part_is_named(folder, damage, message):
    damage(part_path(folder, 4))
    for read in (lambda: read_views(folder), lambda: read_views(folder, bare=True)["hog"][20:]):
        with pytest.raises(BitmosaicError, match=rf"part-000004\.parquet .*{message}|part-000004\.parquet {message}"):
            read()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "must be of version 1; got 2"),
        ({"n_rows": 9}, "the rows of each part"),
        ({"parts": None}, "the rows of each part"),
        ({"parts": [27, -1]}, "the rows of each part"),
        ({"parts": []}, "the rows of each part"),
        ({"views": [{"name": "hog", "width": 0}]}, "the width of each view"),
        ({"views": [{"name": "hog"}]}, "the width of each view"),
        ({"views": []}, "at least one view"),
        ({"format": "bitmosaic-run"}, "The format in"),
    ],
)
def test_a_manifest_that_was_changed_is_refused(folder, change, message):
    manifest = folder / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | change))
    with pytest.raises(FileFormatError, match=message):
        read_views(folder)

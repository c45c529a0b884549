"""Chained views equal the result of np.concatenate."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitmosaic.errors import ViewMismatchError
from bitmosaic.views import Views, forget_pages, read_rows, read_views, write_views
from bitmosaic.views.views import ChainedRows, chained

HEIGHTS = st.lists(st.integers(1, 9), min_size=1, max_size=5)


def parts_of(heights, dtype=np.float32):
    ends = np.cumsum(heights) * 3
    return [np.arange(end - 3 * n, end).reshape(n, 3).astype(dtype) for n, end in zip(heights, ends, strict=True)]


@given(HEIGHTS, st.data())
def test_slices_of_chained_rows(heights, data):
    parts = parts_of(heights)
    whole, rows = np.concatenate(parts), ChainedRows(parts)
    part = data.draw(st.slices(len(whole)))
    assert rows.shape == whole.shape
    np.testing.assert_array_equal(rows[part], whole[part])


@given(HEIGHTS, st.data())
def test_index_arrays_of_chained_rows(heights, data):
    parts = parts_of(heights)
    whole, rows = np.concatenate(parts), ChainedRows(parts)
    number = st.integers(-len(whole), len(whole) - 1)
    wanted = np.array(sorted(data.draw(st.lists(number, max_size=20))), np.int64)
    np.testing.assert_array_equal(rows[wanted], whole[wanted])
    rows.forget_pages(wanted[wanted >= 0])


def test_rows_of_different_types_get_a_common_type():
    rows = ChainedRows([np.ones((2, 1), np.float32), np.full((1, 1), 2**30 + 1, np.int32)])
    assert rows.dtype == np.float64
    assert rows[:].tolist() == [[1], [1], [2**30 + 1]]
    assert read_rows(rows, slice(None)).dtype == np.float32


def test_memory_maps_are_chained_and_their_pages_released(tmp_path):
    for name, value in (("a", 1), ("b", 2)):
        write_views(tmp_path / name, {"hog": np.full((4, 2), value, np.float32)}, labels=[name] * 4)
    both = chained([read_views(tmp_path / name) for name in "ab"])
    assert both.labels.tolist() == ["a"] * 4 + ["b"] * 4
    assert both["hog"][3:5].tolist() == [[1, 1], [2, 2]]
    forget_pages(both["hog"], np.arange(8))
    assert both["hog"][3:5].tolist() == [[1, 1], [2, 2]]


def test_labels_need_all_views_and_paths_need_one():
    a, b = Views(("v",), (np.ones((2, 1)),), paths=("x", "y")), Views(("v",), (np.ones((1, 1)),), labels=np.array([7]))
    assert chained([a, b]).labels is None
    assert chained([a, b]).paths == ("x", "y", "2")
    assert chained([b, b]).paths is None
    c = Views(("v",), (np.ones((1, 1)),), labels=np.array(["cat"]))
    assert chained([b, c]).labels.tolist() == ["7", "cat"]


def test_integer_labels_of_different_types_stay_exact():
    """The common type in NumPy is a float, which cannot distinguish the last two."""
    parts = [np.array([7]), np.array([7, 2**63, 2**63 + 1], np.uint64)]
    labels = chained([Views(("v",), (np.ones((len(part), 1)),), labels=part) for part in parts]).labels
    assert labels.tolist() == ["7", "7", str(2**63), str(2**63 + 1)]


def test_views_of_other_widths_are_refused():
    a, b = Views(("v",), (np.ones((2, 1)),)), Views(("v",), (np.ones((2, 3)),))
    with pytest.raises(ViewMismatchError, match=r"got v \(1\) and then v \(3\)"):
        chained([a, b])

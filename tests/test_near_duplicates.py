"""Near-duplicates, against comparing everything with everything in NumPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitmosaic import near_duplicates as module
from bitmosaic.codes import hamming_distances_numpy
from bitmosaic.near_duplicates import duplicate_groups, feature_distances, find_duplicates
from bitmosaic.views import as_views
from crowded_codes import crowded_codes

# ---- features


def test_feature_distances_are_squared_distances_over_twice_the_variance():
    rng = np.random.default_rng(0)
    views = as_views({"a": rng.normal(size=(50, 4)), "b": 100 + 7 * rng.normal(size=(50, 9))})
    pairs = np.array([[3, 40], [0, 49], [2, 3], [3, 9]])
    expected = np.zeros(4)
    for array in views.arrays:
        expected += np.square(array[pairs[:, 0]] - array[pairs[:, 1]]).sum(1) / (2 * array.var(0).sum()) / 2
    np.testing.assert_allclose(feature_distances(views, pairs), expected, rtol=1e-6)


def test_unrelated_rows_have_a_feature_distance_of_about_one():
    views = as_views([1000 + np.random.default_rng(0).normal(size=(2000, 30)).astype(np.float32)])
    distances = feature_distances(views, np.random.default_rng(1).permutation(2000).reshape(-1, 2))
    assert abs(distances.mean() - 1) < 0.03


def test_feature_distances_leave_out_missing_and_constant_views():
    values = np.random.default_rng(0).normal(size=(20, 3))
    missing = values.copy()
    missing[[4, 5]] = np.nan
    views = as_views({"a": values, "b": missing, "c": np.ones((20, 2))})
    single = as_views({"a": values})
    pairs = np.array([[4, 7], [4, 5]])
    np.testing.assert_allclose(feature_distances(views, pairs), feature_distances(single, pairs))
    only = as_views({"b": missing})
    assert np.isnan(feature_distances(only, pairs)).all()


# ---- groups


def planted(n=600, seed=0):
    """Codes that are alike, features that are not but for rows 10, 200 and 201, and for 30 and 40."""
    rng = np.random.default_rng(seed)
    codes = crowded_codes(n, 16, seed)
    views = {name: rng.normal(size=(n, width)).astype(np.float32) for name, width in (("a", 40), ("b", 7))}
    for first, others in ((10, [200, 201]), (30, [40])):
        codes[others] = codes[first] ^ np.array([1] + [0] * 15, np.uint8)
        for values in views.values():
            values[others] = values[first] + 0.1 * rng.normal(size=(len(others), values.shape[1]))
    return codes, as_views(views)


@pytest.mark.parametrize("n_threads", [1, 3])
def test_duplicates_are_those_whose_features_agree_too(n_threads):
    codes, views = planted()
    radius, groups = find_duplicates(codes, views, n_threads=n_threads)
    assert radius == module.RADIUS
    assert sorted(sorted(group.rows.tolist()) for group in groups) == [[10, 200, 201], [30, 40]]
    for group in groups:
        first = np.stack([np.full(len(group.rows) - 1, group.rows[0]), group.rows[1:]], axis=1)
        np.testing.assert_allclose(group.feature_distances[1:], feature_distances(views, first))
        assert group.feature_distances[0] == 0
        assert (np.diff(group.feature_distances) >= 0).all()
        np.testing.assert_array_equal(
            group.distances, hamming_distances_numpy(codes[group.rows], codes[group.rows[:1]])[:, 0]
        )
    assert groups[0].feature_distances[1] <= groups[1].feature_distances[1]


def test_duplicates_in_a_view_that_some_lack_are_found():
    codes, views = planted()
    arrays = {name: views[name].copy() for name in views}
    arrays["b"][[10, 200]] = np.nan
    _, groups = find_duplicates(codes, as_views(arrays))
    assert [10, 200, 201] in [sorted(group.rows.tolist()) for group in groups]


def test_without_features_duplicates_are_equal_codes_the_rarest_first():
    codes = np.array([[1], [2], [1], [3], [2], [2], [9], [3]], np.uint8)
    radius, groups = find_duplicates(codes)
    assert radius == 0
    assert [group.rows.tolist() for group in groups] == [[0, 2], [3, 7], [1, 4, 5]]
    assert groups[0].feature_distances is None


def test_codes_that_too_many_share_reduce_the_radius_and_then_are_left_out(monkeypatch):
    codes, views = planted()
    monkeypatch.setattr(module, "MOST_COMPARISONS", 60_000)
    radius, _ = find_duplicates(codes, views)
    assert 0 < radius < module.RADIUS
    equal = np.zeros((600, 16), np.uint8)
    equal[[30, 40]] = 7
    monkeypatch.setattr(module, "MOST_COMPARISONS", 10)
    radius, groups = find_duplicates(equal, views)
    assert radius == 0
    assert [group.rows.tolist() for group in groups] == [[30, 40]]


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_few_pictures_have_no_duplicates_that_are_none(n):
    codes = np.arange(3 * 16, dtype=np.uint8).reshape(3, 16)[:n]
    views = as_views([np.eye(3)[:n]]) if n else None
    assert find_duplicates(codes, views)[1] == []


def test_a_chain_of_pairs_makes_no_single_group():
    pairs = np.array([[1, 2], [2, 3], [3, 4], [4, 5], [5, 6], [8, 9]])
    groups = duplicate_groups(pairs, np.array([0.1, 0.2, 0.1, 0.1, 0.1, 0.05]))
    assert [rows.tolist() for rows, _ in groups] == [[8, 9], [2, 1, 3], [5, 4, 6]]
    np.testing.assert_array_equal(groups[1][1], [0, 0.1, 0.2])


@given(st.integers(2, 25), st.integers(0, 2**32 - 1))
@settings(max_examples=50, deadline=None)
def test_groups_share_no_row_and_leave_no_pair_of_two_that_are_in_none(n, seed):
    rng = np.random.default_rng(seed)
    pairs = np.argwhere(np.triu(rng.random((n, n)) < 0.15, 1))
    scores = {tuple(pair): score for pair, score in zip(pairs.tolist(), rng.random(len(pairs)).tolist(), strict=True)}
    groups = duplicate_groups(pairs, np.array(list(scores.values())))
    members = [row for rows, _ in groups for row in rows.tolist()]
    assert len(members) == len(set(members))
    assert all(one in members or other in members for one, other in scores)
    for rows, distances in groups:
        assert [scores[min(rows[0], row), max(rows[0], row)] for row in rows[1:]] == distances[1:].tolist()
    shuffled = rng.permutation(len(pairs))
    again = duplicate_groups(pairs[shuffled], np.array(list(scores.values()))[shuffled])
    assert [rows.tolist() for rows, _ in again] == [rows.tolist() for rows, _ in groups]

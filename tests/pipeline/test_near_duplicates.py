"""Pairs and groups by features, compared with brute force in NumPy."""

import numpy as np
import pytest
from crowded_codes import crowded_codes
from hypothesis import given, settings
from hypothesis import strategies as st

from bitmosaic.hamming.pairs import duplicate_groups
from bitmosaic.pipeline import duplicates as module
from bitmosaic.pipeline.duplicates import feature_distances, feature_pairs
from bitmosaic.views import as_views

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


# ---- pairs


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


def found_groups(codes, views, n_threads=1):
    radius, pairs, scores = feature_pairs(codes, views, n_threads=n_threads)
    return radius, duplicate_groups(pairs, scores)


@pytest.mark.parametrize("n_threads", [1, 3])
def test_pairs_have_near_codes_and_near_features(n_threads):
    codes, views = planted()
    radius, groups = found_groups(codes, views, n_threads)
    assert radius == module.CODE_RADIUS
    assert sorted(sorted(rows.tolist()) for rows, _ in groups) == [[10, 200, 201], [30, 40]]
    for rows, distances in groups:
        first = np.stack([np.full(len(rows) - 1, rows[0]), rows[1:]], axis=1)
        np.testing.assert_allclose(distances[1:], feature_distances(views, first))
        assert distances[0] == 0
        assert (np.diff(distances) >= 0).all()
    assert groups[0][1][1] <= groups[1][1][1]


def test_pairs_are_found_in_views_with_missing_rows():
    codes, views = planted()
    arrays = {name: views[name].copy() for name in views}
    arrays["b"][[10, 200]] = np.nan
    _, groups = found_groups(codes, as_views(arrays))
    assert [10, 200, 201] in [sorted(rows.tolist()) for rows, _ in groups]


def test_too_frequent_codes_reduce_the_radius_and_are_then_left_out(monkeypatch):
    codes, views = planted()
    monkeypatch.setattr(module, "MOST_CODE_COMPARISONS", 60_000)
    radius, _ = found_groups(codes, views)
    assert 0 < radius < module.CODE_RADIUS
    equal = np.zeros((600, 16), np.uint8)
    equal[[30, 40]] = 7
    monkeypatch.setattr(module, "MOST_CODE_COMPARISONS", 10)
    radius, groups = found_groups(equal, views)
    assert radius == 0
    assert [rows.tolist() for rows, _ in groups] == [[30, 40]]


# ---- groups


def test_a_chain_of_pairs_makes_no_single_group():
    pairs = np.array([[1, 2], [2, 3], [3, 4], [4, 5], [5, 6], [8, 9]])
    groups = duplicate_groups(pairs, np.array([0.1, 0.2, 0.1, 0.1, 0.1, 0.05]))
    assert [rows.tolist() for rows, _ in groups] == [[8, 9], [2, 1, 3], [5, 4, 6]]
    np.testing.assert_array_equal(groups[1][1], [0, 0.1, 0.2])


@given(st.integers(2, 25), st.integers(0, 2**32 - 1))
@settings(max_examples=50, deadline=None)
def test_groups_are_disjoint_and_every_pair_touches_one(n, seed):
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

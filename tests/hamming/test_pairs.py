"""Near pairs of codes, compared with exhaustive search in NumPy."""

import numpy as np
import pytest
from crowded_codes import crowded_codes
from hypothesis import given, settings
from hypothesis import strategies as st

from bitmosaic.hamming import pairs as module
from bitmosaic.hamming.codes import hamming_distances_numpy
from bitmosaic.hamming.pairs import Cut, cheapest_cut, scored_pairs


def near_pairs(codes, radius, most=10**6, n_threads=1):
    sketches = np.empty((len(codes), 0, 0), np.float32)
    return scored_pairs(codes, radius, sketches, radius, most, n_threads, lambda *step: None)


def pairs_numpy(codes, radius):
    """Near pairs by comparing all with all, by distance, first and second row."""
    first, second = np.triu_indices(len(codes), 1)
    distances = hamming_distances_numpy(codes, codes)[first, second]
    order = np.lexsort((second, first, distances))
    order = order[distances[order] <= radius]
    return np.stack([first, second], axis=1)[order], distances[order]


@given(st.integers(0, 60), st.integers(1, 19), st.integers(0, 14), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_near_pairs_are_all_pairs_within_the_radius_each_once(n, n_bytes, radius, seed):
    codes = crowded_codes(n, n_bytes, seed)
    pairs, distances = near_pairs(codes, radius)
    expected = pairs_numpy(codes, radius)
    np.testing.assert_array_equal(pairs, expected[0])
    np.testing.assert_array_equal(distances, expected[1])


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("most", [1, 4000])
def test_only_the_nearest_pairs_are_returned_if_there_are_too_many(monkeypatch, most, n_threads):
    monkeypatch.setattr(module, "PAIRS_AT_ONCE", 7)
    monkeypatch.setattr(module, "ROWS_PER_PIECE", 64)
    codes = crowded_codes(400, 4, 2)
    pairs, distances = near_pairs(codes, 4, most, n_threads)
    expected = pairs_numpy(codes, 4)
    assert len(expected[1]) > 4000
    np.testing.assert_array_equal(pairs, expected[0][:most])
    np.testing.assert_array_equal(distances, expected[1][:most])


@given(st.integers(1, 3), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_the_sketch_distance_is_the_mean_over_the_views_that_both_have(n_views, seed):
    rng = np.random.default_rng(seed)
    one, other = rng.normal(size=(2, n_views, 5)).astype(np.float32)
    one[rng.random(n_views) < 0.3, 0] = np.nan
    other[rng.random(n_views) < 0.3, 0] = np.nan
    squares = np.square(one - other).sum(1)
    known = squares[~np.isnan(squares)]
    expected = known.mean() if len(known) else np.inf
    found = module.sketch_distance(one, other, np.float32(np.inf))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert (module.sketch_distance(one, other, np.float32(0.5)) <= 0.5) == (found <= 0.5)


@given(st.integers(2, 60), st.integers(1, 19), st.integers(2, 20), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_parts_a_bit_apart_find_the_same_pairs_as_equal_ones(n, n_bytes, radius, seed):
    codes = crowded_codes(n, n_bytes, seed)
    cut = Cut(8 * n_bytes, min(max(radius // 2 + 1, -(-8 * n_bytes // 12)), 8 * n_bytes), 1)
    radius = min(radius, 2 * cut.n_parts - 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "cheapest_cut", lambda *_: (cut, 0))
        pairs, distances = near_pairs(codes, radius)
    expected = pairs_numpy(codes, radius)
    np.testing.assert_array_equal(pairs, expected[0])
    np.testing.assert_array_equal(distances, expected[1])


def many_codes(n):
    return np.random.default_rng(0).integers(256, size=(n, 16), dtype=np.uint8)


@pytest.mark.parametrize(("n", "radius", "parts", "flips"), [(50, 12, 13, 0), (100_000, 12, 7, 1), (100_000, 4, 5, 0)])
def test_the_cheapest_cut_is_chosen(n, radius, parts, flips):
    assert cheapest_cut(many_codes(n), radius)[0] == Cut(128, parts, flips)


def test_comparisons_grow_far_slower_than_the_square_of_the_codes():
    few, many = (cheapest_cut(many_codes(n), 12)[1] for n in (30_000, 480_000))
    assert many < 40 * few  # the square is 256 times as much

"""Nearest codes and outliers, compared with exhaustive search in NumPy."""

import numpy as np
import pytest
from crowded_codes import crowded_codes
from hypothesis import given, settings
from hypothesis import strategies as st

from bitmosaic.hamming import search as code_tree
from bitmosaic.hamming import tree_kernels
from bitmosaic.hamming.codes import hamming_distances_numpy
from bitmosaic.hamming.search import nearest_codes, outlier_scores

# ---- nearest codes


@given(st.integers(1, 80), st.integers(1, 19), st.integers(0, 100), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_the_nearest_codes_are_those_of_a_stable_sort_of_all_distances(n, n_bytes, k, seed):
    codes = crowded_codes(n, n_bytes, seed)
    queries = codes[[seed % n, seed // 7 % n]]
    all_distances = hamming_distances_numpy(queries, codes)
    expected = np.argsort(all_distances, axis=1, kind="stable")[:, :k]
    distances, rows = nearest_codes(codes, queries, k)
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(distances, np.take_along_axis(all_distances, expected, 1))
    assert (rows.dtype, distances.dtype) == (np.int64, np.int32)


def test_the_nearest_codes_of_a_memory_map_do_not_depend_on_threads_or_pieces(tmp_path, monkeypatch):
    np.save(tmp_path / "codes.npy", crowded_codes(3000, 16, 1))
    codes = np.load(tmp_path / "codes.npy", mmap_mode="r")
    expected = nearest_codes(codes, codes[5:8], 700)
    monkeypatch.setattr(code_tree, "ROWS_PER_PIECE", 97)
    for n_threads in (1, 3):
        for one, other in zip(nearest_codes(codes, codes[5:8], 700, n_threads), expected, strict=True):
            np.testing.assert_array_equal(one, other)


# ---- nodes of the tree

BLOCK = tree_kernels.CODES_AT_ONCE


@pytest.mark.parametrize("place", [0, 1, BLOCK - 1, BLOCK, 2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 6])
def test_the_radius_of_a_large_node_reaches_its_only_far_code_at_any_place(place):
    codes, rows = np.zeros((2, 2 * BLOCK + 7), np.uint64), np.arange(2 * BLOCK + 7, dtype=np.uint32)
    codes[:, place] = 2**64 - 1
    centers, common = np.empty((2, 2, 1), np.uint64)
    radii, lowest = np.empty(1, np.int64), np.empty(1, np.uint32)
    tree_kernels.describe(codes, rows, np.array([0]), np.array([len(rows)]), centers, common, radii, lowest)
    assert radii == np.bitwise_count(codes ^ centers).sum(0).max() == 128


# ---- outliers


def test_a_loose_cluster_does_not_fill_the_list_of_outliers():
    rng = np.random.default_rng(0)
    distances = np.concatenate([10 + rng.normal(size=500), 40 + 8 * rng.normal(size=500), [20.0]])
    labels = np.array([3] * 500 + [7] * 500 + [3])
    scores = outlier_scores(labels, distances)
    assert scores.argmax() == 1000
    assert 30 < np.count_nonzero(labels[np.argsort(-scores)[1:101]] == 3) < 70


def test_outlier_scores_are_those_of_a_normal_distribution():
    distances = 30 + 5 * np.random.default_rng(0).normal(size=20_000)
    np.testing.assert_allclose(outlier_scores(np.zeros(20_000, int), distances), (distances - 30) / 5, atol=0.15)


def test_equal_distances_and_single_images_are_no_outliers():
    np.testing.assert_array_equal(outlier_scores(np.array([0, 0, 0, 1]), np.array([5.0, 5, 5, 90])), 0)
    assert len(outlier_scores(np.empty(0, int), np.empty(0))) == 0

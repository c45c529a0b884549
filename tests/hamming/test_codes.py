"""Packed codes: packing is reversible, and every kernel agrees with plain NumPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from bitmosaic.hamming.codes import (
    ROWS_PER_PIECE,
    as_words,
    cluster_bit_sums,
    cluster_bit_sums_numpy,
    costs_with,
    hamming_distances,
    hamming_distances_numpy,
    nearest_centers,
    nearest_centers_numpy,
    pack,
    unpack,
)
from bitmosaic.io.threads import kernel

SHAPES = [  # rows, centers, bytes
    (1, 1, 1),
    (0, 3, 5),
    (50, 9, 11),
    (33, 2, 16),
    (20, 17, 33),
]


def random_codes(n, n_bytes, seed=0):
    return np.random.default_rng(seed).integers(256, size=(n, n_bytes), dtype=np.uint8)


def bits_of(codes):
    """The bits of packed codes, one by one with shifts: no NumPy packing involved."""
    return np.array([[(int(byte) >> (7 - k)) & 1 for byte in row for k in range(8)] for row in codes])


@given(st.integers(0, 6), st.integers(1, 20), st.integers(0, 2**32 - 1))
@settings(max_examples=50, deadline=None)
def test_signs_survive_packing_and_unpacking(n, n_bytes, seed):
    signs = np.random.default_rng(seed).choice([-1, 1], size=(n, 8 * n_bytes))
    codes = pack(signs)
    assert codes.shape == (n, n_bytes)
    assert codes.dtype == np.uint8
    np.testing.assert_array_equal(unpack(codes, np.int8), signs)


def test_the_first_bit_is_the_highest_of_the_first_byte():
    signs = -np.ones((1, 16))
    signs[0, 0] = signs[0, 15] = 1
    np.testing.assert_array_equal(pack(signs), [[128, 1]])


def test_a_number_of_bits_not_divisible_by_8_is_refused():
    with pytest.raises(ValueError, match="must be a multiple of 8; got 12"):
        pack(np.ones((2, 12)))


@pytest.mark.parametrize("n_bytes", [1, 8, 20])
def test_words_hold_the_bytes_of_a_code_padded_with_zeros(n_bytes):
    codes = random_codes(5, n_bytes)
    words = as_words(codes)
    assert words.shape == (5, -(-n_bytes // 8))
    back = words.view(np.uint8)
    np.testing.assert_array_equal(back[:, :n_bytes], codes)
    assert not back[:, n_bytes:].any()


@pytest.mark.parametrize(("n", "c", "n_bytes"), [shape for shape in SHAPES if shape[0]])
def test_hamming_distances_agree_with_scipy(n, c, n_bytes):
    codes, centers = random_codes(n, n_bytes, 1), random_codes(c, n_bytes, 2)
    weights = np.random.default_rng(3).random(8 * n_bytes)
    plain = cdist(bits_of(codes), bits_of(centers), "hamming") * 8 * n_bytes
    weighted = cdist(bits_of(codes), bits_of(centers), "minkowski", p=1, w=weights)
    np.testing.assert_array_equal(hamming_distances(codes, centers), plain.round().astype(int))
    np.testing.assert_array_equal(hamming_distances_numpy(codes, centers), plain.round().astype(int))
    np.testing.assert_allclose(hamming_distances(codes, centers, weights), weighted, rtol=1e-5)
    np.testing.assert_allclose(hamming_distances_numpy(codes, centers, weights), weighted, rtol=1e-12)


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 20), st.booleans(), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_nearest_centers_agree_with_numpy_for_any_shape(n, c, n_bytes, weighted, seed):
    codes, centers = random_codes(n, n_bytes, seed), random_codes(c, n_bytes, seed + 1)
    weights = np.random.default_rng(seed).integers(0, 5, 8 * n_bytes).astype(float) if weighted else None
    labels, distances = nearest_centers(codes, centers, weights)
    expected_labels, expected_distances = nearest_centers_numpy(codes, centers, weights)
    np.testing.assert_array_equal(labels, expected_labels)
    np.testing.assert_array_equal(distances, expected_distances)


@pytest.mark.parametrize("weights", [None, np.arange(1.0, 25.0)])
def test_among_equal_centers_the_lowest_index_wins(weights):
    codes = random_codes(30, 3)
    far = ~codes[:1]
    centers = np.concatenate([far, codes[:1], codes[:1], far])
    assert nearest_centers(codes[:1], centers, weights)[0].tolist() == [1]
    same = np.repeat(codes[:1], 5, axis=0)
    assert nearest_centers(codes, same, weights)[0].tolist() == [0] * 30


@pytest.mark.parametrize(("n", "c", "n_bytes"), [shape for shape in SHAPES if shape[0]])
@pytest.mark.parametrize("weighted", [False, True])
def test_costs_with_one_more_center_agree_with_numpy(n, c, n_bytes, weighted):
    codes, candidates = random_codes(n, n_bytes, 1), random_codes(c, n_bytes, 2)
    rng = np.random.default_rng(3)
    bit_weights = rng.random(8 * n_bytes) if weighted else None
    closest, mass = rng.integers(4 * n_bytes, size=n).astype(float), rng.random(n)
    distances = hamming_distances_numpy(codes, candidates, bit_weights)
    expected = (mass[:, None] * np.minimum(distances, closest[:, None])).sum(0)
    np.testing.assert_allclose(costs_with(codes, candidates, closest, mass, bit_weights), expected, rtol=1e-5)


@pytest.mark.parametrize(("n", "c", "n_bytes"), SHAPES)
@pytest.mark.parametrize("weighted", [False, True])
def test_cluster_bit_sums_agree_with_numpy(n, c, n_bytes, weighted):
    rng = np.random.default_rng(1)
    codes, labels = random_codes(n, n_bytes), rng.integers(c, size=n).astype(np.int32)
    weights = rng.random(n) if weighted else None
    sums = cluster_bit_sums(codes, labels, c, weights)
    assert sums.shape == (c, 8 * n_bytes)
    assert sums.dtype == (np.float64 if weighted else np.int64)
    expected = cluster_bit_sums_numpy(codes, labels, c, weights)
    np.testing.assert_allclose(sums, expected, rtol=0, atol=1e-12 * n * weighted)


def test_cluster_bit_sums_are_the_sums_of_the_signs_of_each_cluster():
    codes = np.array([[0b11110000], [0b11000000], [0b00000001]], np.uint8)
    sums = cluster_bit_sums(codes, np.array([0, 0, 2], np.int32), 3)
    np.testing.assert_array_equal(
        sums, [[2, 2, 0, 0, -2, -2, -2, -2], [0] * 8, [-1, -1, -1, -1, -1, -1, -1, 1]]
    )  # an empty cluster has no sum


@pytest.fixture(scope="module")
def many():
    """More rows than two pieces, so that three threads have work and the last piece is short."""
    n, c, n_bytes = 2 * ROWS_PER_PIECE + 77, 3, 5
    rng = np.random.default_rng(0)
    return {
        "codes": random_codes(n, n_bytes),
        "centers": random_codes(c, n_bytes, 1),
        "bit_weights": rng.random(8 * n_bytes),
        "labels": rng.integers(c, size=n).astype(np.int32),
        "sample_weight": rng.random(n),
    }


@pytest.mark.parametrize("weighted", [False, True])
def test_many_rows_agree_with_numpy_and_do_not_depend_on_the_threads(many, weighted):
    codes, centers, labels = many["codes"], many["centers"], many["labels"]
    bit_weights = many["bit_weights"] if weighted else None
    sample_weight = many["sample_weight"] if weighted else None

    distances = hamming_distances(codes, centers, bit_weights)
    nearest, closest = nearest_centers(codes, centers, bit_weights)
    sums = cluster_bit_sums(codes, labels, 3, sample_weight)
    np.testing.assert_allclose(distances, hamming_distances_numpy(codes, centers, bit_weights), rtol=1e-5 * weighted)
    np.testing.assert_array_equal(nearest, distances.argmin(1))
    np.testing.assert_array_equal(closest, distances.min(1))
    expected = cluster_bit_sums_numpy(codes, labels, 3, sample_weight)
    np.testing.assert_allclose(sums, expected, rtol=0, atol=1e-6 * weighted)

    for n_threads in (2, 3):
        np.testing.assert_array_equal(hamming_distances(codes, centers, bit_weights, n_threads), distances)
        again = nearest_centers(codes, centers, bit_weights, n_threads)
        np.testing.assert_array_equal(again[0], nearest)
        np.testing.assert_array_equal(again[1], closest)
        np.testing.assert_array_equal(cluster_bit_sums(codes, labels, 3, sample_weight, n_threads), sums)


def test_a_kernel_works_without_a_writable_numba_cache(monkeypatch):
    monkeypatch.setattr("numba.core.caching.CacheImpl._locator_classes", [])

    def one_more(number):
        return number + 1

    assert kernel()(one_more)(1) == 2

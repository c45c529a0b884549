"""Table look-ups find the nearest center."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitmosaic.hamming import codes as bits
from bitmosaic.hamming import kernels

pytestmark = pytest.mark.skipif(not kernels.available(), reason="this processor has no AVX2")


def by_tables(codes, centers):
    labels, distances = np.empty((2, len(codes)), np.int32)
    blocks = kernels.center_blocks(centers)
    kernels.nearest_centers_by_tables(codes, kernels.HALF_BYTE_DISTANCES, blocks, labels, distances)
    return labels, distances


@settings(deadline=None, max_examples=30)
@given(
    st.integers(1, 9),
    st.sampled_from([1, 2, 39, 127, 128, 129, 256, 300]),
    st.sampled_from([1, 2, 8, 16, 31]),
    st.integers(0, 10**6),
)
def test_labels_and_distances_are_those_of_numpy(n, c, n_bytes, seed):
    rng = np.random.default_rng(seed)
    codes = rng.integers(256, size=(n, n_bytes), dtype=np.uint8)
    centers = rng.integers(256, size=(c, n_bytes), dtype=np.uint8)
    codes[0], centers[-1] = 0, 255  # as far apart as can be
    labels, distances = by_tables(codes, centers)
    expected_labels, expected_distances = bits.nearest_centers_numpy(codes, centers)
    np.testing.assert_array_equal(labels, expected_labels)
    np.testing.assert_array_equal(distances, expected_distances)


def test_among_equals_the_lowest_index_wins_across_blocks():
    centers = np.full((260, 16), 255, np.uint8)
    centers[[130, 131, 259]] = 0
    assert by_tables(np.zeros((3, 16), np.uint8), centers)[0].tolist() == [130] * 3


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 9),
    st.sampled_from([1, 2, 39, 128, 129, 300]),
    st.sampled_from([1, 2, 8, 16, 31]),
    st.sampled_from(["equal", "spread", "one", "tiny"]),
    st.integers(0, 10**6),
)
def test_weighted_labels_and_distances_are_those_of_comparing_all_in_full(n, c, n_bytes, kind, seed):
    rng = np.random.default_rng(seed)
    codes = rng.integers(256, size=(n, n_bytes), dtype=np.uint8)
    centers = codes[rng.integers(n, size=c)] ^ rng.choice([0, 0, 1, 16, 255], size=(c, n_bytes)).astype(np.uint8)
    weights = {
        "equal": np.ones(8 * n_bytes),
        "spread": rng.exponential(size=8 * n_bytes) ** 3 + 1e-3,
        "one": np.eye(8 * n_bytes)[0],
        "tiny": np.full(8 * n_bytes, 1e-30),
    }[kind]
    tables, blocks = kernels.weighted_tables(weights), kernels.center_blocks(centers)
    found = np.empty(n, np.int32), np.empty(n, np.float32)
    known = np.empty(n, np.int32), np.empty(n, np.float32)
    kernels.nearest_weighted_by_tables(codes, *tables, blocks, *found)
    kernels.nearest_weighted(codes, bits.half_byte_table(centers, weights), *known)
    np.testing.assert_array_equal(found[0], known[0])
    np.testing.assert_array_equal(found[1], known[1])


def test_codes_far_from_all_centers_are_compared_with_each():
    centers = np.full((260, 16), 255, np.uint8)
    centers[200, 0] = 254  # a bit nearer, beyond the reach of a byte
    tables, blocks = kernels.weighted_tables(np.linspace(1, 2, 128)), kernels.center_blocks(centers)
    labels, distances = np.empty(3, np.int32), np.empty(3, np.float32)
    kernels.nearest_weighted_by_tables(np.zeros((3, 16), np.uint8), *tables, blocks, labels, distances)
    assert labels.tolist() == [200] * 3


def test_tables_are_used_only_for_many_pairs(monkeypatch):
    rng = np.random.default_rng(0)
    codes, centers = (rng.integers(256, size=(n, 16), dtype=np.uint8) for n in (3000, 50))
    used = []
    real = kernels.center_blocks
    monkeypatch.setattr(kernels, "center_blocks", lambda c: used.append(len(c)) or real(c))
    fast = bits.nearest_centers(codes, centers, n_threads=2)
    assert used == [50]
    monkeypatch.setattr(kernels, "available", lambda: False)
    plain = bits.nearest_centers(codes, centers)
    for found, known in zip(fast, plain, strict=True):
        np.testing.assert_array_equal(found, known)
        assert found.dtype == known.dtype
    bits.nearest_centers(np.tile(codes, 2), np.tile(centers, 2))  # 256 bits: a distance would not fit into a byte
    assert used == [50]

"""Diverse samples: balanced over clusters, diverse within them."""

import numpy as np
import pytest
from crowded_codes import crowded_codes
from hypothesis import given, settings
from hypothesis import strategies as st

from bitmosaic.errors import InvalidDataError, ParameterError
from bitmosaic.hamming.codes import nearest_centers
from bitmosaic.hamming.sampling import balanced_shares, diverse_sample


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.data())
@settings(max_examples=40, deadline=None)
def test_shares_are_equal_but_for_small_clusters_which_are_whole(sizes, data):
    n = data.draw(st.integers(0, sum(sizes)))
    shares = balanced_shares(sizes, n)
    assert shares.sum() == n
    assert (shares <= sizes).all()
    for share, size in zip(shares, sizes, strict=True):
        assert share == size or share >= shares.max() - 1


@given(st.integers(1, 80), st.integers(1, 5), st.integers(0, 2**32 - 1), st.data())
@settings(max_examples=30, deadline=None)
def test_a_sample_has_each_row_once_and_as_many_of_each_cluster_as_its_share(n, n_clusters, seed, data):
    codes = crowded_codes(n, 4, seed)
    labels = np.random.default_rng(seed).integers(n_clusters, size=n) * 3  # numbers with gaps
    count = data.draw(st.integers(1, n))
    rows = diverse_sample(codes, labels, count, seed=seed)
    assert len(set(rows.tolist())) == count == len(rows)
    numbers, sizes = np.unique(labels, return_counts=True)
    drawn = np.array([(labels[rows] == number).sum() for number in numbers])
    np.testing.assert_array_equal(drawn, balanced_shares(sizes, count))


def test_the_most_central_of_each_cluster_come_first():
    codes, labels = crowded_codes(200, 8, 0), np.arange(200) % 4
    distances = np.random.default_rng(0).random(200)
    rows = diverse_sample(codes, labels, 40, distances)
    nearest = [np.flatnonzero(labels == number)[distances[labels == number].argmin()] for number in range(4)]
    assert rows[:4].tolist() == nearest
    assert labels[rows[:40]].tolist() == [0, 1, 2, 3] * 10


def test_same_seed_same_sample_whatever_the_threads():
    codes, labels = crowded_codes(9000, 16, 1), np.arange(9000) % 3
    rows = diverse_sample(codes, labels, 90, seed=5)
    np.testing.assert_array_equal(rows, diverse_sample(codes, labels, 90, seed=5, n_threads=3))
    assert set(rows.tolist()) != set(diverse_sample(codes, labels, 90, seed=6).tolist())


def coverage(codes, rows):
    """Mean distance in bits of a code to the nearest chosen row."""
    return float(nearest_centers(codes, codes[np.asarray(rows)])[1].mean())


def test_a_sample_covers_all_codes_better_than_a_random_one():
    rng = np.random.default_rng(0)
    centers = rng.integers(256, size=(40, 16), dtype=np.uint8)
    kind = rng.choice(40, size=4000, p=np.arange(40, 0, -1) ** 2.0 / (np.arange(40, 0, -1) ** 2.0).sum())
    codes = centers[kind] ^ np.packbits(rng.random((4000, 128)) < 0.08, axis=1)
    rows = diverse_sample(codes, kind % 4, 60)
    chance = [coverage(codes, rng.choice(4000, 60, replace=False)) for _ in range(10)]
    assert coverage(codes, rows) < min(chance) - 0.5


def test_of_equal_codes_any_may_be_taken_but_none_twice():
    rows = diverse_sample(np.zeros((30, 2), np.uint8), np.zeros(30, int), 20)
    assert len(set(rows.tolist())) == 20


def test_invalid_sample_sizes_are_refused():
    codes = crowded_codes(10, 2, 0)
    with pytest.raises(ParameterError, match="from 1 to the number of images, 10; got 11"):
        diverse_sample(codes, np.zeros(10), 11)
    with pytest.raises(ParameterError, match="got 0"):
        diverse_sample(codes, np.zeros(10), 0)
    with pytest.raises(InvalidDataError, match="for each of 10 codes"):
        diverse_sample(codes, np.zeros(9), 3)

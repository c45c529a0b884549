"""Pruned nearest centers: the same labels as a full comparison."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitmosaic.hamming import codes as bits
from bitmosaic.hamming import kernels
from bitmosaic.hamming.codes import as_words, assign_codes, hamming_distances_numpy, nearest_centers_numpy


@pytest.fixture(scope="module", autouse=True)
def small_pieces():
    """Pieces of a few rows, so that small data are cut and spread over threads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bits, "ROWS_PER_PIECE", 16)
        patch.setattr(bits, "CENTERS_PER_PIECE", 3)
        yield


@st.composite
def changing_centers(draw):
    """Codes, and centers that change step by step: none, one, some or all of them, by a bit or altogether."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_bytes, n, c = draw(st.sampled_from([1, 2, 9])), draw(st.integers(1, 80)), draw(st.integers(1, 60))
    mask = np.uint8(draw(st.sampled_from([0b11, 0b1111, 0xFF])))  # few bits: many ties, equal codes, empty clusters
    codes = rng.integers(256, size=(n, n_bytes), dtype=np.uint8) & mask
    steps = [rng.integers(256, size=(c, n_bytes), dtype=np.uint8) & mask]
    for share in draw(st.lists(st.sampled_from([0.0, 0.05, 0.3, 1.0]), min_size=1, max_size=4)):
        centers = steps[-1].copy()
        changed = rng.random(c) < share
        if draw(st.booleans()):
            centers[changed] = codes[rng.integers(n, size=changed.sum())]
        else:
            centers[changed, rng.integers(n_bytes)] ^= np.uint8(1 << rng.integers(8)) & mask
        steps.append(centers)
    return codes, steps


@settings(deadline=None, max_examples=100)
@given(changing_centers(), st.sampled_from([1, 2, 7, 128]), st.sampled_from([0, 1, 8]), st.sampled_from([1, 2, 3]))
def test_labels_and_distances_are_those_of_numpy_however_the_centers_change(data, near, codes_for_near, n_threads):
    codes, steps = data
    found = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bits, "NEAR", near)
        patch.setattr(bits, "CODES_FOR_NEAR", codes_for_near)
        for centers in steps:
            found = assign_codes(codes, centers, None, n_threads, before=found)
            labels, distances = nearest_centers_numpy(codes, centers)
            np.testing.assert_array_equal(found.labels, labels)
            np.testing.assert_array_equal(found.distances, distances)
            np.testing.assert_array_equal(found.centers, centers)


def test_a_code_between_two_centers_gets_the_lowest_index():
    codes = np.array([[0b00000000]], np.uint8)
    before = assign_codes(codes, np.array([[0b111], [0b001], [0b010]], np.uint8))
    assert before.labels.tolist() == [1]
    for changed in ([[0b100], [0b001], [0b010]], [[0b100], [0b010], [0b001]]):
        assert assign_codes(codes, np.array(changed, np.uint8), before=before).labels.tolist() == [0]
    farther = np.array([[0b111], [0b011], [0b010]], np.uint8)  # its own center leaves: the third stayed and is nearer
    assert assign_codes(codes, farther, before=before).labels.tolist() == [2]


def test_the_previous_assignment_is_not_modified_and_returned_if_nothing_changed():
    rng = np.random.default_rng(0)
    codes, centers = (rng.integers(256, size=(n, 4), dtype=np.uint8) for n in (200, 20))
    before = assign_codes(codes, centers)
    copies = before.labels.copy(), before.distances.copy()
    assert assign_codes(codes, centers.copy(), before=before) is before
    assign_codes(codes, ~centers, before=before)
    np.testing.assert_array_equal(before.labels, copies[0])
    np.testing.assert_array_equal(before.distances, copies[1])


@pytest.mark.parametrize("weighted_before", [False, True])
def test_with_bit_weights_before_or_now_everything_is_compared(weighted_before):
    rng = np.random.default_rng(0)
    codes, centers = (rng.integers(256, size=(n, 2), dtype=np.uint8) for n in (50, 6))
    weights = 2.0 ** np.arange(16)
    before = assign_codes(codes, ~centers, weights if weighted_before else None)
    now = None if weighted_before else weights
    found = assign_codes(codes, centers, now, before=before)
    labels, distances = nearest_centers_numpy(codes, centers, now)
    np.testing.assert_array_equal(found.labels, labels)
    np.testing.assert_array_equal(found.distances, distances)


def test_few_pairs_are_compared_for_separated_clusters(monkeypatch):
    rng = np.random.default_rng(0)
    centers = rng.integers(256, size=(50, 16), dtype=np.uint8)
    codes = np.repeat(centers, 40, axis=0) ^ np.packbits(rng.random((2000, 128)) < 0.05, axis=1)
    before = assign_codes(codes, centers)
    searched = []
    real = kernels.follow_centers

    def watch(*arguments):
        real(*arguments)
        searched.append(np.count_nonzero(arguments[-1]))

    monkeypatch.setattr(kernels, "follow_centers", watch)
    assign_codes(codes, centers ^ np.uint8(1), before=before)  # each of them changed
    assert sum(searched) == 0


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 30), st.integers(1, 12), st.booleans(), st.integers(0, 10**6))
def test_the_list_of_a_center_holds_every_other_within_its_reach_in_order(c, most, alike, seed):
    rng = np.random.default_rng(seed)
    centers = rng.integers(256, size=(c, 3), dtype=np.uint8) & np.uint8(0b111 if alike else 0xFF)
    among = np.flatnonzero(rng.random(c) < 0.7).astype(np.int32)
    near, gaps = np.empty((2, c, most), np.int32)
    reach = np.empty(c, np.int32)
    kernels.near_centers(as_words(centers), 0, among, near, gaps, reach)
    distances = hamming_distances_numpy(centers, centers)
    for a in range(c):
        others = among[among != a]
        within = others[distances[a, others] <= reach[a]]
        assert sorted(near[a, : within.size]) == sorted(within)
        np.testing.assert_array_equal(gaps[a, : within.size], np.sort(distances[a, within]))
        assert (gaps[a, within.size :] == kernels.FAR).all()
        assert np.count_nonzero(distances[a, others] <= reach[a] + 1) > most or reach[a] == 64

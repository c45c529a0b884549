"""Groups of copies from perceptual hashes, compared with brute force."""

import numpy as np
from crowded_codes import crowded_codes
from hypothesis import given, settings
from hypothesis import strategies as st

from bitmosaic.hamming.codes import hamming_distances_numpy
from bitmosaic.pipeline import duplicates as module
from bitmosaic.pipeline.duplicates import copy_groups


@given(st.integers(0, 50), st.integers(0, 20), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_groups_are_disjoint_and_near_their_first_row_and_cover_all_pairs(n, radius, seed):
    hashes = crowded_codes(n, 16, seed)
    used, groups = copy_groups(hashes, radius)
    assert used == radius
    members = [row for group in groups for row in group.tolist()]
    assert len(members) == len(set(members))
    distances = hamming_distances_numpy(hashes, hashes)
    for group in groups:
        assert len(group) > 1
        assert (distances[group[0], group] <= radius).all()
    alone = [row for row in range(n) if row not in members]
    assert not (np.triu(distances[np.ix_(alone, alone)] <= radius, 1)).any()


def test_equal_hashes_form_one_group_with_near_hashes():
    hashes = np.random.default_rng(0).integers(256, size=(20_100, 16), dtype=np.uint8)
    hashes[:20_000] = hashes[0]
    hashes[20_000:20_003] = hashes[0] ^ np.array([7] + [0] * 15, np.uint8)
    _, groups = copy_groups(hashes, 3)
    assert [sorted(group.tolist()) for group in groups] == [list(range(20_003))]


def test_extra_pairs_join_all_rows_with_equal_hashes():
    hashes = np.random.default_rng(1).integers(256, size=(8, 16), dtype=np.uint8)
    hashes[5] = hashes[1]
    _, groups = copy_groups(hashes, 4, np.array([[1, 6], [2, 3]]), np.array([0.2, 0.1]))
    assert [sorted(group.tolist()) for group in groups] == [[1, 5, 6], [2, 3]]


def test_groups_are_sorted_by_their_nearest_pair():
    hashes = np.random.default_rng(2).integers(256, size=(9, 16), dtype=np.uint8)
    hashes[8] = hashes[3] ^ np.array([1] + [0] * 15, np.uint8)
    hashes[7] = hashes[4] ^ np.array([3] + [0] * 15, np.uint8)
    hashes[6] = hashes[5]
    _, groups = copy_groups(hashes)
    assert [group.tolist() for group in groups] == [[5, 6], [3, 8], [4, 7]]
    shuffled = np.random.default_rng(3).permutation(9)
    _, again = copy_groups(hashes[shuffled])
    assert [sorted(shuffled[group].tolist()) for group in again] == [[5, 6], [3, 8], [4, 7]]


def test_a_radius_that_takes_too_long_is_reduced_and_returned(monkeypatch):
    monkeypatch.setattr(module, "MOST_COMPARISONS", 40_000)
    assert 0 < copy_groups(crowded_codes(3000, 16, 0), 16)[0] < 16


def test_too_many_pairs_reduce_the_radius(monkeypatch):
    monkeypatch.setattr(module, "MOST_PAIRS", 1000)
    rng = np.random.default_rng(0)
    hashes = np.packbits(rng.random((300, 128)) < 0.04, axis=1)  # all within some 10 bits of each other
    radius, groups = copy_groups(hashes, 12)
    assert radius < 12
    assert sum(map(len, groups)) < 300

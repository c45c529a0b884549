"""Groups of copies from fingerprints, against comparing all with all."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitmosaic import copies as module
from bitmosaic.codes import hamming_distances_numpy
from bitmosaic.copies import copy_groups
from bitmosaic.errors import ParameterError
from crowded_codes import crowded_codes


@given(st.integers(0, 50), st.integers(0, 20), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_groups_are_near_their_first_share_nothing_and_leave_no_pair_out(n, radius, seed):
    prints = crowded_codes(n, 16, seed)
    used, groups = copy_groups(prints, radius)
    assert used == radius
    members = [row for group in groups for row in group.tolist()]
    assert len(members) == len(set(members))
    distances = hamming_distances_numpy(prints, prints)
    for group in groups:
        assert len(group) > 1
        assert (distances[group[0], group] <= radius).all()
    alone = [row for row in range(n) if row not in members]
    assert not (np.triu(distances[np.ix_(alone, alone)] <= radius, 1)).any()


def test_many_equal_fingerprints_are_one_group_with_those_near_them():
    prints = np.random.default_rng(0).integers(256, size=(20_100, 16), dtype=np.uint8)
    prints[:20_000] = prints[0]
    prints[20_000:20_003] = prints[0] ^ np.array([7] + [0] * 15, np.uint8)
    _, groups = copy_groups(prints, 3)
    assert [sorted(group.tolist()) for group in groups] == [list(range(20_003))]


def test_pairs_found_elsewhere_are_joined_with_all_their_equals():
    prints = np.random.default_rng(1).integers(256, size=(8, 16), dtype=np.uint8)
    prints[5] = prints[1]
    _, groups = copy_groups(prints, 4, np.array([[1, 6], [2, 3]]), np.array([0.2, 0.1]))
    assert [sorted(group.tolist()) for group in groups] == [[1, 5, 6], [2, 3]]


def test_the_surest_groups_come_first_whatever_the_bits():
    prints = np.random.default_rng(2).integers(256, size=(9, 16), dtype=np.uint8)
    prints[8] = prints[3] ^ np.array([1] + [0] * 15, np.uint8)
    prints[7] = prints[4] ^ np.array([3] + [0] * 15, np.uint8)
    prints[6] = prints[5]
    _, groups = copy_groups(prints)
    assert [group.tolist() for group in groups] == [[5, 6], [3, 8], [4, 7]]
    shuffled = np.random.default_rng(3).permutation(9)
    _, again = copy_groups(prints[shuffled])
    assert [sorted(shuffled[group].tolist()) for group in again] == [[5, 6], [3, 8], [4, 7]]


def test_a_radius_that_takes_too_long_is_reduced_and_told(monkeypatch):
    monkeypatch.setattr(module, "MOST_COMPARISONS", 40_000)
    assert 0 < copy_groups(crowded_codes(3000, 16, 0), 16)[0] < 16


@pytest.mark.parametrize("radius", [-1, 128])
def test_a_radius_is_a_number_of_bits(radius):
    with pytest.raises(ParameterError, match=rf"from 0 to 127; got {radius}"):
        copy_groups(np.zeros((3, 16), np.uint8), radius)


def test_where_there_are_too_many_pairs_the_radius_is_smaller_and_said(monkeypatch):
    monkeypatch.setattr(module, "MOST_PAIRS", 1000)
    rng = np.random.default_rng(0)
    prints = np.packbits(rng.random((300, 128)) < 0.04, axis=1)  # all within some 10 bits of each other
    radius, groups = copy_groups(prints, 12)
    assert radius < 12
    assert sum(map(len, groups)) < 300

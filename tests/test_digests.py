"""Digests: the same for the same content, found again among many, and told apart where half of one is the same."""

import numpy as np

from bitmosaic.digests import KnownPictures, digests_of

RNG = np.random.default_rng(0)
PICTURES = [RNG.integers(256, size=(4, 5, 3), dtype=np.uint8) for _ in range(70)]


def test_a_digest_is_that_of_shape_and_pixels_whatever_the_threads():
    one = digests_of(PICTURES, 1)
    assert one.shape == (70, 16)
    np.testing.assert_array_equal(one, digests_of(PICTURES, 3))
    np.testing.assert_array_equal(one[3], digests_of([PICTURES[3].copy(order="F")])[0])
    assert (digests_of([PICTURES[3].reshape(5, 4, 3)])[0] != one[3]).any()
    assert len(np.unique(one, axis=0)) == 70
    assert digests_of([]).shape == (0, 16)


def test_known_pictures_are_found_in_any_part_and_among_the_new_ones():
    digests = digests_of(PICTURES)
    names = [f"old{row}" for row in range(200)]
    known = KnownPictures([(10, digests[:20]), (100, digests[20:30])], names.__getitem__)
    some = digests[[25, 40, 3, 41, 40]]
    new, same = known.sort_out(some, ["a", "b", "c", "d", "e"])
    assert new.tolist() == [1, 3]
    assert same == [("a", "old105"), ("c", "old13"), ("e", "b")]
    assert known.sort_out(digests[[41]], ["f"])[1] == [("f", "d")]


def test_half_a_digest_is_not_enough():
    digests = digests_of(PICTURES[:2])
    half = digests[:1].copy()
    half[0, 15] ^= 1
    known = KnownPictures([(0, np.concatenate([half, digests[:1]]))], ["half", "whole"].__getitem__)
    assert known.sort_out(digests[:1], ["a"])[1] == [("a", "whole")]
    half[0, 15] ^= 2
    assert known.sort_out(half, ["b"])[0].tolist() == [0]


def test_nothing_is_known_where_there_are_no_digests():
    new, same = KnownPictures([], str).sort_out(digests_of(PICTURES[:2]), ["a", "b"])
    assert (new.tolist(), same) == ([0, 1], [])

"""Fixed-point sums: the same in every order and grouping, and as exact as float64."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bitmosaic.solver.blocks import Sums


def parts_of(rng, count, n_rows):
    """Float parts whose rows add up to less than two each, and a whole number."""
    rows = n_rows // count
    return [
        [rng.uniform(-2 * rows, 2 * rows, (3, 4)).astype(kind), int(rng.integers(9))]
        for kind in rng.choice([np.float32, np.float64], count)
    ]


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.sampled_from([30, 20_000, 10**7, 10**9]))
def test_sums_do_not_depend_on_order_or_grouping_and_are_exact(seed, count, n_rows):
    rng = np.random.default_rng(seed)
    parts = parts_of(rng, count, n_rows)
    straight = Sums(n_rows)
    for part in parts:
        straight.add(part)

    groups = [Sums(n_rows) for _ in range(4)]
    for number in rng.permutation(count):
        groups[rng.integers(4)].add(parts[number])
    merged = Sums(n_rows)
    for number in rng.permutation(4):
        merged.merge(groups[number])

    total, whole = merged.values()
    np.testing.assert_array_equal(total, straight.values()[0])
    assert whole == straight.values()[1] == sum(part[1] for part in parts)
    expected = np.sum([part[0].astype(np.float64) for part in parts], axis=0)
    np.testing.assert_allclose(total, expected, rtol=1e-12, atol=count / straight.scale + 1e-12 * n_rows)


def test_the_largest_sums_of_a_billion_rows_fit():
    sums = Sums(10**9)
    for _ in range(1000):
        sums.add([np.full(5, 2e6), 10**14])
    np.testing.assert_array_equal(sums.values()[0], 2e9)
    assert sums.values()[1] == 10**17


def test_a_sum_of_nothing_can_be_merged():
    some, none = Sums(10), Sums(10)
    some.add([np.ones(2)])
    some.merge(none)
    none.merge(some)
    np.testing.assert_array_equal(none.values()[0], [1, 1])
    assert Sums(10).values() == []

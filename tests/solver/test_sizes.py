"""Nearest centers under size limits, exact and greedy. Both meet the limits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from bitmosaic.hamming.codes import hamming_distances_numpy, nearest_centers
from bitmosaic.solver.constrained import clustering as sizes
from bitmosaic.solver.constrained.clustering import STEPS, rank_among_ties, within, within_greedy

a_case = settings(deadline=None, max_examples=80)


@st.composite
def limited(draw):
    """Codes, centers, bit weights or None, constrained rows, feasible limits of the others, labels and prices."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, c, b = draw(st.integers(1, 14)), draw(st.integers(1, 5)), draw(st.sampled_from([1, 3, 8, 16]))
    codes, centers = (rng.integers(256, size=(size, b), dtype=np.uint8) for size in (n, c))
    if draw(st.booleans()):  # few distinct values, so that ties are common
        codes, centers = codes & np.uint8(1), centers & np.uint8(1)
    weights = rng.uniform(0.01, 2, 8 * b) if draw(st.booleans()) else None
    constrained = rng.random(n) < draw(st.sampled_from([0, 0.3]))
    counts = np.bincount(rng.integers(c, size=(~constrained).sum()), minlength=c)  # a feasible assignment
    low = np.maximum(counts - rng.integers(3, size=c), 0)
    high = counts + rng.integers(3, size=c)
    labels = nearest_centers(codes, centers, weights)[0]
    prices = rng.integers(-4, 5, c).astype(float) if draw(st.booleans()) else np.zeros(c)
    return codes, centers, weights, constrained, low, high, labels, prices


def lowest_cost(distances, low, high):
    """By slots in clusters, of which the first `low` must be used."""
    places = np.repeat(np.arange(len(low)), high)
    must = np.concatenate([np.arange(h) < l for l, h in zip(low, high, strict=True)])
    rows, taken = linear_sum_assignment(distances[:, places] - 1e6 * must)
    return distances[rows, places[taken]].sum()


def assert_met(labels, constrained, low, high, before):
    counts = np.bincount(labels[~constrained], minlength=len(low))
    assert (counts >= low).all()
    assert (counts <= high).all()
    np.testing.assert_array_equal(labels[constrained], before[constrained])


@a_case
@given(limited())
def test_limits_are_met_at_the_lowest_cost_from_any_prices(case):
    codes, centers, weights, constrained, low, high, labels, _ = case
    found, _ = within(*case)
    assert_met(found, constrained, low, high, labels)
    rounded = None if weights is None else np.rint(weights * STEPS / weights.mean())
    distances = hamming_distances_numpy(codes, centers, rounded)[~constrained]
    cost = distances[np.arange(len(distances)), found[~constrained]].sum()
    assert cost == pytest.approx(lowest_cost(distances, low, high))


@a_case
@given(limited())
def test_the_greedy_version_meets_the_limits(case):
    codes, centers, weights, constrained, low, high, labels, _ = case
    assert_met(within_greedy(codes, centers, weights, constrained, low, high, labels), constrained, low, high, labels)


def crowded(n=6000, c=6, seed=0):
    rng = np.random.default_rng(seed)
    centers = rng.integers(256, size=(c, 8), dtype=np.uint8)
    owners = rng.choice(c, n, p=np.arange(1, c + 1) / (c * (c + 1) / 2))
    noise = np.packbits(rng.random((n, 64)) < 0.3, axis=1)
    return centers[owners] ^ noise, centers


@pytest.mark.parametrize("weighted", [False, True])
def test_neither_threads_nor_a_sample_for_first_prices_change_the_lowest_cost(monkeypatch, weighted):
    codes, centers = crowded()
    weights = np.random.default_rng(1).uniform(0.5, 2, 64) if weighted else None
    labels, free, c = nearest_centers(codes, centers, weights)[0], np.zeros(len(codes), bool), len(centers)
    limits = np.full(c, 900), np.full(c, 1100)
    results = []
    for rows, n_threads in ((10**9, 1), (1000, 1), (1000, 2)):
        monkeypatch.setattr(sizes, "ROWS_PER_CLUSTER", rows)
        found, prices = within(codes, centers, weights, free, *limits, labels, np.zeros(c), n_threads)
        assert np.bincount(found).max() == 1100
        results.append((found, prices))
    far = [sizes.own_distances(codes, centers, weights, found).sum(dtype=float) for found, _ in results]
    assert far[0] == pytest.approx(far[1], rel=1e-4 if weighted else 1e-12)
    np.testing.assert_array_equal(results[1][0], results[2][0])
    rounds = within_greedy(codes, centers, weights, free, *limits, labels)
    assert far[0] <= sizes.own_distances(codes, centers, weights, rounds).sum(dtype=float) <= 1.02 * far[0]


def test_own_distances_agree_with_numpy():
    codes, centers = crowded(500)
    labels, weights = np.arange(500) % 6, np.arange(1.0, 65)
    every = np.arange(500)
    np.testing.assert_array_equal(
        sizes.own_distances(codes, centers, None, labels), hamming_distances_numpy(codes, centers)[every, labels]
    )
    np.testing.assert_allclose(
        sizes.own_distances(codes, centers, weights, labels),
        hamming_distances_numpy(codes, centers, weights)[every, labels],
        rtol=1e-5,
    )


def test_ranks_count_the_equal_values_before():
    np.testing.assert_array_equal(rank_among_ties(np.array([3, 1, 3, 3, 1])), [0, 0, 1, 2, 1])
    assert rank_among_ties(np.empty(0, int)).shape == (0,)

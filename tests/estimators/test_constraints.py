"""Contradicting constraints, and only these, raise an error with the reason and the rows."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitmosaic import BinaryKMeans, Constraints
from bitmosaic.errors import BitmosaicError, ConstraintError

REFUSED = {
    "linked and apart": (
        {"must_link": [(0, 1), (1, 2)], "cannot_link": [(0, 2)]},
        r"rows 0 and 2 are in one must-link group \(0, 1, 2\)",
    ),
    "a group fixed to two": (
        {"must_link": [(4, 5, 6)], "fixed": {4: 0, 6: 1}},
        r"rows 4 and 6 are fixed to clusters 0 and 1",
    ),
    "a group too large": (
        {"must_link": [(0, 1, 2, 3, 4)], "max_size": 4},
        r"rows 0, 1, 2, 3, 4 has 5 rows and max_size",
    ),
    "max too small": ({"max_size": 3}, r"3 × 3 is below 10. Raise max_size to 4"),
    "min too large": ({"min_size": 4}, r"4 × 3 is above 10. Lower min_size to 3"),
    "min above max": ({"min_size": 4, "max_size": 3}, r"min_size must not be above max_size; got 4 and 3"),
    "too many fixed": ({"fixed": dict.fromkeys(range(5), 1), "max_size": 4}, r"cluster 1 has 5 and max_size is 4"),
    "too few left": ({"fixed": dict.fromkeys(range(7), 1), "min_size": 2}, r"4 are needed and there are 3"),
    "a clique": (
        {"cannot_link": [(a, b) for a in (1, 3, 5, 7) for b in (1, 3, 5, 7) if a < b]},
        r"rows [1357, ]{10} must all be in different ones, got n_clusters=3",
    ),
    "fixed together and apart": (
        {"cannot_link": [(2, 3)], "fixed": {2: 0, 3: 0}},
        r"rows 2 and 3 are in cannot_link, and both belong to cluster 0",
    ),
    "no cluster left": (
        {"cannot_link": [(0, 1), (0, 2), (0, 3)], "fixed": {1: 0, 2: 1, 3: 2}},
        r"Found no way to meet the constraints.* row 0: it cannot .*, and fixed rows exclude it from 3 clusters",
    ),
    "groups that do not pack": (
        {"must_link": [(0, 1, 2), (3, 4, 5), (6, 7, 8)], "max_size": 4, "min_size": 2, "fixed": {0: 0, 3: 0}},
        r"cluster 0 has 6 and max_size is 4",
    ),
    "a cluster that is not": ({"fixed": {3: 3}}, r"clusters from 0 to 2 \(or -1 for none\); row 3 has 3"),
    "a row that is not": ({"must_link": [(0, 10)]}, r"must_link must hold rows from 0 to 9; got 10"),
    "apart from itself": ({"cannot_link": [(3, 3)]}, r"pairs of different rows; got 3, 3"),
    "a flat list": ({"must_link": [1, 2]}, r"pairs of row numbers; got 1"),
    "names": ({"must_link": [("a", "b")]}, r"pairs of row numbers; got \('a', 'b'\)"),
    "no list": ({"must_link": 7}, r"must_link must hold pairs of rows; got int"),
    "too short": ({"fixed": [0, -1]}, r"a cluster \(or -1\) for each of 10 rows; got shape \(2,\)"),
    "no numbers": ({"fixed": {1: 0.5}}, r"whole numbers of clusters; got float64"),
    "half a row": ({"max_size": 4.5}, r"max_size must be a whole number of rows, or None; got 4.5"),
}


@pytest.mark.parametrize("case", REFUSED, ids=lambda name: name.replace(" ", "-"))
def test_contradictions_raise_an_error_with_the_rows(case):
    what, message = REFUSED[case]
    with pytest.raises(ConstraintError, match=message) as caught:
        Constraints(**what).checked(10, 3)
    assert isinstance(caught.value, BitmosaicError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("nothing", [Constraints(), Constraints(min_size=0, max_size=10), Constraints([(4, 4)][:0])])
def test_empty_constraints_give_no_rules(nothing):
    assert nothing.checked(10, 3) is None


def test_groups_that_share_a_row_are_merged_and_links_of_a_row_to_itself_are_ignored():
    rules = Constraints(must_link=[(0, 1), (5, 5), (1, 2), (2, 0), (7, 8)]).checked(10, 3)
    np.testing.assert_array_equal(rules.unit_rows, [0, 1, 2, 7, 8])
    np.testing.assert_array_equal(rules.starts, [0, 3, 5])
    assert not rules.constrained[5]


def test_links_and_fixed_may_be_arrays_and_links_may_repeat():
    pairs = np.array([[0, 1], [1, 0], [0, 1]], np.uint8)
    fixed = np.full(10, -1)
    fixed[3] = 2
    rules = Constraints(cannot_link=pairs, fixed=fixed).checked(10, 3)
    np.testing.assert_array_equal(rules.links, [1, 0])
    np.testing.assert_array_equal(rules.fixed_rows, [3])
    assert rules.signature() == Constraints(cannot_link=[(1, 0)], fixed={3: 2}).checked(10, 3).signature()
    assert rules.signature() != Constraints(cannot_link=[(1, 0)], fixed={3: 1}).checked(10, 3).signature()


def test_rules_can_be_restricted_to_some_rows():
    every = Constraints([(0, 1, 2), (3, 4)], [(0, 3), (5, 6), (7, 9)], {9: 1}, 1, 8).checked(10, 3)
    some = every.subset(np.array([1, 2, 4, 5, 7, 9]))
    np.testing.assert_array_equal(some.unit_rows, [0, 1, 2, 4])  # 5 has lost its only link and is free
    np.testing.assert_array_equal(some.starts, [0, 2, 3, 4])
    np.testing.assert_array_equal(some.links, [1, 0])
    np.testing.assert_array_equal(some.forbidden, [1])
    np.testing.assert_array_equal(some.fixed_rows, [5])
    assert not some.limits_sizes


def obeys(labels, must, cannot, fixed, low, high, c):
    counts = np.bincount(labels, minlength=c)
    return (
        all(labels[a] == labels[b] for a, b in must)
        and all(labels[a] != labels[b] for a, b in cannot)
        and all(labels[row] == label for row, label in fixed.items())
        and counts.min() >= (low or 0)
        and counts.max() <= (high or len(labels))
    )


@st.composite
def small_problem(draw):
    n = draw(st.integers(2, 7))
    c = draw(st.integers(1, min(n, 3)))
    row = st.integers(0, n - 1)
    must = draw(st.lists(st.tuples(row, row), max_size=3))
    cannot = draw(st.lists(st.tuples(row, row).filter(lambda pair: pair[0] != pair[1]), max_size=5))
    fixed = draw(st.dictionaries(row, st.integers(0, c - 1), max_size=3))
    low, high = draw(st.none() | st.integers(0, 3)), draw(st.none() | st.integers(1, n))
    return n, c, must, cannot, fixed, low, high, draw(st.integers(0, 2**32 - 1))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@settings(deadline=None, max_examples=80)
@given(small_problem())
def test_a_fit_meets_the_constraints_unless_that_is_impossible(problem):
    n, c, must, cannot, fixed, low, high, seed = problem
    asked = (must, cannot, fixed, low, high)
    possible = any(obeys(np.array(labels), *asked, c) for labels in product(range(c), repeat=n))
    codes = np.random.default_rng(seed).integers(256, size=(n, 2), dtype=np.uint8)
    try:
        model = BinaryKMeans(c, n_init=2, random_state=0).fit(codes, constraints=Constraints(*asked))
    except ConstraintError:
        assert not possible
    else:
        assert obeys(model.labels_, *asked, c)


def test_further_attempts_find_labels_that_the_first_one_misses():
    """A cannot-link ring of ten rows in two clusters has only one solution."""
    ring = [(i, (i + 1) % 10) for i in range(10)]
    rules = Constraints(cannot_link=ring, must_link=[(1, 5)], min_size=5, max_size=5).checked(10, 2)
    labels = np.empty(10, int)
    rules.write_labels(rules.feasible_labels, labels)
    assert all(labels[a] != labels[b] for a, b in ring)
    with pytest.raises(ConstraintError, match="Found no way to meet the constraints"):
        Constraints(cannot_link=[(i, (i + 1) % 11) for i in range(11)]).checked(11, 2)


def test_links_from_an_iterator_can_be_used_twice():
    constraints = Constraints(must_link=zip([0, 2], [1, 3], strict=True), cannot_link=iter([(0, 2)]))
    assert constraints.checked(10, 3) is not None
    assert constraints.must_link == ((0, 1), (2, 3))
    assert constraints.cannot_link == ((0, 2),)

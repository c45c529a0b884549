"""Scores agree with scikit-learn and with direct counting. They do not depend on the names of labels."""

from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array
from sklearn.metrics import fowlkes_mallows_score, normalized_mutual_info_score
from sklearn.metrics.cluster import contingency_matrix, pair_confusion_matrix

from bitmosaic.errors import InvalidDataError
from bitmosaic.estimators.metrics import _n_pairs, _pair_f_score, clustering_scores

labelings = st.integers(1, 14).flatmap(lambda n: st.tuples(*[st.lists(st.integers(0, 4), min_size=n, max_size=n)] * 2))


def random_labels(n, n_classes, n_clusters, seed=0, agreement=0.5):
    rng = np.random.default_rng(seed)
    y_true = rng.integers(0, n_classes, n)
    return y_true, np.where(rng.random(n) < agreement, y_true % n_clusters, rng.integers(0, n_clusters, n))


@settings(deadline=None)
@given(labelings)
def test_acc_is_the_best_over_all_matchings(pair):
    y_true, y_pred = pair
    names = range(max(y_true + y_pred) + 1)
    best = max(sum(name[p] == t for t, p in zip(y_true, y_pred, strict=True)) for name in permutations(names))
    assert clustering_scores(y_true, y_pred)["acc"] == pytest.approx(best / len(y_true))


@settings(deadline=None)
@given(labelings)
def test_f_score_agrees_with_counting_pairs_one_by_one(pair):
    y_true, y_pred = pair
    found = right = both = 0
    for i, j in combinations(range(len(y_true)), 2):
        found += y_pred[i] == y_pred[j]
        right += y_true[i] == y_true[j]
        both += y_pred[i] == y_pred[j] and y_true[i] == y_true[j]
    precision, recall = both / found if found else 0.0, both / right if right else 0.0
    expected = 2 * precision * recall / (precision + recall) if both else float(found == right == 0)
    assert clustering_scores(y_true, y_pred)["f_score"] == pytest.approx(expected)


@pytest.mark.parametrize(("n_classes", "n_clusters"), [(10, 37), (37, 10), (300, 400)])
def test_scores_agree_with_scikit_learn_and_scipy_for_unequal_numbers(n_classes, n_clusters):
    y_true, y_pred = random_labels(20_000, n_classes, n_clusters)
    table = contingency_matrix(y_true, y_pred)
    (_, only_pred), (only_true, both) = pair_confusion_matrix(y_true, y_pred).tolist()
    scores = clustering_scores(y_true, y_pred)
    assert scores["acc"] == pytest.approx(table[linear_sum_assignment(-table)].sum() / 20_000)
    assert scores["purity"] == pytest.approx(table.max(axis=0).sum() / 20_000)
    assert scores["f_score"] == pytest.approx(2 * both / (2 * both + only_pred + only_true))
    # The geometric mean of the same precision and recall is never below their harmonic mean.
    assert scores["f_score"] <= fowlkes_mallows_score(y_true, y_pred) + 1e-12
    expected = normalized_mutual_info_score(y_true, y_pred, average_method="geometric")
    assert scores["nmi"] == pytest.approx(expected, abs=1e-9)


@settings(deadline=None)
@given(labelings, st.permutations(range(5)), st.randoms(use_true_random=False))
def test_names_of_clusters_and_order_of_samples_do_not_matter(pair, names, random):
    y_true, y_pred = pair
    rows = list(range(len(y_true)))
    random.shuffle(rows)
    renamed = clustering_scores([y_true[i] for i in rows], [f"cluster {names[y_pred[i]]}" for i in rows])
    assert renamed == pytest.approx(clustering_scores(y_true, y_pred))


@settings(deadline=None)
@given(labelings)
def test_every_score_is_a_python_float_between_0_and_1(pair):
    scores = clustering_scores(*pair)
    assert list(scores) == ["acc", "nmi", "purity", "f_score"]
    for score in scores.values():
        assert type(score) is float
        assert 0.0 <= score <= 1.0


@settings(deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=30))
def test_a_perfect_clustering_scores_exactly_1(labels):
    assert set(clustering_scores(labels, [str(-x) for x in labels]).values()) == {1.0}


@pytest.mark.parametrize(
    ("y_true", "y_pred", "nmi", "f_score"),
    [
        ([0, 0, 0], [1, 1, 1], 1.0, 1.0),  # both constant
        ([0, 0, 0], [0, 1, 2], 0.0, 0.0),  # one constant; no pair shares a cluster
        ([0, 1, 2], [0, 0, 0], 0.0, 0.0),
        ([0, 1, 2], [2, 0, 1], 1.0, 1.0),  # neither has a pair
        ([7], ["a"], 1.0, 1.0),
    ],
)
def test_degenerate_labelings_have_defined_scores(y_true, y_pred, nmi, f_score):
    scores = clustering_scores(y_true, y_pred)
    assert (scores["nmi"], scores["f_score"]) == (nmi, f_score)


@pytest.mark.parametrize(
    "labels",
    [
        [-5, 10**9, -5, 3],
        ["cat", "dog", "cat", "Ärger"],
        np.array(["cat", "dog", "cat", "a long name"]),
        np.array(["cat", "dog", "cat", ""], dtype=object),
        np.array([b"cat", b"dog", b"cat", b"x"]),
        np.array([1.0, 2.0, 1.0, -3.0], dtype=np.float32),
        np.array([4, 2, 4, 0], dtype=np.uint8),
        (4, 2, 4, 0),
    ],
    ids=lambda labels: f"{type(labels).__name__}-{labels[0]!r}",
)
def test_labels_may_be_any_integers_or_strings(labels):
    assert set(clustering_scores(labels, [0, 1, 0, 2]).values()) == {1.0}
    assert set(clustering_scores([0, 1, 0, 2], labels).values()) == {1.0}


def test_counts_of_a_billion_samples_do_not_overflow():
    n = 10**9
    assert _n_pairs(np.array([n])) == n * (n - 1) // 2
    split = csr_array(np.array([[n - 1, 1]]))  # one class, cut into n - 1 and 1
    found, right = (n - 1) * (n - 2) // 2, n * (n - 1) // 2
    assert _pair_f_score(split) == 2 * found / (found + right)


def test_many_classes_and_many_clusters_need_no_dense_table():
    n = 200_000  # dense: 4·10¹⁰ cells
    y_true = np.arange(n)
    assert set(clustering_scores(y_true, (y_true * 7) % n).values()) == {1.0}
    scores = clustering_scores(y_true, y_true // 2)
    assert (scores["acc"], scores["purity"], scores["f_score"]) == (0.5, 0.5, 0.0)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1], r"same length; got 3 and 2\. Both must list the same samples in the same order"),
        ([], r"y_pred must hold at least one label; got none\. Is the label file empty"),
        (np.zeros((3, 1)), r"y_pred must be one-dimensional.*got shape \(3, 1\)\. .*labels\.ravel\(\)"),
        ([[0], [1, 2], [3]], r"y_pred must be one-dimensional.*got nested or empty data"),
        ([0.0, 1.0, np.nan], r"y_pred must hold an integer for every sample.* got .*nan.* at position 2\. Remove"),
        (["a", None, "b"], r"or a string for every sample; got None \(NoneType\) at position 1"),
        ([0.0, 0.25, 1.0], r"got .*0\.25.* at position 1"),
        ([1, "1", 2], r"got '1' \(str\) at position 1"),
    ],
)
def test_bad_labels_raise_an_error_with_advice(labels, message):
    with pytest.raises(InvalidDataError, match=message):
        clustering_scores([0, 1, 2], labels)

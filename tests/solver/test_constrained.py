"""Clustering under rules: every step lowers the objective, and small problems come close to the optimum."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitmosaic import Constraints
from bitmosaic.hamming.codes import hamming_distances_numpy, pack
from bitmosaic.solver.clustering import Problem, refine
from bitmosaic.solver.constrained import clustering as constrained
from bitmosaic.solver.constrained.clustering import ConstrainedProblem, best_seeding, with_final_sizes, with_rules
from bitmosaic.solver.steps import L21, Frobenius

K = 32


def some_codes(n, rng, c=5):
    prototypes = rng.integers(256, size=(c, K // 8), dtype=np.uint8)
    owners = rng.choice(c, n, p=np.arange(1, c + 1) / (c * (c + 1) / 2))
    return prototypes[owners] ^ np.packbits(rng.random((n, K)) < 0.25, axis=1), owners


def some_rules(n, rng, c=5, limits=True):
    rows = rng.permutation(n)
    groups, pairs = rows[: n // 4].reshape(-1, 5), rows[n // 4 : n // 2].reshape(-1, 2)
    between = np.stack([groups[:-1, 0], groups[1:, 1]], 1)
    fixed = {int(row): int(row) % c for row in rows[-n // 10 :]}
    sizes = {"min_size": n // c - n // 20, "max_size": n // c + n // 20} if limits else {}
    return Constraints(groups, np.concatenate([pairs, between]), fixed, **sizes).checked(n, c)


def random_centroids(rng, c=5):
    return np.where(rng.random((c, K)) < 0.5, 1, -1).astype(np.int8)


def assert_obeyed(rules, labels):
    for first, last in zip(rules.starts[:-1], rules.starts[1:], strict=True):
        assert len(np.unique(labels[rules.unit_rows[first:last]])) == 1
    units = labels[rules.unit_rows[rules.starts[:-1]]]
    assert (np.repeat(units, np.diff(rules.link_starts)) != units[rules.links]).all()
    assert (np.repeat(units, np.diff(rules.forbidden_starts)) != rules.forbidden).all()
    np.testing.assert_array_equal(labels[rules.fixed_rows], rules.fixed_labels)
    counts = np.bincount(labels, minlength=rules.n_clusters)
    assert counts.min() >= rules.min_size
    assert counts.max() <= rules.max_size


@pytest.mark.parametrize("norm", [L21(), Frobenius(np.ones(K)), Frobenius(np.linspace(0.2, 2, K))], ids=str)
@pytest.mark.parametrize(("limits", "exact"), [(False, False), (True, False), (True, True)])
def test_refine_lowers_the_objective_and_satisfies_the_rules(norm, limits, exact):
    for seed in range(2):
        rng = np.random.default_rng(seed)
        rules = some_rules(200, rng, limits=limits)
        problem = ConstrainedProblem(some_codes(200, rng)[0], norm, rules=rules, exact=exact)
        values: list[float] = []
        result = refine(problem, random_centroids(rng), 30, lambda step, value, to=values: to.append(value))
        assert_obeyed(rules, result.labels)
        assert (np.diff(values) <= 1e-9 * values[0]).all()
        assert values[-1] == pytest.approx(problem.objective(problem.sums(result.labels, 5), result.Q))
        assert result.converged


def test_labels_with_a_higher_cost_are_rejected(monkeypatch):
    rng = np.random.default_rng(0)
    rules, codes = some_rules(400, rng), some_codes(400, rng)[0]
    problem = with_rules(rules, Problem(codes, Frobenius(np.ones(K))))
    Q, d = random_centroids(rng), np.ones(K)
    step = problem.step(Q, d)
    worse = step.labels.copy()
    free = np.flatnonzero(~rules.constrained)
    worse[free] = rng.permutation(worse[free])  # as many in each cluster as before
    monkeypatch.setattr(ConstrainedProblem, "constrained_labels", lambda self, *args: (worse, args[-1]))
    again = problem.step(Q, d, step, step.labels, step.S)
    np.testing.assert_array_equal(again.labels, step.labels)
    assert again.n_moved == 0


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_unit_assignment_is_close_to_the_exhaustive_optimum(seed):
    rng = np.random.default_rng(seed)
    n, c = 8, 3
    codes, Q = rng.integers(256, size=(n, K // 8), dtype=np.uint8), random_centroids(rng, c)
    pairs = [(0, 1), (1, 2), (2, 3)]
    rules = Constraints([(4, 5)], pairs, max_size=4).checked(n, c)
    problem = with_rules(rules, Problem(codes, Frobenius(np.ones(K))))
    distances = hamming_distances_numpy(codes, pack(Q))
    best = min(
        distances[np.arange(n), labels].sum()
        for labels in product(range(c), repeat=n)
        if labels[4] == labels[5] and all(labels[a] != labels[b] for a, b in pairs) and np.bincount(labels).max() <= 4
    )
    labels = problem.step(Q, np.ones(K)).labels
    assert_obeyed(rules, labels)
    assert best <= distances[np.arange(n), labels].sum() <= 1.15 * best


def test_cannot_link_pairs_are_assigned_at_the_lowest_cost():
    rng = np.random.default_rng(3)
    codes, Q = some_codes(200, rng)[0], random_centroids(rng)
    pairs = np.arange(200).reshape(-1, 2)
    problem = with_rules(Constraints(cannot_link=pairs).checked(200, 5), Problem(codes, Frobenius(np.ones(K))))
    labels = problem.step(Q, np.ones(K)).labels
    distances = hamming_distances_numpy(codes, pack(Q))
    both = distances[pairs[:, 0], :, None] + distances[pairs[:, 1], None, :] + 1000 * np.eye(5, dtype=int)
    assert distances[np.arange(200), labels].sum() == both.min((1, 2)).sum()


def test_the_result_does_not_depend_on_threads(monkeypatch):
    monkeypatch.setattr("bitmosaic.hamming.codes.ROWS_PER_PIECE", 500)
    rng = np.random.default_rng(0)
    codes, rules = some_codes(2000, rng)[0], some_rules(2000, rng)

    def labels(n_threads):
        problem = with_rules(rules, Problem(codes, L21(), n_threads=n_threads))
        return with_final_sizes(problem, best_seeding(problem, 5, 2, 10, np.random.default_rng(1))).labels

    np.testing.assert_array_equal(labels(1), labels(3))


def test_the_last_assignment_is_exact_when_others_are_approximate(monkeypatch):
    rng = np.random.default_rng(0)
    codes = some_codes(3000, rng)[0]
    rules = Constraints(min_size=550, max_size=650).checked(3000, 5)
    problem = with_rules(rules, Problem(codes, Frobenius(np.ones(K))))
    Q = random_centroids(rng)
    exact = problem.step(Q, np.ones(K))
    monkeypatch.setattr(constrained, "EXACT_ALWAYS", 0)
    quick = refine(problem, Q, 0)
    last = with_final_sizes(problem, quick)
    assert last.objective < quick.objective
    assert last.objective == pytest.approx(problem.objective(exact.S, Q))
    assert_obeyed(rules, quick.labels)
    assert_obeyed(rules, last.labels)


def test_an_empty_cluster_is_filled_unless_rules_forbid_it():
    rng = np.random.default_rng(0)
    codes = some_codes(40, rng)[0]
    Q = np.repeat(random_centroids(rng, 1), 4, axis=0)
    free = with_rules(Constraints([(0, 1)]).checked(40, 4), Problem(codes, Frobenius(np.ones(K))))
    assert (refine(free, Q, 20).sizes > 0).all()
    all_linked = with_rules(Constraints([range(40)]).checked(40, 4), Problem(codes, Frobenius(np.ones(K))))
    result = refine(all_linked, Q, 20)
    assert (result.sizes > 0).sum() == 1
    assert result.converged


def test_groups_that_exclude_each_other_give_initial_labels():
    rules = Constraints([(0, 1, 2), (3, 4, 5, 6), (7, 8, 9), (10, 11)], [(0, 3), (3, 7), (0, 10), (4, 10)])
    first = rules.checked(15, 4).initial_labels()
    np.testing.assert_array_equal(first, [1, 1, 1, 0, 0, 0, 0] + [-1] * 8)  # 7 may be with 0, and two rows say little
    fixed = Constraints(must_link=[(0, 1)], fixed={1: 2}).checked(4, 3)
    np.testing.assert_array_equal(fixed.initial_labels(), [2, 2, -1, -1])


def test_a_duplicate_cluster_is_emptied_and_filled_again():
    rng = np.random.default_rng(0)
    codes, owners = some_codes(400, rng)
    order = np.argsort(owners, kind="stable")
    pairs = np.stack([order[:-1:4], order[1::4]], 1)
    rules = Constraints(must_link=pairs[owners[pairs[:, 0]] == owners[pairs[:, 1]]]).checked(400, 5)
    Q = np.repeat(random_centroids(rng, 1), 5, axis=0)
    problem = with_rules(rules, Problem(codes, Frobenius(np.ones(K))))
    before = (np.arange(400) % 5).astype(np.int32)
    rules.write_labels(np.arange(rules.n_units) % 5, before)
    result = refine(problem, Q, 30, labels=before)
    assert len(np.unique(result.Q, axis=0)) == 5
    assert_obeyed(rules, result.labels)

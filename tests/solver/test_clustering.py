"""Clusters of packed codes: not empty unless necessary, always nearest, the same for any number of threads."""

import literal
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitmosaic.hamming.codes import assign_codes, costs_with, pack, unpack
from bitmosaic.solver import clustering
from bitmosaic.solver.clustering import Problem, assign, best_of, refine, seed
from bitmosaic.solver.steps import L21, Frobenius

K = 16
given_codes = settings(deadline=None, max_examples=25)
norms = st.sampled_from(["l21", "plain", "weighted"])


def make_norm(name, rng):
    if name == "l21":
        return L21()
    return Frobenius(np.ones(K) if name == "plain" else rng.uniform(0.1, 2, K))


@st.composite
def alike_codes(draw, min_rows=1):
    """A few distinct codes, each repeated many times, and a generator."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_distinct = draw(st.integers(1, 12))
    pool = rng.integers(256, size=(n_distinct, K // 8), dtype=np.uint8)
    if draw(st.booleans()):  # neighbors, so that ties are common
        pool = pool & np.uint8(0b11)
    return pool[rng.integers(n_distinct, size=draw(st.integers(min_rows, 40)))], rng


def random_centroids(rng, c):
    return np.where(rng.random((c, K)) < 0.5, 1, -1).astype(np.int8)


def n_distinct(codes):
    return len(np.unique(codes, axis=0))


def assert_nearest(codes, Q, labels, d):
    distances = literal.distances(unpack(codes, float), Q, d)
    np.testing.assert_allclose(distances[np.arange(len(codes)), labels], distances.min(1), rtol=1e-5, atol=1e-6)


# ---- empty clusters


@given_codes
@given(alike_codes(), norms, st.integers(1, 12), st.booleans())
def test_assign_leaves_no_cluster_empty_while_there_are_codes_for_it(data, norm, c, all_the_same):
    codes, rng = data
    problem = Problem(codes, make_norm(norm, rng))
    Q = np.repeat(random_centroids(rng, 1), c, axis=0) if all_the_same else random_centroids(rng, c)
    before, d = Q.copy(), rng.uniform(0.1, 2, K)
    Q_new, nearest = assign(problem, Q, d)
    labels = nearest.labels
    assert len(np.unique(labels)) == min(c, n_distinct(codes))
    assert_nearest(codes, Q_new, labels, d)
    np.testing.assert_array_equal(Q, before)  # not written into


@given_codes
@given(alike_codes(), norms, st.integers(1, 12), st.sampled_from([0.0, 1e-2, 10.0]), st.integers(0, 5))
def test_refine_reaches_n_clusters_while_there_are_codes_for_it(data, norm, c, balance, max_iter):
    codes, rng = data
    problem = Problem(codes, make_norm(norm, rng), balance)
    run = refine(problem, random_centroids(rng, c), max_iter)
    assert len(np.unique(run.labels)) == min(c, n_distinct(codes))
    assert_nearest(codes, run.Q, run.labels, run.bit_weights)
    assert run.n_iter <= max_iter


def test_the_farthest_code_fills_an_empty_cluster():
    B = np.ones((6, K))
    B[4, :3], B[5, :9] = -1, -1
    Q, nearest = assign(Problem(pack(B), Frobenius(np.ones(K))), np.ones((2, K), np.int8), np.ones(K))
    np.testing.assert_array_equal(Q[1], B[5])
    np.testing.assert_array_equal(nearest.labels, [0, 0, 0, 0, 0, 1])


@given_codes
@given(alike_codes(), st.integers(1, 15), st.booleans())
def test_the_farthest_rows_with_different_codes_come_in_order(data, count, floats):
    codes, rng = data
    distances = rng.integers(0, 4, len(codes)).astype(np.float32 if floats else np.int32)
    expected, seen = [], set()
    for row in sorted(range(len(codes)), key=lambda row: (-distances[row], row)):
        if distances[row] > 0 and codes[row].tobytes() not in seen:
            seen.add(codes[row].tobytes())
            expected.append(row)
    assert clustering.farthest_distinct(codes, distances, count).tolist() == expected[:count]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clustering, "ROWS_AT_ONCE", 7)
        assert clustering.farthest_distinct(codes, distances, count).tolist() == expected[:count]


# ---- refine


@given_codes
@given(alike_codes(), norms, st.integers(1, 6), st.sampled_from([0.0, 0.05]))
def test_the_objective_of_a_clustering_is_the_literal_one(data, norm, c, balance):
    codes, rng = data
    norm = make_norm(norm, rng)
    run = refine(Problem(codes, norm, balance), random_centroids(rng, c), 3)
    U = literal.residual(unpack(codes, float), run.Q, run.labels)
    squares = np.linalg.norm(U, axis=0) ** 2
    expected = np.sqrt(squares + 1).sum() if isinstance(norm, L21) else norm.bit_weights @ squares
    assert run.objective == pytest.approx(expected + balance * literal.imbalance(run.Q), abs=1e-9)


@given_codes
@given(alike_codes(), norms, st.integers(1, 6))
def test_each_step_of_refine_lowers_the_objective(data, norm, c):
    codes, rng = data
    told = []
    run = refine(Problem(codes, make_norm(norm, rng)), random_centroids(rng, c), 20, lambda *what: told.append(what))
    assert [step for step, _ in told] == ["Q", "F"] * run.n_iter
    values = np.array([value for _, value in told])
    assert (np.diff(values) <= 1e-6 * values[:-1]).all()
    assert values[-1] == run.objective


@given_codes
@given(alike_codes(min_rows=5), st.integers(1, 4))
def test_a_converged_clustering_does_not_change(data, c):
    codes, rng = data
    problem = Problem(codes, Frobenius(np.ones(K)))
    run = refine(problem, random_centroids(rng, c), 50)
    assert run.converged
    again = refine(problem, run.Q, 50, labels=run.labels)
    np.testing.assert_array_equal(again.Q, run.Q)
    np.testing.assert_array_equal(again.labels, run.labels)
    assert again.n_iter == 1


@given_codes
@given(alike_codes(), norms, st.integers(1, 12), st.sampled_from([0.0, 0.05]), st.booleans(), st.sampled_from([1, 2]))
def test_the_previous_assignment_does_not_change_the_result(data, norm, c, balance, weighted, n_threads):
    codes, rng = data
    mass = rng.uniform(0.5, 2, len(codes)) if weighted else None
    problem, Q = Problem(codes, make_norm(norm, rng), balance, mass, n_threads), random_centroids(rng, c)
    run = refine(problem, Q, 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clustering, "assign_codes", lambda *given: assign_codes(*given[:4]))
        patch.setattr(Problem, "sums_after", lambda self, S, moved, before, labels, pieces: self.sums(labels, len(S)))
        patch.setattr(clustering, "ROWS_AT_ONCE", 5)
        plain = refine(problem, Q, 20)
    np.testing.assert_array_equal(run.labels, plain.labels)
    np.testing.assert_array_equal(run.Q, plain.Q)
    assert (run.objective, run.n_iter) == (plain.objective, plain.n_iter)


# ---- weights of samples


@given_codes
@given(alike_codes(), norms, st.integers(1, 5), st.sampled_from([0.0, 0.05]))
def test_a_sample_weight_is_a_number_of_repetitions(data, norm, c, balance):
    codes, rng = data
    norm = make_norm(norm, rng)
    times = rng.integers(1, 5, len(codes))
    Q = random_centroids(rng, c)
    weighted = refine(Problem(codes, norm, balance, times.astype(float)), Q, 10)
    repeated = refine(Problem(np.repeat(codes, times, axis=0), norm, balance), Q, 10)
    assert weighted.objective == pytest.approx(repeated.objective)
    np.testing.assert_array_equal(weighted.Q, repeated.Q)
    np.testing.assert_array_equal(np.repeat(weighted.labels, times), repeated.labels)
    np.testing.assert_allclose(weighted.bit_weights, repeated.bit_weights)


def test_codes_without_weight_are_never_seeds():
    codes = np.arange(20, dtype=np.uint8).repeat(2).reshape(20, 2)
    mass = np.where(np.arange(20) < 4, 1.0, 0.0)
    for number in range(20):
        Q = seed(Problem(codes, L21(), sample_weight=mass), 4, np.random.default_rng(number))
        assert sorted(pack(Q)[:, 0]) == [0, 1, 2, 3]


# ---- seeding


@given_codes
@given(alike_codes(), norms, st.integers(1, 12))
def test_no_code_is_a_seed_twice_while_distinct_ones_remain(data, norm, c):
    codes, rng = data
    seeds = pack(seed(Problem(codes, make_norm(norm, rng)), c, rng))
    assert seeds.shape == (c, K // 8)
    assert n_distinct(seeds) == min(c, n_distinct(codes))
    assert {row.tobytes() for row in seeds} <= {row.tobytes() for row in codes}


def test_far_codes_are_likelier_seeds():
    codes = np.zeros((1000, 2), np.uint8)
    codes[0], codes[1:500, 0] = 255, 1
    seconds = [seed(Problem(codes, Frobenius(np.ones(K))), 3, np.random.default_rng(s)) for s in range(100)]
    assert np.mean([(Q == 1).all(1).any() for Q in seconds]) > 0.9


def test_the_best_candidate_becomes_a_seed():
    """Half of the distance lies with one code that many share, half with strays: a stray is seldom taken."""
    rng = np.random.default_rng(0)
    strays = np.packbits(np.argsort(rng.random((100, K)), axis=1) < 8, axis=1)  # 8 of 16 bits
    codes = np.vstack([np.zeros((5000, 2), np.uint8), np.full((100, 2), 0b01010101, np.uint8), strays])
    taken = [seed(Problem(codes, L21()), 2, np.random.default_rng(number)) for number in range(100)]
    assert np.mean([(pack(Q) == 0b01010101).all(1).any() for Q in taken]) > 0.6


def test_a_draw_of_zero_takes_no_row_without_mass():
    class Zero:
        def random(self, count):
            return np.zeros(count)

    np.testing.assert_array_equal(clustering._draw(np.array([0, 0, 2, 1.0]), 3, Zero()), [2, 2, 2])


def test_seeding_looks_at_a_sample_of_many_codes(monkeypatch):
    monkeypatch.setattr(clustering, "ROWS_FOR_SEEDING", 100)
    rng = np.random.default_rng(0)
    codes = rng.integers(256, size=(1000, 2), dtype=np.uint8)
    asked = []

    def count(codes, *rest):
        asked.append(len(codes))
        return costs_with(codes, *rest)

    monkeypatch.setattr(clustering, "costs_with", count)
    assert seed(Problem(codes, L21()), 2, rng).shape == (2, K)
    assert set(asked) == {100}
    asked.clear()
    seed(Problem(codes, L21()), 4, rng)
    assert set(asked) == {200}  # 50 for each cluster


@given_codes
@given(alike_codes(), norms, st.integers(2, 12))
def test_seeds_of_many_clusters_are_codes_too(data, norm, c):
    codes, rng = data
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clustering, "MANY_CLUSTERS", 1)
        seeds = pack(seed(Problem(codes, make_norm(norm, rng)), c, rng))
    assert seeds.shape == (c, K // 8)
    assert {row.tobytes() for row in seeds} <= {row.tobytes() for row in codes}


def test_seeds_of_many_clusters_are_about_as_good_as_those_of_few(monkeypatch):
    """Inertia after one assignment, the mean of ten seeds of each kind."""
    rng = np.random.default_rng(0)
    truth = rng.integers(256, size=(40, 8), dtype=np.uint8)
    codes = truth[rng.integers(40, size=2000)] ^ np.packbits(rng.random((2000, 64)) < 0.1, axis=1)
    problem = Problem(codes, Frobenius(np.ones(64)))

    def mean_distance():
        seeds = [seed(problem, 40, np.random.default_rng(number)) for number in range(10)]
        return np.mean([problem.step(Q, np.ones(64)).nearest.distances.mean() for Q in seeds])

    few = mean_distance()
    monkeypatch.setattr(clustering, "MANY_CLUSTERS", 1)
    assert mean_distance() < 1.05 * few


# ---- the best of several


@given_codes
@given(alike_codes(), norms, st.integers(1, 5), st.integers(1, 4))
def test_the_best_run_has_the_lowest_objective(data, norm, c, n_init):
    codes, rng = data
    problem = Problem(codes, make_norm(norm, rng))
    number = int(rng.integers(2**31))
    best = best_of(problem, c, n_init, 5, np.random.default_rng(number))
    rng = np.random.default_rng(number)
    others = [refine(problem, seed(problem, c, rng), 5) for _ in range(n_init)]
    assert best.objective == min(run.objective for run in others)


@pytest.mark.parametrize("norm", [L21(), Frobenius(np.ones(K))])
@pytest.mark.parametrize("weighted", [False, True])
def test_any_number_of_threads_gives_the_same_clustering(norm, weighted):
    rng = np.random.default_rng(0)
    codes = rng.integers(256, size=(40_000, 2), dtype=np.uint8)  # three pieces
    mass = rng.uniform(0, 3, len(codes)) if weighted else None
    one, *others = (
        best_of(Problem(codes, norm, 0.1, mass, n_threads), 7, 2, 4, np.random.default_rng(1))
        for n_threads in (1, 2, 3)
    )
    for other in others:
        np.testing.assert_array_equal(other.labels, one.labels)
        np.testing.assert_array_equal(other.Q, one.Q)
        np.testing.assert_array_equal(other.bit_weights, one.bit_weights)
        assert other.objective == one.objective

"""Each step of Algorithm 1 agrees with its equation and minimizes its objective from any previous value."""

from dataclasses import replace

import literal
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitmosaic.hamming.codes import pack, unpack
from bitmosaic.solver import steps
from bitmosaic.solver.clustering import Problem

given_problems = settings(deadline=None, max_examples=20)


@st.composite
def problems(draw, min_views=1, **fixed):
    """A random problem, a random state of it, and a generator for more."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    m = draw(st.integers(min_views, 3))
    K = draw(st.sampled_from([8, 16]))
    sizes = {
        "n": draw(st.integers(2, 40)),
        "l": draw(st.integers(1, 8)),
        "K": K,
        "K_S": draw(st.integers(1, K)),
        "c": draw(st.integers(1, 5)),
        "missing": draw(st.sampled_from([0.0, 0.3, 0.9])),
        "lambda1": draw(st.sampled_from([1e-3, 1.0, 30.0])),
        "lambda2": draw(st.sampled_from([0.0, 1e-3, 0.5])),
        "lambda3": draw(st.sampled_from([1e-5, 0.5, 50.0])),
        "nu": draw(st.sampled_from([0.0, 1e-2, 1.0])),
        "r": draw(st.sampled_from([1.5, 2.0, 5.0])),
        "l21": draw(st.booleans()),
    }
    return *literal.random_problem(rng, m=m, **(sizes | fixed)), rng


def assert_not_above(value, other, scale=0.0):
    assert value <= other + 1e-9 * (abs(other) + abs(scale))


def norm_of(p):
    return steps.L21() if p.l21 else steps.Frobenius(np.ones(p.K))


def sums_of(s, c):
    return literal.sums(s.B, s.labels, c).astype(np.int64)


# ---- projections


def solved_shared(p, s):
    return steps.shared_projection(
        [Z.T @ Z for Z in p.Zs],
        [Z.T @ s.B[:, : p.K_S] for Z in p.Zs],
        literal.w(p, s.alpha),
        p.lambda1,
        p.lambda2,
    )


def with_shared(p, s, P_S):
    return replace(s, Ps=[np.hstack([P_S, P[:, p.K_S :]]) for P in s.Ps])


@given_problems
@given(problems(min_views=2))
def test_shared_projection_is_equation_12(problem):
    p, s, _ = problem
    np.testing.assert_allclose(solved_shared(p, s), literal.shared_projection(p, s.B, s.alpha), rtol=1e-6, atol=1e-8)


@given_problems
@given(problems(min_views=2), st.sampled_from([1e-3, 1.0]))
def test_no_other_shared_projection_is_lower(problem, size):
    p, s, rng = problem
    P_S = solved_shared(p, s)
    lowest = literal.coding(p, with_shared(p, s, P_S))
    assert_not_above(lowest, literal.coding(p, with_shared(p, s, s.Ps[0][:, : p.K_S])))
    assert_not_above(lowest, literal.coding(p, with_shared(p, s, P_S + size * rng.normal(size=P_S.shape))))


def solved_individual(p, s, v):
    Z = p.Zs[v]
    factor = steps.regularized_factor(Z.T @ Z, p.lambda1, p.lambda2)
    return steps.individual_projection(factor, Z.T @ s.B[:, p.K_S :])


@given_problems
@given(problems())
def test_individual_projection_is_equation_13(problem):
    p, s, _ = problem
    for v in range(p.m):
        expected = literal.individual_projection(p, s.B, v)
        np.testing.assert_allclose(solved_individual(p, s, v), expected, rtol=1e-6, atol=1e-8)


@given_problems
@given(problems(), st.sampled_from([1e-3, 1.0]))
def test_no_other_individual_projection_is_lower(problem, size):
    p, s, rng = problem
    for v in range(p.m):
        P_I, before = solved_individual(p, s, v), s.Ps[v]

        def loss(P_I, v=v, before=before):
            return literal.h(p, s.B, np.hstack([before[:, : p.K_S], P_I]), v)

        assert_not_above(loss(P_I), loss(before[:, p.K_S :]))
        assert_not_above(loss(P_I), loss(P_I + size * rng.normal(size=P_I.shape)))


def test_a_gram_matrix_that_rounding_made_indefinite_still_has_a_factor():
    rng = np.random.default_rng(0)
    Z = (30 * rng.normal(size=(500, 3)) @ rng.normal(size=(3, 24))).astype(np.float32)
    gram = (Z.T @ Z).astype(np.float64)  # rank 3 of 24, summed in float32
    assert np.linalg.eigvalsh(gram)[0] < -1e-3
    P = steps.individual_projection(steps.regularized_factor(gram, 1e-6, 0.0), Z.T @ Z[:, :1])
    np.testing.assert_allclose(Z @ P, Z[:, :1], rtol=1e-2, atol=1e-2)


# ---- codes


def solved_codes(p, s, d):
    """The new B, from what the solver adds up, in units of the largest weight."""
    Zs, Ps = [Z.astype(np.float32) for Z in p.Zs], [P.astype(np.float32) for P in s.Ps]
    weights = literal.w(p, s.alpha)
    pull = steps.centroid_pull(s.Q, d, p.lambda3) / weights.max()
    return unpack(pack(steps.vote(Zs, Ps, weights) + pull[s.labels]), np.float64)


@given_problems
@given(problems())
def test_codes_are_equation_18(problem):
    p, s, _ = problem
    d = literal.bit_weights(p, s.B, s.Q, s.labels)
    said = literal.vote(p, s, np.diag(d))
    clear = np.abs(said) > 1e-5 * (np.abs(said).max() + p.lambda3)
    np.testing.assert_array_equal(solved_codes(p, s, d)[clear], literal.sgn(said)[clear])


@given_problems
@given(problems())
def test_no_other_codes_are_lower(problem):
    p, s, rng = problem
    d = literal.bit_weights(p, s.B, s.Q, s.labels)
    D, B = np.diag(d), solved_codes(p, s, d)
    lowest, scale = literal.codes_loss(p, replace(s, B=B), D), 1e3 * literal.codes_loss(p, s, D)  # of float32
    assert_not_above(lowest, literal.codes_loss(p, s, D), scale)
    for share in (0.02, 0.5):
        flipped = np.where(rng.random(B.shape) < share, -B, B)
        assert_not_above(lowest, literal.codes_loss(p, replace(s, B=flipped), D), scale)
    assert literal.objective(p, replace(s, B=B)) <= literal.objective(p, s) * (1 + 1e-6)


@given_problems
@given(problems())
def test_the_vote_is_the_first_term_of_equation_18_in_units_of_the_largest_weight(problem):
    p, s, _ = problem
    Zs, Ps, weights = [Z.astype(np.float32) for Z in p.Zs], [P.astype(np.float32) for P in s.Ps], literal.w(p, s.alpha)
    expected = sum(w * Z @ P for w, Z, P in zip(weights, p.Zs, s.Ps, strict=True)) / weights.max()
    np.testing.assert_allclose(steps.vote(Zs, Ps, weights), expected, atol=1e-5 * (1 + np.abs(expected).max()))


def test_a_vote_stays_within_float32_for_a_large_exponent():
    Z, P = np.ones((2, 3), np.float32), np.ones((3, 8), np.float32)
    said = steps.vote([Z, Z], [P, P], np.array([0.4, 0.6]) ** 200)
    np.testing.assert_allclose(said, 3, rtol=1e-6)


# ---- clusters


@given_problems
@given(problems())
def test_residuals_come_from_the_sums_of_the_codes(problem):
    p, s, _ = problem
    squared = steps.squared_residuals(sums_of(s, p.c), s.Q, p.N)
    np.testing.assert_allclose(squared, np.linalg.norm(literal.residual(s.B, s.Q, s.labels), axis=0) ** 2, atol=1e-9)


@given_problems
@given(problems())
def test_bit_weights_and_norm_are_those_of_equation_9(problem):
    p, s, _ = problem
    squared = steps.squared_residuals(sums_of(s, p.c), s.Q, p.N)
    np.testing.assert_allclose(norm_of(p).weights(squared), literal.bit_weights(p, s.B, s.Q, s.labels))
    assert norm_of(p).value(squared) == pytest.approx(literal.norm(p, s.B, s.Q, s.labels))


@given_problems
@given(problems(l21=True))
def test_what_lowers_the_reweighted_squares_lowers_the_norm_at_least_as_much(problem):
    p, s, rng = problem
    other = literal.random_state(rng, p.N, 1, p.K, p.c, p.m)
    d = np.diag(literal.bit_weights(p, s.B, s.Q, s.labels))
    old, new = literal.residual(s.B, s.Q, s.labels), literal.residual(other.B, other.Q, other.labels)
    change = np.trace(new @ d @ new.T) - np.trace(old @ d @ old.T)
    squares = [np.sum(U**2, axis=0) for U in (old, new)]
    norm = steps.L21()
    assert norm.weights(squares[0]) @ (squares[1] - squares[0]) == pytest.approx(change, abs=1e-8)
    assert_not_above(norm.value(squares[1]), norm.value(squares[0]) + change)


@given_problems
@given(problems())
def test_the_loss_of_each_centroid_adds_up_to_equation_21(problem):
    p, s, _ = problem
    d = literal.bit_weights(p, s.B, s.Q, s.labels)
    found = steps.centroid_loss(s.Q.astype(np.int8), sums_of(s, p.c), d, p.nu).sum()
    assert found == pytest.approx(literal.centroid_loss(s.B, s.Q, s.labels, d, p.nu), abs=1e-9)


@given_problems
@given(problems(nu=0.0))
def test_without_balance_centroids_are_majorities_and_none_are_lower(problem):
    p, s, _ = problem
    d = literal.bit_weights(p, s.B, s.Q, s.labels)
    Q = steps.centroids(s.Q.astype(np.int8), sums_of(s, p.c), d, 0.0)
    np.testing.assert_array_equal(Q, literal.majority(s.B, s.Q, s.labels))
    lowest = literal.centroid_loss(s.B, literal.best_centroids(s.B, s.labels, p.c, d, 0.0), s.labels, d, 0.0)
    assert literal.centroid_loss(s.B, Q, s.labels, d, 0.0) == pytest.approx(lowest, abs=1e-9)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_bit_without_a_majority_keeps_its_sign(sign):
    Q = np.full((1, 8), sign, np.int8)
    S = np.array([[0, 3, -3, 0, 1, -1, 0, 2]])
    expected = [[sign, 1, -1, sign, 1, -1, sign, 1]]
    np.testing.assert_array_equal(steps.centroids(Q, S, np.ones(8), 0.0), expected)


@given_problems
@given(problems())
def test_centroids_are_never_above_those_before_nor_the_majorities(problem):
    p, s, _ = problem
    d = literal.bit_weights(p, s.B, s.Q, s.labels)
    before = s.Q.astype(np.int8)
    Q = steps.centroids(before, sums_of(s, p.c), d, p.nu)
    found = literal.centroid_loss(s.B, Q, s.labels, d, p.nu)
    assert set(np.unique(Q)) <= {-1, 1}
    np.testing.assert_array_equal(before, s.Q)  # not written into
    assert_not_above(found, literal.centroid_loss(s.B, s.Q, s.labels, d, p.nu), 1)
    assert_not_above(found, literal.centroid_loss(s.B, literal.majority(s.B, s.Q, s.labels), s.labels, d, p.nu), 1)
    assert_not_above(literal.grouping(p, s.B, Q, s.labels), literal.grouping(p, s.B, s.Q, s.labels), 1)


def gap_of_centroids(strength, rng, n=1000, c=6, K=64):
    """How far the loss of the centroids lies above the lowest, as a share of Σ 2 d|S|; most bits lean to +1."""
    truth = literal.sgn(rng.normal(size=(c, K)) + 0.4)
    labels = rng.integers(c, size=n)
    noise = literal.sgn(rng.normal(size=(n, K)) + rng.normal(0.4, 0.3, K))
    B = np.where(rng.random((n, K)) < 0.4, truth[labels], noise)
    d = 0.5 / np.sqrt(n * rng.uniform(0.5, 2, K))
    nu = strength * n * 0.5 / np.sqrt(n)
    S = literal.sums(B, labels, c).astype(np.int64)
    found = steps.centroids(literal.sgn(rng.normal(size=(c, K))).astype(np.int8), S, d, nu)
    lowest = literal.best_centroids(B, labels, c, d, nu)
    losses = [literal.centroid_loss(B, Q, labels, d, nu) for Q in (found, lowest)]
    return (losses[0] - losses[1]) / (2 * d * np.abs(S)).sum()


@pytest.mark.parametrize("strength", [1e-3, 1.0])
def test_balanced_centroids_are_the_best(strength):
    gaps = [gap_of_centroids(strength, np.random.default_rng(seed)) for seed in range(5)]
    assert np.abs(gaps).max() < 1e-9


@given_problems
@given(problems(), st.sampled_from([1e-3, 0.1, 1.0, 30.0]))
def test_no_other_centroids_are_lower(problem, nu):
    p, s, _ = problem
    d = literal.bit_weights(p, s.B, s.Q, s.labels)
    Q = steps.centroids(s.Q.astype(np.int8), sums_of(s, p.c), d, nu)
    lowest = literal.best_centroids(s.B, s.labels, p.c, d, nu)
    losses = [literal.centroid_loss(s.B, one, s.labels, d, nu) for one in (Q, lowest)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9, abs=1e-9)


@given_problems
@given(problems())
def test_no_other_labels_are_lower(problem):
    p, s, rng = problem
    d = literal.bit_weights(p, s.B, s.Q, s.labels)
    nearest = Problem(pack(s.B), norm_of(p)).step(s.Q.astype(np.int8), d).nearest
    labels, distances = nearest.labels, nearest.distances
    expected = literal.distances(s.B, s.Q, d)
    rows = np.arange(p.N)
    np.testing.assert_allclose(expected[rows, labels], expected.min(1), rtol=1e-6)
    if (d == d[0]).all():
        np.testing.assert_array_equal(labels, expected.argmin(1))
        np.testing.assert_array_equal(distances, np.rint(expected.min(1) / d[0]))
    else:
        np.testing.assert_allclose(distances, expected.min(1), rtol=1e-5)
    for other in (s.labels, rng.integers(p.c, size=p.N)):
        assert expected[rows, labels].sum() <= expected[rows, other].sum() * (1 + 1e-6)
    assert literal.norm(p, s.B, s.Q, labels) <= literal.norm(p, s.B, s.Q, s.labels) * (1 + 1e-6)


# ---- view weights


@given_problems
@given(problems())
def test_the_loss_of_a_view_comes_from_its_gram_matrix(problem):
    p, s, _ = problem
    for v, (Z, P) in enumerate(zip(p.Zs, s.Ps, strict=True)):
        cost = steps.projection_cost(Z.T @ Z, P, p.lambda1, p.lambda2)
        found = steps.view_loss(p.has[v].sum(), p.K, P, Z.T @ s.B, cost)
        expected = literal.h(p, s.B, P, v)
        assert found == pytest.approx(expected, rel=1e-7, abs=1e-9 * p.has[v].sum() * p.K)


@given_problems
@given(problems())
def test_the_projection_cost_does_not_depend_on_the_codes(problem):
    p, s, _ = problem
    for v, (Z, P) in enumerate(zip(p.Zs, s.Ps, strict=True)):
        found = steps.projection_cost(Z.T @ Z, P, p.lambda1, p.lambda2)
        size = np.linalg.norm(Z @ P) ** 2
        assert found == pytest.approx((1 - p.lambda2) * size + p.lambda1 * np.linalg.norm(P) ** 2, rel=1e-9)
        fit = literal.h(p, s.B, P, v) - p.has[v].sum() * p.K + 2 * np.sum((Z @ P) * s.B)
        assert found == pytest.approx(fit, rel=1e-7, abs=1e-9 * (p.has[v].sum() * p.K + size))


@given_problems
@given(problems())
def test_view_weights_are_equation_28_and_no_others_are_lower(problem):
    p, s, rng = problem
    losses = rng.uniform(0.01, 10, p.m) * literal.fair(p)
    alpha = steps.view_weights(losses, p.r, lowest=1e-9)
    np.testing.assert_allclose(alpha, literal.view_weights(losses, p.r))
    assert alpha.sum() == pytest.approx(1)
    assert (alpha > 0).all()
    for other in (s.alpha, rng.dirichlet(np.ones(p.m)), np.full(p.m, 1 / p.m), 0.999 * alpha + 0.001 * s.alpha):
        assert_not_above(alpha**p.r @ losses, other**p.r @ losses)


def test_a_view_that_fits_perfectly_does_not_take_all_the_weight():
    np.testing.assert_allclose(steps.view_weights([-3.0, 0.5, 16.0], 5.0, lowest=1.0), [0.4, 0.4, 0.2])

"""Algorithm 1 agrees with its literal version, and its objective never rises."""

from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import literal
import numpy as np
import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from bitmosaic.hamming import kernels
from bitmosaic.hamming.codes import pack, unpack
from bitmosaic.io.threads import single_threaded_blas
from bitmosaic.solver import clustering, loop, steps, train
from bitmosaic.solver.blocks import Blocks
from bitmosaic.solver.embedding import Embedding
from bitmosaic.solver.loop import LOWEST_LOSS
from bitmosaic.solver.start import Start
from bitmosaic.views import as_views

WIDTHS = (3, 7, 5)
GAMMA = 8.0


def blobs(rng, n, c, m, missing=0.0, spread=0.8):
    """Raw float32 views of c clusters, and the cluster of each row; a row of NaN is a missing view."""
    y = np.arange(n) % c
    views = []
    for width in WIDTHS[:m]:
        X = rng.normal(size=(c, width))[y] + spread * rng.normal(size=(n, width))
        views.append(X.astype(np.float32))
    gone = rng.random((m, n)) < missing
    gone[0] &= ~gone.all(0)
    for X, rows in zip(views, gone, strict=True):
        X[rows] = np.nan
    return views, y


def whole_rows(X, l):
    return X[~np.isnan(X[:, 0])][:l]


def blocks_of(views, l, **how):
    """Blocks with the first l whole rows of each view as anchors, centered."""
    embeddings = []
    for X in views:
        d, anchors = X.shape[1], whole_rows(X, l)
        embeddings.append(
            Embedding(np.zeros(d), np.ones(d, np.float32), None, anchors, GAMMA, np.zeros(len(anchors), np.float32))
        )
    blocks = Blocks(as_views(views), embeddings, **how)
    n_present = np.array([(~np.isnan(X[:, 0])).sum() for X in views])
    blocks.center(n_present)
    return blocks, n_present


def products_of_minus_one(blocks, K):
    """Z_vᵀB for codes that are all -1."""
    return [-np.outer(total, np.ones(K)) for total in blocks.totals()]


def settings_of(p, t, kappa, tol=0.0, n_init=2):
    norm = steps.L21() if p.l21 else steps.Frobenius(np.ones(p.K))
    return loop.Settings(
        n_clusters=p.c,
        K=p.K,
        K_S=p.K_S,
        ridge=p.lambda1,
        variance_reward=p.lambda2,
        coupling=p.lambda3,
        balance=p.nu,
        norm=norm,
        exponent=p.r,
        max_iter=t,
        cluster_iter=kappa,
        n_init=n_init,
        tol=tol,
    )


def run(views, p, start, t=6, kappa=4, l=12, report=lambda *told: None, tol=0.0, seed=0, **how):
    with single_threaded_blas():
        blocks, n_present = blocks_of(views, l, **how)
        rng = np.random.default_rng(seed)
        rows = np.arange(p.N)
        return loop.learn(blocks, blocks.grams(), n_present, start, rows, settings_of(p, t, kappa, tol), rng, report)


def literal_problem(views, l=12, **constants):
    embedded = [literal.embed(X, whole_rows(X, l), GAMMA) for X in views]
    Zs, has = ([one[i] for one in embedded] for i in (0, 1))
    given = {"lambda1": 0.1, "lambda2": 1e-3, "nu": 0.0, "r": 5.0, "K": 16, "c": 4} | constants
    return literal.Problem(Zs, has, **given)


def coupling(m, n, l21, share=0.2, r=5.0):
    """λ3 such that the pull λ3·d on a bit is about this fraction of the vote of the views."""
    return share * m ** (1 - r) * (2 * np.sqrt(n) if l21 else 1)


@pytest.mark.parametrize("l21", [True, False], ids=["l21", "frobenius"])
@pytest.mark.parametrize(("m", "missing"), [(1, 0.0), (2, 0.2), (3, 0.0)])
@pytest.mark.parametrize("kind", ["joint", "balanced", "codes first"])
def test_learn_agrees_with_the_literal_algorithm_1(l21, m, missing, kind):
    n = 240
    rng = np.random.default_rng(m)
    views, y = blobs(rng, n, c=4, m=m, missing=missing)
    p = literal_problem(
        views,
        K_S=4 if m > 1 else 0,
        lambda3=0.0 if kind == "codes first" else coupling(m, n, l21),
        nu=0.0 if kind != "balanced" else 1e-3 * n * (0.5 / np.sqrt(n) if l21 else 1),
        l21=l21,
    )
    first = [rng.normal(size=(12, p.K)).astype(np.float32) for _ in range(m)]
    initial_labels = np.where(rng.random(n) < 0.7, y, rng.integers(4, size=n)).astype(np.int32)

    learned = run(views, p, Start(first, initial_labels))
    s, history = literal.algorithm_1(p, first, initial_labels, t=6, kappa=4, centroid_step=steps.centroids)

    assert (unpack(learned.codes) != s.B).mean() < 1e-3
    assert [entry[:2] for entry in learned.history] == [entry[:2] for entry in history]
    np.testing.assert_allclose([e[2] for e in learned.history], [e[2] for e in history], rtol=1e-5)
    assert (learned.clustering.labels != s.labels).mean() < 1e-3
    np.testing.assert_array_equal(learned.clustering.Q, s.Q)
    np.testing.assert_allclose(learned.view_weights, s.alpha, rtol=1e-5)
    np.testing.assert_allclose(learned.weights, literal.w(p, s.alpha), rtol=1e-4)
    for P, expected in zip(learned.Ps, s.Ps, strict=True):
        np.testing.assert_allclose(P, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
    assert learned.history[-1][2] < 0.98 * learned.history[0][2]  # something was learned
    assert learned.n_iter >= 2


# ---- descent


@st.composite
def small_problems(draw, **fixed):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    m = draw(st.integers(1, 3))
    n = draw(st.integers(12, 120))
    c = draw(st.integers(1, 5))
    views, _ = blobs(rng, n, c, m, draw(st.sampled_from([0.0, 0.3])), draw(st.sampled_from([0.1, 1.0])))
    l = min(draw(st.integers(2, 10)), *(len(whole_rows(X, n)) for X in views))
    l21, r = draw(st.booleans()), draw(st.sampled_from([2.0, 5.0]))
    constants = {
        "c": draw(st.integers(1, 6)),
        "K_S": draw(st.sampled_from([0, 4, 16])) if m > 1 else 0,
        "lambda1": draw(st.sampled_from([1e-3, 1.0])),
        "lambda2": draw(st.sampled_from([0.0, 1e-3])),
        "lambda3": coupling(m, n, l21, draw(st.sampled_from([0.01, 0.2, 2.0])), r),
        "r": r,
        "l21": l21,
    }
    p = literal_problem(views, l, **(constants | fixed))
    first = [rng.normal(size=(l, p.K)).astype(np.float32) for _ in range(m)]
    labels = rng.integers(p.c, size=n).astype(np.int32) if draw(st.booleans()) else None
    return views, p, Start(first, labels), l


@contextmanager
def no_view_fitted_too_well():
    """Leave out problems where the variance reward makes the loss of a view negative: the solver puts a floor there."""
    losses, view_loss = [], steps.view_loss

    def watched(n_present, K, *rest):
        losses.append(view_loss(n_present, K, *rest) / (n_present * K))
        return losses[-1] * n_present * K

    with mock.patch.object(steps, "view_loss", watched):
        yield
    assume(min(losses) > LOWEST_LOSS)


def assert_never_rises(history, tolerance):
    values = np.array([value for _, _, value in history])
    rises = np.diff(values) / np.abs(values[:-1])
    worst = int(rises.argmax())
    assert rises[worst] <= tolerance, f"{history[worst]} -> {history[worst + 1]}"


@settings(deadline=None, max_examples=25)
@given(small_problems())
def test_without_balance_the_objective_never_rises(problem):
    views, p, start, l = problem
    with no_view_fitted_too_well():
        learned = run(views, p, start, l=l, t=10, kappa=10)
    assert_never_rises(learned.history, 1e-9)


@settings(deadline=None, max_examples=25)
@given(small_problems(), st.sampled_from([1e-4, 1e-2, 1.0]))
def test_with_balance_the_objective_never_rises_unless_a_cluster_was_empty(problem, nu):
    views, p, start, l = problem
    p = replace(p, nu=nu)
    spy = mock.patch.object(clustering, "farthest_distinct", wraps=clustering.farthest_distinct)
    with spy as reseeded, no_view_fitted_too_well():
        learned = run(views, p, start, l=l, t=10, kappa=10)
    event(f"a cluster was empty: {reseeded.called}")
    assume(not reseeded.called)
    assert_never_rises(learned.history, 1e-9)


@settings(deadline=None, max_examples=15)
@given(small_problems())
def test_the_last_objective_is_that_of_what_is_returned(problem):
    views, p, start, l = problem
    with no_view_fitted_too_well():
        learned = run(views, p, start, l=l, t=3, kappa=3)
    c = learned.clustering
    s = literal.State(unpack(learned.codes, float), learned.Ps, c.Q, c.labels, learned.view_weights)
    sizes = [p.N * p.K + np.linalg.norm(np.abs(Z) @ np.abs(P)) ** 2 for Z, P in zip(p.Zs, learned.Ps, strict=True)]
    rounding = 1e-6 * learned.weights @ sizes  # of Gram matrices in float32
    assert learned.history[-1][2] == pytest.approx(literal.objective(p, s), rel=1e-5, abs=rounding)
    assert c.objective == pytest.approx(literal.grouping(p, s.B, c.Q, c.labels))


# ---- the rest of learn()


def one_problem(n=300, m=2, seed=0, **constants):
    rng = np.random.default_rng(seed)
    views, y = blobs(rng, n, c=4, m=m)
    given = {"K_S": 4, "lambda3": coupling(m, n, True), "l21": True} | constants
    p = literal_problem(views, **given)
    return views, y, p, Start([rng.normal(size=(12, p.K)).astype(np.float32) for _ in range(m)])


def test_iterations_are_reported_with_the_fraction_of_changed_bits():
    views, _, p, start = one_problem()
    told = []
    learned = run(views, p, start, t=4, report=lambda *what: told.append(what))
    assert [iteration for iteration, _, _ in told] == list(range(1, learned.n_iter + 1))
    ends = [value for _, step, value in learned.history if step == "α"]
    assert [objective for _, objective, _ in told] == ends
    blocks, _ = blocks_of(views, 12)
    products = products_of_minus_one(blocks, p.K)
    codes, _ = loop.new_codes(blocks, np.zeros((p.N, 2), np.uint8), products, start.projections, np.ones(2))
    one = run(views, p, start, t=1, report=lambda *what: told.append(what))
    assert told[-1][2] == pytest.approx((unpack(one.codes) != unpack(codes)).mean())


def test_a_large_tolerance_stops_after_the_second_iteration():
    views, _, p, start = one_problem()
    learned = run(views, p, start, tol=0.9)
    assert learned.n_iter == 2
    assert learned.converged


def test_enough_iterations_converge_and_few_do_not():
    views, _, p, start = one_problem()
    assert run(views, p, start, t=100).converged
    assert not run(views, p, start, t=1).converged


def test_learning_does_not_depend_on_threads_or_cache():
    views, _, p, start = one_problem(n=2500)
    expected = run(views, p, start, t=2)
    for how in ({"n_threads": 2}, {"n_threads": 3, "cache_bytes": 1024 * 24 * 4}, {"cache_bytes": 10**9}):
        learned = run(views, p, start, t=2, **how)
        np.testing.assert_array_equal(learned.codes, expected.codes)
        np.testing.assert_array_equal(learned.clustering.labels, expected.clustering.labels)
        assert learned.history == expected.history
        for P, other in zip(learned.Ps, expected.Ps, strict=True):
            np.testing.assert_array_equal(P, other)


def test_codes_and_products_of_one_pass_agree_with_numpy():
    views, y, p, start = one_problem(n=1100, lambda3=1.0)
    Q = literal.sgn(np.random.default_rng(1).normal(size=(4, p.K)))
    pull = (3 * Q).astype(np.float32)
    blocks, _ = blocks_of(views, 12)
    codes = np.zeros((p.N, 2), np.uint8)
    weights = np.array([0.3, 2.0])
    products = products_of_minus_one(blocks, p.K)
    codes, flips = loop.new_codes(blocks, codes, products, start.projections, weights, (pull, y))
    said = sum(a * Z @ P for a, Z, P in zip(weights, p.Zs, start.projections, strict=True)) + pull[y]
    B = literal.sgn(said)
    clear = np.abs(said) > 1e-4
    np.testing.assert_array_equal(unpack(codes)[clear], B[clear])
    assert flips == (unpack(codes) == 1).sum()
    for ZtB, Z in zip(products, p.Zs, strict=True):
        np.testing.assert_allclose(ZtB, Z.T @ unpack(codes, float), atol=2e-3)


def random_bytes(rng, n, n_bytes):
    return rng.integers(256, size=(n, n_bytes), dtype=np.uint8)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5])
def test_the_change_of_products_is_that_of_products_computed_again(share):
    rng = np.random.default_rng(0)
    Z, old = rng.normal(size=(300, 7)).astype(np.float32), random_bytes(rng, 300, 3)
    flipped = rng.random((300, 24)) < share
    new = old ^ np.packbits(flipped, axis=1)
    expected = Z.T.astype(float) @ (unpack(new, float) - unpack(old, float))
    with mock.patch.object(kernels, "add_flipped", wraps=kernels.add_flipped) as by_rows:
        change = loop.change_of_products(Z, old, new, int(flipped.sum()))
    assert by_rows.called == (share < loop.FEW_FLIPS)
    assert change.dtype == np.float32
    np.testing.assert_allclose(change, expected, atol=1e-3)
    if share == 0:
        assert not change.any()


@pytest.mark.parametrize("few", [0.0, 0.08, 1.0], ids=["always products", "as it is", "always rows"])
def test_products_stay_those_of_the_codes_from_pass_to_pass(few, monkeypatch):
    monkeypatch.setattr(loop, "FEW_FLIPS", few)
    rng = np.random.default_rng(0)
    views, _ = blobs(rng, 2500, c=4, m=2, missing=0.2)
    blocks, _ = blocks_of(views, 12, n_threads=2)
    Zs = [np.vstack(parts).astype(float) for parts in zip(*map(blocks.embedded, range(len(blocks))), strict=True)]
    codes, ZtBs = np.zeros((2500, 2), np.uint8), products_of_minus_one(blocks, 16)
    first = [rng.normal(size=(12, 16)) for _ in views]
    for step in (0, 1e-3, 0.1, 1, 1):
        Ps = [P + step * rng.normal(size=P.shape) for P in first]
        before = codes
        codes, flips = loop.new_codes(blocks, codes, ZtBs, Ps, np.ones(2))
        assert flips == (unpack(codes) != unpack(before)).sum()
        for ZtB, Z in zip(ZtBs, Zs, strict=True):
            assert ZtB.dtype == np.float64
            np.testing.assert_allclose(ZtB, Z.T @ unpack(codes, float), atol=2e-3)
    assert loop.new_codes(blocks, codes, ZtBs, Ps, np.ones(2))[1] == 0


def test_encoding_is_the_sign_of_the_vote():
    views, _, p, start = one_problem(n=1100)
    blocks, _ = blocks_of(views, 12)
    weights = np.array([0.3, 2.0])
    said = sum(a * Z @ P for a, Z, P in zip(weights, p.Zs, start.projections, strict=True))
    clear = np.abs(said) > 1e-4
    found = unpack(loop.encode(blocks, start.projections, weights))
    np.testing.assert_array_equal(found[clear], literal.sgn(said)[clear])


def test_first_centroids_are_majorities_of_the_start_labels():
    rng = np.random.default_rng(0)
    truth = literal.sgn(rng.normal(size=(3, 32)))
    y = rng.integers(3, size=90).astype(np.int32)
    codes = pack(np.where(rng.random((90, 32)) < 0.1, -truth[y], truth[y]))
    rows = np.arange(0, 90, 2)
    p = literal.Problem([np.zeros((90, 1))], [np.ones(90, bool)], 32, 0, 3, 1.0, 0.0, 1.0, 0.0, 5.0, True)
    found = loop.first_clusters(
        clustering.Problem(codes, steps.L21()), Start([], y[rows]), rows, settings_of(p, 1, 1), rng
    )
    np.testing.assert_array_equal(found.Q, truth)
    np.testing.assert_array_equal(found.labels, y)


@pytest.mark.parametrize("rows", [np.arange(90), np.arange(0, 90, 2)], ids=["all rows", "some rows"])
def test_the_labels_of_the_start_are_kept_even_where_another_centroid_is_nearer(rows):
    rng = np.random.default_rng(0)
    truth = literal.sgn(rng.normal(size=(3, 32)))
    y = rng.integers(3, size=90).astype(np.int32)
    said = y.copy()
    said[:6] = (y[:6] + 1) % 3
    p = literal.Problem([np.zeros((90, 1))], [np.ones(90, bool)], 32, 0, 3, 1.0, 0.0, 1.0, 0.0, 5.0, True)
    problem = clustering.Problem(pack(truth[y]), steps.L21())
    found = loop.first_clusters(problem, Start([], said[rows]), rows, settings_of(p, 1, 1), rng)
    expected = y.copy()
    expected[rows] = said[rows]
    np.testing.assert_array_equal(found.labels, expected)


@pytest.mark.parametrize(("n_clusters", "rounds"), [(2, 50), (100, 50), (500, 10), (3000, 5)])
def test_many_clusters_have_fewer_last_rounds(n_clusters, rounds, monkeypatch):
    asked = []
    monkeypatch.setattr(train, "refine", lambda problem, Q, max_iter: asked.append(max_iter))
    options = mock.Mock(balance=0.0, norm="l21", n_bits=8, n_threads=1, n_clusters=n_clusters, joint=True)
    train.final_clusters(lambda norm, balance: None, 5, None, options, None)
    assert asked == [rounds]

"""The start from proposals: held-out bits, graphs, consensus and rotation, each against something independent."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.metrics import adjusted_rand_score

from bitmosaic.solver import steps
from bitmosaic.solver.proposals import (
    HeldOut,
    Proposals,
    Sample,
    agree,
    best_rotation,
    graph_labels,
    landmark_graph,
    left_vectors,
    n_effective,
    normal_like,
    propose_by_graphs,
    propose_by_means,
    stacked,
)
from bitmosaic.solver.start import Consensus

TRUTH = np.arange(600) % 4


def blobs(seed=0, d=6, spread=0.3):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(4, d))[TRUTH] + spread * rng.normal(size=(600, d))).astype(np.float32)


def judge(views):
    return HeldOut(lambda rows: [X[rows] for X in views], 600, np.random.default_rng(0))


def test_a_perfect_prediction_has_all_bits_and_noise_has_none():
    rng = np.random.default_rng(0)
    perfect = np.eye(4, dtype=np.float32)[TRUTH] - 0.25
    noise = rng.normal(size=(600, 4)).astype(np.float32)
    beta, bits = stacked(np.stack([perfect, noise]), TRUTH)
    assert bits == pytest.approx(2, abs=0.01)  # log2 of four equal clusters
    assert beta[0] > 10 * beta[1]
    assert stacked(noise[None], TRUTH)[1] == pytest.approx(0, abs=0.02)


def test_the_weights_of_stacked_views_are_a_minimum():
    rng = np.random.default_rng(0)
    views = np.stack([np.eye(4)[TRUTH] + rng.normal(size=(600, 4)) for _ in range(3)]).astype(np.float32)
    beta, bits = stacked(views, TRUTH)
    for change in np.vstack([np.eye(3), -np.eye(3)]) * 0.2:
        A = np.tensordot(beta + change, views, 1)
        p = np.exp(A) / np.exp(A).sum(1, keepdims=True)
        assert 2 + np.log2(p[np.arange(600), TRUTH]).mean() <= bits + 1e-6


def test_held_out_bits_tell_true_clusters_from_random_ones():
    rng = np.random.default_rng(0)
    held_out = judge([blobs(), blobs(1)])
    assert held_out.bits(TRUTH, 4)[0] > 0.9
    assert held_out.bits(rng.permutation(TRUTH), 4)[0] < 0.05  # not above chance, although in-sample it would be
    assert held_out.bits(np.zeros(600, int), 4)[0] == 0


def test_confidence_is_blind_to_sizes_first_and_prefers_equal_ones_second():
    small = np.where(np.arange(600) % 10 == 0, 1 + np.arange(600) // 10 % 3, 0)
    X = (8 * np.eye(4)[small] + np.random.default_rng(0).normal(size=(600, 4))).astype(np.float32)
    held_out = judge([X - X.mean(0)])
    share, entropy, _ = held_out.bits(small, 4)
    assert share > 0.8 > 0.4 > entropy
    halves = 2 * (X[:, 0] > np.median(X[:, 0])) + (X[:, 1] > np.median(X[:, 1]))  # of equal sizes, and cut through
    assert held_out.bits(halves, 4)[1] > 0.9
    assert held_out.confidence(small, 4) > held_out.confidence(halves, 4)
    assert judge([blobs()]).confidence(TRUTH, 4) == pytest.approx(99**2)


def test_normal_rows_have_the_covariance_of_the_view():
    X = blobs(d=3) @ np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    drawn = normal_like(X, 100_000, np.random.default_rng(0))
    np.testing.assert_allclose(np.cov(drawn.T), np.cov(X.T, bias=True), atol=0.05)
    assert drawn.dtype == np.float32


def test_bits_of_one_view_are_those_of_this_view_alone():
    noise = np.random.default_rng(1).normal(size=(600, 5)).astype(np.float32)
    both = judge([blobs(), noise])
    alone = judge([noise])
    assert both.bits(TRUTH, 4, view=1)[0] == alone.bits(TRUTH, 4)[0] < 0.05
    assert both.bits(TRUTH, 4, view=0)[0] > 0.9


def test_many_clusters_are_judged_by_some_of_them():
    labels = np.arange(600) % 150
    X = np.eye(150, dtype=np.float32)[labels]
    assert judge([X - X.mean(0)]).bits(labels, 150)[0] > 0.9


def test_a_landmark_graph_joins_near_rows_and_no_missing_ones():
    X = blobs()
    X[7] = 0  # a missing view
    Z = landmark_graph(X, 60, rng=np.random.default_rng(0))
    assert Z.shape == (600, 60)
    assert Z[[7]].nnz == 0 or not Z[[7]].toarray().any()
    similarity = (Z @ Z.T).toarray()
    same = TRUTH[:, None] == TRUTH
    assert similarity[same].mean() > 20 * similarity[~same].mean()


@pytest.mark.parametrize("columns", [8, 200], ids=["dense", "Lanczos"])
def test_left_vectors_are_those_of_a_full_decomposition(columns):
    rng = np.random.default_rng(0)
    Z = np.where(rng.random((300, columns)) < 0.2, rng.random((300, columns)), 0)
    U, values = left_vectors(csr_array(Z), 4)
    expected = np.linalg.svd(Z)
    np.testing.assert_allclose(values, expected[1][:4] ** 2, rtol=1e-2)
    np.testing.assert_allclose(np.abs(np.einsum("ij,ij->j", U[:, :1], expected[0][:, :1])), 1, rtol=1e-3)


def test_spectral_clusters_of_a_graph_are_the_blobs_whether_it_is_connected_or_not():
    for spread in (0.05, 0.4):
        labels = graph_labels(
            [landmark_graph(blobs(spread=spread), 80, rng=np.random.default_rng(0))],
            [1.0],
            4,
            5,
            rng=np.random.default_rng(0),
        )
        assert adjusted_rand_score(TRUTH, labels) > 0.95


def test_the_consensus_follows_the_proposals_with_the_best_odds():
    rng = np.random.default_rng(0)
    wrong = [rng.integers(4, size=600) for _ in range(3)]
    flawed = [np.where(rng.random(600) < 0.1, rng.integers(4, size=600), rng.permutation(4)[TRUTH]) for _ in range(3)]
    found = agree([Proposals([*wrong, *flawed], [0.05] * 3 + [9.0] * 3, np.ones(1))], 4, 5, rng)
    each = [adjusted_rand_score(TRUTH, labels) for labels in flawed]
    assert adjusted_rand_score(TRUTH, found) > max(each)


def test_with_many_clusters_the_best_proposal_is_taken():
    labels = [np.arange(600) % 300, np.arange(600) % 200]
    proposals = [Proposals(labels[:1], [1.0], np.ones(1)), Proposals(labels[1:], [2.0], np.ones(1))]
    assert agree(proposals, 300, 1, np.random.default_rng(0)) is labels[1]


class OneBlock:
    """Blocks of rows whose similarities (n, p) are given for each view."""

    def __init__(self, Zs):
        self.Zs = Zs

    def run_some(self, work, rows, *columns):
        return work([Z[rows] for Z in self.Zs], *columns)


def made_sample(views):
    """A sample of these views (n, d), whitened, with equal shares."""
    white = [np.linalg.qr(X - X.mean(0))[0].astype(np.float32) for X in views]
    joint, edges = np.hstack(white), np.cumsum([0, *(Y.shape[1] for Y in white)])
    slices = [slice(a, b) for a, b in pairwise(edges)]
    plain = [X / np.sqrt(np.square(X).sum(1).mean()) for X in views]
    whiteners = [np.eye(Y.shape[1]) for Y in white]
    scales = [np.ones(X.shape[1], np.float32) for X in views]
    consensus = Consensus(joint.T @ joint, slices, whiteners, np.ones(len(views)))
    return Sample(OneBlock(white), np.arange(len(joint)), consensus, plain, scales)


def proposed(views, propose=propose_by_graphs, **choices):
    rng, sample = np.random.default_rng(0), made_sample(views)
    return propose(sample, HeldOut(sample.white, 600, rng), 4, 5, rng, **choices)


def test_equal_views_are_judged_by_their_agreement_and_a_single_one_by_its_graphs():
    assert n_effective(np.ones(3), np.ones(3)) == 3
    assert n_effective(np.ones(2), np.array([1, 1e-9])) == pytest.approx(1)
    assert n_effective(np.full(2, 0.5), np.ones(2)) == 1  # copies
    three = proposed([blobs(seed) for seed in range(3)], repeats=2)
    assert len(three.labels) == 2 + 2 * 2  # graphs of the views and of the agreement, for two powers
    assert sum(three.weights[1:3]) == pytest.approx(8 * three.weights[0])  # equal views: 1 - 1/9 against 1/9
    one = proposed([blobs()], repeats=2)
    assert len(one.labels) == 2 + 2  # graphs and k-means
    for labels in three.labels + one.labels:
        assert adjusted_rand_score(TRUTH, labels) > 0.9


def test_a_view_that_outweighs_all_others_is_not_asked_for_agreement():
    noise = [np.random.default_rng(seed).normal(size=(600, 6)).astype(np.float32) for seed in (1, 2)]
    found = proposed([blobs(spread=0.1), *noise], repeats=1)
    assert found.strengths[0] > 10 > 4 > max(found.strengths[1:])
    equal, equal_agreed, strong, strong_agreed = found.weights
    assert strong > 1.5 * max(equal, equal_agreed, strong_agreed)
    assert adjusted_rand_score(TRUTH, found.labels[2]) > 0.95


def test_many_clusters_are_proposed_by_k_means():
    found = proposed([blobs(0), blobs(1)], propose_by_means)
    assert [adjusted_rand_score(TRUTH, labels) > 0.9 for labels in found.labels] == [True, True]


@pytest.mark.parametrize("d", [5, 16])
def test_no_other_rotation_is_nearer_to_the_codes(d):
    rng, K = np.random.default_rng(0), 16
    F, B = rng.normal(size=(200, d)), np.where(rng.random((200, K)) < 0.5, 1.0, -1.0)
    R = steps.rotation(F.T @ B)
    np.testing.assert_allclose(R @ R.T, np.eye(d) * (R @ R.T)[0, 0], atol=1e-9)
    size = np.sqrt((R @ R.T)[0, 0])
    for _ in range(20):
        other = size * np.linalg.qr(rng.normal(size=(K, K)))[0][:d]
        assert np.square(B - F @ R).sum() <= np.square(B - F @ other).sum()


def test_fitted_rotations_lose_less_by_signs_than_random_ones():
    rng = np.random.default_rng(0)
    F = (rng.normal(size=(500, 16)) * np.linspace(2, 0.1, 16)).astype(np.float32)
    F /= np.sqrt(np.square(F).sum(1).mean()) / steps.FUSED_LENGTH
    R = best_rotation(F, 16, rng)
    random = np.linalg.qr(rng.normal(size=(16, 16)))[0] * np.sqrt(16) / steps.FUSED_LENGTH

    def loss(R):
        return np.square(np.sign(F @ R) - F @ R).sum()

    assert loss(R) < 0.95 * loss(random)

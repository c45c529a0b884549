"""BinaryKMeans finds clusters of packed codes in arrays of any type and layout."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score

from bitmosaic import BinaryKMeans
from bitmosaic.hamming.codes import ROWS_PER_PIECE

N_CLUSTERS, N_BITS = 5, 64


def planted(n, flip=0.05, seed=0, n_bits=N_BITS):
    """Codes around N_CLUSTERS random prototypes, each bit wrong with probability `flip`; and the true clusters."""
    rng = np.random.default_rng(seed)
    prototypes = rng.integers(2, size=(N_CLUSTERS, n_bits))
    truth = rng.integers(N_CLUSTERS, size=n)
    bits = prototypes[truth] ^ (rng.random((n, n_bits)) < flip)
    return np.packbits(bits, axis=1), truth


def signs(codes):
    return 2.0 * np.unpackbits(codes, axis=1) - 1


@pytest.fixture(scope="module")
def codes():
    return planted(800)[0]


@pytest.fixture(scope="module")
def model(codes):
    return BinaryKMeans(N_CLUSTERS, random_state=0).fit(codes)


def test_planted_clusters_are_found(codes, model):
    assert adjusted_rand_score(planted(800)[1], model.labels_) == 1
    assert model.labels_.dtype == np.int32
    assert model.cluster_centers_.dtype == np.uint8
    assert model.cluster_centers_.shape == (N_CLUSTERS, N_BITS // 8)
    assert model.n_iter_ >= 1
    assert model.n_features_in_ == N_BITS // 8


def test_the_centers_are_the_majority_of_their_codes(codes, model):
    for label, center in enumerate(model.cluster_centers_):
        votes = signs(codes[model.labels_ == label]).sum(0)
        decided = votes != 0
        np.testing.assert_array_equal(np.sign(votes)[decided], signs(center[None])[0][decided])


def test_inertia_is_the_sum_of_the_distances_to_the_centers(codes, model):
    distances = cdist(signs(codes), signs(model.cluster_centers_), "hamming") * N_BITS
    assert model.inertia_ == pytest.approx(distances[np.arange(len(codes)), model.labels_].sum())
    # scikit-learn's inertia sums squared distances: of ±1 codes these are four times the Hamming distance.
    peer = KMeans(N_CLUSTERS, init=signs(model.cluster_centers_), n_init=1, max_iter=1)
    squared = ((signs(codes) - signs(model.cluster_centers_)[model.labels_]) ** 2).sum()
    assert model.inertia_ == pytest.approx(squared / 4)
    np.testing.assert_array_equal(peer.fit(signs(codes)).labels_, model.labels_)


def test_inertia_counts_bit_weights_and_sample_weights(codes):
    rng = np.random.default_rng(1)
    bit_weights, sample_weight = rng.random(N_BITS), rng.random(len(codes))
    model = BinaryKMeans(N_CLUSTERS, bit_weights=bit_weights, random_state=0).fit(codes, sample_weight=sample_weight)
    differ = signs(codes) != signs(model.cluster_centers_)[model.labels_]
    assert model.inertia_ == pytest.approx(sample_weight @ (differ @ bit_weights))


def test_a_strong_balance_gives_centers_with_as_many_ones_as_zeros(codes, model):
    balanced = BinaryKMeans(N_CLUSTERS, balance=10.0, random_state=0).fit(codes)
    assert signs(model.cluster_centers_).sum(1).any()  # otherwise there is nothing to balance
    # A difference of two costs 40 n, more than all codes can gain from one bit.
    assert not signs(balanced.cluster_centers_).sum(1).any()


def test_uint64_and_uint8_give_the_same_clusters(codes, model):
    words = BinaryKMeans(N_CLUSTERS, random_state=0).fit(codes.view(np.uint64))
    np.testing.assert_array_equal(words.labels_, model.labels_)
    assert words.inertia_ == model.inertia_
    assert words.cluster_centers_.dtype == np.uint64
    np.testing.assert_array_equal(words.cluster_centers_.view(np.uint8), model.cluster_centers_)
    np.testing.assert_array_equal(words.predict(codes.view(np.uint64)), model.labels_)
    assert words.n_features_in_ == 1


@pytest.mark.parametrize("bit_weights", [None, np.linspace(0.1, 3, N_BITS), np.full(N_BITS, 0.1)])
def test_predict_returns_the_labels_and_transform_the_distances(bit_weights):
    codes = planted(800, flip=0.3)[0]  # so noisy that many codes are equally near to two centers
    model = BinaryKMeans(N_CLUSTERS, bit_weights=bit_weights, random_state=0).fit(codes)
    np.testing.assert_array_equal(model.predict(codes), model.labels_)
    distances = model.transform(codes)
    assert distances.shape == (800, N_CLUSTERS)
    assert distances.dtype == (np.int32 if bit_weights is None else np.float32)
    weights = np.ones(N_BITS) if bit_weights is None else bit_weights
    differ = signs(codes)[:, None] != signs(model.cluster_centers_)
    np.testing.assert_allclose(distances, differ @ weights, rtol=1e-5)
    np.testing.assert_array_equal(distances.argmin(1), model.predict(codes))


@pytest.mark.parametrize("flip", [0.05, 0.3])
def test_a_sample_weight_counts_a_code_that_many_times(flip):
    codes = planted(300, flip)[0]
    times = np.random.default_rng(1).integers(1, 4, 300)
    weighted = BinaryKMeans(N_CLUSTERS, random_state=0).fit(codes, sample_weight=times)
    repeated = BinaryKMeans(N_CLUSTERS, random_state=0).fit(np.repeat(codes, times, axis=0))
    np.testing.assert_array_equal(np.repeat(weighted.labels_, times), repeated.labels_)
    np.testing.assert_array_equal(weighted.cluster_centers_, repeated.cluster_centers_)
    assert weighted.inertia_ == pytest.approx(repeated.inertia_)


def test_given_centers_are_the_initial_centers(codes, model):
    order = [3, 0, 4, 1, 2]
    again = BinaryKMeans(N_CLUSTERS, init=model.cluster_centers_[order]).fit(codes)
    np.testing.assert_array_equal(again.cluster_centers_, model.cluster_centers_[order])
    np.testing.assert_array_equal(np.array(order)[again.labels_], model.labels_)
    assert again.n_iter_ == 1


def test_more_initializations_are_never_worse():
    codes = planted(400, flip=0.3)[0]
    inertias = [BinaryKMeans(12, n_init=n_init, random_state=0).fit(codes).inertia_ for n_init in (1, 5, 20)]
    assert inertias == sorted(inertias, reverse=True)
    assert inertias[0] > inertias[-1]


@pytest.mark.parametrize("arranged", [np.asfortranarray, lambda codes: np.repeat(codes, 2, axis=1)[:, ::2]])
def test_the_memory_layout_does_not_matter(codes, model, arranged):
    other = arranged(codes)
    assert not other.flags.c_contiguous
    np.testing.assert_array_equal(clone(model).fit(other).labels_, model.labels_)
    np.testing.assert_array_equal(model.predict(other), model.labels_)


@pytest.mark.parametrize("bit_weights", [None, np.linspace(0.1, 3, 16)])
def test_the_number_of_threads_does_not_matter(bit_weights):
    codes = planted(2 * ROWS_PER_PIECE + 50, flip=0.3, n_bits=16)[0]
    sample_weight = np.random.default_rng(1).random(len(codes))

    def fitted(n_threads):
        settings = {"n_init": 2, "max_iter": 200, "random_state": 3, "bit_weights": bit_weights}
        return BinaryKMeans(N_CLUSTERS, n_threads=n_threads, **settings).fit(codes, sample_weight=sample_weight)

    one = fitted(1)
    for n_threads in (2, 3):
        other = fitted(n_threads)
        np.testing.assert_array_equal(other.labels_, one.labels_)
        np.testing.assert_array_equal(other.cluster_centers_, one.cluster_centers_)
        np.testing.assert_array_equal(other.predict(codes), one.labels_)
        assert other.inertia_ == one.inertia_


def test_the_same_seed_gives_the_same_labels_and_another_seed_may_not():
    codes = planted(400, flip=0.4)[0]
    fits = [BinaryKMeans(12, n_init=1, random_state=seed).fit(codes).labels_ for seed in (0, 0, 1)]
    np.testing.assert_array_equal(fits[0], fits[1])
    assert (fits[0] != fits[2]).any()
    state = BinaryKMeans(12, n_init=1, random_state=np.random.RandomState(0)).fit(codes)
    np.testing.assert_array_equal(state.labels_, fits[0])


@given(st.integers(1, 8), st.integers(0, 30), st.integers(1, 3), st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_no_cluster_is_empty_if_there_are_enough_distinct_codes(n_clusters, n_more, n_bytes, seed):
    rng = np.random.default_rng(seed)
    distinct = np.unique(rng.integers(256, size=(60, n_bytes), dtype=np.uint8), axis=0)[:n_clusters]
    codes = np.concatenate([distinct, distinct[rng.integers(len(distinct), size=n_more)]])
    codes = codes[rng.permutation(len(codes))]
    model = BinaryKMeans(len(distinct), n_init=1, random_state=seed % 1000).fit(codes)
    assert sorted(set(model.labels_)) == list(range(len(distinct)))
    assert model.inertia_ == 0  # as many clusters as distinct codes: each code is its own center


@given(st.integers(2, 6), st.integers(0, 2**32 - 1))
@settings(max_examples=15, deadline=None)
def test_no_cluster_is_empty_even_if_all_initial_centers_are_equal(n_clusters, seed):
    codes = np.unique(np.random.default_rng(seed).integers(256, size=(40, 2), dtype=np.uint8), axis=0)
    model = BinaryKMeans(n_clusters, init=np.repeat(codes[:1], n_clusters, axis=0), max_iter=1000).fit(codes)
    assert sorted(set(model.labels_)) == list(range(n_clusters))


def test_fewer_distinct_codes_than_clusters_give_a_warning(codes):
    few = np.repeat(codes[:3], 10, axis=0)
    with pytest.warns(ConvergenceWarning, match="only 3 distinct codes for n_clusters=5; the rest are empty"):
        model = BinaryKMeans(5, random_state=0).fit(few)
    assert len(set(model.labels_)) == 3
    assert model.inertia_ == 0
    np.testing.assert_array_equal(model.predict(few), model.labels_)


def test_too_few_iterations_give_a_warning():
    with pytest.warns(ConvergenceWarning, match="still changed after max_iter=1 iterations. Raise max_iter"):
        BinaryKMeans(12, max_iter=1, n_init=1, random_state=0).fit(planted(400, flip=0.4)[0])

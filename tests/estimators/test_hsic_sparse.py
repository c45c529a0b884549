"""Sparse views: the results of the same dense view, in less memory."""

import tracemalloc
from functools import partial

import numpy as np
import pytest
from scipy.sparse import coo_array, csc_matrix, csr_array, csr_matrix, dok_array
from sklearn.metrics import normalized_mutual_info_score

from bitmosaic import HSIC
from bitmosaic.errors import InvalidDataError, ParameterError
from bitmosaic.solver.embedding import WIDE

TOPICS, WORDS = 4, 50
small = partial(HSIC, TOPICS, n_bits=32, n_anchors=60, n_fits=1, random_state=0)


def texts(n, d, dtype=np.float32):
    """Counts of words (n, d), sparse, and topics (n,). A third of the words of a text are among 200 of its topic."""
    rng = np.random.default_rng(0)
    truth = np.arange(n) % TOPICS
    common = d * rng.random((n, WORDS)) ** 3
    own = rng.integers(200, size=(n, WORDS)) * TOPICS + truth[:, None]
    words = np.where(rng.random((n, WORDS)) < 1 / 3, own, common).astype(np.int32)
    counts = csr_array((np.ones(words.size, dtype), words.ravel(), WORDS * np.arange(n + 1)), shape=(n, d))
    counts.sum_duplicates()
    return counts, truth


def assert_same(model, other):
    np.testing.assert_array_equal(model.labels_, other.labels_)
    np.testing.assert_array_equal(model.codes_, other.codes_)
    assert model.objective_history_ == other.objective_history_
    assert model.scalings_ == other.scalings_


@pytest.fixture(scope="module", params=[3000, WIDE], ids=["narrow", "wide"])
def fitted(request):
    """Sparse counts, and the model of the same dense matrix."""
    X, truth = texts(500, request.param)
    model = small().fit(X.toarray())
    assert model._model.embeddings[0].sparse == (request.param == WIDE)
    assert normalized_mutual_info_score(truth, model.labels_) > 0.8
    return X, model


@pytest.mark.parametrize("kind", [csr_array, csr_matrix, csc_matrix, coo_array, dok_array])
def test_a_sparse_view_gives_the_labels_and_codes_of_the_dense_one(fitted, kind):
    X, model = fitted
    assert_same(small().fit(kind(X)), model)


def test_sparse_and_dense_rows_may_be_predicted_by_the_other_model(fitted):
    X, model = fitted
    other = small().fit(X)
    np.testing.assert_array_equal(model.predict(X), other.predict(X.toarray()))
    np.testing.assert_array_equal(model.transform(X), other.transform(X.toarray()))
    np.testing.assert_array_equal(model.predict(X), model.labels_)
    np.testing.assert_array_equal(small().fit_predict(X), model.labels_)


def test_a_row_has_the_same_code_beside_rows_that_are_not_sparse():
    X, _ = texts(500, WIDE)
    model, full = small().fit(X), np.ones((3, WIDE), np.float32)
    codes = model.transform(np.vstack([X[:9].toarray(), full]))
    np.testing.assert_array_equal(codes[:9], model.codes_[:9])


def test_a_saved_model_gives_the_same_codes(fitted, tmp_path):
    X, model = fitted
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(HSIC.load(tmp_path / "model").transform(X), model.codes_)


def test_partial_fit_takes_sparse_rows(fitted):
    X, _ = fitted
    sparse, dense = small().fit(X).partial_fit(X[:50]), small().fit(X).partial_fit(X[:50].toarray())
    np.testing.assert_array_equal(sparse.cluster_centers_, dense.cluster_centers_)
    np.testing.assert_array_equal(sparse.labels_, dense.labels_)


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.uint8])
def test_sparse_views_of_any_number_type_stand_beside_dense_ones(dtype):
    X, truth = texts(300, 2000, dtype)
    dense = np.eye(TOPICS)[truth] + np.random.default_rng(1).normal(size=(300, TOPICS))
    assert_same(small().fit({"words": X, "deep": dense}), small().fit({"words": X.toarray(), "deep": dense}))


@pytest.mark.parametrize("d", [2000, WIDE])
def test_one_stored_nan_means_that_the_row_lacks_the_view(d):
    X, truth = texts(300, d)
    other = np.eye(TOPICS)[truth] + np.random.default_rng(1).normal(size=(300, TOPICS))
    missing = np.arange(5, 300, 7)
    dense, sparse = X.toarray(), X.tolil()
    dense[missing] = np.nan
    sparse[missing] = 0
    sparse[missing, 3] = np.nan
    model = small().fit([sparse, other])
    assert_same(model, small().fit([dense, other]))
    np.testing.assert_array_equal(model.predict([sparse, other]), model.predict([dense, other]))


@pytest.mark.parametrize(("value", "message"), [(np.nan, "'a' has NaN in 1 of .* row 7"), (np.inf, "in row 7")])
def test_a_bad_value_is_refused(fitted, value, message):
    X, model = fitted
    bad = X.copy()
    bad.data[bad.indptr[7]] = value
    with pytest.raises(InvalidDataError, match=message):
        small().fit({"a": bad})
    with pytest.raises(InvalidDataError, match=message.replace("'a'", "'view0'")):
        model.predict(bad)


def test_a_sparse_matrix_with_columns_out_of_range_is_refused():
    X, _ = texts(50, 1000)
    X.indices[3] = 10**6
    with pytest.raises(InvalidDataError, match=r"A sparse matrix must be consistent; .* Build it again"):
        small().fit(X)


def test_a_wide_sparse_view_is_clustered_in_a_tenth_of_its_dense_size():
    """Takes some seconds, because only a large matrix shows that no dense one is made."""
    X, truth = texts(20_000, 50_000)
    small().fit(X[:300])  # kernels are loaded
    limit = 4 * X.shape[0] * X.shape[1] // 10
    model = HSIC(TOPICS, train_size=4000, n_fits=1, memory_limit=limit, n_threads=2, random_state=0)
    with pytest.raises(ParameterError, match=r"memory_limit must be at least 7\d\dMB"):  # for dense rows
        model.estimate(20_000, [50_000])
    tracemalloc.start()
    try:
        model.fit(X)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 0.2 * limit < peak < limit
    assert normalized_mutual_info_score(truth, model.labels_) > 0.95

"""HSIC and BinaryKMeans in scikit-learn pipelines and searches, with data frames, clones and pickles."""

import pickle
from functools import partial

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import adjusted_rand_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from bitmosaic import HSIC, BinaryKMeans
from bitmosaic.errors import DataTypeError, InvalidDataError

K, N = 3, 150
small = partial(HSIC, K, n_bits=32, n_anchors=20, random_state=0)
kmeans = partial(BinaryKMeans, K, random_state=0)


def blobs(seed=0):
    rng = np.random.default_rng(seed)
    truth = np.arange(N) % K
    return (8 * np.eye(K, 6)[truth] + rng.normal(size=(N, 6))).astype(np.float32), truth


@pytest.fixture(scope="module")
def data():
    return blobs()


@pytest.fixture(scope="module")
def frame(data):
    return pd.DataFrame(data[0], columns=[f"{kind}_{i}" for kind in ("color", "edge") for i in range(3)])


@pytest.fixture(scope="module")
def scaled():
    return Pipeline([("scale", StandardScaler()), ("hsic", small())])


def same(labels, truth):
    return adjusted_rand_score(truth, labels) == 1


# ---- pipelines


def test_a_pipeline_scales_and_clusters(data, scaled):
    X, truth = data
    labels = scaled.fit_predict(X)
    assert same(labels, truth)
    np.testing.assert_array_equal(scaled.fit(X).predict(X), labels)
    by_hand = StandardScaler().fit_transform(X)
    np.testing.assert_array_equal(labels, small().fit_predict(by_hand))
    np.testing.assert_array_equal(scaled.transform(X), small().fit(by_hand).transform(by_hand))
    np.testing.assert_array_equal(scaled.fit_transform(X), scaled.transform(X))
    np.testing.assert_array_equal(scaled["hsic"].labels_, labels)


@pytest.mark.parametrize("output", ["default", "pandas"])
def test_codes_of_one_step_are_clustered_by_the_next(data, output):
    X, truth = data
    pipeline = make_pipeline(small(), kmeans()).set_output(transform=output)
    labels = pipeline.fit_predict(X)
    assert same(labels, truth)
    np.testing.assert_array_equal(pipeline.predict(X), labels)
    np.testing.assert_array_equal(labels, kmeans().fit_predict(small().fit(X).codes_))
    distances = pipeline.transform(X)
    assert distances.shape == (N, K)
    np.testing.assert_array_equal(np.asarray(distances).argmin(1), labels)


def test_a_pipeline_accepts_a_data_frame_and_checks_its_columns(frame, data, scaled):
    assert same(scaled.fit_predict(frame), data[1])
    with pytest.raises(ValueError, match="feature names should match"):
        scaled.predict(frame.rename(columns={"edge_0": "other"}))


def test_a_data_frame_can_be_split_into_views(frame, data):
    def split(table):
        return {kind: table.filter(regex=f"^{kind}_") for kind in ("color", "edge")}

    pipeline = make_pipeline(FunctionTransformer(split), small())
    assert same(pipeline.fit_predict(frame), data[1])
    assert pipeline[-1].view_names_ == ["color", "edge"]
    np.testing.assert_array_equal(pipeline.predict(frame), small().fit(split(frame)).labels_)


# ---- data frames out


def test_pandas_output_keeps_values_types_and_index(frame):
    rows = frame.set_index(pd.Index([f"row {i}" for i in range(N)]))
    model = small().set_output(transform="pandas").fit(rows)
    out = model.transform(rows)
    assert list(out) == ["hsic0", "hsic1", "hsic2", "hsic3"]
    assert out.index.equals(rows.index)
    assert set(out.dtypes) == {np.dtype(np.uint8)}
    np.testing.assert_array_equal(out, small().fit(frame).codes_)
    distances = kmeans().set_output(transform="pandas").fit_transform(out)
    assert list(distances) == ["binarykmeans0", "binarykmeans1", "binarykmeans2"]
    assert distances.index.equals(rows.index)


def test_polars_output_is_clustered_too(data):
    polars = pytest.importorskip("polars")
    X, truth = data
    pipeline = make_pipeline(StandardScaler(), small(), kmeans()).set_output(transform="polars")
    assert same(pipeline.fit_predict(X), truth)
    codes = pipeline[:-1].transform(X)
    assert isinstance(codes, polars.DataFrame)
    assert codes.columns == ["hsic0", "hsic1", "hsic2", "hsic3"]
    assert set(codes.dtypes) == {polars.UInt8}
    assert isinstance(pipeline.transform(X), polars.DataFrame)
    assert same(small().fit_predict(polars.DataFrame(X)), truth)


def test_a_data_frame_of_codes_gives_the_same_result_as_an_array(data):
    codes = small().fit(data[0]).codes_
    table = pd.DataFrame(codes)
    from_array, from_table = kmeans().fit(codes), kmeans().fit(table)
    np.testing.assert_array_equal(from_table.labels_, from_array.labels_)
    np.testing.assert_array_equal(from_table.predict(table), from_array.predict(codes))
    np.testing.assert_array_equal(from_table.transform(table), from_array.transform(codes))
    assert isinstance(from_table.cluster_centers_, np.ndarray)


@pytest.mark.parametrize(
    ("table", "got"),
    [
        (pd.DataFrame({"a": [1.0, 2.0], "b": [1.0, 0.0]}), "float64"),
        (pd.DataFrame({"a": np.array([1, 2], np.uint8), "b": ["x", "y"]}), "object|str"),
        (pd.DataFrame({"a": np.array([1, 2], np.uint8), "b": np.array([1, 2], np.int16)}), "int16"),
    ],
)
def test_a_data_frame_of_other_types_raises_an_error(table, got):
    with pytest.raises(DataTypeError, match=f"packed bits .* got ({got})"):
        kmeans().fit(table)


def test_columns_of_codes_in_another_order_raise_an_error(data):
    table = small().set_output(transform="pandas").fit_transform(data[0])
    model = kmeans().fit(table)
    assert model.feature_names_in_.tolist() == list(table)
    with pytest.raises(InvalidDataError, match="Feature names must be in the same order"):
        model.predict(table[table.columns[::-1]])


# ---- searches, clones, pickles


def test_a_grid_search_finds_the_number_of_clusters(data):
    def quality(estimator, X, y=None):
        return -abs(len(np.unique(estimator.predict(X))) - K)

    search = GridSearchCV(small(), {"n_clusters": [2, K, 5]}, scoring=quality, cv=2)
    assert search.fit(data[0]).best_params_ == {"n_clusters": K}
    assert same(search.predict(data[0]), data[1])
    nested = GridSearchCV(
        Pipeline([("scale", StandardScaler()), ("hsic", small())]), {"hsic__n_bits": [16, 32]}, scoring=quality, cv=2
    )
    assert nested.fit(data[0]).best_params_["hsic__n_bits"] in (16, 32)


def test_a_fitted_pipeline_can_be_pickled(data):
    X, _ = data
    pipeline = make_pipeline(StandardScaler(), small(), kmeans()).set_output(transform="pandas").fit(X)
    again = pickle.loads(pickle.dumps(pipeline))
    np.testing.assert_array_equal(again.predict(X), pipeline.predict(X))
    np.testing.assert_array_equal(again.transform(X), pipeline.transform(X))
    assert type(again.transform(X)) is type(pipeline.transform(X))

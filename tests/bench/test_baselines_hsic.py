"""HSIC and its variants with the interface of the baselines: the same fits, codes and sizes."""

import numpy as np
import pytest
from planted_views import TRUTH, VIEWS, WIDTHS, lacking

import bitmosaic.estimators.hsic
from bitmosaic.bench.baselines import make
from bitmosaic.errors import InvalidDataError, ParameterError
from bitmosaic.estimators.metrics import clustering_scores

VARIANTS = {
    "HSIC": {},
    "HSIC-TS": {"joint": False},
    "HSIC-F": {"norm": "frobenius"},
    "HSIC-U": {"balance": 0, "variance_reward": 0},
}
ALL = [*VARIANTS, "HSIC.paper"]


@pytest.fixture(scope="module")
def fitted():
    """Each variant, and its labels."""
    methods = {name: make(name, 4, random_state=0, n_bits=32) for name in ALL}
    return {name: (method, method.fit_predict(VIEWS)) for name, method in methods.items()}


@pytest.mark.parametrize("name", VARIANTS)
def test_planted_clusters_are_found_by_a_variant_which_is_the_estimator_with_its_settings(fitted, name):
    method, labels = fitted[name]
    assert clustering_scores(TRUTH, labels)["nmi"] >= 0.95
    model = bitmosaic.estimators.hsic.HSIC(4, n_bits=32, random_state=0, **VARIANTS[name]).fit(VIEWS)
    np.testing.assert_array_equal(labels, model.labels_)
    np.testing.assert_array_equal(method.codes_, model.codes_)
    assert len(method.objective_) == model.n_iter_
    assert (model.n_iter_, "α", method.objective_[-1]) in model.objective_history_


def test_the_papers_settings_are_the_papers(fitted):
    method, labels = fitted["HSIC.paper"]
    model = bitmosaic.estimators.hsic.HSIC.paper(4, n_bits=32, random_state=0).fit(VIEWS)
    np.testing.assert_array_equal(labels, model.labels_)
    np.testing.assert_array_equal(method.codes_, model.codes_)
    assert len(method.objective_) == model.n_iter_


@pytest.mark.parametrize("name", ALL)
def test_the_objective_never_rises(fitted, name):
    objective = fitted[name][0].objective_
    assert len(objective) > (name != "HSIC-TS")  # its first codes are already the best of the first rotation
    assert (np.diff(objective) <= 1e-6 * abs(objective[0])).all()


@pytest.mark.parametrize(("name", "n_anchors", "linear"), [("HSIC", 120, 1), ("HSIC.paper", 600, 0)])
def test_sizes_are_the_bytes_of_the_model(fitted, name, n_anchors, linear):
    d, m = sum(WIDTHS.values()), len(WIDTHS)
    float64s = d + m + 32  # offsets, view weights, bit weights
    columns = m * n_anchors + linear * d  # of the embeddings
    float32s = d + n_anchors * d + columns  # factors, anchors, means
    assert fitted[name][0].sizes_ == {
        "data": 600 * 4,
        "centroids": 4 * 4,
        "projection": columns * 32 * 4,
        "encoder": 8 * float64s + 4 * float32s,
    }


def test_the_bytes_of_components_count_too():
    wide = np.random.default_rng(0).standard_normal((300, 120)).astype(np.float32)
    method = make("HSIC", 4, random_state=0, n_bits=16)
    method.fit_predict(wide)
    basis, anchors = 120 * 96, 60 * 96
    assert method.sizes_["encoder"] == 8 * (120 + 1 + 16) + 4 * (120 + basis + anchors + 60 + 96)


def test_rows_with_missing_views_are_accepted():
    views = VIEWS | {"b": lacking(VIEWS["b"], slice(0, 200))}
    labels = make("HSIC", 4, random_state=0, n_bits=32).fit_predict(views)
    assert clustering_scores(TRUTH, labels)["nmi"] >= 0.95


def test_threads_and_repetition_do_not_change_labels(fitted):
    method = make("HSIC", 4, random_state=0, n_bits=32, n_threads=1)
    np.testing.assert_array_equal(method.fit_predict(VIEWS), fitted["HSIC"][1])


def test_bad_parameters_are_refused():
    with pytest.raises(ParameterError, match="n_bits"):
        make("HSIC", 4, n_bits=12).fit_predict(VIEWS)
    with pytest.raises(InvalidDataError, match=r"n_samples=600 should be >= n_clusters=601"):
        make("HSIC", 601).fit_predict(VIEWS)

"""All baselines find planted clusters, repeat themselves, and refuse what they cannot cluster."""

import numpy as np
import pytest
from planted_views import TRUTH, VIEWS, blobs, lacking

from bitmosaic.bench.baselines import METHODS, Baseline, make
from bitmosaic.errors import InvalidDataError, ParameterError
from bitmosaic.estimators.metrics import clustering_scores

OTHERS = [name for name in METHODS if not name.startswith("HSIC")]  # HSIC has its own file
CLOSE, _ = blobs(n=150, spread=0.7, seed=1)  # no clear clusters


@pytest.mark.parametrize("name", METHODS)
def test_every_registered_method_can_be_made(name):
    method = make(name, 4, random_state=7)
    assert isinstance(method, Baseline)
    assert (method.n_clusters, method.random_state) == (4, 7)


@pytest.mark.parametrize("name", OTHERS)
def test_planted_clusters_are_found(name):
    labels = [make(name, 4, random_state=seed).fit_predict(VIEWS) for seed in range(3 if "k-m" in name else 1)]
    assert np.median([clustering_scores(TRUTH, each)["nmi"] for each in labels]) >= 0.95


@pytest.mark.parametrize("name", OTHERS)
def test_the_same_seed_gives_the_same_labels_and_does_not_change_the_views(name):
    views = {key: array.copy() for key, array in CLOSE.items()}
    labels, again = (make(name, 5, random_state=3).fit_predict(views) for _ in range(2))
    assert (labels.dtype, labels.shape) == (np.int32, (150,))
    np.testing.assert_array_equal(labels, again)
    for key, array in CLOSE.items():
        np.testing.assert_array_equal(views[key], array)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", OTHERS)
def test_one_cluster_equal_rows_and_few_rows_are_accepted(name):
    assert not make(name, 1, random_state=0).fit_predict(CLOSE).any()
    assert make(name, 3, random_state=0).fit_predict(np.ones((20, 5), np.float32)).shape == (20,)
    assert make(name, 7, random_state=0).fit_predict(CLOSE["a"][:12]).shape == (12,)


@pytest.mark.parametrize("n_clusters", [0, 601])
def test_the_number_of_clusters_is_at_most_the_number_of_rows(n_clusters):
    with pytest.raises(ParameterError, match=rf"n_clusters must be .* got {n_clusters}"):
        make("k-means", n_clusters).fit_predict(VIEWS)


def test_missing_values_are_refused():
    with pytest.raises(InvalidDataError, match=r"view 'b' has missing or infinite values\. Leave those rows out"):
        make("k-means", 4).fit_predict(VIEWS | {"b": lacking(VIEWS["b"], [3])})


def test_an_unknown_method_is_refused_with_the_known_ones():
    with pytest.raises(ParameterError, match=r"Unknown method 'kmeans'; the methods are k-means, k-means\+\+, .*HSIC"):
        make("kmeans", 4)

"""Number of clusters: exact for separated clusters, not clear if there are none."""

import itertools
import json

import numpy as np
import pytest
from planted_views import blobs, lacking
from sklearn.metrics import pairwise_distances

from bitmosaic import HSIC
from bitmosaic.solver import n_clusters, start
from bitmosaic.solver.n_clusters import ClusterCounts, best_count, candidates, most_clusters

FEW = {"n_anchors": 40, "n_init": 2, "max_iter": 2, "random_state": 0}
UNCLEAR = "ignore:The number of clusters is not clear"
pytestmark = pytest.mark.filterwarnings("ignore:The objective still fell")


def tight(n, c, d=10, seed=0):
    rng = np.random.default_rng(seed)
    return (10 * rng.standard_normal((c, d))[np.arange(n) % c] + rng.standard_normal((n, d))).astype(np.float32)


def auto(X, **changes):
    return HSIC("auto", **(FEW | changes)).fit(X)


@pytest.mark.parametrize("c", [2, 5, 12])
def test_separated_clusters_are_counted_exactly(c):
    X = tight(240, c, seed=c)
    model = auto([X, np.tanh(X / 5)])
    assert model.n_clusters_ == len(model.cluster_centers_) == c
    assert model.cluster_counts_.clear


def test_one_view_is_enough_and_rows_may_lack_views():
    X = tight(240, 5)
    assert auto(X).n_clusters_ == 5
    assert auto([lacking(X, range(40)), np.tanh(lacking(X, range(200, 240)) / 5)]).n_clusters_ == 5


def test_clusters_that_overlap_are_counted_where_the_views_agree():
    views, _ = blobs(n=900, n_clusters=6, spread=0.9, seed=3)
    counts = auto(views, n_anchors=100).cluster_counts_
    assert not counts.separate
    assert 5 <= counts.chosen <= 7
    assert counts.low <= 6 <= counts.high


def test_strong_agreement_counts_more_than_in_the_start(monkeypatch):
    exponents, agreed = [], n_clusters.agreed_rows
    monkeypatch.setattr(n_clusters, "agreed_rows", lambda *a: exponents.append(a[3]) or agreed(*a))
    auto(blobs(n=300, n_clusters=3, spread=0.9, seed=3)[0])
    assert exponents == [0.75]
    assert exponents[0] > start.AGREEMENT_EXPONENT


def test_noise_or_one_blob_is_not_clear():
    X = np.random.default_rng(0).standard_normal((300, 12))
    for views in (X, [X, np.tanh(X)]):
        with pytest.warns(UserWarning, match="The number of clusters is not clear"):
            assert not auto(views).cluster_counts_.clear


@pytest.mark.filterwarnings("ignore:Views .* are constant")
@pytest.mark.parametrize("X", [np.ones((60, 3)), np.eye(3)[:1], np.eye(5)], ids=["constant", "one row", "five rows"])
def test_too_few_distinct_rows_give_one_cluster_and_a_warning(X):
    with pytest.warns(UserWarning, match=r"not clear: 1 \(too few distinct rows to tell\)"):
        model = auto(X)
    assert model.n_clusters_ == 1
    assert not model.labels_.any()


def test_a_count_at_the_end_of_the_candidates_is_not_clear():
    counts = best_count(tight(200, 50), np.random.default_rng(0), separate=True)
    assert counts.chosen == counts.candidates[-1] == most_clusters(200) == 25
    assert not counts.clear
    assert "at most 25 were tried" in str(counts)


def test_candidates_are_every_small_number_and_then_in_steps_to_the_most():
    assert candidates(1) == []
    assert candidates(9) == list(range(2, 10))
    numbers = candidates(375)
    assert numbers[:12] == list(range(2, 14))
    assert numbers[-1] == 375
    assert all(a < b <= 1.16 * a for a, b in itertools.pairwise(numbers[11:]))
    assert [most_clusters(n) for n in (1, 8, 40, 96, 800, 10**6)] == [1, 2, 10, 12, 100, 375]


def test_the_silhouette_is_that_of_mean_squared_distances_to_the_members():
    X = tight(60, 3).astype(np.float64)
    (A, tree), (B, _) = n_clusters.split(X, np.random.default_rng(0))
    found = n_clusters.silhouette_among(B, A, tree, 3)
    centers = np.stack([A[n_clusters.fcluster(tree, 3, "maxclust") == j].mean(0) for j in (1, 2, 3)])
    to_A, to_B = (pairwise_distances(half, centers).argmin(1) for half in (A, B))
    distances = np.stack([pairwise_distances(B, A[to_A == j], "sqeuclidean").mean(1) for j in range(3)], axis=1)
    a = distances[np.arange(len(B)), to_B]
    b = np.where(np.arange(3) == to_B[:, None], np.inf, distances).min(1)
    assert found == pytest.approx(np.mean((b - a) / np.maximum(a, b)), rel=1e-9)


@pytest.mark.filterwarnings(UNCLEAR)
def test_the_count_depends_on_the_seed_alone():
    views, _ = blobs(n=500, spread=0.7)
    one = auto(views, n_threads=1, chunk_size=64)
    two = auto(views, n_threads=2, memory_limit="200MB")
    assert one.cluster_counts_ == two.cluster_counts_
    assert np.array_equal(one.labels_, two.labels_)


def test_progress_ends_at_its_total_once():
    seen = []
    HSIC("auto", **FEW).fit(tight(100, 4), progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1]
    assert len({total for _, total in seen}) == 1
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})


@pytest.mark.parametrize("start", ["proposals", "rotation"])
def test_both_starts_can_use_the_count(start):
    model = auto(tight(160, 4), start=start)
    assert model.n_clusters_ == 4 == len(np.unique(model.labels_))


def test_a_model_file_stores_the_cluster_counts(tmp_path):
    model = auto(tight(120, 4))
    model.save(tmp_path / "m")
    loaded = HSIC.load(tmp_path / "m")
    assert loaded.n_clusters == "auto"
    assert loaded.n_clusters_ == 4
    assert loaded.cluster_counts_ == model.cluster_counts_
    assert np.array_equal(loaded.predict(tight(120, 4)), model.labels_)


def test_inconsistent_cluster_counts_are_refused():
    good = best_count(tight(100, 4), np.random.default_rng(0), separate=True).as_json()
    assert ClusterCounts.from_json(json.loads(json.dumps(good))).chosen == 4
    for change in ({"spread": [1.0]}, {"low": 9}, {"chosen": 0, "low": 0}):
        with pytest.raises(ValueError, match=r"same length|not in the range|not among the candidates"):
            ClusterCounts.from_json(good | change)

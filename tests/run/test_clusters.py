"""Clusters with edits applied: order, centers and distances against plain NumPy, or those of the run if unedited."""

import numpy as np
import pytest

from bitmosaic.hamming.codes import hamming_distances_numpy, unpack
from bitmosaic.run.clusters import Clusters, ImageFacts


@pytest.fixture
def facts(run):
    return ImageFacts.of(run)


def edited(facts, **edit):
    facts.log.append(edit, len(facts.log.entries()))
    return Clusters(facts)


def test_clusters_without_edits_are_those_of_the_run(run, facts):
    clusters = Clusters(facts)
    assert clusters.labels.tolist() == run.column("labels").tolist()
    np.testing.assert_array_equal(clusters.distances, run.column("distances"))
    assert [clusters.summary(n)["size"] for n in clusters.numbers] == run.manifest.sizes
    assert clusters.scores == pytest.approx(run.manifest.scores)


def test_members_are_sorted_by_distance_and_then_by_row(facts):
    clusters = Clusters(facts)
    for number in clusters.numbers:
        rows = np.flatnonzero(clusters.labels == number)
        expected = sorted(rows, key=lambda row: (clusters.distances[row], row))
        assert clusters.members(number).tolist() == expected
        assert clusters.position(expected[7]) == 7


def test_a_merged_cluster_has_the_majority_of_its_bits_as_center(facts):
    clusters = edited(facts, do="merge", clusters=[0, 1], into=1)
    rows = np.flatnonzero(clusters.labels == 1)
    assert clusters.numbers == [1, 2]
    signs = unpack(facts.codes[rows]).sum(0)
    np.testing.assert_array_equal(clusters.centers[1], np.packbits(signs >= 0))
    expected = hamming_distances_numpy(facts.codes[rows], clusters.centers[[1]], facts.bit_weights)[:, 0]
    np.testing.assert_allclose(clusters.distances[rows], expected, rtol=1e-5)
    assert clusters.summary(1)["edited"]
    assert not clusters.summary(2)["edited"]


def test_unedited_clusters_keep_the_distances_of_the_run(run, facts):
    clusters = edited(facts, do="merge", clusters=[0, 1], into=1)
    rest = clusters.labels == 2
    np.testing.assert_array_equal(clusters.distances[rest], run.column("distances")[rest])


def test_the_majority_label_and_purity_are_those_of_the_members(run, facts):
    clusters = edited(facts, do="merge", clusters=[0, 1], into=1)
    truth = run.views.labels[clusters.labels == 1]
    names, counts = np.unique(truth, return_counts=True)
    summary = clusters.summary(1)
    assert summary["label"] == names[counts.argmax()]
    assert summary["purity"] == pytest.approx(counts.max() / len(truth), abs=1e-4)
    assert sum(count for _, count in clusters.labels_within(1)) == len(truth)
    assert clusters.scores["acc"] == pytest.approx(80 / 120)


def test_the_nearest_clusters_of_a_center_begin_with_its_own(facts):
    clusters = Clusters(facts)
    nearest = clusters.nearest_clusters(clusters.centers[2])
    assert nearest[0] == (2, 0.0)
    assert [n for n, _ in clusters.nearest_clusters(clusters.centers[2], without=2)] == [n for n, _ in nearest[1:]]
    distances = hamming_distances_numpy(clusters.centers[[2]], clusters.centers, facts.bit_weights)[0]
    assert dict(nearest)[0] == pytest.approx(distances[0], abs=0.01)


def test_every_view_alone_finds_clusters_that_all_views_show(facts):
    clusters = Clusters(facts)
    sampled, views = clusters.views_within(0)
    assert sampled == 40
    assert [view for view, _, _ in views] == ["hog", "ch"]
    assert min(share for _, share, _ in views) > 0.9


def test_the_histogram_counts_every_member(facts):
    counts, edges = Clusters(facts).histogram(1)
    assert counts.sum() == 40
    assert len(edges) == len(counts) + 1


def test_a_run_without_labels_has_no_purity(run):
    (run.views_folder / "labels.npy").unlink()
    manifest = run.views_folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"labels": true', '"labels": false'))
    clusters = Clusters(ImageFacts.of(run))
    assert clusters.summary(0)["label"] is None
    assert clusters.summary(0)["purity"] is None
    assert clusters.scores is None


@pytest.mark.parametrize("near", [0, 1e-45, 5e-7, 1e-4])
def test_distances_that_are_nearly_equal_have_a_histogram(facts, near):
    clusters = Clusters(facts)
    members = clusters.members(1)
    clusters.distances = np.full(len(clusters.distances), 5 if near > 1e-40 else 0, np.float32)
    clusters.distances[members[::2]] += np.float32(near)
    counts, edges = clusters.histogram(1)
    assert counts.sum() == len(members)
    assert (np.diff(edges) > 0).all()

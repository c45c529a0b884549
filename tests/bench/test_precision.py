"""Precision@20 of codes and features, against sorting all distances."""

import numpy as np
import pytest
from planted_views import TRUTH, VIEWS, blobs
from rich.console import Console

from bitmosaic.bench import precision
from bitmosaic.bench.precision import (
    check_search,
    itq_codes,
    measure,
    precision_of_codes,
    precision_of_rows,
    precision_table,
)
from bitmosaic.bench.quality import balanced, cases_of
from bitmosaic.views import as_views, write_views

faiss = pytest.importorskip("faiss")
NOISY, CLASSES = blobs(spread=0.7, seed=1)


def brute_force(distances, truth, rank):
    """Precision@20 from all distances (n, n); ties by `rank` (n,), the image itself left out."""
    shares = []
    for image, row in enumerate(distances):
        nearest = [other for other in np.lexsort((rank, row)) if other != image][:20]
        shares.append(np.mean(truth[nearest] == truth[image]))
    return np.mean(shares)


def hamming(codes):
    return np.bitwise_count(codes[:, None] ^ codes).sum(axis=-1, dtype=int)


@pytest.mark.parametrize("n_bytes", [1, 2, 16])  # with one byte, more than 20 images have the same code
def test_precision_of_codes_is_that_of_sorted_distances(n_bytes):
    rng = np.random.default_rng(1)
    truth = np.sort(TRUTH)  # adjacent, as in a folder per class
    codes = rng.integers(256, size=(4, n_bytes), dtype=np.uint8)[truth]
    codes ^= np.packbits(rng.random((600, 8 * n_bytes)) < 0.2, axis=1)
    rank = np.argsort(np.random.default_rng(0).permutation(600))
    assert precision_of_codes(codes, truth) == pytest.approx(brute_force(hamming(codes), truth, rank))


def test_equal_codes_give_the_share_of_the_class_whatever_the_order_of_rows():
    truth = np.repeat(np.arange(10), 200)
    assert precision_of_codes(np.zeros((2000, 16), np.uint8), truth) == pytest.approx(0.1, abs=0.02)


def test_precision_of_features_is_that_of_sorted_distances():
    X = balanced(as_views(NOISY))
    distances = np.linalg.norm(X[:, None].astype(float) - X, axis=-1)
    expected = brute_force(distances, CLASSES, np.arange(600))
    assert precision_of_rows(X, CLASSES, faiss) == pytest.approx(expected, abs=1e-4)
    assert 0.3 < expected < 0.9


def test_many_images_are_sampled_and_few_have_fewer_neighbors(monkeypatch):
    X = balanced(as_views(VIEWS))
    assert precision_of_rows(X[:5], np.zeros(5), faiss) == 1
    monkeypatch.setattr(precision, "MANY", 500)
    monkeypatch.setattr(precision, "SAMPLE", 50)
    seen = []
    monkeypatch.setattr(precision, "_share", lambda truth, queries, near: seen.append((len(queries), near.shape)))
    precision_of_rows(X, TRUTH, faiss)
    precision_of_codes(itq_codes(X, 0), TRUTH)
    assert seen == [(50, (50, 21))] * 2


def test_the_codes_of_itq_keep_neighbors():
    codes = itq_codes(balanced(as_views(VIEWS)), 0)
    assert (codes.shape, codes.dtype) == ((600, 16), np.uint8)
    assert precision_of_codes(codes, TRUTH) > 0.99


def test_a_row_per_case_has_codes_and_features_of_all_seeds(tmp_path):
    write_views(tmp_path / "set", NOISY, labels=CLASSES)
    steps = []
    found = measure(cases_of([str(tmp_path / "set")]), 2, lambda *step: steps.append(step))
    assert steps == [("precision@20", done, 2) for done in range(3)]
    assert {method: len(values) for method, values in found["set"].items()} == {
        "HSIC": 2,
        "PCA-ITQ": 2,
        "balanced": 1,
        "unit rows": 1,
    }
    table = precision_table({"set[a]": {"HSIC": [0.4, 0.6], "PCA-ITQ": [0.4], "balanced": [0.2], "unit rows": [0.8]}})
    console = Console(width=100)
    with console.capture() as capture:
        console.print(table)
    (row,) = (line.split() for line in capture.get().splitlines() if "set[a]" in line)
    assert row == ["set[a]", "0.500±.100", "0.400±.000", "0.800", "0.200", "1.250", "0.625"]


def test_incomplete_views_are_refused_before_any_run(tmp_path):
    X = np.random.default_rng(0).normal(size=(600, 4))
    X[3] = np.nan
    write_views(tmp_path / "views", as_views({"a": X, "b": np.nan_to_num(X)}), labels=TRUTH)
    with pytest.raises(ValueError, match=r"--search needs complete views; .* has NaN"):
        check_search(cases_of([str(tmp_path / "views")]))

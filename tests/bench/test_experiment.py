"""Reading experiments from TOML."""

import numpy as np
import pytest
from planted_views import blobs

from bitmosaic.bench.baselines import METHODS
from bitmosaic.bench.experiment import read_experiment, shipped
from bitmosaic.errors import BitmosaicError, FileFormatError, MissingFileError, ParameterError
from bitmosaic.views import Views, write_views

DATA = '[data.blobs]\npath = "blobs"\n'


@pytest.fixture
def root(tmp_path):
    views, truth = blobs(n=120)
    write_views(tmp_path / "blobs", Views(tuple(views), tuple(views.values()), labels=truth))
    return tmp_path


def read(root, text):
    (root / "small.toml").write_text(text)
    return read_experiment(str(root / "small.toml"))


def test_methods_views_lengths_and_counts_are_multiplied(root):
    text = DATA + '[[runs]]\nmethods = ["HSIC", "k-means"]\nviews = "both"\nn_bits = [16, 32]\nn_clusters = [3, 4]\n'
    groups = read(root, text).groups
    assert len(groups) == 4 * 2 * 2 + 4 * 2  # k-means has no bits
    assert {g.views for g in groups} == {("a",), ("b",), ("c",), ("a", "b", "c")}
    assert {g.n_bits for g in groups if g.method == "k-means"} == {None}
    assert {(g.n_bits, g.n_clusters) for g in groups if g.method == "HSIC"} == {(16, 3), (16, 4), (32, 3), (32, 4)}


def test_the_true_number_of_clusters_and_every_method_are_the_default(root):
    groups = read(root, DATA + "[[runs]]\n").groups
    assert {g.n_clusters for g in groups} == {4}
    assert [g.method for g in groups] == list(METHODS)


def test_repeated_combinations_are_run_once(root):
    block = '[[runs]]\nmethods = ["k-means"]\n'
    assert len(read(root, DATA + block + block).groups) == 1


def test_rows_per_class_are_balanced_and_reproducible(root):
    text = DATA + "per_class = 5\n[[runs]]\n"
    first, again = (read(root, text).cases["blobs"] for _ in range(2))
    assert np.bincount(first.truth).tolist() == [5, 5, 5, 5]
    assert np.array_equal(first.views(0)["a"], again.views(0)["a"])


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("seeds = ", FileFormatError, "must be valid TOML"),
        (DATA, FileFormatError, r"the tables \[data.NAME\] and \[\[runs\]\].* 'runs' is wrong or missing"),
        ("[data.x]\n[[runs]]\n", FileFormatError, "'path' is wrong or missing"),
        ("sedes = 3\n" + DATA + "[[runs]]\n", FileFormatError, "'sedes' is wrong or missing"),
        ('cap_memory = "much"\n' + DATA + "[[runs]]\n", BitmosaicError, "got 'much'"),
        (DATA + '[[runs]]\nmethods = ["k-mean"]\n', ParameterError, "Unknown method 'k-mean'"),
        (DATA + '[[runs]]\nviews = "some"\n', FileFormatError, "'some' is wrong or missing"),
        (DATA + "[[runs]]\nn_clusters = 5\n", FileFormatError, "'int' object is not iterable is wrong"),
        (DATA + 'views = ["d"]\n[[runs]]\n', BitmosaicError, "'d'"),
        (DATA + "per_class = 1000\n[[runs]]\n", ParameterError, "per_class must be at most"),
        ('[data.x]\npath = "nowhere"\n[[runs]]\n', MissingFileError, "nowhere"),
    ],
)
def test_an_invalid_file_is_refused(root, text, error, message):
    with pytest.raises(error, match=message):
        read(root, text)


def test_an_unknown_name_lists_the_shipped_experiments():
    with pytest.raises(
        MissingFileError, match=r"no experiment 'tables'.* one of bits, clusters, large, middle, multiview"
    ):
        read_experiment("tables")


def test_shipped_experiments_are_read(tmp_path):
    rng, labels = np.random.default_rng(0), np.arange(26_000) % 10
    names = ("lbp", "gist", "hog")
    write_views(tmp_path / "cifar10", Views(names, tuple(rng.random((26_000, 2)) for _ in names), labels=labels))
    views, truth = blobs(n=120)
    for called in ("handwritten", "scene15", "100leaves", "msrcv1", "orl", "pie", "ngs", "mnist4", "uci"):
        write_views(tmp_path / f"{called}.mat", Views(tuple(views), tuple(views.values()), labels=truth))
    for name in shipped():
        experiment = read_experiment(name, tmp_path)
        assert experiment.groups
        assert experiment.seeds >= 3

"""The figures show the scores of the runs, with fixed colors and markers."""

import sys

import numpy as np
import pytest

from bitmosaic.bench import figures as figures_module
from bitmosaic.bench.baselines import METHODS
from bitmosaic.bench.experiment import Run
from bitmosaic.bench.figures import STYLES, fig2, fig3, fig4
from bitmosaic.errors import InvalidDataError, MissingExtraError
from bitmosaic.estimators.metrics import clustering_scores
from bitmosaic.hamming.codes import pack

pytest.importorskip("matplotlib")

TOGETHER = ("lbp", "gist")
TRUTH = np.repeat(np.arange(4), 25)


def labels(n_clusters, seed):
    rng = np.random.default_rng([n_clusters, seed])
    return np.where(rng.random(100) < 0.3, rng.integers(n_clusters, size=100), TRUTH % n_clusters)


def run(method, seed, views=TOGETHER, n_clusters=4, n_bits=None, cut_off=""):
    found = None if cut_off else labels(n_clusters, 1000 * (n_bits or 0) + seed)
    return Run("small", method, seed, 1.0, "hand", found, TRUTH, views, n_clusters, n_bits, cut_off=cut_off)


def bits_runs():
    coded = [("HSIC", TOGETHER), ("HSIC-TS", TOGETHER), ("HSIC", ("lbp",)), ("ITQ+bk-means", ("gist",))]
    runs = [run(m, seed, views, n_bits=bits) for m, views in coded for bits in (16, 32, 64) for seed in range(3)]
    runs += [run("k-means", seed, views) for seed in range(3) for views in (TOGETHER, ("lbp",))]
    return [*runs, run("CKM", 0, n_bits=16, cut_off="memory")]


def cluster_runs():
    return [
        run(m, seed, n_clusters=k, n_bits=128 if m == "HSIC" else None)
        for m in ("k-means", "LSC-K", "HSIC")
        for k in (2, 4, 6)
        for seed in range(2)
    ]


@pytest.fixture
def drawn(monkeypatch):
    """The figures that would be saved."""
    figures = []
    monkeypatch.setattr(figures_module, "_save", lambda figure, folder, name: figures.append(figure) or [name])
    return figures


def curves(axes):
    return {line.get_label(): line for line in axes.get_lines() if not line.get_label().startswith("_")}


def test_every_method_has_its_own_color_and_marker():
    assert set(STYLES) == set(METHODS)
    assert len({color for color, _ in STYLES.values()}) == len(STYLES)


def test_scores_are_drawn_against_the_length_of_codes(drawn):
    fig3(bits_runs(), "nowhere")
    panels = drawn[0].axes
    assert [axes.get_title() for axes in panels] == ["ACC", "NMI", "Purity", "F-score"]
    for axes, score in zip(panels, ("acc", "nmi", "purity", "f_score"), strict=True):
        lines = curves(axes)
        assert list(lines) == ["HSIC", "HSIC-TS", "HSIC-LBP", "ITQ-GIST", "k-means"]
        assert list(lines["HSIC"].get_xdata()) == [16, 32, 64]
        for i, bits in enumerate((16, 32, 64)):
            values = [clustering_scores(TRUTH, labels(4, 1000 * bits + seed))[score] for seed in range(3)]
            assert lines["HSIC"].get_ydata()[i] == pytest.approx(np.mean(values))
        level = [clustering_scores(TRUTH, labels(4, seed))[score] for seed in range(3)]
        assert lines["k-means"].get_ydata()[0] == pytest.approx(np.mean(level))
        assert lines["k-means"].get_linestyle() == "--"
        assert [text.get_text() for text in axes.get_xticklabels()] == ["16", "32", "64"]


def test_the_band_is_one_standard_deviation_wide(drawn):
    fig3(bits_runs(), "nowhere")
    values = [clustering_scores(TRUTH, labels(4, 16_000 + seed))["acc"] for seed in range(3)]
    corners = drawn[0].axes[0].collections[0].get_paths()[0].vertices  # of HSIC, which is drawn first
    at_16 = corners[corners[:, 0] == 16, 1]
    assert at_16.max() - at_16.min() == pytest.approx(2 * np.std(values))


def test_a_method_looks_the_same_in_both_figures_and_lines_of_one_color_differ_in_gray(drawn):
    fig3(bits_runs(), "nowhere")
    fig4(cluster_runs(), "nowhere")
    in_bits, in_clusters = (curves(figure.axes[0]) for figure in drawn)
    assert in_bits["HSIC"].get_color() == in_clusters["HSIC"].get_color() == STYLES["HSIC"][0]
    assert in_bits["HSIC"].get_marker() == in_clusters["HSIC"].get_marker()
    looks = [(line.get_marker(), line.get_linestyle(), line.get_markerfacecolor()) for line in in_bits.values()]
    assert len(set(looks)) == len(looks)


def test_scores_are_drawn_against_the_number_of_clusters(drawn):
    fig4([*cluster_runs(), run("HSIC", 0, ("lbp",), n_clusters=2, n_bits=128)], "nowhere")
    for axes, score in zip(drawn[0].axes, ("acc", "nmi", "purity", "f_score"), strict=True):
        lines = curves(axes)
        assert list(lines) == ["HSIC", "LSC-K", "k-means"]
        for i, n_clusters in enumerate((2, 4, 6)):
            values = [clustering_scores(TRUTH, labels(n_clusters, seed))[score] for seed in range(2)]
            assert lines["LSC-K"].get_ydata()[i] == pytest.approx(np.mean(values))
    assert drawn[0].axes[2].get_xlabel() == "clusters (there are 4 classes)"


@pytest.mark.parametrize(("draw", "experiment"), [(fig3, "bits"), (fig4, "clusters")])
def test_without_runs_the_error_names_the_experiment(draw, experiment, tmp_path):
    for runs in ([], [run("HSIC", 0, n_bits=128)]):
        with pytest.raises(InvalidDataError, match=f"Run `bitmosaic bench run {experiment}` first"):
            draw(runs, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_same_runs_give_the_same_files(tmp_path, monkeypatch):
    monkeypatch.setattr(figures_module, "DPI", 30)
    first, again = (fig4(cluster_runs(), tmp_path / place) for place in ("a", "b"))
    assert [path.name for path in first] == ["fig4.png", "fig4.svg"]
    assert first[0].read_bytes().startswith(b"\x89PNG")
    assert b"<!-- HSIC -->" in first[1].read_bytes()
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    assert len(list((tmp_path / "a").iterdir())) == 2


def planted(n_per_class=15):
    """Two views and codes of four classes far apart."""
    rng = np.random.default_rng(0)
    truth = np.repeat(["bird", "cat", "dog", "frog"], n_per_class)
    number = np.unique(truth, return_inverse=True)[1]
    views = {
        name: (4 * rng.normal(size=(4, d))[number] + rng.normal(size=(len(truth), d)))
        for name, d in (("lbp", 6), ("hog", 70))
    }
    codes = {name: pack(rng.choice([-1, 1], (4, 32))[number]) for name in (*views, "all views")}
    return views, truth, codes


def test_tsne_shows_features_above_and_codes_below_with_one_color_for_a_class(drawn):
    views, truth, codes = planted()
    fig2(views, truth, codes, "nowhere", n_classes=3, per_class=12)
    panels = drawn[0].axes
    assert [axes.get_title() for axes in panels[:3]] == ["LBP", "HOG", "all views"]
    assert [panels[0].get_ylabel(), panels[3].get_ylabel()] == ["features", "32-bit codes"]
    names = list(curves(panels[0]))
    assert len(names) == 3
    assert set(names) < set(truth)
    for axes in panels:
        lines = curves(axes)
        assert {name: line.get_color() for name, line in lines.items()} == {
            name: line.get_color() for name, line in curves(panels[0]).items()
        }
        assert all(len(line.get_xdata()) == 12 for line in lines.values())
        centers = np.array([[line.get_xdata().mean(), line.get_ydata().mean()] for line in lines.values()])
        for i, line in enumerate(lines.values()):  # classes that are far apart stay so
            points = np.column_stack([line.get_xdata(), line.get_ydata()])
            assert (np.linalg.norm(points[:, None] - centers, axis=2).argmin(axis=1) == i).all()


def test_tsne_accepts_few_rows_and_writes_both_files(tmp_path, monkeypatch):
    monkeypatch.setattr(figures_module, "DPI", 30)
    views, truth, codes = planted(5)
    paths = fig2(views, truth, {"lbp": codes["lbp"]}, tmp_path, n_classes=9)
    assert [path.name for path in paths] == ["fig2.png", "fig2.svg"]
    assert b"<!-- frog -->" in paths[1].read_bytes()


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'bitmosaic\[bench\]'"):
        fig4(cluster_runs(), "nowhere")

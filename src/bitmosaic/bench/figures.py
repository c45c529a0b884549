"""Draw the paper's Figures 2, 3 and 4 as PNG and SVG, from stored runs or from views and codes."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bitmosaic.bench.baselines.base import concatenated, standardized
from bitmosaic.bench.experiment import SCORES
from bitmosaic.bench.tables import (
    MULVIEW,
    REFERENCE,
    Run,
    Runs,
    comparable,
    in_order,
    missing_runs,
    view_name,
    view_names,
)
from bitmosaic.errors import import_extra
from bitmosaic.hamming.codes import unpack
from bitmosaic.io.files import whole_file
from bitmosaic.views import as_views, read_rows

DPI = 200
JITTER = 0.004  # of the width of a panel
PRINCIPAL = 50  # principal components of the features that are passed to t-SNE
STYLES = {  # color and marker: distinguishable in gray, too
    "k-means": ("#222222", "x"),
    "k-means++": ("#8a8a8a", "+"),
    "k-medoids": ("#a6761d", "<"),
    "Ak-kmeans": ("#7f9a2e", ">"),
    "Nyström": ("#2f9e8f", "p"),
    "Nyström-features": ("#7fc9bd", "h"),
    "NMF": ("#c9b037", "8"),
    "LSC-K": ("#1b7837", "^"),
    "AMGL": ("#9e7bb5", "<"),
    "MVKM": ("#54278f", ">"),
    "MLAN": ("#c994c7", "p"),
    "MultiNMF": ("#8c6bb1", "h"),
    "OMVC": ("#810f7c", "8"),
    "MVSC": ("#4d9221", "^"),
    "LMVSC": ("#b8e186", "v"),
    "ITQ+bk-means": ("#1f5fa8", "s"),
    "CKM": ("#5aa5dc", "v"),
    "BMVC": ("#01665e", "d"),
    "HSIC-TS": ("#e08214", "D"),
    "HSIC-F": ("#d6609a", "P"),
    "HSIC-U": ("#8c510a", "X"),
    "HSIC": ("#c51b1b", "o"),
    "HSIC.paper": ("#67000d", "*"),
}
VIEW_MARKERS = "v^D<>ph"
VIEW_LINES = {"HSIC": (0, (1, 1.3)), "ITQ+bk-means": (0, (4, 1.5, 1, 1.5))}
CLASS_COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#333333", "#56b4e9", "#d55e00", "#b5a300")
CLASS_MARKERS = "o^sDvPX*"


def fig2(
    views: Any,
    labels: Any,
    codes: dict[str, np.ndarray],
    out_folder: str | Path,
    seed: int = 0,
    n_classes: int = 5,
    per_class: int = 200,
) -> list[Path]:
    """t-SNE of some classes: the features of each view in the upper row, the codes of the same images in the lower row.

    A name in `codes` that is not the name of a view stands for all views together.
    """
    views, labels = as_views(views), np.asarray(labels)
    figure = new_figure(2.35 * len(codes) + 0.3, 5.3)
    rows = _rows_of_classes(labels, n_classes, per_class, np.random.default_rng(seed))
    shown = labels[rows]
    features = {name: standardized(read_rows(X, rows)) for name, X in zip(views.names, views.arrays, strict=True)}
    panels = figure.subplots(2, len(codes), squeeze=False)
    for column, (name, packed) in zip(panels.T, codes.items(), strict=True):
        X = features[name] if name in features else concatenated(list(features.values()))
        column[0].set_title(view_name(name))
        for axes, points in zip(column, (_principal(X, seed), unpack(packed[rows])), strict=True):
            _draw_classes(axes, _jittered(_tsne(points, seed), seed), shown)
    n_bits = {8 * packed.shape[1] for packed in codes.values()}
    panels[0, 0].set_ylabel("features")
    panels[1, 0].set_ylabel(f"{n_bits.pop()}-bit codes" if len(n_bits) == 1 else "codes")
    handles, names = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False, markerscale=1.8)
    return _save(figure, out_folder, "fig2")


def fig3(runs: Runs, out: str | Path) -> list[Path]:
    """Scores against the length of the codes. k-means, which has no codes, is a dashed line."""
    runs = comparable(runs, "Figure 3", "bits", any_bits=True)
    lengths = sorted({run.n_bits for run in runs if run.n_bits is not None})
    if len(lengths) < 2:
        raise missing_runs("Figure 3", "bits", "with codes of several lengths")
    figure = new_figure(9.6, 6.2)
    names = view_names(runs)
    curves = _curves([run for run in runs if run.n_bits is not None], names, lambda run: run.n_bits)
    level = _curves([run for run in runs if run.method == REFERENCE], names, lambda run: None)
    for axes, score in _panels(figure):
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [str(length) for length in lengths])
        axes.set_xticks([], minor=True)
        for (method, view), points in curves.items():
            _draw_curve(axes, _mean_and_spread(points, score), **_line(method, view, list(names.values())))
        for (method, view), points in level.items():
            if view == list(names.values())[-1]:
                _, mean, spread = _mean_and_spread(points, score)
                axes.axhline(mean[0], color=STYLES[method][0], linestyle="--", linewidth=1.2, label=method, zorder=1)
                axes.axhspan(mean[0] - spread[0], mean[0] + spread[0], color=STYLES[method][0], alpha=0.1, linewidth=0)
    _finish(figure, "bits of a code")
    return _save(figure, out, "fig3")


def fig4(runs: Runs, out: str | Path) -> list[Path]:
    """Scores against the number of clusters, all views together."""
    runs = comparable(runs, "Figure 4", "clusters", any_clusters=True)
    n_classes = len(np.unique(runs[0].truth))
    together = max((run.views for run in runs), key=len)
    counts = sorted({run.n_clusters or n_classes for run in runs})
    if len(counts) < 2:
        raise missing_runs("Figure 4", "clusters", "with several numbers of clusters")
    figure = new_figure(9.6, 6.2)
    own = [run for run in runs if run.views == together]
    curves = _curves(own, {together: MULVIEW}, lambda run: run.n_clusters or n_classes)
    for axes, score in _panels(figure):
        axes.axvline(n_classes, color="#888888", linewidth=1.2, linestyle=":", zorder=0)
        axes.set_xticks(counts)
        for (method, view), points in curves.items():
            _draw_curve(axes, _mean_and_spread(points, score), **_line(method, view, [view]))
    _finish(figure, f"clusters (there are {n_classes} classes)")
    return _save(figure, out, "fig4")


def _curves(
    runs: Runs, names: dict[tuple[str, ...], str], x: Callable[[Run], Any]
) -> dict[tuple[str, str], dict[Any, list[dict[str, float]]]]:
    """(method, view) -> x -> scores of its runs, in the order of the legend: HSIC first, single views last."""
    curves: dict[tuple[str, str], dict[Any, list[dict[str, float]]]] = {}
    for run in runs:
        if run.labels is not None:
            curves.setdefault((run.method, names[run.views]), {}).setdefault(x(run), []).append(run.scores)
    methods, views = in_order(run.method for run in runs)[::-1], list(names.values())
    place = {key: (key[1] != views[-1], methods.index(key[0]), views.index(key[1])) for key in curves}
    return dict(sorted(curves.items(), key=lambda item: place[item[0]]))


def _mean_and_spread(points: dict[Any, list[dict[str, float]]], score: str) -> tuple[list, np.ndarray, np.ndarray]:
    xs = sorted(points, key=lambda x: x or 0)
    values = [[scores[score] for scores in points[x]] for x in xs]
    return xs, np.array([np.mean(v) for v in values]), np.array([np.std(v) for v in values])


def _line(method: str, view: str, views: list[str]) -> dict[str, Any]:
    color, marker = STYLES.get(method, ("#000000", "."))
    if view == views[-1]:
        first = {"linewidth": 2.4, "zorder": 3} if method == "HSIC" else {"linewidth": 1.4}
        line = "--" if method == REFERENCE else "-"
        return first | {"color": color, "linestyle": line, "marker": marker, "markersize": 5.5, "label": method}
    short = "ITQ" if method == "ITQ+bk-means" else method
    marker = VIEW_MARKERS[views.index(view) % len(VIEW_MARKERS)]
    dashes = VIEW_LINES.get(method, ":")
    shape = {"linestyle": dashes, "linewidth": 1.1, "marker": marker, "markersize": 4.5, "markerfacecolor": "white"}
    return shape | {"color": color, "label": f"{short}-{view}"}


def _draw_curve(axes: Any, points: tuple[list, np.ndarray, np.ndarray], **style: Any) -> None:
    xs, mean, spread = points
    axes.fill_between(xs, mean - spread, mean + spread, color=style["color"], alpha=0.12, linewidth=0)
    axes.plot(xs, mean, **style)


def _panels(figure: Any) -> Iterator[tuple[Any, str]]:
    for axes, (score, title) in zip(figure.subplots(2, 2).flat, SCORES.items(), strict=True):
        axes.set_title(title[0].upper() + title[1:])
        axes.grid(color="#e6e6e6", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        yield axes, score


def _finish(figure: Any, x_label: str) -> None:
    for axes in figure.axes[2:]:
        axes.set_xlabel(x_label)
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right center", frameon=False, handlelength=3.2, labelspacing=0.7)


def _rows_of_classes(labels: np.ndarray, n_classes: int, per_class: int, rng: np.random.Generator) -> np.ndarray:
    """Sorted rows of randomly chosen classes, at most `per_class` of each."""
    classes = np.unique(labels)
    chosen = rng.choice(classes, min(n_classes, len(classes)), replace=False)
    rows = [rng.permutation(np.flatnonzero(labels == each))[:per_class] for each in chosen]
    return np.sort(np.concatenate(rows))


def _principal(X: np.ndarray, seed: int) -> np.ndarray:
    from sklearn.decomposition import PCA

    return PCA(min(PRINCIPAL, *X.shape), random_state=seed).fit_transform(X)


def _tsne(X: np.ndarray, seed: int) -> np.ndarray:
    """(n, 2). Between ±1 codes the squared distance is four times the Hamming distance."""
    from sklearn.manifold import TSNE

    return TSNE(init="pca", perplexity=min(30, (len(X) - 1) / 3), random_state=seed).fit_transform(X)


def _jittered(points: np.ndarray, seed: int) -> np.ndarray:
    """Add jitter: points with the same code would hide each other."""
    return points + np.random.default_rng(seed).normal(scale=JITTER * np.ptp(points, axis=0), size=points.shape)


def _draw_classes(axes: Any, points: np.ndarray, labels: np.ndarray) -> None:
    for i, each in enumerate(np.unique(labels)):
        color, marker = CLASS_COLORS[i % len(CLASS_COLORS)], CLASS_MARKERS[i % len(CLASS_MARKERS)]
        name = each if isinstance(each, str) else f"class {each}"
        style = {"markersize": 3, "markeredgewidth": 0.25, "markeredgecolor": "white", "alpha": 0.85}
        axes.plot(*points[labels == each].T, marker, color=color, label=name, **style)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_color("#cccccc")


def new_figure(width: float, height: float) -> Any:
    Figure = import_extra("matplotlib.figure", "bench", "A figure").Figure
    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Any, folder: str | Path, name: str) -> list[Path]:
    """Save as PNG and SVG. The same figure gives identical files."""
    from matplotlib import rc_context

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    with rc_context({"svg.hashsalt": name}):
        for path in paths:
            metadata = {"Date": None} if path.suffix == ".svg" else {}
            with whole_file(path) as file:
                figure.savefig(file, format=path.suffix[1:], dpi=DPI, metadata=metadata)
    return paths

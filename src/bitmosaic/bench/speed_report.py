"""Results of `bench speed` -> a table of ratios, and plots."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from bitmosaic.bench.speed import Result
from bitmosaic.errors import MissingExtraError

REFERENCE = "HSIC"
COLORS = {
    "HSIC": "#d62728",
    "HSIC fast": "#ff9896",
    "KMeans": "#1f77b4",
    "MiniBatchKMeans": "#9ecae1",
    "faiss.Kmeans": "#2ca02c",
}


def speed_table(results: list[Result]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in ("rows", "clusters", "method", "seconds", "CPU s", "÷ HSIC", "MB", "NMI", "ACC"):
        table.add_column(name, no_wrap=True, justify="left" if name == "method" else "right")
    ours = {(r.n_rows, r.n_clusters): r.seconds for r in results if r.method == REFERENCE}
    before: tuple[int, int] | None = None
    for r in results:
        place = (r.n_rows, r.n_clusters)
        if before not in (None, place):
            table.add_section()
        first = (f"{r.n_rows:,}", f"{r.n_clusters:,}") if place != before else ("", "")
        before = place
        if r.seconds is None:
            table.add_row(*first, r.method, "cut off")
            continue
        reference = ours.get(place)
        table.add_row(
            *first,
            r.method,
            f"{r.seconds:,.2f}",
            f"{r.cpu_seconds:,.2f}",
            f"{r.seconds / reference:,.1f}×" if reference else "",
            f"{(r.peak_bytes or 0) / 1e6:,.0f}",
            "" if r.nmi is None else f"{r.nmi:.3f}",
            "" if r.acc is None else f"{r.acc:.3f}",
        )
    notes = ["best time of the turns, mean scores; ÷ HSIC: how many times as long; MB: peak above the start"]
    notes += dict.fromkeys(f"{r.method}: {r.cut_off}" for r in results if r.cut_off)
    table.caption = "\n".join(notes)
    return table


def draw(results: list[Result], folder: Path) -> Iterator[Path]:
    """Time against clusters and against rows, and quality against time, where there is something to see."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
    except ImportError:
        raise MissingExtraError("Plots need matplotlib: pip install 'bitmosaic[bench]'") from None
    done = [r for r in results if r.seconds is not None]
    most_rows, fewest_clusters = max(r.n_rows for r in results), min(r.n_clusters for r in results)
    plots: dict[str, tuple[list[Result], Callable, str, str]] = {
        "time-clusters": ([r for r in done if r.n_rows == most_rows], lambda r: r.n_clusters, "clusters", "seconds"),
        "time-rows": ([r for r in done if r.n_clusters == fewest_clusters], lambda r: r.n_rows, "rows", "seconds"),
        "quality-time": (
            [r for r in done if r.n_rows == most_rows and r.n_clusters == fewest_clusters and r.nmi is not None],
            lambda r: r.seconds,
            "seconds",
            "NMI",
        ),
    }
    for name, (shown, x, x_label, y_label) in plots.items():
        if len({x(r) for r in shown}) < 2:
            continue
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        axes = figure.subplots()
        for method in dict.fromkeys(r.method for r in shown):
            own = sorted((r for r in shown if r.method == method), key=x)
            ys = np.array([r.nmi if y_label == "NMI" else r.seconds for r in own], float)
            axes.plot([x(r) for r in own], ys, "o-", color=COLORS[method], label=method)
            axes.annotate(
                method, (x(own[-1]), ys[-1]), xytext=(7, -3), textcoords="offset points", color=COLORS[method]
            )
        axes.set_xscale("log")
        if y_label == "seconds":
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_scale() == "log":
                axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
                axis.set_minor_formatter(NullFormatter())
        axes.margins(x=0.25)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        path = folder / f"{name}.png"
        figure.savefig(path, dpi=150)
        yield path

"""Results of `bench duplicates` -> a table, raw figures, and a plot of precision and recall against the radius."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from bitmosaic.bench.duplicates import KINDS, Found
from bitmosaic.errors import MissingExtraError
from bitmosaic.files import whole_file, write_json

COLORS = {"resized": "#1f77b4", "recompressed": "#d62728", "cropped": "#2ca02c"}
WORDS = {"pictures": "fingerprints", "both": "fingerprints and features", "features": "codes and features"}
FIGURES = ("precision", "recall", "f1")


def of(results: Sequence[Found], way: str, kind: str) -> dict[int, list[Found]]:
    """By radius, the results of all seeds."""
    own = [r for r in results if (r.way, r.kind) == (way, kind)]
    return {radius: [r for r in own if r.radius == radius] for radius in sorted({r.radius for r in own})}


def best_radius(results: Sequence[Found], way: str, kind: str) -> int:
    """Where F1 is the highest on average; of equals, the smallest."""
    means = {radius: np.mean([r.f1 for r in some]) for radius, some in of(results, way, kind).items()}
    return max(means, key=lambda radius: (means[radius], -radius))


def duplicate_table(results: Sequence[Found]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in ("way", "kind", "radius", "precision", "recall", "F1", "strict F1", "wrong pairs"):
        table.add_column(name, no_wrap=True, justify="left" if name in ("way", "kind") else "right")
    for way in dict.fromkeys(r.way for r in results):
        for kind in KINDS:
            best = best_radius(results, way, kind)
            for radius, some in of(results, way, kind).items():
                mark = "[bold]" if radius == best else ""
                figures = [_spread([getattr(r, name) for r in some]) for name in (*FIGURES, "strict_f1")]
                wrong = f"{np.mean([r.wrong for r in some]):.1f}"
                table.add_row(*(f"{mark}{cell}" for cell in (WORDS[way], kind, radius, *figures, wrong)))
            table.add_section()
    n_seeds = len({r.seed for r in results})
    planted = sum(r.planted for r in results if (r.seed, r.way, r.radius) == _first(results))
    table.caption = (
        f"{planted:,} copies planted, mean ± standard deviation over {n_seeds} seeds; bold: the radius with the best "
        "F1. Pictures that the collection has twice by itself are neither right nor wrong; strict F1 calls them wrong."
    )
    return table


def _first(results: Sequence[Found]) -> tuple[int, str, int]:
    return results[0].seed, results[0].way, results[0].radius


def _spread(values: Sequence[float]) -> str:
    return "–" if np.isnan(values).any() else f"{np.mean(values):.3f} ± {np.std(values):.3f}"


def write_results(results: Sequence[Found], folder: Path) -> None:
    """Raw counts, from which every figure follows."""
    write_json(folder / "duplicates.json", [asdict(r) for r in results])


def draw(results: Sequence[Found], path: Path) -> Path:
    """Precision, recall and F1 against the radius, a column for each way."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("Plots need matplotlib: pip install 'bitmosaic[bench]'") from None
    ways = list(dict.fromkeys(r.way for r in results))
    figure = Figure(figsize=(1.2 + 3.4 * len(ways), 7.6), layout="constrained")
    grid = figure.subplots(len(FIGURES), len(ways), sharey=True, squeeze=False)
    for column, way in enumerate(ways):
        for line, name in enumerate(FIGURES):
            axes = grid[line, column]
            for kind in KINDS:
                by_radius = of(results, way, kind)
                values = np.array([[getattr(r, name) for r in some] for some in by_radius.values()])  # (radii, seeds)
                mean, deviation, radii = values.mean(1), values.std(1), list(by_radius)
                axes.fill_between(radii, mean - deviation, mean + deviation, color=COLORS[kind], alpha=0.2, lw=0)
                axes.plot(radii, mean, "o-", ms=3.5, color=COLORS[kind], label=kind)
            if name == "f1":
                axes.axhline(0.95, color="#999", lw=1, ls=":")
                axes.set_xlabel("radius, bits of fingerprints" if way != "features" else "radius, bits of codes")
            axes.set_ylim(-0.03, 1.04)
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
            if column == 0:
                axes.set_ylabel("F1" if name == "f1" else name)
        grid[0, column].set_title(WORDS[way], fontsize=11)
    grid[0, -1].legend(loc="lower right", frameon=False)
    with whole_file(path) as file:
        figure.savefig(file, format="png", dpi=110)
    return path

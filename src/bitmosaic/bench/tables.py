"""The paper's tables from stored runs, as Markdown and CSV."""

import csv
import io
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Literal

import numpy as np
from scipy.stats import rankdata

from bitmosaic.bench.baselines import BINARY, METHODS, MULTI_VIEW, SINGLE_VIEW
from bitmosaic.bench.experiment import SCORES, Run
from bitmosaic.errors import InvalidDataError
from bitmosaic.io.files import write_whole

# ---- Figures printed in the paper, on CIFAR-10.

PRINTED = tomllib.loads((files("bitmosaic.bench") / "published.toml").read_text(encoding="utf-8"))
VIEWS = ("lbp", "gist", "hog")
MULVIEW = "MulView"
CIFAR10_ROWS = 60_000
MIB = 2**20  # its "MB": 60,000 × 3626 numbers of 8 bytes are its 1.62 GB
CIFAR10_BYTES = {
    "k-means": {"data": 1.62 * 1024 * MIB, "centroids": 0.28 * MIB},
    "HSIC": {"data": 0.92 * MIB, "centroids": 0.15e-3 * MIB, "projection": 2.53 * MIB},
}
CIFAR10_REDUCTION = {"k-means": 1.0, "HSIC": 481.0}


def published(table: str) -> dict[str, dict[tuple[str, str], float]]:
    """method -> (quantity, view) -> figure"""
    quantities = SCORES if table.endswith("scores") else ("seconds",)
    keys = [(quantity, view) for quantity in quantities for view in (*VIEWS, MULVIEW)]
    rows = (line.split() for line in PRINTED[table].strip().splitlines())
    return {method: dict(zip(keys, map(float, figures), strict=True)) for method, *figures in rows}


def of_cifar10(dataset: str, n_rows: int) -> bool:
    """Whether runs on this data set are comparable with the paper: only on all of CIFAR-10."""
    return "".join(filter(str.isalnum, dataset.lower())) == "cifar10" and n_rows == CIFAR10_ROWS


def column_of(views: tuple[str, ...]) -> str | None:
    """The paper's column for these views, or None."""
    names = [name.lower() for name in views]
    if len(names) == 1:
        return names[0] if names[0] in VIEWS else None
    return MULVIEW if sorted(names) == sorted(VIEWS) else None


def name_of(method: str) -> str:
    """The paper's name of a method. Both of our HSIC variants are compared with its HSIC."""
    return "HSIC" if method == "HSIC.paper" else method


REFERENCE = "k-means"  # of speed-ups and reductions
SPREAD = "Mean ± standard deviation"
UNITS = (
    ("GiB", 2**30, 1),
    ("MiB", 2**20, 0.1),
    ("KiB", 2**10, 1),
    ("B", 1, 0),
)  # name, bytes, and smallest value shown in this unit
CSV_NAMES = ("data", "quantity", "group", "method", "column", "unit")
CSV_FIGURES = ("mean", "std", "runs", "ratio", "paper", "paper_ratio")

Kind = Literal["score", "seconds", "bytes", "times", "rank"]
Row = tuple[str, str, list[tuple[str, bool]]]  # group, method, [(text, best)]


@dataclass(frozen=True)
class Cell:
    """A measured value, its ratio to k-means, and the values of the paper. Without a mean, the note says why."""

    mean: float | None = None
    spread: float | None = None
    n_runs: int = 0
    ratio: float | None = None
    published: float | None = None
    published_ratio: float | None = None
    note: str = ""
    best: bool = False

    def ours(self, kind: Kind) -> str:
        if self.mean is None:
            return self.note or "–"
        text = _figure(kind, self.mean)
        if self.spread is not None and kind in ("score", "seconds"):
            spread = _figure(kind, self.spread, self.mean)
            text += f"±{spread.removeprefix('0') if kind == 'score' else spread}"
        return text + _ratio(self.ratio) + ("†" if self.note else "")

    def theirs(self, kind: Kind) -> str:
        return "–" if self.published is None else _as_printed(kind, self.published) + _ratio(self.published_ratio)


@dataclass(frozen=True)
class Block:
    """A table of one quantity: methods × columns. Rows are (group, method, cells)."""

    data: str
    quantity: str
    columns: tuple[str, ...]
    kinds: tuple[Kind, ...]
    rows: list[tuple[str, str, list[Cell]]]

    def texts(self) -> tuple[list[str], list[Row]]:
        """Headings and rows. A column with values of the paper is followed by a column "paper"."""
        beside = [any(row[2][i].published is not None for row in self.rows) for i in range(len(self.columns))]
        headings = [h for column, b in zip(self.columns, beside, strict=True) for h in (column, "paper")[: 1 + b]]
        rows = []
        for group, method, cells in self.rows:
            shown = [
                text
                for cell, kind, b in zip(cells, self.kinds, beside, strict=True)
                for text in ((cell.ours(kind), cell.best), (cell.theirs(kind), False))[: 1 + b]
            ]
            rows.append((group, method, shown))
        return headings, rows

    def with_best(self, choose: Callable[[list[float]], float]) -> "Block":
        """Mark the best value of each column."""
        columns = zip(*(cells for *_, cells in self.rows), strict=True)
        best = [choose([cell.mean for cell in column if cell.mean is not None] or [np.nan]) for column in columns]
        rows = [
            (group, method, [replace(cell, best=cell.mean == b) for cell, b in zip(cells, best, strict=True)])
            for group, method, cells in self.rows
        ]
        return replace(self, rows=rows)

    def with_ranks(self) -> "Block":
        """Add a column with the mean rank of each method. Equal ones share the mean of their ranks; a method without a
        value is last."""
        values = [[np.inf if cell.mean is None else -cell.mean for cell in cells] for *_, cells in self.rows]
        ranks = rankdata(values, axis=0).mean(1)
        rows = [
            (group, method, [*cells, Cell(float(rank), best=rank == ranks.min())])
            for (group, method, cells), rank in zip(self.rows, ranks, strict=True)
        ]
        return replace(self, columns=(*self.columns, "mean rank"), kinds=(*self.kinds, "rank"), rows=rows)

    def with_ratios(self) -> "Block":
        """Add speed-ups over k-means to seconds, of our values and of the paper's."""
        reference = next((cells for _, method, cells in self.rows if method == REFERENCE), [])
        if not reference or self.kinds[0] != "seconds":
            return self
        rows = []
        for group, method, cells in self.rows:
            ratios = [
                replace(c, ratio=over(r.mean, c.mean), published_ratio=over(r.published, c.published))
                for c, r in zip(cells, reference, strict=True)
            ]
            rows.append((group, method, ratios))
        return replace(self, rows=rows)


@dataclass(frozen=True)
class PaperTable:
    """A table, independent of the output format."""

    name: str  # Table 1
    caption: str
    blocks: list[Block]
    notes: list[str]

    def headings(self) -> list[str]:
        """Headings of the blocks: the quantity, with the data set if there are several."""
        several = len({block.data for block in self.blocks}) > 1
        return [": ".join(filter(None, (block.data if several else "", block.quantity))) for block in self.blocks]

    def markdown(self) -> str:
        lines = [f"**{self.name}.** {self.caption}", ""]
        for heading, block in zip(self.headings(), self.blocks, strict=True):
            columns, rows = block.texts()
            lines += [f"| {heading} | " + " | ".join(columns) + " |", "|:--|" + "--:|" * len(columns)]
            before = None
            for group, method, cells in rows:
                if group != before:
                    lines.append(f"| *{group}* |" + " |" * len(columns))
                before = group
                shown = (f"**{text}**" if best else text for text, best in cells)
                lines.append(f"| {method} | " + " | ".join(shown) + " |")
            lines.append("")
        return "\n".join(lines + [f"{_plain(note)}  " for note in self.notes]).rstrip() + "\n"

    def csv(self) -> str:
        """One line per value, with 10 digits."""
        file = io.StringIO()
        to = csv.writer(file, lineterminator="\n")
        to.writerow([*CSV_NAMES, *CSV_FIGURES, "note"])
        for block in self.blocks:
            for group, method, cells in block.rows:
                for column, kind, c in zip(block.columns, block.kinds, cells, strict=True):
                    figures = (c.mean, c.spread, c.n_runs, c.ratio, c.published, c.published_ratio)
                    shown = ("" if figure is None else f"{figure:.10g}" for figure in figures)
                    to.writerow([block.data, block.quantity, group, method, column, kind, *shown, c.note])
        return file.getvalue()


def write(table: PaperTable, folder: str | Path, name: str) -> list[Path]:
    """Write NAME.md and NAME.csv."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    contents = {".md": table.markdown(), ".csv": table.csv()}
    for ending, text in contents.items():
        write_whole(folder / (name + ending), text.encode())
    return [folder / (name + ending) for ending in contents]


def _figure(kind: Kind, value: float, like: float | None = None) -> str:
    """Format a value with its significant digits. A spread gets the digits of its mean, `like`."""
    size = abs(value if like is None else like)
    if kind == "score":
        return f"{value:.3f}"
    if kind == "rank":
        return f"{value:.1f}"
    if kind == "seconds":
        return f"{value:,.{3 if size < 0.1 else 2 if size < 1 else 1 if size < 100 else 0}f}"
    if kind == "times":
        return f"{value:.2g}×" if size < 0.1 else f"{value:,.{2 if size < 10 else 1 if size < 100 else 0}f}×"
    unit, n_bytes = next((u, n) for u, n, least in UNITS if size >= least * n)
    return f"{value / n_bytes:{'.0f' if size >= 100 * n_bytes else '.3g'}} {unit}"


def _as_printed(kind: Kind, value: float) -> str:
    """Format a value with the digits of the paper."""
    return f"{value:.4f}" if kind == "score" else f"{value:,g}" if kind == "seconds" else _figure(kind, value)


def over(reference: float | None, value: float | None) -> float | None:
    return reference / value if reference and value else None


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f" ({_figure('times', ratio)})"


def _plain(note: str) -> str:
    """Escape Markdown."""
    return "".join(f"\\{c}" if c in "\\*_|<>`" else c for c in note)


def shows_paper(blocks: list[Block]) -> bool:
    return any(cell.published is not None for block in blocks for *_, cells in block.rows for cell in cells)


# ---- the tables of the paper

N_BITS = 128  # of the paper's tables
SECONDS = {"seconds": "seconds (speed-up)"}
PARTS = ("data", "centroids", "projection", "encoder")
ACRONYMS = ("lbp", "gist", "hog", "ch", "cm", "corr", "edh", "wt")
CUT_OFF = {"time": "over time", "memory": "out of memory"}


Clock = Literal["seconds", "cpu_seconds"]
Runs = Sequence[Run]
Grid = dict[str, dict[str, list[Run]]]  # method -> column -> its runs
Printed = dict[str, dict[tuple[str, str], float]]  # method -> (quantity, view) -> the paper's figure
Measure = Callable[[Run], dict[str, float]]


def table1(runs: Runs) -> PaperTable:
    """Quality on the middle-scale set: every method on every view and on all together."""
    return _per_view("Table 1", "Quality", comparable(runs, "Table 1", "middle"), SCORES, lambda run: run.scores, {})


def table2(runs: Runs, clock: Clock = "seconds") -> PaperTable:
    """Seconds on the middle-scale set, and speed-ups over k-means."""
    return _times("Table 2", comparable(runs, "Table 2", "middle"), clock, {})


def table3(runs: Runs) -> PaperTable:
    """Quality on large sets; on CIFAR-10 with the values of the paper."""
    runs, printed = comparable(runs, "Table 3", "large"), published("cifar10_scores")
    return _per_view("Table 3", "Quality", runs, SCORES, lambda run: run.scores, printed)


def table4(runs: Runs, clock: Clock = "seconds") -> PaperTable:
    """Seconds on large sets and speed-ups over k-means; on CIFAR-10 with the values of the paper."""
    return _times("Table 4", comparable(runs, "Table 4", "large"), clock, published("cifar10_seconds"))


def table5(runs: Runs) -> PaperTable:
    """Memory of the clustered data: k-means keeps the features, HSIC the codes and their projection."""
    blocks: list[Block] = []
    for data, own in by_data(comparable(runs, "Table 5", "large")).items():
        views = max((run.views for run in own), key=len)
        grid: dict[str, list[Run]] = {}
        for run in own:
            if run.views == views and run.sizes:
                grid.setdefault(run.method, []).append(run)
        if REFERENCE in grid and any(method.startswith("HSIC") for method in grid):
            blocks += _memory_blocks(data, grid, beside_paper=_paper_column(own, views) == MULVIEW)
    if not blocks:
        raise missing_runs("Table 5", "large", "of k-means and of HSIC on all views, with sizes")
    notes = [
        "Reduction: data, centroids and projection of k-means, divided by those of the method; then including the "
        "encoder, which is needed to encode a new image. Peak: measured above the memory before the fit, the highest "
        "of the seeds.",
    ]
    if shows_paper(blocks):
        notes.append(
            "paper: its Table 5, which counts numbers of 8 bytes, writes MB for MiB, and leaves out the encoder."
        )
    return PaperTable("Table 5", f"Memory on {_names(blocks)}, all views together.", blocks, notes)


def multiview_table(runs: Runs) -> PaperTable:
    """ACC and NMI of every method on all views of each data set, and its mean rank."""
    sets = by_data(comparable(runs, "The table of multi-view data sets", "multiview"))
    grid: Grid = {}
    sizes = []
    for data, own in sets.items():
        views = max((run.views for run in own), key=len)
        sizes.append(f"{data}, {len(views)} views")
        for run in own:
            if run.views == views:
                grid.setdefault(run.method, {}).setdefault(run.data, []).append(run)
    columns = list(dict.fromkeys(own[0].data for own in sets.values()))
    scores = {score: SCORES[score] for score in ("acc", "nmi")}
    blocks = [block.with_best(max).with_ranks() for block in _blocks("", grid, columns, scores, lambda run: run.scores)]
    notes = [*_notes(grid), "; ".join(sizes) + "."]
    return PaperTable("Multi-view data sets", "Quality with all views together.", blocks, notes)


def comparable(runs: Runs, what: str, experiment: str, *, any_clusters: bool = False, any_bits: bool = False) -> Runs:
    """Runs with as many clusters as there are classes, and codes of one length: 128 bits, or the longest."""
    classes = {data: len(np.unique(own[0].truth)) for data, own in by_data(runs).items()}
    kept = [run for run in runs if any_clusters or run.n_clusters in (None, classes[_data_name(run)])]
    lengths = {run.n_bits for run in kept if run.n_bits is not None}
    length = N_BITS if N_BITS in lengths else max(lengths, default=None)
    kept = [run for run in kept if any_bits or run.n_bits in (None, length)]
    if not kept:
        raise missing_runs(what, experiment)
    return kept


def missing_runs(what: str, experiment: str, which: str = "") -> InvalidDataError:
    needed = f"runs {which}" if which else "runs"
    return InvalidDataError(f"{what} needs {needed}; there are none. Run `bitmosaic bench run {experiment}` first.")


def view_names(runs: Runs) -> dict[tuple[str, ...], str]:
    """Views of runs -> their names in a table, single views first. All views together are MulView."""
    found = sorted({run.views for run in runs}, key=len)
    together = [views for views in found if len(views) > 1]
    place = {name: i for i, name in enumerate(found[-1])}
    singles = sorted((views for views in found if len(views) == 1), key=lambda v: (place.get(v[0], len(place)), v))
    names = {views: view_name(views[0]) for views in singles}
    if len(together) == 1:
        return names | {together[0]: MULVIEW}
    return names | {views: "+".join(map(view_name, views)) for views in together}


def in_order(methods: Iterable[str]) -> list[str]:
    """Methods in the order of the registry: single-view, multi-view, binary. Others come last."""
    place = {method: i for i, method in enumerate(METHODS)}
    return sorted(set(methods), key=lambda method: (place.get(method, len(place)), method))


def _times(name: str, runs: Runs, clock: Clock, printed: Printed) -> PaperTable:
    what = "Seconds" if clock == "seconds" else "Processor seconds"
    return _per_view(name, what, runs, SECONDS, lambda run: {"seconds": getattr(run, clock)}, printed)


def _per_view(
    name: str, what: str, runs: Runs, quantities: dict[str, str], measure: Measure, printed: Printed
) -> PaperTable:
    """One block per quantity and data set: methods × views."""
    blocks, notes = [], []
    sets = by_data(runs)
    for data, own in sets.items():
        names = view_names(own)
        paper = {column: _paper_column(own, views) for views, column in names.items() if printed}
        grid: Grid = {method: {} for method in printed} if any(paper.values()) else {}
        for run in own:
            grid.setdefault(run.method, {}).setdefault(names[run.views], []).append(run)
        for block in _blocks(data, grid, list(names.values()), quantities, measure, printed, paper):
            blocks.append(block.with_ratios().with_best(min if quantities is SECONDS else max))
        notes += _notes(grid, f"{data}: " if len(sets) > 1 else "")
    if quantities is SECONDS:
        notes.append(f"In parentheses: speed-up over {REFERENCE} on the same views.")
    if shows_paper(blocks):
        caveat = "another machine: compare the speed-ups" if quantities is SECONDS else "LBP, GIST and HOG of its own"
        notes.append(f"paper: the values of its {name}, from {caveat}.")
    return PaperTable(name, f"{what} on {_names(blocks)}.", blocks, notes)


def _blocks(
    data: str,
    grid: Grid,
    columns: list[str],
    quantities: dict[str, str],
    measure: Measure,
    printed: Printed | None = None,
    paper: dict[str, str | None] | None = None,
) -> Iterator[Block]:
    measured = {
        (method, column): [measure(run) for run in runs if run.labels is not None]
        for method, own in grid.items()
        for column, runs in own.items()
    }
    for quantity, heading in quantities.items():
        rows = []
        for method in in_order(grid):
            figures = (printed or {}).get(name_of(method), {})
            cells = [
                _cell(
                    grid[method].get(column, []),
                    [each[quantity] for each in measured.get((method, column), [])],
                    figures.get((quantity, (paper or {}).get(column) or "")),
                )
                for column in columns
            ]
            rows.append((_group(method), method, cells))
        yield Block(data, heading, tuple(columns), (_kind(quantity),) * len(columns), rows)


def _cell(runs: Runs, values: Sequence[float | None], paper: float | None = None) -> Cell:
    known = [value for value in values if value is not None]
    reasons = Counter(CUT_OFF.get(run.cut_off, "failed") for run in runs if run.labels is None)
    if not known:
        return Cell(published=paper, note=", ".join(reasons))
    note = ", ".join(f"{n} of {len(runs)} {reason}" for reason, n in reasons.items())
    return Cell(
        float(np.mean(known)), float(np.std(known)) if len(known) > 1 else None, len(known), None, paper, note=note
    )


def _memory_blocks(data: str, grid: dict[str, list[Run]], beside_paper: bool) -> Iterator[Block]:
    """One block with the sizes that the paper counts, and one with the others."""
    kept = {m: {part: _mean([run.sizes.get(part) for run in runs]) for part in PARTS} for m, runs in grid.items()}
    total = {m: sum(kept[m][part] or 0 for part in PARTS[:3]) for m in grid}
    whole = {m: total[m] + (kept[m]["encoder"] or 0) for m in grid}
    counted, beyond = [], []
    for method in in_order(grid):
        name, runs = name_of(method), grid[method]
        theirs = CIFAR10_BYTES.get(name, {}) if beside_paper else {}
        times = CIFAR10_REDUCTION.get(name) if beside_paper else None
        parts = [Cell(kept[method][part], n_runs=len(runs), published=theirs.get(part)) for part in PARTS]
        reduction = Cell(over(total[REFERENCE], total[method]), n_runs=len(runs), published=times)
        honest = Cell(over(whole[REFERENCE], whole[method]), n_runs=len(runs))
        counted.append((_group(method), method, [*parts[:3], reduction]))
        peak = Cell(max((run.peak_bytes for run in runs if run.peak_bytes), default=None), n_runs=len(runs))
        beyond.append((_group(method), method, [parts[3], honest, peak]))
    yield Block(data, "memory", (*PARTS[:3], "reduction"), ("bytes", "bytes", "bytes", "times"), counted)
    columns = ("encoder", "reduction with encoder", "measured peak")
    yield Block(data, "beyond the paper", columns, ("bytes", "times", "bytes"), beyond)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _notes(grid: Grid, prefix: str = "") -> list[str]:
    """Notes on the number of seeds and on cut-off runs."""
    cells = [(method, column, runs) for method in in_order(grid) for column, runs in grid[method].items()]
    done = sorted({sum(run.labels is not None for run in runs) for *_, runs in cells} - {0}) or [0]
    seeds = str(done[0]) if len(done) == 1 else f"{done[0]} to {done[-1]}"
    bits = sorted({run.n_bits for *_, runs in cells for run in runs if run.n_bits is not None})
    codes = f" Codes of {bits[0]} bits." if bits else ""
    notes = [f"{prefix}{'One seed' if seeds == '1' else f'{SPREAD} over {seeds} seeds'}.{codes}"]
    if some := [
        f"{m} on {c} ({_cell(runs, [0]).note})"
        for m, c, runs in cells
        if 0 < sum(run.labels is not None for run in runs) < len(runs)
    ]:
        notes.append(f"{prefix}† some seeds were cut off; the value is the mean of the others: {'; '.join(some)}.")
    failed = {f"{m} {run.cut_off}" for m, _, runs in cells for run in runs if run.cut_off not in ("", *CUT_OFF)}
    return [*notes, *(f"{prefix}{message}" for message in sorted(failed))]


def by_data(runs: Runs) -> dict[str, list[Run]]:
    """Data set and its size -> its runs."""
    sets: dict[str, list[Run]] = {}
    for run in runs:
        sets.setdefault(_data_name(run), []).append(run)
    return sets


def _data_name(run: Run) -> str:
    """The name with the number of rows, to distinguish parts of a data set."""
    return f"{run.data} ({len(run.truth):,} rows)"


def _names(blocks: list[Block]) -> str:
    return ", ".join(dict.fromkeys(block.data for block in blocks))


def _paper_column(runs: Runs, views: tuple[str, ...]) -> str | None:
    return column_of(views) if of_cifar10(runs[0].data, len(runs[0].truth)) else None


def _group(method: str) -> str:
    groups = {"single-view": SINGLE_VIEW, "multi-view": MULTI_VIEW, "binary": BINARY}
    return next((name for name, methods in groups.items() if method in methods), "other")


def _kind(quantity: str) -> Kind:
    return "seconds" if quantity in SECONDS else "score"


def view_name(view: str) -> str:
    return view.upper() if view.lower() in ACRONYMS else view

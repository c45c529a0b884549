"""Stored runs -> the paper's tables, and the same of any other data."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import numpy as np

from bitmosaic.bench import published
from bitmosaic.bench.baselines import BINARY, METHODS, MULTI_VIEW, SINGLE_VIEW
from bitmosaic.bench.runs import Run
from bitmosaic.bench.table_formats import REFERENCE, SPREAD, Block, Cell, Kind, PaperTable, over, shows_paper, write
from bitmosaic.bench.tables import SCORES
from bitmosaic.errors import InvalidDataError

__all__ = [
    "REFERENCE",
    "Block",
    "Cell",
    "PaperTable",
    "multiview_table",
    "published_tables",
    "table1",
    "table2",
    "table3",
    "table4",
    "table5",
    "write",
]

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
    """Quality on large sets, the paper's figures beside ours on CIFAR-10."""
    runs, printed = comparable(runs, "Table 3", "large"), published.CIFAR10_SCORES
    return _per_view("Table 3", "Quality", runs, SCORES, lambda run: run.scores, printed)


def table4(runs: Runs, clock: Clock = "seconds") -> PaperTable:
    """Seconds on large sets and speed-ups over k-means, the paper's beside ours on CIFAR-10."""
    return _times("Table 4", comparable(runs, "Table 4", "large"), clock, published.CIFAR10_SECONDS)


def table5(runs: Runs) -> PaperTable:
    """What is kept of the data once clustered: k-means keeps the features, HSIC the codes and their projection."""
    blocks: list[Block] = []
    for data, own in by_data(comparable(runs, "Table 5", "large")).items():
        views = max((run.views for run in own), key=len)
        grid: dict[str, list[Run]] = {}
        for run in own:
            if run.views == views and run.sizes:
                grid.setdefault(run.method, []).append(run)
        if REFERENCE in grid and any(method.startswith("HSIC") for method in grid):
            blocks += _memory_blocks(data, grid, beside_paper=_paper_column(own, views) == published.MULVIEW)
    if not blocks:
        raise missing_runs("Table 5", "large", "of k-means and of HSIC on all views, with the sizes of what they keep")
    notes = [
        "Reduction: data, centroids and projection of k-means, divided by those of the method; then with the encoder, "
        "which is what else the code of a new image needs. Peak: measured, above what was there before the fit, the "
        "highest of the seeds.",
    ]
    if shows_paper(blocks):
        notes.append(
            "paper: its Table 5, which counts numbers of 8 bytes, writes MB for MiB, and leaves out the encoder."
        )
    return PaperTable("Table 5", f"Memory on {_names(blocks)}, all views together.", blocks, notes)


def multiview_table(runs: Runs) -> PaperTable:
    """ACC and NMI of every method on all views of each data set."""
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
    blocks = [block.with_best(max) for block in _blocks("", grid, columns, scores, lambda run: run.scores)]
    notes = [*_notes(grid), "; ".join(sizes) + "."]
    return PaperTable("Multi-view data sets", "Quality with all views together.", blocks, notes)


def published_tables() -> list[PaperTable]:
    """The paper's Tables 1 and 2, of ImageNet-10: a set that we did not run, so nothing of ours is beside them."""
    columns = (*map(view_name, published.VIEWS), published.MULVIEW)
    tables = []
    for name, printed, quantities, choose in (
        ("Table A1", published.IMAGENET10_SCORES, SCORES, max),
        ("Table A2", published.IMAGENET10_SECONDS, SECONDS, min),
    ):
        blocks = []
        for quantity, heading in quantities.items():
            kinds = (_kind(quantity),) * len(columns)
            rows = [
                (_group(method), method, [Cell(figures[quantity, view]) for view in published.COLUMNS])
                for method, figures in printed.items()
            ]
            blocks.append(Block("ImageNet-10", heading, columns, kinds, rows).with_ratios().with_best(choose))
        caption = f"The paper's Table {name[-1]}, on ImageNet-10, which is not a data set of ours."
        tables.append(PaperTable(name, caption, blocks, []))
    return tables


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
    return InvalidDataError(
        f"{what} needs {needed}, and there are none: `bitmosaic bench run {experiment}` makes them."
    )


def view_names(runs: Runs) -> dict[tuple[str, ...], str]:
    """Views of runs -> what they are called in a table, single views first; all together are MulView."""
    found = sorted({run.views for run in runs}, key=len)
    together = [views for views in found if len(views) > 1]
    place = {name: i for i, name in enumerate(found[-1])}
    singles = sorted((views for views in found if len(views) == 1), key=lambda v: (place.get(v[0], len(place)), v))
    names = {views: view_name(views[0]) for views in singles}
    if len(together) == 1:
        return names | {together[0]: published.MULVIEW}
    return names | {views: "+".join(map(view_name, views)) for views in together}


def in_order(methods: Iterable[str]) -> list[str]:
    """Of the registry: single-view, multi-view, binary. Others come last."""
    place = {method: i for i, method in enumerate(METHODS)}
    return sorted(set(methods), key=lambda method: (place.get(method, len(place)), method))


def _times(name: str, runs: Runs, clock: Clock, printed: Printed) -> PaperTable:
    what = "Seconds" if clock == "seconds" else "Processor seconds"
    return _per_view(name, what, runs, SECONDS, lambda run: {"seconds": getattr(run, clock)}, printed)


def _per_view(
    name: str, what: str, runs: Runs, quantities: dict[str, str], measure: Measure, printed: Printed
) -> PaperTable:
    """A block for each quantity on each data set: methods × views."""
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
        notes.append(f"In brackets: how many times as fast as {REFERENCE} on the same views.")
    if shows_paper(blocks):
        beware = "another machine: compare the speed-ups" if quantities is SECONDS else "LBP, GIST and HOG of its own"
        notes.append(f"paper: the figures of its {name}, from {beware}.")
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
            figures = (printed or {}).get(published.name_of(method), {})
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
    """What the paper counts, and what it does not."""
    kept = {m: {part: _mean([run.sizes.get(part) for run in runs]) for part in PARTS} for m, runs in grid.items()}
    total = {m: sum(kept[m][part] or 0 for part in PARTS[:3]) for m in grid}
    whole = {m: total[m] + (kept[m]["encoder"] or 0) for m in grid}
    counted, beyond = [], []
    for method in in_order(grid):
        name, runs = published.name_of(method), grid[method]
        theirs = published.CIFAR10_BYTES.get(name, {}) if beside_paper else {}
        times = published.CIFAR10_REDUCTION.get(name) if beside_paper else None
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
    """How many seeds, and what was cut off."""
    cells = [(method, column, runs) for method in in_order(grid) for column, runs in grid[method].items()]
    done = [(method, sum(run.labels is not None for run in runs)) for method, _, runs in cells]
    most = Counter(n for _, n in done if n).most_common(1)
    usual = most[0][0] if most else 0
    others: dict[str, set[int]] = {}
    for method, n in done:
        if n not in (0, usual):
            others.setdefault(method, set()).add(n)
    but = ", ".join(f"{method} {_range(numbers)}" for method, numbers in others.items())
    over = "One seed" if usual == 1 else f"{SPREAD} over {usual} seeds"
    bits = sorted({run.n_bits for *_, runs in cells for run in runs if run.n_bits is not None})
    codes = f" Codes of {bits[0]} bits." if bits else ""
    notes = [f"{prefix}{over}{f' ({but})' if but else ''}.{codes}"]
    some = [f"{m} on {c} ({_cell(runs, [0]).note})" for m, c, runs in cells if 0 < _n_cut(runs) < len(runs)]
    if some:
        notes.append(f"{prefix}† some seeds were cut off, the figure is of the others: {'; '.join(some)}.")
    failed = {f"{m} {run.cut_off}" for m, _, runs in cells for run in runs if run.cut_off not in ("", *CUT_OFF)}
    return [*notes, *(f"{prefix}{message}" for message in sorted(failed))]


def _n_cut(runs: Runs) -> int:
    return sum(run.labels is None for run in runs)


def _range(numbers: set[int]) -> str:
    return str(min(numbers)) if len(numbers) == 1 else f"{min(numbers)}–{max(numbers)}"


def by_data(runs: Runs) -> dict[str, list[Run]]:
    """Data set and its size -> its runs."""
    sets: dict[str, list[Run]] = {}
    for run in runs:
        sets.setdefault(_data_name(run), []).append(run)
    return sets


def _data_name(run: Run) -> str:
    """With its size: a part of a data set is another one."""
    return f"{run.data} ({len(run.truth):,} rows)"


def _names(blocks: list[Block]) -> str:
    return ", ".join(dict.fromkeys(block.data for block in blocks))


def _paper_column(runs: Runs, views: tuple[str, ...]) -> str | None:
    return published.column_of(views) if published.of_cifar10(runs[0].data, len(runs[0].truth)) else None


def _group(method: str) -> str:
    groups = {"single-view": SINGLE_VIEW, "multi-view": MULTI_VIEW, "binary": BINARY}
    return next((name for name, methods in groups.items() if method in methods), "other")


def _kind(quantity: str) -> Kind:
    return "seconds" if quantity in SECONDS else "score"


def view_name(view: str) -> str:
    return view.upper() if view.lower() in ACRONYMS else view

"""Runs -> what is printed: scores, the loss through useless views, and the mistakes on blobs."""

from collections.abc import Iterator
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bitmosaic.bench.cases import Case
from bitmosaic.bench.quality import is_kmeans, summarise
from bitmosaic.bench.runs import Run

SCORES = {"acc": "ACC", "nmi": "NMI", "purity": "purity", "f_score": "F-score"}
WIDTH = 100  # of what is no terminal: a file, a pipe


def print_tables(cases: list[Case], runs: list[Run]) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    for table in _tables(cases, runs):
        console.print(table)


def _tables(cases: list[Case], runs: list[Run]) -> Iterator[Table]:
    summary = summarise(runs)
    plain = [case.name for case in cases if not case.spoiled and not case.family]
    if plain:
        table = quality_table({key: scores for key, scores in summary.items() if key[0] in plain})
        table.caption = f"mean ± standard deviation {_seeds(runs)}\n÷ KMeans: NMI against the best KMeans there"
        yield table
    spoiled = {case.name: case.spoiled for case in cases if case.spoiled}
    if spoiled:
        yield spoil_table(spoiled, summary)
    families = {case.name: case.family for case in cases if case.family}
    if families:
        yield blob_table([(families[run.data], run) for run in runs if run.data in families])


def _seeds(runs: list[Run]) -> str:
    """over 10 seeds (KMeans 2)"""
    kmeans = len({run.seed for run in runs if is_kmeans(run.method)})
    others = len({run.seed for run in runs if not is_kmeans(run.method)})
    return f"over {others or kmeans} seeds" + (f" (KMeans {kmeans})" if 0 < kmeans != others > 0 else "")


def quality_table(summary: dict) -> Table:
    table = _table("data", "method", *SCORES.values(), "÷ KMeans", "seconds")
    best: dict[str, float] = {}
    for (data, method), scores in summary.items():
        if is_kmeans(method):
            best[data] = max(best.get(data, 0), scores["nmi"][0])
    for data, group in groupby(summary, key=lambda key: key[0]):
        rows = [(method, summary[data, method]) for _, method in group]
        if len(rows) > 1:  # a view alone stays with its data
            table.add_section()
        for i, (method, scores) in enumerate(rows):
            ratio = "" if is_kmeans(method) or not best.get(data) else f"{scores['nmi'][0] / best[data]:.3f}"
            table.add_row("" if i else escape(data), method, *_cells(scores), ratio, _seconds(*scores["seconds"]))
    return table


def spoil_table(spoiled: dict[str, str], summary: dict) -> Table:
    table = _table("HSIC on", *SCORES.values(), "loss of NMI", "seconds")
    for before, group in groupby(spoiled, key=lambda name: spoiled[name]):
        table.add_section()
        for name in (before, *group):
            scores, reference = summary[name, "HSIC"], summary[before, "HSIC"]["nmi"][0]
            loss = "" if name == before else f"{100 * (1 - scores['nmi'][0] / reference):.1f}%"
            table.add_row(escape(name), *_cells(scores), loss, _seconds(*scores["seconds"]))
    return table


def blob_table(runs: list[tuple[str, Run]]) -> Table:
    """Runs with the row they belong to."""
    table = _table("blobs seen through", "fits", "with mistakes", "samples", "in a wrong cluster")
    rows: dict[str, list[int]] = {}
    for family, run in runs:
        wrong = wrong_samples(run)
        for row in (rows.setdefault(family, [0] * 4), rows.setdefault("all", [0] * 4)):
            row[:] = [a + b for a, b in zip(row, (1, wrong > 0, len(run.truth), wrong), strict=True)]
    rows["all"] = rows.pop("all")  # last
    for family, counts in rows.items():
        table.add_row(family, *(f"{count:,}" for count in counts), end_section=family == list(rows)[-2])
    return table


def wrong_samples(run: Run) -> int:
    return round((1 - run.scores["acc"]) * len(run.truth))


def _table(first: str, *others: str) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=0, caption_justify="left")
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    return table


def _cells(scores: dict) -> list[str]:
    return [f"{mean:.3f}±{spread:.3f}".replace("±0.", "±.") for mean, spread in (scores[name] for name in SCORES)]


def _seconds(mean: float, spread: float) -> str:
    digits = 2 if mean < 1 else 1 if mean < 100 else 0
    return f"{mean:,.{digits}f}±{spread:,.{digits}f}"

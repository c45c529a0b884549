"""A table in no format yet -> Markdown, CSV, LaTeX, the terminal."""

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from bitmosaic.files import write_whole

REFERENCE = "k-means"  # of speed-ups and reductions
SPREAD = "Mean ± standard deviation"
UNITS = (("GiB", 2**30, 1), ("MiB", 2**20, 0.1), ("KiB", 2**10, 1), ("B", 1, 0))  # and from how many on
SHORT = {"out of memory": "OM", "over time": "OT"}  # in LaTeX tables that are wide
LETTERS = 80  # in a row of a LaTeX table that fits a page as it is
WIDEST = 20  # columns of a LaTeX table that has all scores side by side, as the paper has them;
WITH_SPREAD = 10  # and of one that has their spreads, too
CSV_NAMES = ("data", "quantity", "group", "method", "column", "unit")
CSV_FIGURES = ("mean", "std", "runs", "ratio", "paper", "paper_ratio")
LATEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$"}
    | {"±": r"$\pm$", "×": r"$\times$", "–": "--", "†": r"$\dagger$"}
)

Kind = Literal["score", "seconds", "bytes", "times"]
Row = tuple[str, str, list[tuple[str, bool]]]  # group, method, [(text, best)]


@dataclass(frozen=True)
class Cell:
    """A figure of ours, what it is against k-means, and the paper's. Without a mean, the note says why.

    A mean of no runs is a figure of the paper in a table of its own.
    """

    mean: float | None = None
    spread: float | None = None
    n_runs: int = 0
    ratio: float | None = None
    published: float | None = None
    published_ratio: float | None = None
    note: str = ""
    best: bool = False

    def ours(self, kind: Kind, with_spread: bool) -> str:
        if self.mean is None:
            return self.note or "–"
        text = _figure(kind, self.mean) if self.n_runs else _as_printed(kind, self.mean)
        if with_spread and self.spread is not None and kind in ("score", "seconds"):
            spread = _figure(kind, self.spread, self.mean)
            text += f"±{spread.removeprefix('0') if kind == 'score' else spread}"
        return text + _ratio(self.ratio) + ("†" if self.note else "")

    def theirs(self, kind: Kind) -> str:
        return "–" if self.published is None else _as_printed(kind, self.published) + _ratio(self.published_ratio)


@dataclass(frozen=True)
class Block:
    """One quantity: methods × columns. Rows are (group, method, cells)."""

    data: str
    quantity: str
    columns: tuple[str, ...]
    kinds: tuple[Kind, ...]
    rows: list[tuple[str, str, list[Cell]]]

    def texts(self, with_spread: bool = True) -> tuple[list[str], list[Row]]:
        """Headings and rows; beside a column, the paper's where it has figures."""
        beside = [any(row[2][i].published is not None for row in self.rows) for i in range(len(self.columns))]
        headings = [h for column, b in zip(self.columns, beside, strict=True) for h in (column, "paper")[: 1 + b]]
        rows = []
        for group, method, cells in self.rows:
            shown = [
                text
                for cell, kind, b in zip(cells, self.kinds, beside, strict=True)
                for text in ((cell.ours(kind, with_spread), cell.best), (cell.theirs(kind), False))[: 1 + b]
            ]
            rows.append((group, method, shown))
        return headings, rows

    def with_best(self, choose: Callable[[list[float]], float]) -> "Block":
        """The best of each column is marked."""
        columns = zip(*(cells for *_, cells in self.rows), strict=True)
        best = [choose([cell.mean for cell in column if cell.mean is not None] or [np.nan]) for column in columns]
        rows = [
            (group, method, [replace(cell, best=cell.mean == b) for cell, b in zip(cells, best, strict=True)])
            for group, method, cells in self.rows
        ]
        return replace(self, rows=rows)

    def with_ratios(self) -> "Block":
        """Seconds get their speed-ups over k-means, ours over ours and the paper's over the paper's."""
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
    """A table in no format yet."""

    name: str  # Table 1
    caption: str
    blocks: list[Block]
    notes: list[str]

    def headings(self) -> list[str]:
        """Of the blocks: the quantity, and the data set where there are several."""
        several = len({block.data for block in self.blocks}) > 1
        return [": ".join(filter(None, (block.data if several else "", block.quantity))) for block in self.blocks]

    def _told(self, with_spread: bool) -> list[str]:
        """The notes, where spreads are not shown without the word of them."""
        return [note if with_spread else note.replace(SPREAD, "Mean", 1) for note in self.notes]

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
        """One line for each figure, with all digits."""
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

    def latex(self) -> str:
        """For booktabs and graphicx. Blocks of the same methods stand side by side where they are not too wide."""
        side_by_side, with_spread = self._latex_layout()
        texts = [block.texts(with_spread) for block in self.blocks]
        if side_by_side:
            rows = [
                (same[0][0], same[0][1], [(SHORT.get(text, text), best) for *_, cells in same for text, best in cells])
                for same in zip(*(rows for _, rows in texts), strict=True)
            ]
            spans = [(heading, len(columns)) for heading, (columns, _) in zip(self.headings(), texts, strict=True)]
            parts = [_tabular(spans, [column for columns, _ in texts for column in columns], rows)]
        else:
            parts = [_tabular([(h, len(c))], c, rows) for h, (c, rows) in zip(self.headings(), texts, strict=True)]
        label = self.name.lower().replace(" ", "-")
        lines = ["% \\usepackage{booktabs,graphicx}", "\\begin{table*}", "\\centering"]
        lines += [f"\\caption{{{_latex(self.caption)}}}", f"\\label{{tab:{label}}}", "\\footnotesize"]
        lines.append("\n\n\\medskip\n".join(parts))
        notes = self._told(with_spread)
        notes += [f"{short}: {long}." for long, short in SHORT.items() if f" {short} " in parts[0]]
        if notes:
            told = "\\\\\n".join(map(_latex, notes))
            lines.append(f"\n\\smallskip\n\\parbox{{\\textwidth}}{{\\scriptsize {told}}}")
        return "\n".join([*lines, "\\end{table*}", ""])

    def _latex_layout(self) -> tuple[bool, bool]:
        """Whether blocks stand side by side, and whether spreads are shown."""
        methods = {tuple(method for _, method, _ in block.rows) for block in self.blocks}
        n_columns = sum(len(block.texts()[0]) for block in self.blocks)
        side_by_side = len(self.blocks) > 1 and len(methods) == 1 and n_columns <= WIDEST
        return side_by_side, not side_by_side or n_columns <= WITH_SPREAD

    def rich(self) -> Group:
        with_spread = not (self.blocks[0].kinds[0] == "seconds" and shows_paper(self.blocks))  # a terminal is narrow
        parts: list[Table | str] = [f"[bold]{escape(self.name)}.[/] {escape(self.caption)}"]
        for heading, block in zip(self.headings(), self.blocks, strict=True):
            columns, rows = block.texts(with_spread)
            table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
            table.add_column(escape(heading.replace(" (", "\n(")), no_wrap=True)
            for column in columns:
                table.add_column(escape(column), justify="right", style="dim" if column == "paper" else "")
            for i, (group, method, cells) in enumerate(rows):
                if i and group != rows[i - 1][0]:
                    table.add_section()
                table.add_row(method, *(f"[bold]{escape(text)}[/]" if best else escape(text) for text, best in cells))
            parts.append(table)
        return Group(*parts, *map(escape, self._told(with_spread)))


def write(table: PaperTable, folder: str | Path, name: str) -> list[Path]:
    """NAME.md, NAME.csv, NAME.tex."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    contents = {".md": table.markdown(), ".csv": table.csv(), ".tex": table.latex()}
    for ending, text in contents.items():
        write_whole(folder / (name + ending), text.encode())
    return [folder / (name + ending) for ending in contents]


def _figure(kind: Kind, value: float, like: float | None = None) -> str:
    """With as many digits as mean something; a spread has those of its mean, `like`."""
    size = abs(value if like is None else like)
    if kind == "score":
        return f"{value:.3f}"
    if kind == "seconds":
        return f"{value:,.{3 if size < 0.1 else 2 if size < 1 else 1 if size < 100 else 0}f}"
    if kind == "times":
        return f"{value:.2g}×" if size < 0.1 else f"{value:,.{2 if size < 10 else 1 if size < 100 else 0}f}×"
    unit, n_bytes = next((u, n) for u, n, least in UNITS if size >= least * n)
    return f"{value / n_bytes:{'.0f' if size >= 100 * n_bytes else '.3g'}} {unit}"


def _as_printed(kind: Kind, value: float) -> str:
    """With the paper's digits."""
    return f"{value:.4f}" if kind == "score" else f"{value:,g}" if kind == "seconds" else _figure(kind, value)


def over(reference: float | None, value: float | None) -> float | None:
    return reference / value if reference and value else None


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f" ({_figure('times', ratio)})"


def _plain(note: str) -> str:
    """Text that Markdown leaves as it is."""
    return "".join(f"\\{c}" if c in "\\*_|<>`" else c for c in note)


def _tabular(spans: list[tuple[str, int]], columns: list[str], rows: list[Row]) -> str:
    lines = [f"\\begin{{tabular}}{{l{'r' * len(columns)}}}", "\\toprule"]
    if len(spans) > 1:
        lines.append("".join(f" & \\multicolumn{{{n}}}{{c}}{{{_latex(heading)}}}" for heading, n in spans) + " \\\\")
        ends = np.cumsum([1] + [n for _, n in spans])
        lines.append(" ".join(f"\\cmidrule(lr){{{a + 1}-{b}}}" for a, b in pairwise(ends)))
    first = _latex(spans[0][0]) if len(spans) == 1 else ""
    lines.append(" & ".join([first, *map(_latex, columns)]) + " \\\\")
    before = None
    for group, method, cells in rows:
        if group != before:
            lines += ["\\midrule", f"\\multicolumn{{{len(columns) + 1}}}{{l}}{{\\emph{{{_latex(group)}}}}} \\\\"]
        before = group
        shown = (f"\\textbf{{{_latex(text)}}}" if best else _latex(text) for text, best in cells)
        lines.append(" & ".join([_latex(method), *shown]) + " \\\\")
    texts = ([text for text, _ in cells] for *_, cells in rows)
    text = "\n".join([*lines, "\\bottomrule", "\\end{tabular}"])
    letters = sum(2 + max(len(text) for text in column) for column in zip(columns, *texts, strict=True))
    return f"\\resizebox{{\\textwidth}}{{!}}{{%\n{text}}}" if letters > LETTERS else text


def _latex(text: str) -> str:
    return text.translate(LATEX)


def shows_paper(blocks: list[Block]) -> bool:
    return any(cell.published is not None for block in blocks for *_, cells in block.rows for cell in cells)

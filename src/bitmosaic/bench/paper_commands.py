"""`bitmosaic bench run`, `table1` … `table5`, `multiview` and `fig2` … `fig4`: the paper's experiments."""

from pathlib import Path
from typing import Annotated

import typer

from bitmosaic.bench.commands import bench

RunsArgument = Annotated[
    Path, typer.Argument(help="Where `bench run` put its runs: the folder, or one file of it.", show_default=False)
]
OutOption = Annotated[Path | None, typer.Option(help="A folder for the table as Markdown, CSV and LaTeX, too.")]
CpuOption = Annotated[
    bool, typer.Option("--cpu", help="Processor seconds instead of seconds by the clock, for machines with other work.")
]
FigureOption = Annotated[Path, typer.Option(help="A folder for the PNG and the SVG.")]
Count = Annotated[int | None, typer.Option(min=1, help="Instead of what the file says.")]


@bench.command()
def prepare(
    src: Annotated[
        Path,
        typer.Argument(
            help="A folder or archive: CIFAR-10 (binary or Python version), class folders, YouTube Faces, NUS-WIDE "
            "features, or a multi-view file."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The views folder.")],
    kind: Annotated[
        str, typer.Option(help="auto, cifar-10, class-folders, youtube-faces, nus-wide or views.")
    ] = "auto",
    view: Annotated[
        list[str] | None, typer.Option(help="Features of pictures, as in `extract`: lbp, gist, hog.")
    ] = None,
    classes: Annotated[str | None, typer.Option(help="So many random classes, or their names with commas.")] = None,
    per_class: Annotated[int | None, typer.Option(min=1, help="So many random images of each class.")] = None,
    at_least: Annotated[
        int | None, typer.Option(min=1, help="Leave out classes with fewer images; of YouTube Faces 1201.")
    ] = None,
    concepts: Annotated[int | None, typer.Option(min=2, help="Of NUS-WIDE, the most frequent ones; 21.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the random choices.")] = 0,
) -> None:
    """Turn a data set of the literature into a views folder with labels, for `bench run` and everything else."""

    from bitmosaic.bench import datasets
    from bitmosaic.bench.selection import parse_classes
    from bitmosaic.extraction import DEFAULT_VIEWS
    from bitmosaic.terminal import output, progress_bars

    with progress_bars() as progress:
        views = datasets.prepare(
            src,
            out,
            kind,
            view or DEFAULT_VIEWS,
            classes=parse_classes(classes),
            per_class=per_class,
            at_least=at_least,
            concepts=concepts,
            seed=seed,
            progress=progress,
        )
    widths = ", ".join(f"{name} ({width:,})" for name, width in zip(views.names, views.widths, strict=True))
    output().print(f"{views.n_rows:,} rows with classes in {out}: {widths}")


@bench.command()
def run(
    experiment: Annotated[
        str, typer.Argument(help="A TOML file, or one that comes along: middle, large, multiview, bits, clusters.")
    ],
    root: Annotated[
        Path | None,
        typer.Option(help="The folder that the paths in the file are relative to; the file's own, or this one."),
    ] = None,
    out: Annotated[Path, typer.Option(help="A folder for the runs.")] = Path("bench-runs"),
    methods: Annotated[str | None, typer.Option(help="Only these of the experiment's methods, with commas.")] = None,
    seeds: Count = None,
    threads: Count = None,
    jobs: Count = None,
) -> None:
    """Run methods × data sets × views × seeds and store labels, times and peak memory of each run.

    What is stored already is not run again. Each method runs in a process of its own under a time and a memory cap;
    what was cut off is marked. Tables and figures are made from the runs afterwards.
    """
    from dataclasses import replace

    from bitmosaic.bench.choices import choose_methods
    from bitmosaic.bench.experiment import read_experiment
    from bitmosaic.bench.runner import run_experiment
    from bitmosaic.errors import BitmosaicError, ParameterError
    from bitmosaic.terminal import output, progress_bars

    if out.exists() and not out.is_dir():
        raise ParameterError(f"--out must be a folder; {out} is a file. Name another.")
    asked = read_experiment(experiment, root)
    asked = replace(asked, seeds=seeds or asked.seeds, threads=threads or asked.threads, jobs=jobs or asked.jobs)
    if methods is not None:
        chosen = choose_methods(methods, dict.fromkeys(group.method for group in asked.groups))
        asked = replace(asked, groups=tuple(group for group in asked.groups if group.method in chosen))
    console = output()
    place = out / f"{asked.name}.jsonl"
    with progress_bars() as progress:
        runs = run_experiment(asked, place, progress, lambda line: console.print(line, markup=False, soft_wrap=True))
    console.print(f"{len(runs):,} runs of {len(asked.groups):,} combinations in {place}", soft_wrap=True)
    if failed := {f"{run.method} ({run.cut_off})" for run in runs if run.cut_off.startswith("failed")}:
        raise BitmosaicError(f"All others are done, but these failed: {'; '.join(sorted(failed))}.")


def _runs(place: Path, experiment: str):
    from bitmosaic.bench.runs import load
    from bitmosaic.errors import MissingFileError

    file = place / f"{experiment}.jsonl" if place.is_dir() else place
    if not file.is_file():
        raise MissingFileError(
            f"The runs of {experiment!r} must be there first; there is no {file}. "
            f"Make them: bitmosaic bench run {experiment} --root DATA --out {place}"
        )
    return load(file)


def _table(name: str, experiment: str, place: Path, out: Path | None, **choices: str) -> None:
    from bitmosaic.bench import paper_tables

    _show(getattr(paper_tables, name)(_runs(place, experiment), **choices), name.removesuffix("_table"), out)


def _show(table, name: str, out: Path | None) -> None:
    from bitmosaic.bench.table_formats import write
    from bitmosaic.terminal import output

    console = output()
    console.print(table.rich())
    if out is not None:
        for path in write(table, out, name):
            console.print(f"wrote {path}")


@bench.command()
def table1(runs: RunsArgument, out: OutOption = None) -> None:
    """Table 1: quality of every method on each view and on all views (runs of `middle`)."""
    _table("table1", "middle", runs, out)


@bench.command()
def table2(runs: RunsArgument, out: OutOption = None, cpu: CpuOption = False) -> None:
    """Table 2: seconds of every method, with speed-ups over k-means (runs of `middle`)."""
    _table("table2", "middle", runs, out, clock="cpu_seconds" if cpu else "seconds")


@bench.command()
def table3(runs: RunsArgument, out: OutOption = None) -> None:
    """Table 3: quality on all images, beside the published figures (runs of `large`)."""
    _table("table3", "large", runs, out)


@bench.command()
def table4(runs: RunsArgument, out: OutOption = None, cpu: CpuOption = False) -> None:
    """Table 4: seconds on all images, with speed-ups over k-means (runs of `large`)."""
    _table("table4", "large", runs, out, clock="cpu_seconds" if cpu else "seconds")


@bench.command()
def table5(runs: RunsArgument, out: OutOption = None) -> None:
    """Table 5: memory for data, centroids and projection (runs of `large`)."""
    _table("table5", "large", runs, out)


@bench.command()
def published(out: OutOption = None) -> None:
    """The paper's own Tables 1 and 2, of ImageNet-10, which is not among the data sets here."""
    from bitmosaic.bench.paper_tables import published_tables

    for table in published_tables():
        _show(table, f"published-{table.name.lower().replace(' ', '-')}", out)


@bench.command()
def multiview(runs: RunsArgument, out: OutOption = None) -> None:
    """All methods on several multi-view data sets (runs of `multiview`)."""
    _table("multiview_table", "multiview", runs, out)


@bench.command()
def fig2(
    data: Annotated[str, typer.Argument(help="A views folder or multi-view file: PATH, or PATH?views=lbp,gist,hog.")],
    out: FigureOption = Path("bench-figures"),
    bits: Annotated[int, typer.Option(min=8, help="Length of the codes, a multiple of 8.")] = 128,
    classes: Annotated[int, typer.Option(min=2, help="Classes that are drawn, chosen at random.")] = 5,
    per_class: Annotated[int, typer.Option(min=10, help="Samples of each.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Of the choice, the codes and t-SNE.")] = 0,
) -> None:
    """Figure 2: t-SNE of the features of each view, and of the codes that HSIC makes of them."""
    import numpy as np

    from bitmosaic.bench.cases import choose_views, open_data
    from bitmosaic.bench.paper_figures import fig2 as draw
    from bitmosaic.hsic import HSIC
    from bitmosaic.terminal import output, progress_bars

    _, views, truth = open_data(data)
    n_clusters = len(np.unique(truth))
    shown = {name: [name] for name in views.names} | ({"all views": list(views.names)} if len(views) > 1 else {})
    codes = {}
    with progress_bars(goes_on=False) as progress:
        for name, chosen in shown.items():

            def report(done, total, name=name):
                progress(f"codes of {name}", done, total)

            model = HSIC(n_clusters, n_bits=bits, random_state=seed)
            codes[name] = model.fit(choose_views(views, chosen), progress=report).codes_
    console = output()
    with console.status("t-SNE …"):
        paths = draw(views, truth, codes, out, seed=seed, n_classes=classes, per_class=per_class)
    for path in paths:
        console.print(f"wrote {path}")


def _figure(name: str, experiment: str, place: Path, out: Path) -> None:
    from bitmosaic.bench import paper_figures
    from bitmosaic.terminal import output

    for path in getattr(paper_figures, name)(_runs(place, experiment), out):
        output().print(f"wrote {path}")


@bench.command()
def fig3(runs: RunsArgument, out: FigureOption = Path("bench-figures")) -> None:
    """Figure 3: scores against the length of the codes (runs of `bits`)."""
    _figure("fig3", "bits", runs, out)


@bench.command()
def fig4(runs: RunsArgument, out: FigureOption = Path("bench-figures")) -> None:
    """Figure 4: scores against the number of clusters (runs of `clusters`)."""
    _figure("fig4", "clusters", runs, out)

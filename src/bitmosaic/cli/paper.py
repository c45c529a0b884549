"""The experiments of the paper: `bitmosaic bench prepare`, `run`, `table1` … `table5`, `fig2` … `fig4`."""

from pathlib import Path
from typing import Annotated

import typer

from bitmosaic.cli.options import choose_names
from bitmosaic.cli.terminal import output, progress_bars

RunsArgument = Annotated[
    Path, typer.Argument(help="The folder that `bench run` wrote, or one file in it.", show_default=False)
]
OutOption = Annotated[
    Path | None,
    typer.Option(help="Also write the table to this folder, as Markdown and CSV.", show_default="no files"),
]
CpuOption = Annotated[
    bool, typer.Option("--cpu", help="CPU seconds instead of wall-clock seconds, for a busy machine.")
]
FigureOption = Annotated[Path, typer.Option(help="A folder for the PNG and the SVG.")]
Count = Annotated[
    int | None, typer.Option(min=1, help="Overrides the value in the file.", show_default="as in the file")
]


def prepare(
    src: Annotated[
        Path,
        typer.Argument(
            help="A folder or archive: CIFAR-10 (binary version), class folders, YouTube Faces, NUS-WIDE "
            "features, or a multi-view file."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The views folder.")],
    kind: Annotated[
        str, typer.Option(help="auto, cifar-10, class-folders, youtube-faces, nus-wide or views.")
    ] = "auto",
    view: Annotated[
        list[str] | None, typer.Option(help="Features of images, as in `extract`.", show_default="lbp, gist and hog")
    ] = None,
    classes: Annotated[int | None, typer.Option(min=2, help="Number of random classes.", show_default="all")] = None,
    per_class: Annotated[
        int | None, typer.Option(min=1, help="Number of random images per class.", show_default="all")
    ] = None,
    at_least: Annotated[
        int | None,
        typer.Option(min=1, help="Leave out classes with fewer images.", show_default="1, for YouTube Faces 1201"),
    ] = None,
    concepts: Annotated[
        int | None, typer.Option(min=2, help="For NUS-WIDE: number of most frequent concepts.", show_default="21")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
) -> None:
    """Convert a data set of the literature to a views folder with labels."""
    from bitmosaic.bench import datasets
    from bitmosaic.pipeline.extraction import DEFAULT_VIEWS

    choice = datasets.Choice(classes, per_class, at_least, seed)
    with progress_bars() as progress:
        views = datasets.prepare(
            src, out, kind, view or DEFAULT_VIEWS, choice=choice, concepts=concepts, progress=progress
        )
    widths = ", ".join(f"{name} ({width:,})" for name, width in zip(views.names, views.widths, strict=True))
    output().print(f"{views.n_rows:,} rows with classes in {out}: {widths}")


def run(
    experiment: Annotated[
        str, typer.Argument(help="A TOML file, or a built-in experiment: middle, large, multiview, bits, clusters.")
    ],
    root: Annotated[
        Path | None,
        typer.Option(help="The folder that paths in the file are relative to.", show_default="the folder of the file"),
    ] = None,
    out: Annotated[Path, typer.Option(file_okay=False, help="A folder for the runs.")] = Path("bench-runs"),
    methods: Annotated[
        str | None, typer.Option(help="Run only these methods, separated by commas.", show_default="all")
    ] = None,
    seeds: Count = None,
    threads: Count = None,
    jobs: Count = None,
) -> None:
    """Run methods × data sets × views × seeds and store labels, times and peak memory of each run.

    Stored runs are not repeated. Each method runs in its own process, under a time and a memory limit. Tables and
    figures are made from the stored runs.
    """
    from dataclasses import replace

    from bitmosaic.bench.experiment import read_experiment
    from bitmosaic.bench.runner import run_experiment
    from bitmosaic.errors import BitmosaicError

    asked = read_experiment(experiment, root)
    asked = replace(asked, seeds=seeds or asked.seeds, threads=threads or asked.threads, jobs=jobs or asked.jobs)
    if methods is not None:
        chosen = choose_names(methods, dict.fromkeys(group.method for group in asked.groups))
        asked = replace(asked, groups=tuple(group for group in asked.groups if group.method in chosen))
    console = output()
    place = out / f"{asked.name}.jsonl"
    with progress_bars() as progress:
        runs = run_experiment(asked, place, progress, lambda line: console.print(line, markup=False, soft_wrap=True))
    console.print(f"{len(runs):,} runs of {len(asked.groups):,} combinations in {place}", soft_wrap=True)
    if failed := {f"{run.method} ({run.cut_off})" for run in runs if run.cut_off.startswith("failed")}:
        raise BitmosaicError(f"Some runs failed: {'; '.join(sorted(failed))}. All others are done.")


def _runs(place: Path, experiment: str):
    from bitmosaic.bench.experiment import load
    from bitmosaic.errors import MissingFileError

    file = place / f"{experiment}.jsonl" if place.is_dir() else place
    if not file.is_file():
        raise MissingFileError(
            f"The runs of experiment {experiment!r} are missing: there is no {file}. "
            f"Create them: bitmosaic bench run {experiment} --root DATA --out {place}"
        )
    return load(file)


def _table(name: str, experiment: str, place: Path, out: Path | None, **choices: str) -> None:
    from rich.markdown import Markdown

    from bitmosaic.bench import tables

    table, console = getattr(tables, name)(_runs(place, experiment), **choices), output()
    console.print(Markdown(table.markdown()))
    if out is not None:
        for path in tables.write(table, out, name.removesuffix("_table")):
            console.print(f"Wrote {path}")


def table1(runs: RunsArgument, out: OutOption = None) -> None:
    """Table 1: quality of every method on each view and on all views (runs of `middle`)."""
    _table("table1", "middle", runs, out)


def table2(runs: RunsArgument, out: OutOption = None, cpu: CpuOption = False) -> None:
    """Table 2: seconds of every method, with speedups over k-means (runs of `middle`)."""
    _table("table2", "middle", runs, out, clock="cpu_seconds" if cpu else "seconds")


def table3(runs: RunsArgument, out: OutOption = None) -> None:
    """Table 3: quality on all images, beside the published figures (runs of `large`)."""
    _table("table3", "large", runs, out)


def table4(runs: RunsArgument, out: OutOption = None, cpu: CpuOption = False) -> None:
    """Table 4: seconds on all images, with speedups over k-means (runs of `large`)."""
    _table("table4", "large", runs, out, clock="cpu_seconds" if cpu else "seconds")


def table5(runs: RunsArgument, out: OutOption = None) -> None:
    """Table 5: memory for data, centroids and projection (runs of `large`)."""
    _table("table5", "large", runs, out)


def multiview(runs: RunsArgument, out: OutOption = None) -> None:
    """All methods on several multi-view data sets (runs of `multiview`)."""
    _table("multiview_table", "multiview", runs, out)


def fig2(
    data: Annotated[str, typer.Argument(help="A views folder or multi-view file: PATH, or PATH?views=lbp,gist,hog.")],
    out: FigureOption = Path("bench-figures"),
    bits: Annotated[int, typer.Option(min=8, help="Bits per code, a multiple of 8.")] = 128,
    classes: Annotated[int, typer.Option(min=2, help="Number of random classes to draw.")] = 5,
    per_class: Annotated[int, typer.Option(min=10, help="Samples per class.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
) -> None:
    """Figure 2: t-SNE of the features of each view, and of the HSIC codes."""
    import numpy as np

    from bitmosaic.bench.datasets import choose_views, open_data
    from bitmosaic.bench.figures import fig2 as draw
    from bitmosaic.estimators.hsic import HSIC

    _, views, truth = open_data(data)
    n_clusters = len(np.unique(truth))
    shown = {name: [name] for name in views.names} | ({"all views": list(views.names)} if len(views) > 1 else {})
    codes = {}
    with progress_bars(resumes=False) as progress:
        for name, chosen in shown.items():

            def report(done, total, name=name):
                progress(f"codes of {name}", done, total)

            model = HSIC(n_clusters, n_bits=bits, random_state=seed)
            codes[name] = model.fit(choose_views(views, chosen), progress=report).codes_
    console = output()
    with console.status("t-SNE …"):
        paths = draw(views, truth, codes, out, seed=seed, n_classes=classes, per_class=per_class)
    for path in paths:
        console.print(f"Wrote {path}")


def _figure(name: str, experiment: str, place: Path, out: Path) -> None:
    from bitmosaic.bench import figures

    for path in getattr(figures, name)(_runs(place, experiment), out):
        output().print(f"Wrote {path}")


def fig3(runs: RunsArgument, out: FigureOption = Path("bench-figures")) -> None:
    """Figure 3: scores against the length of the codes (runs of `bits`)."""
    _figure("fig3", "bits", runs, out)


def fig4(runs: RunsArgument, out: FigureOption = Path("bench-figures")) -> None:
    """Figure 4: scores against the number of clusters (runs of `clusters`)."""
    _figure("fig4", "clusters", runs, out)

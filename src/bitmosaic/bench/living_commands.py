"""The measurements of what is done with a finished run: growth, refit, search, duplicates."""

from pathlib import Path
from typing import Annotated

import typer

from bitmosaic.bench.paper_commands import bench
from bitmosaic.explorer.commands import Json, RunFolder


@bench.command()
def search(
    run: RunFolder,
    rows: Annotated[str, typer.Option(help="Numbers of codes, with commas.")] = "1_000_000,10_000_000",
    neighbours: Annotated[str, typer.Option("-k", help="How many neighbours, with commas.")] = "1,10,100",
    queries: Annotated[int, typer.Option(min=2, max=1000, help="How many are asked together.")] = 1000,
    repeats: Annotated[int, typer.Option(min=1, help="The best of so many turns counts.")] = 2,
    seed: Annotated[int, typer.Option(help="Same seed, same codes.")] = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of all contestants; every core.")] = None,
    hashes: Annotated[
        bool, typer.Option("--hashes", help="faiss.IndexBinaryMultiHash within the radius, too.")
    ] = False,
    kept: Annotated[
        Path | None, typer.Option("--codes", help="A .npy file that keeps the made codes for the next time.")
    ] = None,
    as_json: Json = False,
) -> None:
    """NeighborIndex beside faiss.IndexBinaryFlat: the nearest of millions of codes, and all within 6 bits.

    The codes are those of the run and as many more made of its features: rows moved a random part of the way towards
    one of their 10 nearest, with some noise, encoded by the model of the run. Queries are 1,000 codes of the run that
    are not searched, nor anything made of them, and 1,000 made ones. Asked together, and 50 of them one by one.
    """
    import json
    from dataclasses import asdict

    from bitmosaic.bench.choices import parse_numbers
    from bitmosaic.bench.search import make_codes, measure
    from bitmosaic.run import Run
    from bitmosaic.terminal import progress_bars
    from bitmosaic.threads import available_threads

    numbers = sorted(set(parse_numbers("--rows", rows)))
    ks, n_threads = sorted(set(parse_numbers("-k", neighbours))), available_threads(threads)
    with progress_bars(goes_on=False) as progress:
        codes = make_codes(Run(run), numbers[-1], seed, n_threads, kept, progress)
        builds, results = measure(codes, numbers, ks, queries, repeats, n_threads, hashes, progress)
    if as_json:
        facts = {"threads": n_threads, "repeats": repeats, "seconds_to_make": codes.seconds, "tenth": codes.likeness}
        told = [asdict(result) | {"ratio": result.ratio} for result in results]
        typer.echo(json.dumps(facts | {"builds": [asdict(built) for built in builds], "results": told}))
        return
    _print(codes, builds, results, n_threads, repeats)


def _print(codes, builds, results, n_threads, repeats):
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from bitmosaic.bench.search import HASHES, OURS, PEER
    from bitmosaic.terminal import clock, output

    console = output()
    table = Table("among", "mean", "5 %", "median", "95 %", box=SIMPLE_HEAD, pad_edge=False)
    for name, figures in codes.likeness.items():
        table.add_row(name, *(f"{figure:.1f}" for figure in figures))
    table.title = "Bits from a held-out code to its 10th neighbour"
    console.print(table)
    console.print(f"Codes and queries made in {clock(codes.seconds)}.")
    for built in builds:
        console.print(
            f"{built.n_codes:,} codes: index built in {built.seconds:.1f} s, {built.n_bytes / built.n_codes:.1f} bytes "
            f"a code, at most {built.peak_bytes / 1e6:,.0f} MB meanwhile; rows as sorted in NumPy: "
            f"{'yes' if built.same_rows else '[bold red]no[/]'}"
        )
    hashes = [HASHES] if any(HASHES in result.seconds for result in results) else []
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in (
        "codes",
        "question",
        "queries",
        "at once",
        *(f"{n}, ms" for n in (OURS, PEER, *hashes)),
        "ratio",
        "same",
    ):
        table.add_column(name, justify="left" if name in ("question", "queries") else "right")
    for result in results:
        times = [
            f"{1000 * result.seconds[name]:,.3f}" if name in result.seconds else "" for name in (OURS, PEER, *hashes)
        ]
        told = f"{result.ratio:,.0f}×", "yes" if result.same else "[bold red]no[/]"
        table.add_row(f"{result.n_codes:,}", result.question, result.queries, f"{result.at_once:,}", *times, *told)
    table.caption = (
        f"ms a query, {n_threads} threads, best of {repeats} turns; same: all distances; ratio: {PEER} ÷ {OURS}"
    )
    console.print(table)


@bench.command()
def growth(
    train: Annotated[str, typer.Argument(help="Pictures of a first run: a folder, with a folder for each class.")],
    test: Annotated[str, typer.Argument(help="Pictures that are added to it; others, of the same classes.")],
    out: Annotated[Path, typer.Option(help="A new folder for all runs.")] = Path("growth"),
    clusters: Annotated[int, typer.Option(min=1, help="Clusters of each run.")] = 10,
    seeds: Annotated[int, typer.Option(min=2, help="How many seeds.")] = 3,
) -> None:
    """`add` beside a new run of everything: seconds, and the adjusted Rand index of the added pictures' clusters."""
    from bitmosaic.bench.growth import measure
    from bitmosaic.terminal import output, progress_bars

    with progress_bars(goes_on=False) as progress:
        done = measure(train, test, out, clusters, seeds, progress)
    console, n = output(), len(done.truth)
    share = done.add / done.new_run
    console.print(
        f"A new run of all: {done.new_run:.1f} s; adding {n:,} pictures: {done.add:.1f} s, [bold]{share:.0%}[/]"
    )
    for what, values in (
        ("Adjusted Rand index, added against a run of all", done.agreement),
        ("… between two seeds of a run of all", done.between_seeds),
        ("NMI with the classes, added", done.nmi(done.added)),
        ("… by a run of all", done.nmi(done.fitted)),
    ):
        console.print(f"{what}: {values.mean():.3f} ± {values.std(ddof=1):.3f} ({len(values)} pairs or runs)")


@bench.command()
def refit(
    src: Annotated[str, typer.Argument(help="A folder of pictures, with a folder for each class.")],
    classes: Annotated[str, typer.Option(help="Classes that are left out at first, each in its turn, with commas.")],
    out: Annotated[Path, typer.Option(help="A folder for the runs.")] = Path("refits"),
    clusters: Annotated[int, typer.Option(min=1, help="Clusters before the refit, which has one more.")] = 9,
    seed: Annotated[int, typer.Option(help="Same seed, same clusters.")] = 0,
    as_json: Json = False,
) -> None:
    """A run without a class, the class added, and a refit: do old clusters keep their numbers, is a new one born?"""
    import json
    from dataclasses import asdict

    from rich.table import Table

    from bitmosaic.bench.refit import measure
    from bitmosaic.terminal import output, progress_bars

    with progress_bars(goes_on=False) as progress:
        found = list(measure(src, [name.strip() for name in classes.split(",")], out, clusters, seed, progress))
    if as_json:
        typer.echo(json.dumps([asdict(new) for new in found]))
        return
    table = Table(caption="stayed: old pictures that went where most of their cluster went; same: of all old pictures")
    for head in ("new class", "beyond", "refit due", "clusters", "class in born", "born of class", "stayed"):
        table.add_column(head, justify="left" if head in ("new class", "clusters") else "right")
    table.add_column("number kept, of these", justify="right")
    table.add_column("same", justify="right")
    for new in found:
        events = ", ".join(f"{count} {event}" for event, count in new.counts.items() if count)
        shares = (new.of_class, new.of_born, new.stayed, new.kept, new.same)
        due = "yes" if new.refit_due else "no"
        table.add_row(new.name, f"{new.beyond:.1%}", due, events, *(f"{share:.1%}" for share in shares))
    output().print(table)


@bench.command()
def duplicates(
    src: Annotated[str, typer.Argument(help="A folder, a list, an archive or a .npy of pictures.")],
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 3,
    share: Annotated[float, typer.Option(min=0.0001, max=0.5, help="Of the pictures are copied.")] = 0.01,
    by: Annotated[str, typer.Option(help="Some of pictures, both, features, with commas.")] = "pictures,both,features",
    view: Annotated[list[str] | None, typer.Option(help="Views, as in `extract`: lbp, gist, hog.")] = None,
    clusters: Annotated[int, typer.Option(min=1, help="Clusters of the run.")] = 10,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; every core.")] = None,
    out: Annotated[Path | None, typer.Option(help="A folder for raw counts (JSON) and the plot.")] = None,
) -> None:
    """Copies of 1% of the pictures are planted (resized, recompressed, slightly cropped): how many are found?

    Precision, recall and F1 of each kind against the radius, from the whole pipeline, over several seeds. Duplicates
    that the collection has by itself are neither right nor wrong.
    """
    from bitmosaic.bench.choices import choose_methods
    from bitmosaic.bench.duplicate_report import draw, duplicate_table, write_results
    from bitmosaic.bench.duplicates import measure
    from bitmosaic.pipeline import DEFAULT_VIEWS
    from bitmosaic.terminal import output, progress_bars

    ways = choose_methods(by, ("pictures", "both", "features"))
    with progress_bars(goes_on=False) as progress:
        results = measure(src, seeds, ways, view or DEFAULT_VIEWS, clusters, share, threads, progress)
    console = output()
    console.print(duplicate_table(results))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_results(results, out)
        console.print(f"wrote {draw(results, out / 'duplicates.png')}")

"""Benchmarks: `bitmosaic bench …`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bitmosaic.cli.options import Json, RunFolder, choose_names, parse_numbers
from bitmosaic.cli.terminal import output, progress_bars

Repeats = Annotated[int, typer.Option(min=1, help="Number of repeats; the best one counts.")]
BenchThreads = Annotated[int | None, typer.Option(min=1, help="Threads of every method.", show_default="all cores")]


def _table(*columns: str, left: tuple[str, ...] = (), caption: str | None = None) -> Any:
    """An empty table; columns are aligned right unless they are in `left`."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, caption=caption)
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right")
    return table


def quality(
    data: Annotated[
        list[str] | None,
        typer.Argument(
            help="Multi-view files or views folders with known classes: PATH, or 'PATH?views=lbp,gist' in quotes. "
            "The same PATH may be given several times: 'in10?views=deep' 'in10?views=lbp,gist,hog' in10."
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Some of KMeans, KMeans-balanced, KMeans-raw, KMeans-L2, LSC-K, MVSC, EVoC, HSIC, HSIC.paper, "
            "separated by commas.",
            show_default="all",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 10,
    kmeans_seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Seeds of KMeans, which takes minutes on 60,000 images.", show_default="as --seeds"),
    ] = None,
    search: Annotated[
        bool, typer.Option("--search", help="Also measure precision@20 of the codes; fits HSIC again.")
    ] = False,
    each_view: Annotated[bool, typer.Option("--each-view", help="Also run HSIC on each view alone.")] = False,
    spoil: Annotated[
        bool,
        typer.Option(
            "--spoil",
            help="Also run HSIC with an extra view (noise, constant, copy or weak), and on each view with noise.",
        ),
    ] = False,
    blobs: Annotated[
        bool,
        typer.Option("--blobs", help="Also run HSIC on well-separated blobs, transformed by pairs of smooth maps."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="A JSON Lines file for labels and times. Its runs are not repeated.", show_default="no file"),
    ] = None,
) -> None:
    """Quality of HSIC, scikit-learn's KMeans, LSC-K, MVSC and EVoC: mean ± standard deviation over seeds.

    HSIC.paper has the settings of the paper. KMeans, best of 10 starts, runs on the standardized, concatenated views:
    -balanced gives every view the same total variance, -raw scales nothing, -L2 scales rows of each view to length 1.
    EVoC runs on the rows of -L2; its noise is one more cluster. Stored runs of other code are repeated.
    """
    from bitmosaic.bench.precision import check_search, measure, precision_table
    from bitmosaic.bench.quality import METHODS, blob_cases, cases_of, print_tables, run_all
    from bitmosaic.errors import ParameterError

    if not data and not blobs:
        raise ParameterError("No data to measure. Give multi-view files or views folders, or add --blobs.")
    cases = cases_of(data or [], each_view, spoil) + (blob_cases() if blobs else [])
    chosen = choose_names(methods, METHODS) if methods else list(METHODS)
    if (each_view or spoil or blobs) and "HSIC" not in chosen:
        raise ParameterError("--each-view, --spoil and --blobs need HSIC. Add it to --methods.")
    if search:
        check_search(cases)
    with progress_bars(resumes=out is not None) as progress:
        runs = run_all(cases, chosen, seeds, progress, out, kmeans_seeds)
        precisions = measure([case for case in cases if case.compared], seeds, progress) if search else {}
    print_tables(cases, runs)
    if search:
        output().print(precision_table(precisions))


def memory(
    rows: Annotated[str, typer.Option(help="Numbers of rows, separated by commas.")] = "1_000_000",
    clusters: Annotated[int, typer.Option(min=1, help="Number of planted clusters.")] = 20,
    limit: Annotated[str, typer.Option(help="The memory_limit of the fit.")] = "512MB",
    train_size: Annotated[str, typer.Option(help="'auto', a number of rows, or a fraction such as 1.0.")] = "auto",
    folder: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Where to write the views.", show_default="a temporary folder"),
    ] = None,
) -> None:
    """Time and peak memory of a fit on memory-mapped views (128 + 64 + 256 columns) under a limit."""
    import tempfile

    from bitmosaic.bench.memory import make_views, measure, model_of

    console = output()
    numbers = sorted(set(parse_numbers("--rows", rows)))
    for n_rows in numbers:
        model_of(clusters, limit, train_size).check(n_rows)
    table = _table("rows", "input, MB", "seconds", "peak, MB", "of which labels and codes", "NMI")
    with tempfile.TemporaryDirectory(dir=folder) as place:
        with console.status(f"Writing {numbers[-1]:,} rows …"):
            views = make_views(place, numbers[-1], clusters)
        for n_rows in numbers:
            with console.status(f"Fitting {n_rows:,} rows …"):
                figures = measure(views, n_rows, clusters, limit, train_size)
            megabytes = {name: f"{figures[f'{name}_bytes'] / 1e6:,.0f}" for name in ("input", "peak", "output")}
            table.add_row(
                f"{n_rows:,}",
                megabytes["input"],
                f"{figures['seconds']:.1f}",
                megabytes["peak"],
                megabytes["output"],
                f"{figures['scores']['nmi']:.3f}",
            )
    table.caption = (
        f"memory_limit {limit}, train_size {train_size}; peak: memory above the {figures['start_bytes'] / 1e6:,.0f} MB "
        "of the start; NMI with the planted clusters"
    )
    console.print(table)


def scale(
    rows: Annotated[str, typer.Option(help="Numbers of rows, separated by commas.")] = "1_000_000",
    clusters: Annotated[int, typer.Option(min=1, help="Number of planted clusters.")] = 20,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes on this machine.")] = 2,
    train_size: Annotated[str, typer.Option(help="'auto', a number of rows, or a fraction such as 1.0.")] = "auto",
    block_rows: Annotated[int, typer.Option(min=1024, help="Rows per block of the Dask arrays.")] = 65_536,
) -> None:
    """Time, peak memory and network traffic of a fit on a Dask cluster of this machine.

    The views have 128 + 64 + 256 columns and are generated in the blocks.
    """
    from bitmosaic.bench.memory import model_of
    from bitmosaic.bench.scale import measure
    from bitmosaic.cli.dask_client import connected

    numbers = sorted(set(parse_numbers("--rows", rows)))
    size = model_of(clusters, None, train_size).train_size
    console = output()
    table = _table(
        "rows",
        "blocks",
        "seconds",
        "µs per row",
        "largest worker, MB",
        "client, MB",
        "rounds",
        "s per round",
        "kB per round",
        "NMI",
    )
    for n_rows in numbers:
        with connected(workers=workers) as client, console.status(f"Fitting {n_rows:,} rows …"):
            figures = measure(client, n_rows, clusters, size, block_rows)
        table.add_row(
            f"{n_rows:,}",
            f"{figures.n_blocks:,}",
            f"{figures.seconds:.1f}",
            f"{1e6 * figures.seconds / n_rows:.2f}",
            f"{figures.worker_peak / 1e6:,.0f}",
            f"{figures.client_peak / 1e6:,.0f}",
            f"{len(figures.rounds)}",
            f"{figures.round_seconds:.2f}",
            f"{figures.round_bytes / 1e3:.0f}",
            f"{figures.nmi:.3f}",
        )
    table.caption = (
        f"{workers} workers, train_size {train_size}; client: memory above its start; rounds of clustering, and the "
        "data workers sent in each; NMI with the planted clusters"
    )
    console.print(table)


def features(
    src: Annotated[str, typer.Argument(help="A folder or archive of images of one size.")],
    limit: Annotated[int, typer.Option(min=250, help="Maximum number of images.")] = 60_000,
    repeats: Repeats = 3,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads, and processes of scikit-image.", show_default="all cores")
    ] = None,
) -> None:
    """Images per second of LBP, GIST and HOG, compared with scikit-image on the same images and cores."""
    from bitmosaic.bench.features import measure, ratios
    from bitmosaic.io.threads import available_threads

    with progress_bars(resumes=False) as progress:
        contest = measure(src, limit, repeats, available_threads(threads), progress)
    table = _table("method", "images/s", left=("method",))
    for name in contest.seconds:
        table.add_row(name, f"{contest.rate(name):,.0f}")
    console = output()
    console.print(f"{contest.n_images:,} images, {available_threads(threads)} threads, best of {repeats}")
    console.print(table)
    for name, ratio in ratios(contest).items():
        console.print(f"{name}: [bold]{ratio:.1f}×[/] scikit-image")


def codes(
    rows: Annotated[int, typer.Option(min=1, help="Number of codes.")] = 1_000_000,
    clusters: Annotated[int, typer.Option(min=1, help="Number of planted centers.")] = 1000,
    bits: Annotated[int, typer.Option(min=8, help="Bits per code, a multiple of 8.")] = 128,
    repeats: Repeats = 3,
    threads: BenchThreads = None,
) -> None:
    """Nearest centers of packed codes, in pairs per second, compared with faiss.IndexBinaryFlat.

    The codes are planted centers with a tenth of their bits flipped. Labels are compared where the nearest center is
    unique, distances everywhere.
    """
    from bitmosaic.bench import codes as code_bench
    from bitmosaic.io.threads import available_threads

    n_threads = available_threads(threads)
    packed, centers = code_bench.planted_codes(rows, clusters, bits)
    with progress_bars(resumes=False) as progress:
        contest = code_bench.contest(packed, centers, repeats, n_threads, progress)
    table = _table("method", "pairs/s", "seconds", left=("method",))
    for name, seconds in contest.seconds.items():
        table.add_row(name, f"{contest.rate(name) / 1e9:,.2f} billion", f"{seconds:,.2f}")
    console = output()
    console.print(f"{rows:,} codes of {bits} bits, {clusters:,} centers, {n_threads} threads, best of {repeats}")
    console.print(table)
    same = {True: "the same", False: "[bold red]not the same[/]"}
    console.print(f"[bold]{contest.ratio:.1f}×[/] faiss.IndexBinaryFlat")
    console.print(f"distances {same[contest.same_distances]}, labels {same[contest.same_labels]}")


def speed(
    data: Annotated[str, typer.Argument(help="A views folder or multi-view file: PATH, or PATH?views=lbp,gist,hog.")],
    clusters: Annotated[str, typer.Option(help="Numbers of clusters, separated by commas.")] = "10,100,1000",
    methods: Annotated[
        str | None,
        typer.Option(
            help="Some of HSIC, HSIC fast, KMeans, MiniBatchKMeans, faiss.Kmeans, separated by commas.",
            show_default="all",
        ),
    ] = None,
    rows: Annotated[
        str | None, typer.Option(help="Numbers of rows, separated by commas.", show_default="all rows")
    ] = None,
    repeats: Repeats = 2,
    cap: Annotated[float, typer.Option(min=1, help="Time limit of a method in seconds.")] = 600,
    threads: BenchThreads = None,
    out: Annotated[Path | None, typer.Option(help="A JSON file for the results.", show_default="no file")] = None,
) -> None:
    """Speed of HSIC, KMeans(n_init=1) and MiniBatchKMeans of scikit-learn, and faiss.Kmeans, each in its own process.

    The peers take the concatenated views from memory; HSIC reads them from disk. Imports and compilation are not
    timed. The order of the methods is reversed in every repeat.
    """
    from dataclasses import asdict

    from bitmosaic.bench.speed import METHODS, measure, speed_table
    from bitmosaic.io.files import write_json
    from bitmosaic.io.threads import available_threads

    n_threads = available_threads(threads)
    with progress_bars(resumes=False) as progress:
        results = measure(
            data,
            choose_names(methods, METHODS) if methods else list(METHODS),
            parse_numbers("--clusters", clusters),
            parse_numbers("--rows", rows) if rows else [],
            repeats,
            cap,
            n_threads,
            progress,
        )
    output().print(speed_table(results))
    if out is not None:
        write_json(out, {"threads": n_threads, "results": [asdict(result) for result in results]})


def search(
    run: RunFolder,
    rows: Annotated[str, typer.Option(help="Numbers of codes, separated by commas.")] = "1_000_000,10_000_000",
    neighbors: Annotated[str, typer.Option("-k", help="Numbers of neighbors, separated by commas.")] = "1,10,100",
    queries: Annotated[int, typer.Option(min=2, max=1000, help="Number of queries per batch.")] = 1000,
    repeats: Repeats = 2,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    threads: BenchThreads = None,
    as_json: Json = False,
) -> None:
    """Search times of NeighborIndex and faiss.IndexBinaryFlat: the k nearest codes, and all within 6 bits.

    The codes are those of the run, and synthetic ones: rows of features, moved a random part of the way to one of their
    10 nearest rows, with noise, encoded by the model of the run. Queries are 1,000 held-out codes of the run and 1,000
    synthetic ones, in batches, and 50 of them one by one.
    """
    from dataclasses import asdict

    from bitmosaic.bench.search import make_codes, measure
    from bitmosaic.io.threads import available_threads
    from bitmosaic.run.folder import Run

    numbers = sorted(set(parse_numbers("--rows", rows)))
    ks, n_threads = sorted(set(parse_numbers("-k", neighbors))), available_threads(threads)
    with progress_bars(resumes=False) as progress:
        codes = make_codes(Run(run), numbers[-1], seed, n_threads, progress)
        builds, results = measure(codes, numbers, ks, queries, repeats, n_threads, progress)
    if as_json:
        facts = {"threads": n_threads, "repeats": repeats, "seconds_to_make": codes.seconds}
        facts_of_results = [asdict(result) | {"ratio": result.ratio} for result in results]
        typer.echo(json.dumps(facts | {"builds": [asdict(built) for built in builds], "results": facts_of_results}))
        return
    _print_search(codes, builds, results, n_threads, repeats)


def _print_search(codes: Any, builds: Any, results: Any, n_threads: int, repeats: int) -> None:
    from bitmosaic.bench.search import OURS, PEER

    console = output()
    console.print(f"Codes and queries made in {codes.seconds:.1f} s.")
    for built in builds:
        console.print(
            f"{built.n_codes:,} codes: index built in {built.seconds:.1f} s, {built.n_bytes / built.n_codes:.1f} bytes "
            f"per code, peak {built.peak_bytes / 1e6:,.0f} MB; same row order as NumPy: "
            f"{'yes' if built.same_rows else '[bold red]no[/]'}"
        )
    times = [f"{name}, ms" for name in (OURS, PEER)]
    table = _table("codes", "search", "queries", "batch", *times, "ratio", "same", left=("search", "queries"))
    for result in results:
        times = [f"{1000 * result.seconds[name]:,.3f}" for name in (OURS, PEER)]
        checked = f"{result.ratio:,.0f}×", "yes" if result.same else "[bold red]no[/]"
        table.add_row(f"{result.n_codes:,}", result.question, result.queries, f"{result.at_once:,}", *times, *checked)
    table.caption = (
        f"ms per query, {n_threads} threads, best of {repeats} repeats; same: all distances are equal; "
        f"ratio: {PEER} ÷ {OURS}"
    )
    console.print(table)


def growth(
    train: Annotated[str, typer.Argument(help="Images of the first run: a folder with a subfolder per class.")],
    test: Annotated[str, typer.Argument(help="Other images of the same classes, to add.")],
    out: Annotated[Path, typer.Option(help="A new folder for all runs.")] = Path("growth"),
    clusters: Annotated[int, typer.Option(min=1, help="Number of clusters.")] = 10,
    seeds: Annotated[int, typer.Option(min=2, help="Number of seeds.")] = 3,
) -> None:
    """Time of `add` and of a new run of all images, and the adjusted Rand index between their clusters."""
    from bitmosaic.bench.growth import measure

    with progress_bars(resumes=False) as progress:
        done = measure(train, test, out, clusters, seeds, progress)
    console, n = output(), len(done.truth)
    share = done.add / done.new_run
    console.print(
        f"A new run of all images: {done.new_run:.1f} s; adding {n:,} images: {done.add:.1f} s, [bold]{share:.0%}[/]"
    )
    for what, values in (
        ("Adjusted Rand index, added images and a run of all images", done.agreement),
        ("… two seeds of a run of all images", done.between_seeds),
        ("NMI with the classes, added images", done.nmi(done.added)),
        ("… run of all images", done.nmi(done.fitted)),
    ):
        console.print(f"{what}: {values.mean():.3f} ± {values.std(ddof=1):.3f} ({len(values)} pairs or runs)")


def duplicates(
    src: Annotated[str, typer.Argument(help="A folder, a list, an archive or a .npy file of images.")],
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 3,
    share: Annotated[float, typer.Option(min=0.0001, max=0.5, help="Fraction of the images to copy.")] = 0.01,
    by: Annotated[
        str, typer.Option(help="Some of images, both, features, separated by commas.")
    ] = "images,both,features",
    view: Annotated[
        list[str] | None, typer.Option(help="Views, as in `extract`.", show_default="lbp, gist and hog")
    ] = None,
    clusters: Annotated[int, typer.Option(min=1, help="Number of clusters.")] = 10,
    threads: Annotated[int | None, typer.Option(min=1, help="Number of threads.", show_default="all cores")] = None,
    out: Annotated[Path | None, typer.Option(help="A JSON file for the raw counts.", show_default="no file")] = None,
) -> None:
    """Plant copies of some images (resized, recompressed, slightly cropped) and count how many are found.

    Precision, recall and F1 of each kind against the radius, from the whole pipeline, over several seeds. Duplicates
    that the collection already had count neither as right nor as wrong.
    """
    from dataclasses import asdict

    from bitmosaic.bench.duplicates import duplicate_table, measure
    from bitmosaic.io.files import write_json
    from bitmosaic.pipeline import DEFAULT_VIEWS

    ways = choose_names(by, ("images", "both", "features"))
    with progress_bars(resumes=False) as progress:
        results = measure(src, seeds, ways, view or DEFAULT_VIEWS, clusters, share, threads, progress)
    output().print(duplicate_table(results))
    if out is not None:
        write_json(out, [asdict(result) for result in results])

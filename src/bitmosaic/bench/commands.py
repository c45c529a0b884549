"""`bitmosaic bench …`: what is measured, and how it is printed."""

from pathlib import Path
from typing import Annotated

import typer

bench = typer.Typer(no_args_is_help=True, help="Measure bitmosaic beside its peers.")


@bench.command()
def quality(
    data: Annotated[
        list[str] | None,
        typer.Argument(help="Multi-view files or views folders with known classes: PATH, or PATH?views=lbp,gist,hog."),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(help="Some of KMeans, KMeans-balanced, KMeans-raw, KMeans-L2, HSIC, HSIC.paper, with commas."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 10,
    kmeans_seeds: Annotated[
        int | None, typer.Option(min=1, help="Fewer seeds for KMeans, which takes minutes on 60,000 images.")
    ] = None,
    each_view: Annotated[bool, typer.Option("--each-view", help="HSIC on each view by itself, too.")] = False,
    spoil: Annotated[
        bool, typer.Option("--spoil", help="HSIC with a view of noise, a constant one, or a copy of one added, too.")
    ] = False,
    blobs: Annotated[
        bool, typer.Option("--blobs", help="HSIC on well-separated blobs seen through pairs of smooth maps, too.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Raw labels and times, a line of JSON for each run. What is there already is not run again."),
    ] = None,
) -> None:
    """HSIC, HSIC.paper and scikit-learn's KMeans on the same data: mean ± standard deviation over seeds.

    KMeans, best of 10 starts, runs on the standardised, concatenated views; -balanced gives every view the same total
    variance, -raw scales nothing, -L2 (of one view) scales rows to length 1. Stored runs of other code are run again.
    """
    from bitmosaic.bench.cases import blob_cases, cases_of
    from bitmosaic.bench.choices import choose_methods
    from bitmosaic.bench.quality import METHODS, run_all
    from bitmosaic.bench.tables import print_tables
    from bitmosaic.errors import ParameterError
    from bitmosaic.terminal import progress_bars

    if not data and not blobs:
        raise ParameterError("There is nothing to measure. Name multi-view files or views folders, or add --blobs.")
    cases = cases_of(data or [], each_view, spoil) + (blob_cases() if blobs else [])
    chosen = choose_methods(methods, METHODS) if methods else list(METHODS)
    if (each_view or spoil or blobs) and "HSIC" not in chosen:
        raise ParameterError("--each-view, --spoil and --blobs are measured with HSIC. Add it to --methods.")
    with progress_bars(goes_on=out is not None) as progress:
        runs = run_all(cases, chosen, seeds, progress, out, kmeans_seeds)
    print_tables(cases, runs)


@bench.command()
def memory(
    rows: Annotated[str, typer.Option(help="Numbers of rows, with commas, each at least 1000.")] = "1_000_000",
    clusters: Annotated[int, typer.Option(min=1, help="Planted clusters.")] = 20,
    limit: Annotated[str, typer.Option(help="The memory_limit of the fit.")] = "512MB",
    train_size: Annotated[str, typer.Option(help="'auto', a number of rows, or a share such as 1.0.")] = "auto",
    folder: Annotated[Path | None, typer.Option(help="Where the views go; a temporary folder otherwise.")] = None,
) -> None:
    """Time and peak memory of a fit on memory-mapped views (128 + 64 + 256 columns) under a limit."""
    import tempfile

    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from bitmosaic.bench.choices import parse_numbers
    from bitmosaic.bench.memory import make_views, measure, model_of
    from bitmosaic.errors import ParameterError
    from bitmosaic.terminal import output

    console = output()
    numbers = sorted(set(parse_numbers("--rows", rows)))
    if numbers[0] < 1000:
        raise ParameterError(f"--rows must be at least 1000; got {numbers[0]}.")
    if folder is not None and not folder.is_dir():
        raise ParameterError(f"--folder must be a folder that is there; got {str(folder)!r}.")
    for n_rows in numbers:
        model_of(clusters, limit, train_size).check(n_rows)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("rows", "input, MB", "seconds", "peak, MB", "of which labels and codes", "NMI"):
        table.add_column(name, justify="right")
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
        f"memory_limit {limit}, train_size {train_size}; peak: above the {figures['start_bytes'] / 1e6:,.0f} MB of the "
        "start; NMI against the planted clusters"
    )
    console.print(table)


@bench.command()
def scale(
    rows: Annotated[str, typer.Option(help="Numbers of rows, with commas, each at least 1000.")] = "1_000_000",
    clusters: Annotated[int, typer.Option(min=1, help="Planted clusters.")] = 20,
    workers: Annotated[int, typer.Option(min=1, help="Processes of the cluster, on this machine.")] = 2,
    train_size: Annotated[str, typer.Option(help="'auto', a number of rows, or a share such as 1.0.")] = "auto",
    block_rows: Annotated[int, typer.Option(min=1024, help="Rows of a block of the Dask arrays.")] = 65_536,
    beside: Annotated[
        bool, typer.Option("--beside-local", help="The same views folder fitted with and without the cluster, instead.")
    ] = False,
    repeats: Annotated[int, typer.Option(min=1, help="With --beside-local: the best of so many turns counts.")] = 3,
    folder: Annotated[Path | None, typer.Option(help="With --beside-local: where the views go.")] = None,
) -> None:
    """A fit on a Dask cluster of this machine: time, peak memory and traffic of rows that are made in the blocks.

    The views have 128 + 64 + 256 columns. With --beside-local, what the cluster takes longer than one process does.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from bitmosaic.bench.choices import parse_numbers
    from bitmosaic.bench.memory import model_of
    from bitmosaic.bench.scale import compare, measure
    from bitmosaic.errors import ParameterError
    from bitmosaic.scale.cluster import connected
    from bitmosaic.terminal import output, progress_bars

    numbers = sorted(set(parse_numbers("--rows", rows)))
    if numbers[0] < 1000:
        raise ParameterError(f"--rows must be at least 1000; got {numbers[0]}.")
    size = model_of(clusters, None, train_size).train_size
    console, table = output(), Table(box=SIMPLE_HEAD, pad_edge=False)
    if beside:
        for name in ("rows", "local, s", "cluster, s", "overhead", "rows that differ"):
            table.add_column(name, justify="right")
        for n_rows in numbers:
            with connected(workers=workers) as client, progress_bars(goes_on=False) as progress:
                seconds, differing = compare(
                    client,
                    n_rows,
                    clusters,
                    repeats,
                    folder,
                    lambda done, total, n=n_rows: progress(f"fits of {n:,} rows", done, total),
                )
            best = {name: min(turns) for name, turns in seconds.items()}
            overhead = best["cluster"] / best["local"] - 1
            table.add_row(
                f"{n_rows:,}", f"{best['local']:.1f}", f"{best['cluster']:.1f}", f"{overhead:+.0%}", f"{differing:,}"
            )
        table.caption = f"{workers} workers beside as many threads, the best of {repeats} turns each"
        console.print(table)
        return
    names = (
        "rows",
        "blocks",
        "seconds",
        "µs a row",
        "largest worker, MB",
        "client, MB",
        "rounds",
        "s each",
        "kB each",
        "NMI",
    )
    for name in names:
        table.add_column(name, justify="right")
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
        f"{workers} workers, train_size {train_size}; client: above its start; rounds of clustering, and what workers "
        "sent in each; NMI against the planted clusters"
    )
    console.print(table)


@bench.command()
def features(
    src: Annotated[str, typer.Argument(help="A folder or archive of pictures, all of one size.")],
    limit: Annotated[int, typer.Option(min=250, help="At most this many pictures.")] = 60_000,
    repeats: Annotated[int, typer.Option(min=1, help="The best of so many turns counts.")] = 3,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads, and processes of the peer; every core.")] = None,
) -> None:
    """Images per second of LBP, GIST and HOG beside scikit-image, on the same pictures and cores."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from bitmosaic.bench.features import measure, ratios
    from bitmosaic.terminal import output, progress_bars
    from bitmosaic.threads import available_threads

    with progress_bars(goes_on=False) as progress:
        contest = measure(src, limit, repeats, available_threads(threads), progress)
    table = Table("contestant", "images/s", box=SIMPLE_HEAD)
    for name in contest.seconds:
        table.add_row(name, f"{contest.rate(name):,.0f}")
    console = output()
    console.print(f"{contest.n_images:,} images, {available_threads(threads)} threads, best of {repeats}")
    console.print(table)
    for name, ratio in ratios(contest).items():
        console.print(f"{name}: [bold]{ratio:.1f}×[/] scikit-image")


@bench.command()
def codes(
    rows: Annotated[int, typer.Option(min=1, help="Codes.")] = 1_000_000,
    clusters: Annotated[int, typer.Option(min=1, help="Planted centers.")] = 1000,
    bits: Annotated[int, typer.Option(min=8, help="Length of a code, a multiple of 8.")] = 128,
    repeats: Annotated[int, typer.Option(min=1, help="The best of so many turns counts.")] = 3,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of both contestants; every core.")] = None,
    fit: Annotated[bool, typer.Option("--fit", help="A whole fit of BinaryKMeans(n_init=1), too.")] = False,
    max_iter: Annotated[int, typer.Option(min=1, help="The most iterations of that fit.")] = 100,
) -> None:
    """Nearest centers of packed codes, in pairs per second, beside faiss.IndexBinaryFlat on the same codes and cores.

    The codes are planted centers with a tenth of their bits flipped. Labels are compared where one center is nearer
    than all others, distances everywhere.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from bitmosaic.bench import codes as code_bench
    from bitmosaic.terminal import output, progress_bars
    from bitmosaic.threads import available_threads

    n_threads = available_threads(threads)
    packed, centers = code_bench.planted_codes(rows, clusters, bits)
    with progress_bars(goes_on=False) as progress:
        contest = code_bench.contest(packed, centers, repeats, n_threads, progress)
    table = Table("contestant", "pairs/s", "seconds", box=SIMPLE_HEAD)
    for name, seconds in contest.seconds.items():
        table.add_row(name, f"{contest.rate(name) / 1e9:,.2f} billion", f"{seconds:,.2f}")
    console = output()
    console.print(f"{rows:,} codes of {bits} bits, {clusters:,} centers, {n_threads} threads, best of {repeats}")
    console.print(table)
    same = {True: "the same", False: "[bold red]not the same[/]"}
    console.print(f"[bold]{contest.ratio:.1f}×[/] faiss.IndexBinaryFlat")
    console.print(f"distances {same[contest.same_distances]}, labels {same[contest.same_labels]}")
    best, alike = code_bench.search(packed, min(24, rows), repeats, n_threads)
    times = ", ".join(f"{name} {milliseconds:,.1f} ms" for name, milliseconds in best.items())
    console.print(f"the 24 nearest codes of one: {times}; distances {same[alike]}")
    if fit:
        with console.status("Fitting …"):
            done = code_bench.fit(packed, clusters, max_iter, n_threads)
        console.print(
            f"BinaryKMeans(n_init=1, max_iter={max_iter}).fit: [bold]{done.seconds:,.1f} s[/], "
            f"{done.n_iter} iterations, {done.peak_bytes / 1e6:,.0f} MB beside the codes' "
            f"{packed.nbytes / 1e6:,.0f} MB, {done.mean_distance:.2f} bits from the centers on average"
        )


@bench.command()
def pages(
    run: Annotated[Path, typer.Argument(help="A run folder with pictures.")],
    repeats: Annotated[int, typer.Option(min=1, help="Later visits of each page; the median counts.")] = 5,
) -> None:
    """How long a person waits for the pages of the explorer: from the click to the last picture on a screen of
    1,280 × 800, in Chromium."""
    from statistics import median

    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from bitmosaic.bench.pages import measure
    from bitmosaic.run import Run
    from bitmosaic.terminal import output, progress_bars

    with progress_bars(goes_on=False) as progress:
        waits = measure(Run(run), repeats, progress)
    table = Table("page", "first visit, seconds", "later visits", box=SIMPLE_HEAD)
    for wait in waits:
        table.add_row(wait.page, f"{wait.first:.2f}", f"{median(wait.later):.2f}")
    output().print(table)


@bench.command()
def speed(
    data: Annotated[str, typer.Argument(help="A views folder or multi-view file: PATH, or PATH?views=lbp,gist,hog.")],
    clusters: Annotated[str, typer.Option(help="Numbers of clusters, with commas.")] = "10,100,1000",
    methods: Annotated[
        str | None, typer.Option(help="Some of HSIC, HSIC fast, KMeans, MiniBatchKMeans, faiss.Kmeans, with commas.")
    ] = None,
    rows: Annotated[str | None, typer.Option(help="Numbers of rows, with commas; all rows otherwise.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="The best of so many turns counts.")] = 2,
    cap: Annotated[float, typer.Option(min=1, help="Seconds after which a method is cut off.")] = 600,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of every method; every core.")] = None,
    out: Annotated[Path | None, typer.Option(help="A folder for speed.json and the plots.")] = None,
) -> None:
    """HSIC beside KMeans(n_init=1) and MiniBatchKMeans of scikit-learn and faiss.Kmeans, each in a process of its own.

    The peers take the concatenated views from memory, HSIC reads them from where they are. What happens only once in a
    process, such as imports, is over before the clock starts; the order is reversed each turn.
    """
    from bitmosaic.bench.choices import choose_methods, parse_numbers
    from bitmosaic.bench.contestants import METHODS
    from bitmosaic.bench.speed import encoding_speed, matrix_speed, measure, write_results
    from bitmosaic.bench.speed_report import draw, speed_table
    from bitmosaic.terminal import output, progress_bars
    from bitmosaic.threads import available_threads

    n_threads = available_threads(threads)
    with progress_bars(goes_on=False) as progress:
        results = measure(
            data,
            choose_methods(methods, METHODS) if methods else list(METHODS),
            parse_numbers("--clusters", clusters),
            parse_numbers("--rows", rows) if rows else [],
            repeats,
            cap,
            n_threads,
            progress,
        )
    console = output()
    console.print(speed_table(results))
    n_rows, fewest = max(r.n_rows for r in results), min(r.n_clusters for r in results)
    encoding, most = encoding_speed(data, n_rows, fewest, n_threads), matrix_speed(n_threads)
    machine = {"threads": n_threads, "float32_matrix_product": most, "encoding": encoding}
    ours = encoding["operations_per_second"]
    console.print(
        f"{n_threads} threads; a float32 matrix product runs at {most / 1e9:,.0f} GF/s. HSIC encodes "
        f"{encoding['rows_per_second']:,.0f} rows/s, its matrix products at {ours / 1e9:,.0f} GF/s ({ours / most:.0%})."
    )
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_results(out / "speed.json", results, machine)
        for picture in draw(results, out):
            console.print(f"wrote {picture}")


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

"""The commands that look at a run: explore, report, export. Heavy imports stay inside."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

RunFolder = Annotated[Path, typer.Argument(help="A run folder, as made by cluster or fit.")]
USUAL_PORT = 8420


def explore(
    run: RunFolder,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="The port. [default: 8420, or a free one if that is taken]")
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on. With another one, others on the network see the pictures.")
    ] = "127.0.0.1",
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
) -> None:
    """A page over a run folder: look at clusters, name, merge and mend them.

    Edits are kept in the run folder beside the result, and can be undone.
    """
    import threading
    import webbrowser

    from bitmosaic.terminal import progress_bars

    _require_web("explore")
    from bitmosaic.explorer.server import listen, make_app, serve

    with progress_bars(goes_on=True) as progress:
        pages = _pages(run)
        pages.thumbnails.prepare(progress)
    try:
        listener = listen(host, USUAL_PORT if port is None else port)
    except ValueError:
        if port is not None:
            raise
        listener = listen(host, 0)
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{listener.getsockname()[1]}/"
    typer.echo(f"Exploring {run}: {url}   (Ctrl-C to stop)")
    if host not in ("127.0.0.1", "localhost", "::1"):
        typer.secho(
            "Everybody who reaches this address can see the pictures and edit the clusters.", fg="yellow", err=True
        )
    threading.Thread(target=pages.warm_up, daemon=True).start()
    if browser:
        webbrowser.open(url)
    with suppress(KeyboardInterrupt):
        serve(make_app(pages, (host,)), listener)


def report(
    run: RunFolder,
    out: Annotated[Path, typer.Option(help="The HTML file.")] = Path("report.html"),
    max_mb: Annotated[
        float, typer.Option(min=0.1, help="As many pictures go into it as fit into so many megabytes.")
    ] = 20,
) -> None:
    """The same page as one HTML file that can be mailed: pictures inside, no network needed."""
    from bitmosaic.explorer.report import write_report
    from bitmosaic.terminal import progress_bars

    _require_web("report")
    with progress_bars(goes_on=False) as progress:
        written = write_report(_finished(run), out, int(max_mb * 1e6), progress)
    typer.echo(
        f"{out}: {written.clusters:,} clusters, {written.pictures:,} pictures inside, {written.n_bytes / 1e6:.1f} MB"
    )


def export(
    run: RunFolder,
    out: Annotated[Path, typer.Argument(help="FILE.csv, FILE.parquet, or a new folder for a folder per cluster.")],
    source: Annotated[
        Path | None, typer.Option(help="Where the pictures are now, if not where the run has read them.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """The clusters as edited in the explorer: a table, or a folder of links to the pictures of each cluster."""
    from dataclasses import asdict

    from bitmosaic.explorer.clusters import Clusters, Pictures
    from bitmosaic.explorer.export import export_links, export_table
    from bitmosaic.terminal import progress_bars

    clusters = Clusters(Pictures.of(_finished(run)))
    edits = f"; {len(clusters.edits)} edits honoured" if clusters.edits else ""
    if out.suffix:
        export_table(clusters, out)
        facts = {"pictures": len(clusters.labels), "clusters": len(clusters.numbers)}
        words = f"{out}: {facts['pictures']:,} pictures in {facts['clusters']:,} clusters{edits}"
    else:
        with progress_bars(goes_on=False) as progress:
            made = export_links(clusters, out, source, progress)
        facts = asdict(made)
        kind = f"{made.links:,} links" if made.links else f"{made.copies:,} copies"
        words = f"{out}: {kind} in {made.folders:,} folders{edits}"
        if made.missing:
            words += f"; {made.missing:,} pictures are not where they were"
    typer.echo(json.dumps(facts) if as_json else words)


def _pages(folder: Path) -> Any:
    from bitmosaic.explorer.pages import Pages

    return Pages(_finished(folder))


def _finished(folder: Path) -> Any:
    """A run that has its tables."""
    from bitmosaic.errors import InvalidDataError
    from bitmosaic.run import Run

    run = Run(folder)
    if not run.done("tables"):
        raise InvalidDataError(f"The run in {folder} was stopped before its clusters were written; finish it first.")
    return run


def _require_web(command: str) -> None:
    import importlib.util

    from bitmosaic.errors import MissingExtraError

    missing = [name for name in ("starlette", "uvicorn", "plotly", "jinja2") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(f"{command} needs {', '.join(missing)}: pip install 'bitmosaic[web]'")

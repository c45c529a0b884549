"""The commands that look at a run: explore, report, export. Heavy imports stay inside."""

import importlib.util
import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

RunFolder = Annotated[Path, typer.Argument(help="A run folder, as made by cluster or fit.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Pictures = Annotated[Path | None, typer.Option(help="Where the pictures are now, if not where the run has read them.")]
USUAL_PORT = 8420
OWN_HOSTS, EVERYWHERE = ("127.0.0.1", "localhost", "::1"), ("0.0.0.0", "::")


def explore(
    run: RunFolder,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="The port. [default: 8420, or a free one if that is taken]")
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on. With another one, others on the network see the pictures.")
    ] = "127.0.0.1",
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
    source: Pictures = None,
) -> None:
    """A page over a run folder: look at clusters, name, merge and mend them.

    Edits are kept in the run folder beside the result, and can be undone.
    """
    import threading
    import webbrowser

    from bitmosaic.terminal import progress_bars

    _require("explore", "starlette", "uvicorn", "plotly")
    from bitmosaic.explorer.pages import Pages
    from bitmosaic.explorer.server import make_app, serve
    from bitmosaic.explorer.snapshot import finished_run

    with progress_bars(goes_on=True) as progress:
        pages = Pages(finished_run(run), source)
        pages.thumbnails.prepare(progress)
    listener = _listen(host, port)
    names = _names(host)
    url = f"http://{names[0]}:{listener.getsockname()[1]}/"
    say(f"Exploring {run}: {url}   (Ctrl-C to stop)")
    if host not in OWN_HOSTS:
        typer.secho(
            "Everybody who reaches this address can see the pictures and edit the clusters.", fg="yellow", err=True
        )
    threading.Thread(target=pages.warm_up, daemon=True).start()
    if browser:
        webbrowser.open(url)
    with suppress(KeyboardInterrupt):
        serve(make_app(pages, names), listener)


def _listen(host: str, port: int | None) -> Any:
    from bitmosaic.explorer.server import BusyPortError, listen

    try:
        return listen(host, USUAL_PORT if port is None else port)
    except BusyPortError:
        if port is not None:
            raise
        return listen(host, 0)


def _names(host: str) -> tuple[str, ...]:
    """Under which names a server on this host may be asked; the first is shown."""
    import socket

    if host in EVERYWHERE:
        return socket.gethostname(), socket.getfqdn()
    return (f"[{host}]" if ":" in host else host,)


def report(
    run: RunFolder,
    out: Annotated[Path, typer.Option(help="The HTML file.")] = Path("report.html"),
    max_mb: Annotated[float, typer.Option(min=0.1, help="As many pictures go into it as fit into so many MB.")] = 20,
    source: Pictures = None,
) -> None:
    """The same page as one HTML file that can be mailed: pictures inside, no network needed."""
    from bitmosaic.explorer.report import write_report
    from bitmosaic.explorer.snapshot import finished_run
    from bitmosaic.terminal import progress_bars

    _require("report", "jinja2")
    with progress_bars(goes_on=False) as progress:
        written = write_report(finished_run(run), out, max_mb * 1e6, progress, source)
    say(
        f"{out}: {_counted(written.clusters, 'cluster')}, {_counted(written.pictures, 'picture')} inside, "
        f"{written.n_bytes / 1e6:.1f} MB"
    )


def export(
    run: RunFolder,
    out: Annotated[
        Path,
        typer.Argument(
            help="FILE.csv, FILE.parquet, FILE.json (COCO), FILE.npy (codes), FILE.faiss, or a new folder of links."
        ),
    ],
    kind: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="KIND",
            help="csv, parquet, coco, fiftyone, codes, labels, faiss or links, where the suffix does not tell.",
        ),
    ] = None,
    source: Pictures = None,
    as_json: Json = False,
) -> None:
    """The clusters as edited in the explorer, for other programs.

    A table, a COCO-like JSON file, samples for FiftyOne (--as fiftyone), codes or labels (--as labels) for NumPy, an
    index for faiss, or a folder of links to the pictures of each cluster.
    """
    from bitmosaic.explorer.snapshot import clusters_now
    from bitmosaic.exports import kinds
    from bitmosaic.terminal import progress_bars

    chosen = kinds.kind_of(out, kind)  # before the run is read
    clusters = clusters_now(run)
    with progress_bars(goes_on=False) as progress:
        made = kinds.export(clusters, out, chosen.name, source, progress)
    if as_json:
        say(json.dumps({"kind": chosen.name} | made.facts | {"edits": len(clusters.edits), "notes": made.notes}))
        return
    edits = f"; {_counted(len(clusters.edits), 'edit')} honoured" if clusters.edits else ""
    say(f"{out}: {made.words}{edits}")
    for note in made.notes:
        say(note)


def _require(command: str, *packages: str) -> None:
    from bitmosaic.errors import MissingExtraError

    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(f"{command} needs {', '.join(missing)}: pip install 'bitmosaic[web]'")


def say(line: str, **style: Any) -> None:
    """Print a line that may hold names which others have given."""
    from bitmosaic.images import printable

    typer.secho(printable(line), **style)


def _counted(number: int, one: str) -> str:
    return f"{number:,} {one}{'' if number == 1 else 's'}"

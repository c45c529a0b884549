"""Look at a run: explore, report, export."""

import importlib.util
import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from bitmosaic.cli.options import Images, Json, RunFolder
from bitmosaic.cli.terminal import counted, progress_bars, say

DEFAULT_PORT = 8420
LOCAL_HOSTS, ALL_ADDRESSES = ("127.0.0.1", "localhost", "::1"), ("0.0.0.0", "::")


def explore(
    run: RunFolder,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="The port.", show_default="8420, or a free port")
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on. Any other address shows the images to the network.")
    ] = "127.0.0.1",
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
    source: Images = None,
) -> None:
    """Open a web page to look at the clusters of a run, name them, merge them and correct them.

    Edits are stored in the run folder beside the result, and can be undone.
    """
    import threading
    import webbrowser

    _require("explore", "starlette", "uvicorn", "plotly")
    from bitmosaic.explorer.api import Api
    from bitmosaic.explorer.server import make_app, serve
    from bitmosaic.run.folder import Run

    with progress_bars() as progress:
        api = Api(Run(run), source)
        api.thumbnails.prepare(progress)
    listener = _listen(host, port)
    names = _names(host)
    url = f"http://{names[0]}:{listener.getsockname()[1]}/"
    say(f"Exploring {run}: {url}   (Ctrl-C to stop)")
    if host not in LOCAL_HOSTS:
        typer.secho(
            "Anyone who can reach this address can see the images and edit the clusters.", fg="yellow", err=True
        )
    threading.Thread(target=api.warm_up, daemon=True).start()
    if browser:
        webbrowser.open(url)
    with suppress(KeyboardInterrupt):
        serve(make_app(api, names), listener)


def _listen(host: str, port: int | None) -> Any:
    from bitmosaic.errors import BusyPortError
    from bitmosaic.explorer.server import listen

    try:
        return listen(host, DEFAULT_PORT if port is None else port)
    except BusyPortError:
        if port is not None:
            raise
        return listen(host, 0)


def _names(host: str) -> tuple[str, ...]:
    """Host names the server accepts; the first is shown."""
    import socket

    if host in ALL_ADDRESSES:
        return socket.gethostname(), socket.getfqdn()
    return (f"[{host}]" if ":" in host else host,)


def report(
    run: RunFolder,
    out: Annotated[Path, typer.Option(help="The HTML file.")] = Path("report.html"),
    max_mb: Annotated[float, typer.Option(min=0.1, help="Size limit in MB. It determines the number of images.")] = 20,
    source: Images = None,
) -> None:
    """Write the page as one HTML file to send by mail: it contains its images and needs no network."""
    from bitmosaic.explorer.report import write_report
    from bitmosaic.run.folder import Run

    _require("report", "jinja2")
    with progress_bars(resumes=False) as progress:
        written = write_report(Run(run), out, max_mb * 1e6, progress, source)
    say(
        f"{out}: {counted(written.clusters, 'cluster')}, {counted(written.images, 'image')} inside, "
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
            help="csv, parquet, coco, fiftyone, codes, labels, faiss or links.",
            show_default="from the suffix",
        ),
    ] = None,
    source: Images = None,
    as_json: Json = False,
) -> None:
    """Export the clusters as edited in the explorer.

    A table, a COCO-like JSON file, samples for FiftyOne (--as fiftyone), codes or labels (--as labels) for NumPy, an
    index for faiss, or a folder of links to the images of each cluster.
    """
    from bitmosaic.pipeline import export as exports
    from bitmosaic.run.clusters import Clusters, ImageFacts
    from bitmosaic.run.folder import Run

    chosen = exports.kind_of(out, kind)  # before the run is read
    clusters = Clusters(ImageFacts.of(Run(run)))
    with progress_bars(resumes=False) as progress:
        made = exports.export(clusters, out, chosen.name, source, progress)
    if as_json:
        say(json.dumps({"kind": chosen.name} | made.facts | {"edits": len(clusters.edits), "notes": made.notes}))
        return
    edits = f"; {counted(len(clusters.edits), 'edit')} applied" if clusters.edits else ""
    say(f"{out}: {made.words}{edits}")
    for note in made.notes:
        say(note)


def _require(command: str, *packages: str) -> None:
    from bitmosaic.errors import MissingExtraError

    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(f"{command} needs {', '.join(missing)}: pip install 'bitmosaic[web]'")

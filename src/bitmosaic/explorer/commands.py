"""The commands that look at a run: explore, report, export. Heavy imports stay inside."""

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

"""The command line. A command parses, calls and prints; heavy imports stay inside the commands."""

import io
import os
import re
import sys
from typing import Annotated

import typer

from bitmosaic.cli import bench, cluster, explore, grow, paper, search

COMMANDS = {  # by the headings of `bitmosaic --help`
    "Cluster images": (
        cluster.cluster,
        cluster.extract,
        cluster.fit,
        cluster.predict,
        cluster.evaluate,
        cluster.info,
        cluster.demo,
    ),
    "Explore and export": (explore.explore, explore.report, explore.export),
    "Add images": (grow.add, grow.refit),
    "Search and curate": (search.search, search.duplicates, search.outliers, search.sample),
}
BENCH_COMMANDS = {
    "Benchmarks": (
        bench.quality,
        bench.speed,
        bench.memory,
        bench.scale,
        bench.features,
        bench.codes,
        bench.search,
        bench.growth,
        bench.duplicates,
    ),
    "Experiments of the paper": (
        paper.prepare,
        paper.run,
        paper.table1,
        paper.table2,
        paper.table3,
        paper.table4,
        paper.table5,
        paper.multiview,
        paper.fig2,
        paper.fig3,
        paper.fig4,
    ),
}

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Cluster millions of images on one ordinary machine: every image becomes 16 bytes.",
)
bench_app = typer.Typer(no_args_is_help=True)
for typer_app, groups in ((app, COMMANDS), (bench_app, BENCH_COMMANDS)):
    for heading, commands in groups.items():
        for command in commands:
            typer_app.command(rich_help_panel=heading)(command)
app.add_typer(
    bench_app,
    name="bench",
    help="Compare bitmosaic with other libraries and with the paper.",
    rich_help_panel="Benchmarks",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from bitmosaic import __version__

        typer.echo(f"bitmosaic {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run a command. An error that the user can cause becomes one line and exit code 1."""
    from bitmosaic.errors import BitmosaicError

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # escape characters the terminal cannot encode
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # worker processes must not import modules from the current folder
    try:
        app(prog_name="bitmosaic")
    except (BitmosaicError, OSError, MemoryError) as error:
        from bitmosaic.images import printable

        typer.secho(f"Error: {printable(_message(error))}", fg="red", err=True)
        sys.exit(1)


def _message(error: Exception) -> str:
    from bitmosaic.errors import BitmosaicError

    if isinstance(error, BitmosaicError):
        return re.sub(r"\[Errno -?\d+\] ", "", str(error))  # from a quoted OSError
    if isinstance(error, OSError):
        where = "A file" if error.filename is None else os.fsdecode(error.filename)
        cause = error.strerror or error
        return f"{where} cannot be read or written ({cause}). Check the path, its permissions and the free disk space."
    return "Out of memory. Close other programs, or set a smaller --memory-limit."

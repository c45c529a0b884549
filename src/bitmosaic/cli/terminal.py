"""Progress bars and printing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

WIDE = 160  # columns


@contextmanager
def progress_bars(resumes: bool = True) -> Iterator[Any]:
    """A callback (stage, done, total) that draws a bar per stage on a terminal, and nothing elsewhere.

    `resumes`: the same command, run again after Ctrl-C, resumes the work.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class RateColumn(ProgressColumn):
        def render(self, task: Any) -> Text:
            speed = task.finished_speed or task.speed
            return Text(f"{speed:,.0f}/s" if speed and speed >= 1 else "", style="progress.data.speed")

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), RateColumn(), TimeRemainingColumn())
    tasks: dict[str, Any] = {}
    # Estimate rates over ten minutes: Rich's 30 seconds are too short for steps that take a minute each.
    with Progress(*columns, console=console, disable=not console.is_terminal, speed_estimate_period=600) as progress:

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total or None, completed=done)
            progress.update(tasks[stage], completed=done, total=total or None)

        try:
            yield show
        except KeyboardInterrupt:
            progress.stop()
            console.print("Interrupted. Run the same command again to resume." if resumes else "Interrupted.")
            raise


def output() -> "Console":
    """Standard output: as wide as the terminal, or wide enough for any table in a file or a pipe."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDE)


def say(line: str, **style: Any) -> None:
    """Print a line that may contain untrusted names. Control characters are escaped."""
    from bitmosaic.images import printable

    typer.secho(printable(line), **style)


def say_fields(*fields: Any) -> None:
    """Print one tab-separated line. Each field may contain untrusted names."""
    from bitmosaic.images import printable

    typer.echo("\t".join("" if field is None else printable(str(field)) for field in fields))


def counted(number: int, one: str) -> str:
    """1 image, 2 images."""
    return f"{number:,} {one}{'' if number == 1 else 's'}"

"""What a person at a terminal sees while a command works."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

WIDE = 160  # columns


class RateColumn(ProgressColumn):
    """How many a second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f}/s" if speed and speed >= 1 else "", style="progress.data.speed")


@contextmanager
def progress_bars(goes_on: bool = True) -> Iterator[Any]:
    """A callback (stage, done, total) that draws a bar for each stage on a terminal, and is silent elsewhere.

    `goes_on`: the command, typed again after Ctrl-C, goes on where it was.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), RateColumn(), TimeRemainingColumn())
    tasks: dict[str, Any] = {}
    # Rates over ten minutes: of steps that take a minute each, Rich's own thirty seconds would not hold two.
    with Progress(*columns, console=console, disable=not console.is_terminal, speed_estimate_period=600) as progress:

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total or None, completed=done)
            progress.update(tasks[stage], completed=done, total=total or None)

        try:
            yield show
        except KeyboardInterrupt:
            progress.stop()
            console.print("Stopped. The same command goes on where it was." if goes_on else "Stopped.")
            raise


def output() -> Console:
    """Standard output, as wide as the terminal; in a file or a pipe, as wide as any table."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDE)


def clock(seconds: float) -> str:
    """12 s, 3 min 05 s, 2 h 07 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return time.strftime("%-M min %S s", time.gmtime(seconds))
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"

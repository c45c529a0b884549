"""Arguments and options that several commands share."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

RunFolder = Annotated[Path, typer.Argument(help="A run folder, made by cluster or fit.")]
Source = Annotated[
    str, typer.Argument(help="Images: a folder, a list (.txt), an archive (.tar.xz, .zip, …) or a .npy file.")
]
Images = Annotated[
    Path | None, typer.Option(help="Where the images are now, if they have moved.", show_default="where they were")
]


def count_or_auto(text: str) -> int | str:
    if text == "auto":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(f"expected a whole number from 1, or auto; got {text!r}.")
    return int(text)


Clusters = Annotated[
    Any,
    typer.Option(
        "--clusters",
        "-c",
        parser=count_or_auto,
        metavar="K|auto",
        help="Number of clusters, or auto: the number with the best silhouette on held-out rows.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(min=1, help="Number of threads. The result does not depend on it.", show_default="all cores"),
]
DaskThreads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        help="Number of threads. The result does not depend on it. With a Dask cluster: threads for training, which "
        "runs on this machine.",
        show_default="all cores",
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        help="Memory the fit may allocate, such as 512MB. The result does not depend on it. With a Dask cluster: "
        "memory on this machine, not on the workers.",
        show_default="a quarter of the memory",
    ),
]
Strict = Annotated[bool, typer.Option(help="Fail at the first unreadable image instead of skipping it.")]
Scheduler = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Use the Dask cluster of this scheduler, such as tcp://host:8786. Its workers must see the same paths. "
        "The result does not depend on it.",
        show_default="no cluster",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Use this many Dask worker processes on this machine. The result does not depend on it.",
        show_default="no cluster",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@dataclass(frozen=True)
class ExtractionOptions:
    """Options of `cluster` and `extract`. Each field is a keyword argument of pipeline.cluster and pipeline.extract."""

    views: Annotated[
        list[str] | None,
        typer.Option(
            "--view",
            help="A view to extract: lbp, gist, hog, ch, cm, corr, edh, wt, or NAME=MODEL.onnx. Can be repeated. "
            "Options follow a question mark: 'hog?mirror=false'.",
            show_default="lbp, gist and hog",
        ),
    ] = None
    mirror: Annotated[
        bool,
        typer.Option(
            help="Use features that are the same for an image and its mirror image. Use --no-mirror if left and right "
            "matter, as in text or digits. ONNX views and your own extractors are mirrored only on request: "
            "NAME=MODEL.onnx?mirror=true."
        ),
    ] = True
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="folder", help="folder: the folder of an image is its true label.", show_default="no labels"
        ),
    ] = None
    max_side: Annotated[
        int | None,
        typer.Option(
            min=8,
            help="Reduce larger images to this many pixels per side.",
            show_default="128, or 256 for ONNX views",
        ),
    ] = None
    strict: Strict = False
    n_threads: DaskThreads = None


@dataclass(frozen=True)
class FitOptions:
    """Options of `cluster` and `fit`. Each field is a keyword argument of pipeline.cluster and pipeline.fit."""

    seed: Annotated[int, typer.Option(help="Random seed. The same seed gives the same clusters.")] = 0
    memory_limit: Memory = None
    n_threads: DaskThreads = None


def takes(*groups: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add an option to a command for each field of these dataclasses. The command gets the options as `**options`."""

    def add_options(command: Callable[..., None]) -> Callable[..., None]:
        own = [part for part in signature(command).parameters.values() if part.kind is not Parameter.VAR_KEYWORD]
        added = {
            part.name: Parameter(part.name, Parameter.KEYWORD_ONLY, default=part.default, annotation=part.type)
            for group in groups
            for part in fields(group)
        }
        before = [part for part in own if part.kind is not Parameter.KEYWORD_ONLY]
        parts = [*before, *added.values(), *(part for part in own if part.kind is Parameter.KEYWORD_ONLY)]
        command.__signature__ = Signature(parts)  # type: ignore[attr-defined]  # what Typer reads
        command.__annotations__ = {part.name: part.annotation for part in parts}
        return command

    return add_options


def given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that have a value. The pipeline has defaults for the others."""
    return {name: value for name, value in options.items() if value is not None and value != []}


def choose_names(text: str, known: Iterable[str]) -> list[str]:
    """Comma-separated names, in any case -> these of the known names, in the order of `known`."""
    from bitmosaic.errors import ParameterError

    by_key = {name.lower(): name for name in known}
    asked = [name.strip().lower() for name in text.split(",")]
    if unknown := [name for name in asked if name not in by_key]:
        raise ParameterError(
            f"Expected names from {', '.join(by_key.values())}, separated by commas; got {', '.join(unknown)!r}."
        )
    return [name for key, name in by_key.items() if key in asked]


def parse_numbers(option: str, text: str) -> list[int]:
    """Comma-separated whole numbers from 1."""
    from bitmosaic.errors import ParameterError

    try:
        numbers = [int(part.replace("_", "")) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise ParameterError(f"{option} takes whole numbers from 1, separated by commas; got {text!r}.")
    return numbers

"""Arguments and options that several commands have."""

from typing import Annotated, Any

import typer

Source = Annotated[
    str, typer.Argument(help="A folder, a list (.txt), an archive (.tar.xz, .zip …) or a .npy of pictures.")
]


def count_or_auto(text: str) -> int | str:
    if text == "auto":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(f"it must be 1, 2, 3 … or auto; got {text!r}.")
    return int(text)


Clusters = Annotated[
    Any,
    typer.Option(
        "--clusters",
        "-c",
        parser=count_or_auto,
        metavar="K|auto",
        help="How many clusters, or auto: as many as hold best.",
    ),
]
ViewNames = Annotated[
    list[str] | None,
    typer.Option(
        "--view",
        help="A view to extract: lbp, gist, hog, ch, cm, corr, edh, wt, or NAME=MODEL.onnx. Repeat it. Options follow "
        "a question mark: 'hog?mirror=false'.",
    ),
]
Mirror = Annotated[
    bool,
    typer.Option(
        help="Features that do not change when a picture is mirrored. Write --no-mirror where left and right matter: "
        "text, digits. An ONNX view, or one of your own, is mirrored only if asked: NAME=MODEL.onnx?mirror=true."
    ),
]
MaxSide = Annotated[
    int | None, typer.Option(min=8, help="Larger pictures are reduced to this many pixels a side: 128, for ONNX 256.")
]
Labels = Annotated[str | None, typer.Option(help="'folder': the name of a picture's folder is its true label.")]
Seed = Annotated[int, typer.Option(help="Same seed, same clusters.")]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Threads; every core otherwise. The result is the same. With a cluster: of the training, which is here.",
    ),
]
Cores = Annotated[int | None, typer.Option(min=1, help="Threads; every core otherwise. The result is the same.")]
Memory = Annotated[
    str | None,
    typer.Option(
        help="What the fit may allocate, such as 512MB. The result is the same. With a cluster: here, not on workers."
    ),
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Work on the Dask cluster of this scheduler, such as tcp://host:8786. Its workers read and write the same "
        "paths. The result is the same.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Work on a Dask cluster of this machine, with so many processes. The result is the same."),
]
Strict = Annotated[bool, typer.Option(help="Stop at the first picture that cannot be read, instead of skipping it.")]

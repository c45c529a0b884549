"""New images -> the codes of a run's model: the first half of `predict`, and of a search by images."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from bitmosaic.errors import InvalidDataError, MissingFileError
from bitmosaic.features import extract
from bitmosaic.images import ImageSource, Progress, display_path, open_images
from bitmosaic.pipeline.extraction import BATCH, ExtractOptions
from bitmosaic.run.folder import Run
from bitmosaic.views.folder import RECIPE, read_recipe


@dataclass(frozen=True)
class Encoded:
    """Images as codes of a run's model."""

    source: ImageSource
    positions: list[int]  # of the readable images, in the source
    codes: np.ndarray  # (n, b) uint8
    skipped: list[tuple[str, str]]  # paths and causes

    @property
    def names(self) -> list[str]:
        """Printable paths."""
        return [display_path(self.source.paths[i]) for i in self.positions]


def encode_images(run: Run, src: Any, stage: str, n_threads: int | None, strict: bool, progress: Progress) -> Encoded:
    """Encode new images with the run's extractors and model. `stage` names the progress bar."""
    options = extraction_options(run, n_threads, strict)
    source = open_images(src, progress)
    extractors = [spec.open() for spec in options.specs]
    codes: list[np.ndarray] = []
    positions: list[int] = []
    skipped: list[tuple[str, str]] = []
    for batch in options.batches(source, BATCH, 0):
        skipped += [(s.path, s.cause) for _, s in batch.skipped]
        if len(batch.positions):
            features = extract(extractors, batch.images, n_threads)
            codes.append(run.model.transform({s.name: f for s, f in zip(options.specs, features, strict=True)}))
            positions += batch.positions.tolist()
        progress(stage, len(positions) + len(skipped), len(source))
    if not codes:
        raise InvalidDataError(
            f"At least one image must be readable; none of {len(source)} was. The first cause: {skipped[0][1]}."
        )
    return Encoded(source, positions, np.concatenate(codes), skipped)


def extraction_options(run: Run, n_threads: int | None = None, strict: bool = False) -> ExtractOptions:
    """The options by which new images get the features of a run. An error if a model file has changed since."""
    run.require("fit")
    path = run.views_folder / RECIPE
    if not path.is_file():
        raise MissingFileError(
            f"New images need the extractors of the run, but {run.folder} was fitted on features made elsewhere. "
            "Make features in the same way, and use HSIC.load(…).predict or add them: bitmosaic add RUN VIEWS."
        )
    return ExtractOptions.from_recipe(read_recipe(path), n_threads, strict)

"""Extraction on the workers of a Dask cluster.

A task is a few hundred neighboring images. The worker decodes them and sends back their features; this process writes
the features in order, so the views folder and an interrupted extraction are those of one process. A compressed tar
can only be read from its beginning: its tasks are larger, so that it is unpacked about twice per worker thread.
"""

import json
import os
import socket
import threading
from collections import deque
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from bitmosaic.errors import BitmosaicError, ClusterError, ImageError, InvalidDataError, MissingFileError
from bitmosaic.images import ImageSource, Progress, display_path, open_images, quiet
from bitmosaic.images.archive import CompressedTarSource
from bitmosaic.images.files import FileSource
from bitmosaic.pipeline.extraction import Extraction, ExtractOptions, FeatureBatch, features_of
from bitmosaic.views import Views

if TYPE_CHECKING:
    from distributed import Client, Future

STEP, SLOW_STEP = 256, 64  # images of a task; of a larger task, images that are decoded at once
SEQUENTIAL_TASKS = 2  # per worker thread, for a source that is read from its beginning
MAX_STEP = 16_384  # images of any task; their features take about 100 MB
IN_FLIGHT = 1000  # tasks that the scheduler knows: enough to make a cluster grow, and about 1 GB of results at most


def extract_on_workers(client: "Client", job: Extraction, progress: Progress = quiet) -> Views:
    """Like `Extraction.run`, with the same features, on the workers of a cluster. They need access to the source."""
    if not isinstance(job.source, FileSource) and not os.path.isfile(job.source.name):
        raise InvalidDataError(
            f"Workers read images by their path; {display_path(job.source.name)} has none. Save it with numpy.save, "
            "and pass the path of the .npy file."
        )
    return job.run(lambda start: _batches(client, job, start), progress)


@dataclass(frozen=True)
class Job:
    """The data shared by all parts. It is small, and is sent with each of them."""

    source: str  # an archive or array to open, or the folder of the paths of a part
    n_images: int
    recipe: str  # of the extraction options, as JSON
    strict: bool
    batch: int  # images that are decoded at once


@dataclass(frozen=True)
class Part:
    """Some neighboring images."""

    start: int
    stop: int
    paths: tuple[str, ...] | None  # None: the source is opened whole
    check: int  # the size of the first image on this machine


def _batches(client: "Client", job: Extraction, start: int) -> Generator[FeatureBatch, None, None]:
    """Features of the images from `start` on, in order. At the end, or after an error, all tasks are canceled."""
    source, options = job.source, job.options
    root = source.root if isinstance(source, FileSource) else None
    place = os.path.abspath(source.name if root is None else root)
    batch = SLOW_STEP if options.slow else STEP
    common = Job(place, len(source), json.dumps(options.recipe()), options.strict, batch)
    step = _step(client, source, start, batch)
    waiting: deque[tuple[Part, Future]] = deque()
    try:
        for first in range(start, len(source), step):
            stop = min(first + step, len(source))
            paths = None if root is None else source.paths[first:stop]
            part = Part(first, stop, paths, source.image_signature(first)[0])
            waiting.append((part, client.submit(make_part, common, part, pure=False)))
            if len(waiting) == IN_FLIGHT:
                yield _result(*waiting[0], source)
                waiting.popleft()
        while waiting:
            yield _result(*waiting[0], source)
            waiting.popleft()
    finally:
        client.cancel([future for _, future in waiting])


def _step(client: "Client", source: ImageSource, start: int, batch: int) -> int:
    """The number of images of a task."""
    if not isinstance(source, CompressedTarSource):
        return batch
    n_tasks = SEQUENTIAL_TASKS * max(sum(client.nthreads().values()), 1)
    return min(max(-(-(len(source) - start) // n_tasks), batch), MAX_STEP)


def _result(part: Part, future: "Future", source: ImageSource) -> FeatureBatch:
    """The features of a part; an error names its images."""
    from distributed import CancelledError, KilledWorker

    first, last = (display_path(source.paths[i]) for i in (part.start, part.stop - 1))
    which = f"Images {part.start} to {part.stop - 1}, {first} to {last}, could not be extracted"
    resume = "Run the same command again to resume."
    try:
        return future.result()
    except ImageError:
        raise
    except BitmosaicError as error:
        raise InvalidDataError(f"{which}: {error}") from error
    except CancelledError as error:
        raise ClusterError(f"The connection to the scheduler was lost during the extraction. {resume}") from error
    except KilledWorker as error:
        raise ClusterError(f"{which}: several workers died while they worked on them. {resume}") from error
    except Exception as error:
        raise ClusterError(f"{which}: {type(error).__name__}: {error}. {resume}") from error


# ---- on a worker


def make_part(job: Job, part: Part) -> FeatureBatch:
    """The features of a part, with their positions in the whole source."""
    if part.paths is None:
        source, first = _source_at(job.source), part.start
    else:
        source, first = FileSource(job.source, part.paths, job.source), 0
    n_expected = job.n_images if part.paths is None else part.stop - part.start
    if len(source) != n_expected or source.image_signature(first)[0] != part.check:
        raise MissingFileError(
            f"Every worker must see the same images at {display_path(job.source)}; {socket.gethostname()} sees none "
            "or other images there. Mount the folder on every worker."
        )
    made, n_left = [], part.stop - part.start
    step = min(job.batch, n_left)
    options = _options(job.recipe, job.strict)
    extractors = [spec.open() for spec in options.specs]
    with closing(options.batches(source, step, first)) as batches:  # type: ignore[type-var]
        while n_left > 0:
            made.append(features_of(next(batches), extractors, options.n_threads))
            n_left -= step
    return _joined(made, part.start - first)


def _joined(made: list[FeatureBatch], offset: int) -> FeatureBatch:
    """Neighboring batches as one, with positions moved by `offset`."""
    return FeatureBatch(
        np.concatenate([batch.positions for batch in made]) + offset,
        [np.concatenate(features) for features in zip(*(batch.features for batch in made), strict=True)],
        np.concatenate([batch.hashes for batch in made]),
        [(position + offset, why, cause) for batch in made for position, why, cause in batch.left_out],
    )


_opening = threading.Lock()


def _source_at(path: str) -> ImageSource:
    """An archive or array. Each worker opens and lists it once."""
    if not os.path.exists(path):
        raise MissingFileError(
            f"Every worker must be able to read {display_path(path)}; on {socket.gethostname()}, it does not exist. "
            "Mount the folder on every worker."
        )
    status = os.stat(path)
    with _opening:
        return _opened(path, status.st_size, status.st_mtime_ns)


@lru_cache(2)
def _opened(path: str, size: int, changed: int) -> ImageSource:
    return open_images(path)


@lru_cache(2)
def _options(recipe: str, strict: bool) -> ExtractOptions:
    """The options of a recipe. Each worker opens the extractors once. An error if a model file differs there.

    With one thread: the other threads of the worker have their own parts.
    """
    return ExtractOptions.from_recipe(json.loads(recipe), 1, strict)

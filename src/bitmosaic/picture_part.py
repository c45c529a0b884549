"""Some pictures -> one Parquet part of a views folder, on a worker: `bitmosaic.worker_extraction` hands them out."""

import json
import os
import socket
import threading
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bitmosaic.errors import InvalidDataError, MissingFileError
from bitmosaic.extraction import ViewSpec
from bitmosaic.features import Extractor, extract
from bitmosaic.images import ImageSource, display_path, folder_name, open_images
from bitmosaic.images.files import FileSource
from bitmosaic.views.parts import part_facts, part_path, write_part


@dataclass(frozen=True)
class Job:
    """What all parts have in common. It travels with each of them, and is small."""

    folder: str  # the views folder that grows
    running: str  # a file that is there as long as somebody waits for the parts
    source: str  # what to open; with a list, the folder from which its paths count
    listed: str | None  # a file with the paths of each part, None where the source itself is opened
    n_pictures: int
    views: str  # recipes, as JSON
    step: int
    max_side: int
    labels: bool
    strict: bool


@dataclass(frozen=True)
class Part:
    """Some neighbouring pictures."""

    number: int
    start: int
    stop: int
    place: int  # of its line in the list
    check: int  # the first number of its first picture's fingerprint


def make_part(job: Job, part: Part) -> dict[str, Any]:
    """Extract the features of a part and write it, unless it is there; returns how many rows, and what was skipped."""
    path = part_path(Path(job.folder), part.number)
    if not path.parent.is_dir():
        raise MissingFileError(
            f"Every worker must be able to write to {path.parent}; on {socket.gethostname()}, there is no such folder. "
            "Choose a folder that all of them share."
        )
    there = part_facts(path)
    if there and not (job.strict and there["skipped"]):
        return there
    source, first = _pictures(job, part)
    specs, extractors = _extractors(job.views)
    n_steps = -(-(part.stop - part.start) // job.step)
    paths: list[str] = []
    skipped: list[tuple[str, str]] = []
    blocks: list[list[np.ndarray]] = []
    # One thread: the other threads of the worker have parts of their own.
    for batch in islice(source.batches(job.step, first, job.max_side, 1, job.strict), n_steps):
        if not os.path.exists(job.running):
            raise InvalidDataError("The extraction was stopped.")
        paths += [source.paths[i] for i in batch.positions]
        skipped += [(s.path, s.cause) for _, s in batch.skipped]
        blocks.append(extract(extractors, batch.images, 1))
    facts = {"rows": len(paths), "skipped": skipped}
    features = {spec.name: np.concatenate(rows) for spec, rows in zip(specs, zip(*blocks, strict=True), strict=True)}
    write_part(path, features, paths, [folder_name(path) for path in paths] if job.labels else None, facts)
    return facts


def _pictures(job: Job, part: Part) -> tuple[ImageSource, int]:
    """The pictures of a part: a source, and the position at which they begin there."""
    if job.listed is None:
        source, first = _source_at(job.source), part.start
    else:
        with open(job.listed, "rb") as file:
            file.seek(part.place)
            source, first = FileSource(job.source, json.loads(file.readline()), job.source), 0
    n_expected = part.stop - part.start if job.listed else job.n_pictures
    if len(source) != n_expected or source.fingerprint(first)[0] != part.check:
        raise MissingFileError(
            f"Every worker must see the same pictures at {display_path(job.source)}; {socket.gethostname()} sees none "
            "there, or others. Mount the folder on every worker."
        )
    return source, first


_opening = threading.Lock()


def _source_at(path: str) -> ImageSource:
    """An archive or array, opened and listed once by each worker."""
    if not os.path.exists(path):
        raise MissingFileError(
            f"Every worker must be able to read {display_path(path)}; on {socket.gethostname()}, there is nothing. "
            "Mount the folder on every worker."
        )
    status = os.stat(path)
    with _opening:
        return _opened(path, status.st_size, status.st_mtime_ns)


@lru_cache(2)
def _opened(path: str, size: int, changed: int) -> ImageSource:
    return open_images(path)


@lru_cache(2)
def _extractors(recipes: str) -> tuple[list[ViewSpec], list[Extractor]]:
    """The extractors of a recipe, opened once by each worker, and checked to be those of the recipe."""
    specs = [ViewSpec.again(made) for made in json.loads(recipes)]
    return specs, [spec.open() for spec in specs]

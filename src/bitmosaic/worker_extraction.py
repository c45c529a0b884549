"""Pictures -> a views folder of Parquet parts, made by the workers of a Dask cluster from paths they can read.

One machine lists the pictures, once, and cuts the list; a task is a part of it. The worker writes the part whole into
the hidden folder of the extraction and sends back a few numbers. A part that is there already is not made again.
"""

import hashlib
import json
import os
import secrets
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitmosaic.errors import (
    BitmosaicError,
    ClusterError,
    ImageError,
    InvalidDataError,
    ParameterError,
)
from bitmosaic.extraction import DEFAULT_VIEWS, STAGE, Extracted, Extraction, ViewSpec
from bitmosaic.files import make_folder, remove, remove_unfinished, sync_folder, whole_file, writing
from bitmosaic.images import ImageSource, Progress, display_path, quiet
from bitmosaic.images.files import FileSource
from bitmosaic.picture_part import Job, Part, make_part
from bitmosaic.places import as_path
from bitmosaic.views import Views, read_views
from bitmosaic.views.parts import LABEL, PATH, write_parts_manifest

if TYPE_CHECKING:
    from distributed import Client, Future

STEP, SLOW_STEP = 256, 64  # pictures decoded at a time; a part is some of these
LARGEST, SLOW_LARGEST = 8192, 1024  # pictures of a part
USUAL_PARTS = 256  # so that each of up to a hundred workers has some, and the last to finish is not long alone
IN_FLIGHT = 1000  # tasks that the scheduler knows of: enough to make a cluster grow, few enough to hold


def extract_on_workers(
    client: "Client",
    src: Any,
    out: Any,
    views: Sequence[str | ViewSpec] = DEFAULT_VIEWS,
    *,
    mirror: bool = True,
    labels: str | None = None,
    max_side: int | None = None,
    strict: bool = False,
    progress: Progress = quiet,
) -> Views:
    """As `extract_views`, with the same features, on the workers of a cluster. They must see `src` and `out`."""
    job = Extraction.prepare(src, as_path(out, "A views folder").absolute(), views, mirror, labels, max_side, progress)
    if (done := job.result(progress)) is not None:
        return done
    _check(job)
    widths = {spec.name: spec.open().width for spec in job.specs}
    with job.working() as folder:
        if (done := job.result(progress)) is not None:  # by another process, until now
            return done
        step, largest = (SLOW_STEP, SLOW_LARGEST) if job.slow else (STEP, LARGEST)
        size = part_size(len(job.source), step, largest)
        common = _common(job, _begun(folder, job.recipe, size), step, strict)
        parts = _parts(job.source, common.listed, size)
        rows: dict[int, int] = {}
        skipped: dict[int, list[tuple[str, str]]] = {}
        n_done = 0
        progress(STAGE, n_done, len(job.source))
        with closing(_made(client, common, parts, job.source)) as made:
            for part, facts in made:
                rows[part.number], skipped[part.number] = facts["rows"], facts["skipped"]
                n_done += part.stop - part.start
                progress(STAGE, n_done, len(job.source))
        every = [entry for part in parts for entry in skipped[part.number]]
        job.check_some(sum(rows.values()), every)
        whole = Path(common.folder)
        remove_unfinished(whole)
        with writing(whole):
            sync_folder(whole / "parts")  # some may be of a process that was killed before it could
        write_parts_manifest(whole, widths, [rows[part.number] for part in parts], labels is not None)
        job.publish(Extracted(whole, every, None))
    return read_views(job.out)


def _check(job: Extraction) -> None:
    taken = [spec.name for spec in job.specs if spec.name in (PATH, LABEL)]
    if taken:
        raise ParameterError(f"In Parquet parts, a view's name is neither {PATH!r} nor {LABEL!r}; got {taken[0]!r}.")
    if not isinstance(job.source, FileSource) and not os.path.isfile(job.source.name):
        raise InvalidDataError(
            f"Workers read pictures by their path; {display_path(job.source.name)} has none. Save it with numpy.save, "
            "and pass the path of the .npy file."
        )


def part_size(n_pictures: int, step: int, largest: int) -> int:
    """Pictures of a part: a multiple of `step` that makes about `USUAL_PARTS` of them, and at most `largest`."""
    return min(max(-(-n_pictures // USUAL_PARTS // step) * step, step), largest)


def _begun(folder: Path, recipe: dict[str, Any], size: int) -> Path:
    """The folder in which the parts of this recipe and size grow. Its name is theirs: a task that was cancelled, and
    is not done yet, must not put a part of another recipe there."""
    whole = folder / f"parts-{hashlib.sha256(json.dumps([recipe, size]).encode()).hexdigest()[:16]}"
    for other in folder.glob("parts-*"):
        if other != whole:
            remove(other, gently=True)
    for file in folder.glob("running-*"):  # of a process that was killed
        file.unlink()
    make_folder(whole / "parts")
    remove_unfinished(whole)
    return whole


def _common(job: Extraction, whole: Path, step: int, strict: bool) -> Job:
    root = job.source.root if isinstance(job.source, FileSource) else None
    return Job(
        folder=str(whole),
        running=str(whole.with_name(f"running-{secrets.token_hex(8)}")),
        source=os.path.abspath(job.source.name if root is None else root),
        listed=None if root is None else str(whole.with_name("pictures.jsonl")),
        n_pictures=len(job.source),
        views=json.dumps(job.recipe["views"]),
        step=step,
        max_side=job.max_side,
        labels=job.labels is not None,
        strict=strict,
    )


def _parts(source: ImageSource, listed: str | None, size: int) -> list[Part]:
    cut = [(start, min(start + size, len(source))) for start in range(0, len(source), size)]
    places = _write_list(listed, (source.paths[start:stop] for start, stop in cut)) if listed else [0] * len(cut)
    return [
        Part(number, start, stop, place, source.fingerprint(start)[0])
        for number, ((start, stop), place) in enumerate(zip(cut, places, strict=True))
    ]


def _write_list(listed: str, parts: Iterable[Sequence[str]]) -> list[int]:
    """A line with the paths of each part; returns where the lines begin."""
    places = []
    with whole_file(listed) as file:
        for paths in parts:
            places.append(file.tell())
            file.write(json.dumps(paths).encode("ascii") + b"\n")  # escaped: names that are not UTF-8 survive
    return places


def _made(
    client: "Client", common: Job, parts: Sequence[Part], source: ImageSource
) -> Generator[tuple[Part, dict[str, Any]], None, None]:
    """Each part with its facts, as they come. However it ends, nothing is left on the cluster."""
    from distributed import as_completed

    running = Path(common.running)
    waiting = iter(parts)
    known: dict[Future, Part] = {}

    def submit(part: Part) -> "Future":
        future = client.submit(make_part, common, part, pure=False)
        known[future] = part
        return future

    running.touch()
    try:
        some = islice(waiting, IN_FLIGHT)  # no list of futures: an error's frames would keep those that are done
        finished = as_completed(map(submit, some), with_results=True, raise_errors=False)
        for future, facts in finished:
            if future.status != "finished":
                raise _explained(future, known[future], source)
            yield known.pop(future), facts
            for following in islice(waiting, 1):
                finished.add(submit(following))
    finally:
        running.unlink(missing_ok=True)  # what is being made stops at its next pictures
        client.cancel(list(known))


def _explained(future: "Future", part: Part, source: ImageSource) -> BitmosaicError:
    """Why a part could not be made, with its pictures."""
    from distributed import KilledWorker

    kept = "What is done is kept: the same command goes on."
    if future.status != "error":
        return ClusterError(f"An extraction needs its scheduler to the end; the connection to it was lost. {kept}")
    first, last = (display_path(source.paths[i]) for i in (part.start, part.stop - 1))
    which = f"Pictures {part.start} to {part.stop - 1}, {first} to {last}, could not be extracted"
    error = future.exception()
    if isinstance(error, ImageError):
        return error
    if isinstance(error, BitmosaicError):
        return InvalidDataError(f"{which}: {error}")
    cause = "several workers died over them" if isinstance(error, KilledWorker) else f"{type(error).__name__}: {error}"
    return ClusterError(f"{which}: {cause}. {kept}")

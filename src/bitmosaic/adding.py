"""New pictures -> an addition to a run: extracted, encoded and assigned in one pass; the run itself is not rewritten.

The work is done in a hidden folder, RUN/additions/.adding, and takes its place at once by its number. A process that
takes it up goes on from what was extracted.
"""

import csv
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bitmosaic import __version__
from bitmosaic.additions import FOLDER, addition_name
from bitmosaic.digests import KnownPictures
from bitmosaic.drift import Drift, compare, drift_of
from bitmosaic.errors import BitmosaicError, FileFormatError, InvalidDataError, MissingFileError, ViewMismatchError
from bitmosaic.extraction import (
    KNOWN,
    RECIPE,
    SKIPPED,
    Extraction,
    ViewSpec,
    count_rows,
    finished,
    pairs_csv,
    read_recipe,
    skipped_csv,
)
from bitmosaic.files import (
    copy_whole,
    locked,
    refuse_links,
    remove,
    remove_unfinished,
    sync_folder,
    write_json,
    write_whole,
    writing,
)
from bitmosaic.images import Progress, display_path
from bitmosaic.reading import is_manifest
from bitmosaic.run import Run, write_column, write_tables
from bitmosaic.run_manifest import ADDITION, ADDITION_VERSION
from bitmosaic.solver.online import Majority
from bitmosaic.views import Views, as_views, read_digests, read_views, views_fingerprint, write_views
from bitmosaic.views.chain import picked
from bitmosaic.views.folder import MANIFEST

WORK = ".adding"
VIEW_FILES = (".npz", ".mat", ".h5", ".hdf5", ".parquet")


@dataclass(frozen=True)
class Added:
    """What `add` has done. `run` is the run as it is now."""

    run: Run
    folder: Path | None  # of the addition; None if nothing was new
    images: int
    known: int
    skipped: int
    sizes: dict[int, int]  # how many came into each cluster
    drift: Drift | None  # of everything that was added since the last fit
    recognises: bool  # whether the pictures that the run was made of can be told again


@contextmanager
def growing(run: Run) -> Iterator[Run]:
    """The run as it is now, to which nobody else adds meanwhile. Its clusters can still be edited."""
    if not run.complete:
        raise InvalidDataError(f"Pictures are added to a finished run; {run.folder} was stopped. Finish it first.")
    with locked(run.folder / FOLDER):
        yield Run(run.folder)


def add_to(run: Run, src: Any, update: bool, n_threads: int | None, strict: bool, progress: Progress) -> Added:
    """Add pictures, or views, to a run that is `growing`."""
    work = run.folder / FOLDER / WORK
    refuse_links(work)
    with writing(work):
        work.mkdir(exist_ok=True)
    remove_unfinished(work)
    new = (_new_views if _is_views(run, src) else _new_pictures)(run, src, work, n_threads, strict, progress)
    with writing(work):
        for entry in work.iterdir():  # of an attempt that was stopped
            if entry.is_file() and entry.name != RECIPE:
                entry.unlink()
        if new.views is None:
            remove(work)
    if new.views is None:
        return Added(run, None, 0, new.known, new.skipped, {}, drift_of(run), new.recognises)
    progress("encoding and assigning", 0, new.views.n_rows)
    facts, sizes = _write_addition(run, work, new.views, update, n_threads)
    for name in (SKIPPED, KNOWN):
        copy_whole(work / "views" / name, work / name)
    counts = {"images": new.views.n_rows, "known": new.known, "skipped": new.skipped}
    head = {"format": ADDITION, "version": ADDITION_VERSION, "bitmosaic": __version__}
    when = {"at": datetime.now(UTC).isoformat(timespec="seconds")}
    made_of = {"source": new.source, "fingerprint": new.fingerprint}
    write_json(work / MANIFEST, head | when | made_of | counts | facts)
    place = work.with_name(addition_name(len(run.additions) + 1))
    with writing(place):
        work.rename(place)
        sync_folder(place.parent)
    progress("encoding and assigning", new.views.n_rows, new.views.n_rows)
    grown = Run(run.folder)
    return Added(grown, place, new.views.n_rows, new.known, new.skipped, sizes, drift_of(grown), new.recognises)


@dataclass(frozen=True)
class _New:
    """What is to be added, in the folder `views` of the work folder; no views if everything is known."""

    views: Views | None
    known: int
    skipped: int
    source: str
    fingerprint: str | None
    recognises: bool


# ---- pictures


def _new_pictures(run: Run, src: Any, work: Path, n_threads: int | None, strict: bool, progress: Progress) -> _New:
    recipe = run_recipe(run)
    specs, after = [ViewSpec.again(view) for view in recipe["views"]], len(run.additions)
    labels, side = recipe.get("labels"), recipe["max_side"]
    job = Extraction.prepare(src, work / "views", specs, True, labels, side, progress, after)
    known = _Known(run)

    def new(views: Views | None, n_known: int, n_skipped: int) -> _New:
        return _New(views, n_known, n_skipped, job.recipe["source"], job.recipe["fingerprint"], known.of_base)

    if job.out.exists() and not _has_all(job):
        with writing(job.out):
            remove(job.out)
    if not job.out.exists():
        with job.working() as folder:
            made = job.extract(folder, known.pictures, n_threads, strict, progress)
            if made.whole is None:
                return new(None, len(made.known or ()), len(made.skipped))
            job.publish(made)
    with writing(job.work_folder):  # or what could not be removed yet would appear with the addition
        remove(job.work_folder)
    return new(read_views(job.out), _n_lines(job.out / KNOWN), _n_lines(job.out / SKIPPED))


def run_recipe(run: Run) -> dict[str, Any]:
    """How the features of a run were made."""
    if not run.done("fit"):
        raise InvalidDataError(f"The run in {run.folder} was stopped before its fit; finish it first.")
    path = run.views_folder / RECIPE
    if not path.is_file():
        raise MissingFileError(
            f"New pictures need the extractors of the run; {run.folder} was fitted on features of unknown making. "
            "Use HSIC.load(…).predict on features made in the same way, or add these: bitmosaic add RUN VIEWS."
        )
    return read_recipe(path)


def _has_all(job: Extraction) -> bool:
    """Whether an attempt that was stopped has left the features of these pictures: not of others, and not damaged."""
    try:
        counts = read_views(job.out).n_rows, _n_lines(job.out / KNOWN), _n_lines(job.out / SKIPPED)
        read_digests(job.out)
        return finished(job.out) == job.recipe and sum(counts) == len(job.source)
    except BitmosaicError:
        return False


def _n_lines(path: Path) -> int:
    """Rows of a CSV below its head."""
    try:
        return count_rows(path)
    except (OSError, ValueError, csv.Error) as error:
        raise FileFormatError(f"{path} cannot be read ({error}). Remove it, and try again.") from error


class _Known:
    """The pictures of a run by their digests, as far as these were kept."""

    def __init__(self, run: Run):
        self.run = run
        sections = [(run.views_folder, run.manifest["images"])]
        sections += [(addition.views_folder, addition.n_rows) for addition in run.additions]
        parts, start = [], 0
        for number, (folder, n_rows) in enumerate(sections):
            digests = read_digests(folder)
            if digests is not None:
                if len(digests) != n_rows:
                    raise FileFormatError(
                        f"{folder} must have a row for each of {n_rows} images; it has {len(digests)}. "
                        "Copy the run again from where it was made."
                    )
                parts.append((start, digests))
            if number == 0:
                self.of_base = digests is not None
            start += n_rows
        self.pictures = KnownPictures(parts, self._path_of)

    def _path_of(self, row: int) -> str:
        return self._paths[row]

    @cached_property
    def _paths(self) -> tuple[str, ...]:
        return self.run.paths


# ---- views


def _is_views(run: Run, src: Any) -> bool:
    """Whether features are given, not pictures. To a run that was fitted on features, nothing else can be added."""
    if isinstance(src, Views | dict) or not (run.views_folder / RECIPE).is_file():
        return True
    if isinstance(src, np.ndarray):
        return src.ndim == 2
    if not isinstance(src, str | os.PathLike):
        return False
    path = Path(src)
    if path.is_dir():
        return is_manifest(path / MANIFEST, "bitmosaic-views")
    return path.suffix.lower() in VIEW_FILES


def _new_views(run: Run, src: Any, work: Path, n_threads: int | None, strict: bool, progress: Progress) -> _New:
    path = Path(os.path.realpath(src)) if isinstance(src, str | os.PathLike) else None
    views = _checked(run, as_views(src), path)
    known = _Known(run)
    fingerprint = None if path is None else views_fingerprint(path)
    source = "features in memory" if path is None else display_path(str(path))
    new, same = np.arange(views.n_rows), list[tuple[str, str]]()
    made_of = {"the run itself": run.manifest["arguments"].get("fingerprint")} | {
        f"addition {addition.folder.name}": addition.manifest.get("fingerprint") for addition in run.additions
    }
    before = [place for place, known_print in made_of.items() if known_print == fingerprint]
    digests = read_digests(path) if path is not None else None
    if digests is not None:
        new, same = known.pictures.sort_out(digests, _names(views))
    elif fingerprint is not None and before:
        new, same = new[:0], [(name, before[0]) for name in _names(views)]
    recognises = known.of_base and digests is not None
    if not len(new):
        return _New(None, len(same), 0, source, fingerprint, recognises)
    out = work / "views"
    with writing(out):  # what stayed of other features would appear with these
        remove(out)
    kept = views if len(new) == views.n_rows else picked(views, new)
    write_views(out, kept, digests=None if digests is None else digests[new])
    if path is not None and (path / RECIPE).is_file():  # so that the pictures are found
        write_json(out / RECIPE, read_recipe(path / RECIPE))
    write_whole(out / SKIPPED, skipped_csv([]))
    write_whole(out / KNOWN, pairs_csv(("path", "same_as"), same))
    return _New(read_views(out), len(same), 0, source, fingerprint, recognises)


def _names(views: Views) -> tuple[str, ...]:
    return views.paths or tuple(map(str, range(views.n_rows)))


def _checked(run: Run, views: Views, path: Path | None) -> Views:
    """The views in the order of the run's, made as these were, if anybody can tell; labels only if it has some."""
    fitted = dict(zip(run.model.view_names_, run.model.view_widths, strict=True))
    given = dict(zip(views.names, views.widths, strict=True))
    if fitted != given:
        raise ViewMismatchError(
            f"Views that are added must be those of the run, with as many columns: {fitted}; got {given}. "
            "Make them with the same extractors."
        )
    ours = run.views_folder / RECIPE
    theirs = None if path is None else path / RECIPE
    if theirs is not None and theirs.is_file() and ours.is_file():
        old, new = read_recipe(ours), read_recipe(theirs)
        if (old["views"], old["max_side"]) != (new["views"], new["max_side"]):
            raise ViewMismatchError(
                f"Views that are added must be made as those of the run were; {path} was made with other options. "
                "Add the pictures themselves: the run knows how its features were made."
            )
    arrays = tuple(views[name] for name in fitted)
    labels = views.labels if run.views.labels is not None else None
    return replace(views, names=tuple(fitted), arrays=arrays, labels=labels, columns=None)


# ---- codes and clusters


def _write_addition(
    run: Run, work: Path, views: Views, update: bool, n_threads: int | None
) -> tuple[dict[str, Any], dict[int, int]]:
    """Columns, tables and moved centers of the new pictures; returns what the manifest says, and the sizes."""
    model = run.model.set_params(n_threads=n_threads)
    codes = model.transform(views)
    nearest, distances, margins = model.nearest_of_codes(codes, run.ids)
    labels = run.ids[nearest].astype(np.int32)
    columns: dict[str, Any] = {"path": [display_path(path) for path in _names(views)], "cluster": labels}
    columns |= {"distance": distances, "margin": margins}
    if views.labels is not None:
        columns["label"] = views.labels
    write_tables(work, columns)
    arrays = {"codes": codes, "labels": labels, "distances": distances}
    if update:
        moved: Majority = model.majority().with_codes(codes, nearest)
        arrays |= moved._asdict()
    for name, values in arrays.items():
        write_column(work / f"{name}.npy", values)
    drift = compare(run.fitted_column("labels"), run.fitted_column("distances"), labels, distances)
    numbers, sizes = np.unique(labels, return_counts=True)
    return {"updated": update, "drift": drift.as_json()}, dict(zip(numbers.tolist(), sizes.tolist(), strict=True))

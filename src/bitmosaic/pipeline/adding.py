"""Add new images, or views, to a finished run: encode them, assign them to clusters, and measure the drift.

The files of the run are not rewritten. Each addition is a folder of its own (see `run.folder`). It is made in a
hidden work folder and renamed when it is complete.
"""

import os
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import betabinom

from bitmosaic import __version__
from bitmosaic.errors import ViewMismatchError
from bitmosaic.estimators.hsic import AUTO_TRAIN_SIZE
from bitmosaic.images import Progress, display_path, quiet
from bitmosaic.images.hashes import KnownImages
from bitmosaic.io.files import (
    copy_whole,
    locked,
    remove,
    remove_unfinished,
    sync_folder,
    write_json,
    write_whole,
    writing,
)
from bitmosaic.io.read import is_manifest
from bitmosaic.io.threads import available_threads
from bitmosaic.pipeline.extraction import (
    KNOWN,
    SKIPPED,
    Extraction,
    count_rows,
    extraction_options,
    pairs_csv,
    skipped_csv,
)
from bitmosaic.run.folder import ADDITIONS, AnyRun, Run, addition_name, as_run
from bitmosaic.run.manifest import STAGES, AdditionManifest
from bitmosaic.run.tables import image_table, write_column, write_tables
from bitmosaic.solver.clustering import Majority
from bitmosaic.solver.model import nearest_two
from bitmosaic.views import Views, as_views, read_content_hashes, read_views, views_signature, write_views
from bitmosaic.views.folder import MANIFEST, RECIPE, read_recipe
from bitmosaic.views.open import READERS
from bitmosaic.views.views import picked

WORK = ".adding"
VIEW_FILES = set(READERS) - {".npy"}  # an .npy file holds images


@dataclass(frozen=True)
class Added:
    """The result of `add`. `run` is the run as it is now."""

    run: Run
    folder: Path | None  # of the addition; None if no image was new
    images: int
    known: int
    skipped: int
    sizes: dict[int, int]  # new images of each cluster
    drift: "Drift | None"  # of everything that was added since the last fit
    recognizes: bool  # whether the run has content hashes of its first images


def add(
    run: AnyRun,
    src: Any,
    *,
    update: bool = False,
    n_threads: int | None = None,
    strict: bool = False,
    progress: Progress = quiet,
) -> Added:
    """Add new images to the clusters of a finished run. Images that the run already has are skipped.

    `src` is a source of images, or views with the names and columns of the run's views. The files of the run are not
    rewritten: each addition is a folder of its own. An interrupted `add` is resumed by the same call. `update` moves
    each center to the majority of all codes ever assigned to it; images keep their clusters.
    """
    run = as_run(run)
    run.require(STAGES[-1])
    with locked(run.folder / ADDITIONS):  # one addition at a time; clusters can still be edited
        return _add(Run(run.folder), src, update, n_threads, strict, progress)


def _add(run: Run, src: Any, update: bool, n_threads: int | None, strict: bool, progress: Progress) -> Added:
    """Caller must hold the lock of the additions."""
    work = run.folder / ADDITIONS / WORK
    with writing(work):
        work.mkdir(exist_ok=True)
    remove_unfinished(work)
    new = (_new_views if _is_views(run, src) else _new_images)(run, src, work, n_threads, strict, progress)
    with writing(work):
        for entry in work.iterdir():  # files of an interrupted attempt
            if entry.is_file() and entry.name != RECIPE:
                entry.unlink()
        if new.views is None:
            remove(work)
    if new.views is None:
        return Added(run, None, 0, new.known, new.skipped, {}, drift_of(run), new.recognizes)
    progress("encoding and assigning", 0, new.views.n_rows)
    drift, sizes = _write_addition(run, work, new.views, update, n_threads)
    for name in (SKIPPED, KNOWN):
        copy_whole(work / "views" / name, work / name)
    AdditionManifest(
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        source=new.source,
        images=new.views.n_rows,
        known=new.known,
        skipped=new.skipped,
        updated=update,
        bitmosaic=__version__,
        fingerprint=new.signature,
        drift=drift.as_json(),
    ).write(work)
    place = work.with_name(addition_name(len(run.additions) + 1))
    with writing(place):
        work.rename(place)
        sync_folder(place.parent)
    progress("encoding and assigning", new.views.n_rows, new.views.n_rows)
    grown = Run(run.folder)
    return Added(grown, place, new.views.n_rows, new.known, new.skipped, sizes, drift_of(grown), new.recognizes)


@dataclass(frozen=True)
class _New:
    """The rows to add, in the folder `views` of the work folder; no views if all images are known."""

    views: Views | None
    known: int
    skipped: int
    source: str
    signature: str | None
    recognizes: bool


# ---- images


def _new_images(run: Run, src: Any, work: Path, n_threads: int | None, strict: bool, progress: Progress) -> _New:
    options = extraction_options(run, n_threads, strict)
    job = Extraction.prepare(src, work / "views", options, progress, after=len(run.additions))
    known, recognizes = _known_images(run)

    def new(views: Views | None, n_known: int, n_skipped: int) -> _New:
        return _New(views, n_known, n_skipped, job.recipe["source"], job.recipe["fingerprint"], recognizes)

    if not (job.out / RECIPE).exists() or read_recipe(job.out / RECIPE) != job.recipe:
        with writing(job.out):  # of an interrupted addition of other images
            remove(job.out)
    if not job.out.exists():
        with locked(job.work_folder):
            made = job.extract(partial(job.batches, known=known), progress, known)
            if made.whole is None:
                return new(None, len(made.known or ()), len(made.skipped))
            job.publish(made)
    with writing(job.work_folder):  # if it remained, it would be published with the addition
        remove(job.work_folder)
    return new(read_views(job.out), count_rows(job.out / KNOWN), count_rows(job.out / SKIPPED))


def _known_images(run: Run) -> tuple[KnownImages, bool]:
    """The images of a run by their content hashes, and whether the first images of the run have hashes."""
    sections = [(run.views_folder, run.manifest.images)]
    sections += [(addition.views_folder, addition.n_rows) for addition in run.additions]
    found = [read_content_hashes(folder) for folder, _ in sections]
    starts = np.cumsum([0, *(n_rows for _, n_rows in sections)]).tolist()
    parts = [(start, hashes) for start, hashes in zip(starts, found, strict=False) if hashes is not None]
    return KnownImages(parts, lambda row: run.paths[row]), found[0] is not None


# ---- views


def _is_views(run: Run, src: Any) -> bool:
    """Whether `src` is features, not images. A run that was fitted on features accepts features only."""
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
    known, of_base = _known_images(run)
    signature = None if path is None else views_signature(path)
    source = "features in memory" if path is None else display_path(str(path))
    new, same = np.arange(views.n_rows), list[tuple[str, str]]()
    made_of = {"the run itself": run.manifest.arguments.get("fingerprint")} | {
        f"addition {addition.folder.name}": addition.manifest.fingerprint for addition in run.additions
    }
    before = [place for place, other in made_of.items() if other == signature]
    hashes = read_content_hashes(path) if path is not None else None
    if hashes is not None:
        new, same = known.sort_out(hashes, _names(views))
    elif signature is not None and before:
        new, same = new[:0], [(name, before[0]) for name in _names(views)]
    recognizes = of_base and hashes is not None
    if not len(new):
        return _New(None, len(same), 0, source, signature, recognizes)
    out = work / "views"
    with writing(out):  # files of other features would be published with these
        remove(out)
    kept = views if len(new) == views.n_rows else picked(views, new)
    write_views(out, kept, digests=None if hashes is None else hashes[new])
    if path is not None and (path / RECIPE).is_file():  # so that the images are found
        write_json(out / RECIPE, read_recipe(path / RECIPE))
    write_whole(out / SKIPPED, skipped_csv([]))
    write_whole(out / KNOWN, pairs_csv(("path", "same_as"), same))
    return _New(read_views(out), len(same), 0, source, signature, recognizes)


def _names(views: Views) -> tuple[str, ...]:
    return views.paths or tuple(map(str, range(views.n_rows)))


def _checked(run: Run, views: Views, path: Path | None) -> Views:
    """The views in the order of the run's views. Labels are kept only if the run has labels."""
    fitted = dict(zip(run.model.view_names_, run.model.view_widths, strict=True))
    given = dict(zip(views.names, views.widths, strict=True))
    if fitted != given:
        raise ViewMismatchError(
            f"Added views must have the names and widths of the run's views, {fitted}; got {given}. "
            "Make them with the same extractors."
        )
    ours = run.views_folder / RECIPE
    theirs = None if path is None else path / RECIPE
    if theirs is not None and theirs.is_file() and ours.is_file():
        about = ("source", "pictures", "fingerprint", "labels", "after")  # not about the features of an image
        old, new = (
            {key: value for key, value in read_recipe(path).items() if key not in about} for path in (ours, theirs)
        )
        if old != new:
            raise ViewMismatchError(
                f"Added views must be made like the run's views; {path} was made with other options. "
                "Add the images instead: the run stores how its features were made."
            )
    arrays = tuple(views[name] for name in fitted)
    labels = views.labels if run.views.labels is not None else None
    return replace(views, names=tuple(fitted), arrays=arrays, labels=labels, columns=None)


# ---- codes and clusters


def _write_addition(
    run: Run, work: Path, views: Views, update: bool, n_threads: int | None
) -> tuple["Drift", dict[int, int]]:
    """Write columns, tables and moved centers of the new images. Returns the drift, and the new images per cluster."""
    model = run.model.set_params(n_threads=n_threads)
    codes = model.transform(views)
    threads = available_threads(n_threads)
    nearest, distances, margins = nearest_two(codes, run.centers, model.bit_weights_, threads, run.ids)
    labels = run.ids[nearest].astype(np.int32)
    paths = [display_path(path) for path in _names(views)]
    write_tables(work, image_table(path=paths, cluster=labels, distance=distances, margin=margins, label=views.labels))
    arrays = {"codes": codes, "labels": labels, "distances": distances}
    if update:
        moved: Majority = (run.moved or model.majority()).with_codes(codes, nearest)
        arrays |= moved._asdict()
    for name, values in arrays.items():
        write_column(work / f"{name}.npy", values)
    drift = compare(run.fitted_column("labels"), run.fitted_column("distances"), labels, distances)
    numbers, sizes = np.unique(labels, return_counts=True)
    return drift, dict(zip(numbers.tolist(), sizes.tolist(), strict=True))


# ---- drift: how well added images fit
#
# The distance of an added image to its center is ranked among the distances of the fitted images of that cluster. For
# an image of the same kind, the rank as a share is uniform from 0 to 1; it exceeds 0.95 in 5% of cases
# (docs/decisions/drift.md).

BEYOND = 0.95  # an image is "beyond" if its rank is above this share of the members of its cluster
FEWEST, FEWEST_HOT = 100, 30  # added images needed for a decision; the same for one cluster
FEWEST_FITTED = 1000  # fitted images needed: codes learned from fewer fit those images too well
EXCESS, EXCESS_HOT = 0.02, 0.10  # share beyond that matters, above the expected 5% and the optimism
CERTAIN, CHANCE_HOT = 5.0, 1e-4  # standard errors; probability of a false alarm over all clusters
MOST_HOT = 5  # clusters that are named


@dataclass(frozen=True)
class HotSpot:
    """A cluster whose added images are farther from its center than its members."""

    number: int
    images: int
    beyond: float


@dataclass(frozen=True)
class Drift:
    """Comparison of the images added since the last fit with the fitted images."""

    images: int
    median: float  # of their ranks; 0.5 if they fit as well as the fitted images
    beyond: float  # share of ranks above 0.95; 0.05 if they fit as well
    hot_spots: list[HotSpot]
    refit_due: bool
    reason: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.beyond:.1%} of {self.images:,} added images are farther from their center than 95% of its "
            f"members (expected: 5%; median rank {self.median:.2f}). {self.reason}"
        )


def drift_of(run: Run) -> Drift | None:
    """The drift of all images added since the last fit; None if there are none."""
    if not run.unlearned:
        return None
    labels, distances = (run.column(name)[run.n_fitted :] for name in ("labels", "distances"))
    return compare(run.fitted_column("labels"), run.fitted_column("distances"), labels, distances)


def compare(train_labels: Any, train_distances: Any, labels: np.ndarray, distances: np.ndarray) -> Drift:
    """The drift of added images, from their clusters and distances and those of the fitted images."""
    low, high, sizes = ranks(train_labels, train_distances, labels, distances)
    # (n,) the probability that a rank, drawn uniformly among its ties, is beyond
    beyond = np.clip((high - BEYOND) / (high - low), 0, 1)
    numbers, owners = np.unique(labels, return_inverse=True)
    counts, sums = np.bincount(owners), np.bincount(owners, beyond)  # (c,)
    members = np.zeros(len(numbers))
    members[owners] = sizes
    usual = 1 - BEYOND
    # Images of one cluster are compared with the same members, so their errors are correlated.
    variances = usual * BEYOND * (counts + counts**2 / (members + 1))
    share = float(beyond.mean())
    median = float(np.median((low + high) / 2))
    certain = (sums.sum() - usual * len(labels)) / np.sqrt(variances.sum())
    shares, tried = sums / counts, counts >= FEWEST_HOT
    # If added images are like the members, the number of those beyond has a beta-binomial distribution.
    chances = betabinom.sf(np.floor(sums) - 1, counts, usual * (members + 1), BEYOND * (members + 1))
    usual += optimism(len(train_labels))
    is_hot = tried & (shares - usual >= EXCESS_HOT) & (chances * max(tried.sum(), 1) < CHANCE_HOT)
    hottest = sorted(np.flatnonzero(is_hot), key=lambda i: (-shares[i], numbers[i]))
    hot = [HotSpot(int(numbers[i]), int(counts[i]), round(float(shares[i]), 4)) for i in hottest]
    due, reason = _decided(len(train_labels), len(labels), share - usual, float(certain), hot)
    return Drift(len(labels), round(median, 4), round(share, 4), hot, due, reason)


def optimism(n_fitted: int) -> float:
    """Upper bound of the share that is beyond only because codes fit the images they were learned from too well.

    Measured. Codes are learned from a sample of the images, so with more fitted images the effect is smaller.
    """
    learned = min(n_fitted, AUTO_TRAIN_SIZE)
    return 2 / max(learned, 1) ** 0.5 * learned / max(n_fitted, 1)


def ranks(
    train_labels: Any, train_distances: Any, labels: np.ndarray, distances: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The lowest and the highest rank of each image among the members of its cluster and itself, as shares.

    Many distances are equal, so a rank is an interval over its ties. Returns low (n,), high (n,) and the number of
    members (n,). In a cluster without members, the interval is 0 to 1.
    """
    train_labels, train_distances = np.asarray(train_labels), np.asarray(train_distances)
    order = np.lexsort((train_distances, train_labels))
    sorted_labels, sorted_distances = train_labels[order], train_distances[order]
    low, high, sizes = (np.empty(len(labels)) for _ in range(3))
    for number in np.unique(labels).tolist():
        rows = np.flatnonzero(labels == number)
        members = sorted_distances[slice(*np.searchsorted(sorted_labels, [number, number + 1]))]
        sizes[rows] = len(members)
        low[rows] = np.searchsorted(members, distances[rows], "left") / (len(members) + 1)
        high[rows] = (np.searchsorted(members, distances[rows], "right") + 1) / (len(members) + 1)
    return low, high, sizes


def _decided(n_fitted: int, n: int, excess: float, certain: float, hot: list[HotSpot]) -> tuple[bool, str]:
    """Whether a refit is due, and the reason."""
    if n < FEWEST:
        return False, f"That is too few to tell: at least {FEWEST} are needed."
    if n_fitted < FEWEST_FITTED:
        return False, f"The run has {n_fitted:,} fitted images; at least {FEWEST_FITTED:,} are needed to decide."
    where = ", ".join(f"{spot.number} ({spot.beyond:.0%})" for spot in hot[:MOST_HOT])
    if excess >= EXCESS and certain >= CERTAIN:
        most = f", most of all in cluster {where}" if hot else ""
        return True, f"A refit is due: the added images differ from the fitted ones{most}."
    if hot:
        return True, f"A refit is due: the added images differ from the fitted ones in some clusters: {where}."
    return False, "No refit is due."

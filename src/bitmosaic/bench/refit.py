"""Add a new class to a run and refit: measure whether cluster numbers stay and the class gets a cluster of its own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bitmosaic import pipeline
from bitmosaic.bench.growth import files_of
from bitmosaic.errors import InvalidDataError
from bitmosaic.images import Progress, folder_name
from bitmosaic.run.folder import Run


@dataclass(frozen=True)
class NewClass:
    """The result for one class that was left out of the first run."""

    name: str
    beyond: float  # share of its images farther from their center than 95% of the old images
    refit_due: bool
    counts: dict[str, int]  # numbers of clusters that were kept, split, merged, born, and died
    of_class: float  # share of the images of the class that are in new clusters
    of_born: float  # share of the images in new clusters that belong to the class
    stayed: float  # share of old images in the cluster that got most of their old cluster
    kept: float  # share of those with the same cluster number as before
    same: float  # share of all old images with the same cluster number as before


def measure(
    src: str, names: Sequence[str], out: Path, n_clusters: int, seed: int, progress: Progress
) -> Iterator[NewClass]:
    """For each class in `names`: run all other classes, add it, and refit with one cluster more."""
    paths = files_of(src, progress)
    classes = np.array([folder_name(path) for path in paths])
    for name in names:
        if name not in classes:
            raise InvalidDataError(f"There is no folder {name!r} in {src}; images must be in one folder per class.")
        place = out / name
        if place.exists():
            raise InvalidDataError(f"The output folder {place} already exists. Remove it, or choose another folder.")
        first = [path for path, c in zip(paths, classes, strict=True) if c != name]
        run = pipeline.cluster(first, place, n_clusters, labels="folder", seed=seed, progress=progress)
        added = pipeline.add(run, [path for path, c in zip(paths, classes, strict=True) if c == name])
        yield compared(name, added, progress)


def compared(name: str, added: pipeline.Added, progress: Progress) -> NewClass:
    run = added.run
    before, n_old = np.asarray(run.column("labels")), run.n_fitted
    made = pipeline.refit(Run(run.folder), n_clusters=len(run.ids) + 1, progress=progress)
    after = np.asarray(made.run.column("labels"))
    born = [change.number for change in made.lineage.changes if change.event == "born"]
    in_born, of_class = np.isin(after, born), np.arange(len(after)) >= n_old
    mostly = {number: np.bincount(after[:n_old][before[:n_old] == number]).argmax() for number in run.ids.tolist()}
    stayed = after[:n_old] == np.array([mostly[number] for number in before[:n_old].tolist()])
    same = after[:n_old] == before[:n_old]
    assert added.drift is not None
    return NewClass(
        name,
        added.drift.beyond,
        added.drift.refit_due,
        made.lineage.counts,
        float(in_born[of_class].mean()),
        float(of_class[in_born].mean()) if in_born.any() else 0.0,
        float(stayed.mean()),
        float(same[stayed].mean()),
        float(same.mean()),
    )

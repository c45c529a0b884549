"""A class that was not there is added to a run, and the run refitted: do numbers stay, and is a cluster born of it?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bitmosaic import pipeline
from bitmosaic.bench.growth import files_of
from bitmosaic.errors import InvalidDataError
from bitmosaic.images import Progress, folder_name
from bitmosaic.run import Run


@dataclass(frozen=True)
class NewClass:
    """What came of one class that was left out at first."""

    name: str
    beyond: float  # of its pictures are farther from their center than 95% of the old ones, when they are added
    refit_due: bool
    counts: dict[str, int]  # of clusters that were kept, split, merged, born, and died
    of_class: float  # of the new pictures of the class, in clusters that were born
    of_born: float  # of the pictures in such clusters, of the class
    stayed: float  # of old pictures, those in the cluster to which most of their old cluster went
    kept: float  # of those, with the same number as before
    same: float  # of all old pictures, with the same number as before


def measure(
    src: str, names: Sequence[str], out: Path, n_clusters: int, seed: int, progress: Progress
) -> Iterator[NewClass]:
    """For each class by its name: a run of all others, to which it is added, then a refit with one cluster more."""
    paths = files_of(src, progress)
    classes = np.array([folder_name(path) for path in paths])
    for name in names:
        if name not in classes:
            raise InvalidDataError(f"There must be a folder for each class; {src} has none called {name!r}.")
        place = out / name
        if place.exists():
            raise InvalidDataError(f"A measurement goes into a new folder; {place} is there. Remove it.")
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

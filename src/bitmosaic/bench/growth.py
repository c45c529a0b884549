"""Runs that grow: adding images compared with a new run of all images, and a refit after a new class was added.

Adding: time, and agreement of the clusters. Refit: whether cluster numbers stay and the class gets its own cluster.
"""

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path

import numpy as np

from bitmosaic import pipeline
from bitmosaic.errors import InvalidDataError
from bitmosaic.estimators.metrics import clustering_scores
from bitmosaic.images import Progress, folder_name, open_images
from bitmosaic.images.files import FileSource
from bitmosaic.run.folder import Run


@dataclass(frozen=True)
class Growth:
    """Seconds of both ways, and the labels of the added images for each seed, in the same order."""

    new_run: float
    add: float
    added: list[np.ndarray]  # per seed: labels by a run of TRAIN to which TEST was added
    fitted: list[np.ndarray]  # per seed: labels by a run of all images
    truth: np.ndarray

    @property
    def agreement(self) -> np.ndarray:
        """Adjusted Rand index of each labeling in `added` with each in `fitted`."""
        return np.array([rand_index(a, b) for a, b in product(self.added, self.fitted)])

    @property
    def between_seeds(self) -> np.ndarray:
        """Adjusted Rand index of each pair of labelings in `fitted`."""
        return np.array([rand_index(a, b) for a, b in combinations(self.fitted, 2)])

    def nmi(self, labelings: list[np.ndarray]) -> np.ndarray:
        return np.array([clustering_scores(self.truth, labels)["nmi"] for labels in labelings])


def rand_index(a: np.ndarray, b: np.ndarray) -> float:
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(a, b))


def measure(train: str, test: str, out: Path, n_clusters: int, n_seeds: int, progress: Progress) -> Growth:
    """Run TRAIN and add TEST, and run both together. Features are extracted and timed only for the first seed."""
    sources = [files_of(train, progress), files_of(test, progress)]
    if out.exists() and any(out.iterdir()):
        raise InvalidDataError(f"The output folder must be empty; {out} is not. Choose another folder.")
    # Compile all kernels and read all files into the system's cache before timing.
    warm = pipeline.cluster(sources[0][:: max(1, len(sources[0]) // 500)], out / "warm", 2, labels="folder")
    pipeline.add(warm, sources[1][:: max(1, len(sources[1]) // 500)])
    shutil.rmtree(out / "warm")
    for source in sources:
        for path in source:
            Path(path).read_bytes()

    pipeline.cluster(sources[0], out / "train-0", n_clusters, labels="folder", progress=progress)
    start = time.perf_counter()
    first = pipeline.add(Run(out / "train-0"), sources[1], progress=progress)
    add_seconds = time.perf_counter() - start
    start = time.perf_counter()
    pipeline.cluster([*sources[0], *sources[1]], out / "all-0", n_clusters, labels="folder", progress=progress)
    new_seconds = time.perf_counter() - start
    if first.folder is None or first.known or first.skipped:
        raise InvalidDataError("Some images of TEST are unreadable or also in TRAIN. Remove them.")

    added, fitted = [], []
    for seed in range(n_seeds):
        if seed:
            pipeline.fit(out / "train-0" / "views", out / f"train-{seed}", n_clusters, seed=seed, progress=progress)
            pipeline.add(Run(out / f"train-{seed}"), first.folder / "views", progress=progress)
            pipeline.fit(out / "all-0" / "views", out / f"all-{seed}", n_clusters, seed=seed, progress=progress)
        added.append(np.asarray(Run(out / f"train-{seed}").column("labels")[-len(sources[1]) :]))
        fitted.append(np.asarray(Run(out / f"all-{seed}").column("labels")[-len(sources[1]) :]))
    truth = first.run.additions[0].views.labels
    assert truth is not None
    return Growth(new_seconds, add_seconds, added, fitted, truth)


def files_of(src: str, progress: Progress) -> list[str]:
    source = open_images(src, progress)
    if not isinstance(source, FileSource):
        raise InvalidDataError(f"This benchmark needs image files; {src} is an archive or an array. Pass a folder.")
    return [str(Path(source.root, path).resolve()) for path in source.paths]


# ---- refit after a new class was added


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


def measure_refits(
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

"""Runs that grow: adding images compared with a new run of all images, by time and agreement of the clusters."""

import shutil
import time
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path

import numpy as np
from sklearn.metrics import adjusted_rand_score

from bitmosaic import pipeline
from bitmosaic.errors import InvalidDataError
from bitmosaic.estimators.metrics import clustering_scores
from bitmosaic.images import Progress, open_images
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
        return np.array([adjusted_rand_score(a, b) for a, b in product(self.added, self.fitted)])

    @property
    def between_seeds(self) -> np.ndarray:
        """Adjusted Rand index of each pair of labelings in `fitted`."""
        return np.array([adjusted_rand_score(a, b) for a, b in combinations(self.fitted, 2)])

    def nmi(self, labelings: list[np.ndarray]) -> np.ndarray:
        return np.array([clustering_scores(self.truth, labels)["nmi"] for labels in labelings])


def measure(train: str, test: str, out: Path, n_clusters: int, n_seeds: int, progress: Progress) -> Growth:
    """Run TRAIN and add TEST, and run both together. Features are extracted and timed only for the first seed."""
    sources = [files_of(train, progress), files_of(test, progress)]
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

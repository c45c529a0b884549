"""Run -> some of its pictures, by its clusters as people edited them: the outliers, or a sample to label."""

from dataclasses import dataclass

import numpy as np

from bitmosaic.errors import ParameterError
from bitmosaic.explorer.clusters import Clusters, Pictures
from bitmosaic.run import AnyRun, as_run
from bitmosaic.sampling import diverse_sample
from bitmosaic.threads import available_threads


@dataclass(frozen=True)
class Chosen:
    """Rows of a run in an order that means something, and the clusters they are in."""

    clusters: Clusters
    rows: np.ndarray  # (m,) int64
    scores: np.ndarray | None = None  # (m,) float64, of outliers: see `neighbours.outlier_scores`

    def table(self) -> dict[str, list]:
        """A line for each picture: path, cluster, name, distance to its center in bits, and the score of an outlier."""
        numbers = self.clusters.labels[self.rows].tolist()
        columns: dict[str, list] = {
            "path": [self.clusters.pictures.paths[row] for row in self.rows],
            "cluster": numbers,
            "name": [self.clusters.names.get(number) for number in numbers],
            "distance": self.clusters.distances[self.rows].astype(np.float64).round(2).tolist(),
        }
        return columns if self.scores is None else columns | {"score": self.scores.round(2).tolist()}


def find_outliers(run: AnyRun, n: int = 100) -> Chosen:
    """The n pictures that fit their cluster least, the worst first; all, if there are fewer.

    The score says how unusual a picture's distance to the center is for its cluster; from 2 on it is far out.
    """
    if n < 1:
        raise ParameterError(f"At least one outlier must be asked for; got {n}.")
    clusters = Clusters(Pictures.of(as_run(run)))
    scores = clusters.outlier_scores
    rows = np.argsort(-scores, kind="stable")[:n]
    return Chosen(clusters, rows, scores[rows])


def draw_sample(run: AnyRun, n: int = 1000, seed: int = 0, n_threads: int | None = None) -> Chosen:
    """n pictures that stand for all, balanced over the clusters and spread inside each: see `diverse_sample`."""
    clusters = Clusters(Pictures.of(as_run(run)))
    threads = available_threads(n_threads)
    rows = diverse_sample(clusters.pictures.codes, clusters.labels, n, clusters.distances, seed, threads)
    return Chosen(clusters, rows)

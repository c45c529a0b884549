"""HSIC beside k-means on multi-view files with known classes: mean and spread over seeds.

Labels are stored as they come out; scores are computed from them afterwards.
"""

import json
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler

from bitmosaic.errors import InvalidDataError
from bitmosaic.hsic import HSIC
from bitmosaic.metrics import clustering_scores
from bitmosaic.views import read_rows, read_views


def kmeans(views, n_clusters, seed, balanced=False):
    """scikit-learn's k-means, best of 10, on the standardised, concatenated views."""
    everything = slice(0, views.n_rows)
    standard = [StandardScaler().fit_transform(read_rows(array, everything)) for array in views.arrays]
    X = np.hstack([X / np.sqrt(X.shape[1]) if balanced else X for X in standard])
    return KMeans(n_clusters, n_init=10, random_state=seed).fit_predict(X)


def balanced_kmeans(views, n_clusters, seed):
    """The same, every view with the same total variance, however many columns it has."""
    return kmeans(views, n_clusters, seed, balanced=True)


def hsic(views, n_clusters, seed):
    return HSIC(n_clusters, random_state=seed).fit_predict(views)


def paper(views, n_clusters, seed):
    return HSIC.paper(n_clusters, random_state=seed).fit_predict(views)


METHODS = {"KMeans": kmeans, "KMeans bal.": balanced_kmeans, "HSIC": hsic, "HSIC.paper": paper}


@dataclass(frozen=True)
class Run:
    """What one method gave on one data set with one seed."""

    data: str
    method: str
    seed: int
    seconds: float
    labels: np.ndarray
    truth: np.ndarray

    @property
    def scores(self):
        return clustering_scores(self.truth, self.labels)


def run_all(paths, n_seeds, report):
    """Every method on every file with every seed; `report(run)` after each."""
    runs = []
    for path in paths:
        views = read_views(path)
        if views.labels is None:
            raise InvalidDataError(f"Scores need true classes; {path} has none. Add a variable Y, or a labels.npy.")
        n_clusters = len(np.unique(views.labels))
        for seed in range(n_seeds):
            for name, method in METHODS.items():
                start = time.perf_counter()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", ConvergenceWarning)
                    labels = method(views, n_clusters, seed)
                seconds = time.perf_counter() - start
                runs.append(Run(Path(path).stem, name, seed, seconds, labels, views.labels))
                report(runs[-1])
    return runs


def summarise(runs):
    """(data, method) -> {score: (mean, standard deviation)}, in the order of the runs."""
    groups: dict[tuple[str, str], list[dict[str, float]]] = {}
    for run in runs:
        groups.setdefault((run.data, run.method), []).append(run.scores | {"seconds": run.seconds})
    return {
        key: {score: (np.mean([s[score] for s in group]), np.std([s[score] for s in group])) for score in group[0]}
        for key, group in groups.items()
    }


def store(runs, path):
    """Raw labels and times as JSON, so that another score needs no other run."""
    entries = [
        {"data": r.data, "method": r.method, "seed": r.seed, "seconds": r.seconds, "labels": r.labels.tolist()}
        for r in runs
    ]
    truth = {r.data: r.truth.tolist() for r in runs}
    Path(path).write_text(json.dumps({"truth": truth, "runs": entries}))


def load(path):
    """The runs that :func:`store` wrote."""
    stored = json.loads(Path(path).read_text())
    truth = {name: np.array(labels) for name, labels in stored["truth"].items()}
    return [Run(**(r | {"labels": np.array(r["labels"])}), truth=truth[r["data"]]) for r in stored["runs"]]

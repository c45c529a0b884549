"""The clusters of a run with all edits applied: the explorer, exports, search and curation work on these.

ImageFacts holds the data that edits do not change: codes, paths and true labels. Clusters adds the edit log up to one
version: the members of each cluster from the center outwards, centers, distances and statistics.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bitmosaic.estimators.metrics import clustering_scores
from bitmosaic.hamming.codes import cluster_bit_sums, hamming_distances, pack
from bitmosaic.hamming.search import outlier_scores
from bitmosaic.images import display_path
from bitmosaic.io.threads import available_threads
from bitmosaic.run.edits import Edit, EditLog, in_force
from bitmosaic.run.folder import Run
from bitmosaic.views.views import read_rows

N_CENTRAL, N_NEAREST, N_LABELS, N_BINS, N_SAMPLED = 8, 6, 8, 24, 500
LEAST_SPREAD = 1e-3  # bits; the width of a histogram over smaller spreads is fixed
OUTLIER_SCORE = 2.0  # images with a higher score are outliers


@dataclass(frozen=True)
class ImageFacts:
    """The data of a run that edits do not change: codes, paths and true labels."""

    run: Run
    codes: np.ndarray  # (n, b) uint8
    bit_weights: np.ndarray | None  # (8b,) with mean 1; None if all are equal
    paths: list[str]  # printable
    classes: list[str] | None  # names of the true classes, if known
    class_of: np.ndarray | None  # (n,) indices into `classes`; -1: no label

    @classmethod
    def of(cls, run: Run) -> "ImageFacts":
        run.require("tables")
        weights = run.model.bit_weights_
        equal = np.ptp(weights) < 1e-9 * weights.max()
        names, class_of = None, None
        if run.views.labels is not None:
            unique, class_of = np.unique(run.views.labels, return_inverse=True)
            names = [str(name) for name in unique]
            if names[0] == "":  # images outside of any folder
                names, class_of = names[1:], class_of - 1
        paths = [display_path(path) for path in run.paths]
        codes = np.ascontiguousarray(run.column("codes"))
        for name in ("labels", "distances"):
            run.column(name)  # raises at once if the column does not fit the run
        return cls(run, codes, None if equal else weights / weights.mean(), paths, names, class_of)

    def __len__(self) -> int:
        return len(self.codes)

    @cached_property
    def log(self) -> EditLog:
        fitted = np.asarray(self.run.fitted_column("labels"))
        return EditLog(self.run.folder, np.asarray(self.run.column("labels")), self.run.next_number, fitted)

    def label(self, row: int) -> str | None:
        if self.classes is None or self.class_of is None or self.class_of[row] < 0:
            return None
        return self.classes[self.class_of[row]]

    def distances(self, codes: np.ndarray, centers: np.ndarray) -> np.ndarray:
        """Distances in bits, (n, c) float32."""
        threads = available_threads()
        return hamming_distances(codes, centers, self.bit_weights, threads).astype(np.float32)


class Clusters:
    """The clusters at one version of the edit log. The number of a cluster that became empty is not used again."""

    def __init__(self, facts: ImageFacts, entries: list[Edit] | None = None):
        self.facts = facts
        self.entries = facts.log.entries() if entries is None else entries
        self.version, self.edits = len(self.entries), in_force(self.entries)
        state = facts.log.replay(self.entries)
        self.labels, self.names, self.touched = state.labels, state.names, state.touched
        self.sizes = np.bincount(self.labels, minlength=state.n_numbers)
        self.numbers = np.flatnonzero(self.sizes).tolist()
        self.centers, self.distances = self._centers_and_distances(state.n_numbers)
        self._order = np.lexsort((self.distances, self.labels))  # stable: rows in order where distances are equal
        self._starts = np.concatenate([[0], np.cumsum(self.sizes)])

    def _centers_and_distances(self, n_numbers: int) -> tuple[np.ndarray, np.ndarray]:
        """The centers and distances of the run. The center of an edited cluster is the majority of its codes.

        If the run has several centers for a cluster, `centers` holds the first. The others count for distances.
        """
        codes, run = self.facts.codes, self.facts.run
        centers = np.zeros((n_numbers, codes.shape[1]), np.uint8)
        ids, first = np.unique(run.ids, return_index=True)
        centers[ids] = run.centers[first]
        more = np.setdiff1d(np.arange(len(run.ids)), first)
        self._more = more[~np.isin(run.ids[more], list(self.touched))]
        distances = np.array(run.column("distances"), np.float32)
        rows = np.flatnonzero(np.isin(self.labels, list(self.touched)))
        if len(rows):
            owners = self.labels[rows]
            new = pack(cluster_bit_sums(codes[rows], owners, n_numbers))
            changed = np.unique(owners)
            centers[changed] = new[changed]
            for number in changed:
                members = rows[owners == number]
                distances[members] = self.facts.distances(codes[members], centers[[number]])[:, 0]
        return centers, distances

    def distances_to(self, codes: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Distances of codes to some clusters, (n, len(numbers)). Of several centers, the nearest counts."""
        table = self.facts.distances(codes, self.centers[numbers])
        run = self.facts.run
        for center in self._more:
            for column in np.flatnonzero(numbers == run.ids[center]):
                other = self.facts.distances(codes, run.centers[[center]])[:, 0]
                table[:, column] = np.minimum(table[:, column], other)
        return table

    # ---- one cluster

    def members(self, number: int) -> np.ndarray:
        """Rows of a cluster, nearest to the center first."""
        return self._order[self._starts[number] : self._starts[number + 1]]

    def position(self, row: int) -> int:
        """The index of an image among the members of its cluster."""
        return int(np.flatnonzero(self.members(self.labels[row]) == row)[0])

    def title(self, number: int) -> str:
        return self.names.get(number) or f"Cluster {number}"

    def summary(self, number: int) -> dict[str, Any]:
        label, purity = self._majority[number] if self._majority else (None, None)
        return {
            "number": number,
            "name": self.names.get(number),
            "size": int(self.sizes[number]),
            "tightness": round(float(self._tightness[number]), 2),
            "label": label,
            "purity": purity,
            "central": self.members(number)[:N_CENTRAL].tolist(),
            "edited": number in self.touched,
        }

    def outliers_from(self, number: int) -> int:
        """The index of the first member that is an outlier."""
        return int(np.searchsorted(self.outlier_scores[self.members(number)], OUTLIER_SCORE, side="right"))

    def histogram(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """A histogram of the members' distances: counts and bin edges. The cluster must not be empty."""
        distances = self.distances[self.members(number)].astype(np.float64)
        low, high = distances.min(), distances.max()
        around = 0.5 if high - low < LEAST_SPREAD else 0.0  # NumPy fails on a range that is nearly 0
        return np.histogram(distances, N_BINS, (low - around, high + around))

    def labels_within(self, number: int) -> list[tuple[str, int]]:
        """The most frequent true labels of a cluster, with counts."""
        if self.facts.classes is None or self.facts.class_of is None:
            return []
        of_members = self.facts.class_of[self.members(number)]
        counts = np.bincount(of_members[of_members >= 0], minlength=len(self.facts.classes))
        best = np.argsort(-counts, kind="stable")[:N_LABELS]
        return [(self.facts.classes[i], int(counts[i])) for i in best if counts[i]]

    def nearest_clusters(self, code: np.ndarray, count: int = N_NEAREST, without: int = -1) -> list[tuple[int, float]]:
        """The clusters nearest to a code, with distances in bits."""
        numbers = np.array([number for number in self.numbers if number != without], np.int64)
        if not len(numbers):
            return []
        distances = self.distances_to(code[None], numbers)[0]
        best = np.argsort(distances, kind="stable")[:count]
        return [(int(numbers[i]), round(float(distances[i]), 2)) for i in best]

    def views_within(self, number: int) -> tuple[int, list[tuple[str, float, tuple[int, float] | None]]]:
        """How far each view alone agrees with a cluster, on a sample of its members.

        Returns the sample size and, for each view: its name, the share of members whose code from this view alone is
        nearest to this cluster, and the other cluster that gets most members, with its share.
        """
        members, run = self.members(number), self.facts.run
        step = max(1, len(members) // N_SAMPLED)
        rows, numbers = np.sort(members[::step]), np.array(self.numbers)
        found = []
        for view in run.views.names:
            codes = run.model.transform({view: read_rows(run.views[view], rows)})
            nearest = numbers[self.distances_to(codes, numbers).argmin(1)]
            shares = np.bincount(nearest, minlength=len(self.sizes)) / len(rows)
            own, shares[number] = float(shares[number]), 0
            other = int(shares.argmax())
            found.append((view, own, (other, float(shares[other])) if shares[other] else None))
        return len(rows), found

    # ---- all clusters

    @cached_property
    def scores(self) -> dict[str, float] | None:
        class_of = self.facts.class_of
        if class_of is None:
            return None
        known = class_of >= 0
        return clustering_scores(class_of[known], self.labels[known])

    @cached_property
    def outlier_scores(self) -> np.ndarray:
        return outlier_scores(self.labels, self.distances)

    @cached_property
    def _tightness(self) -> np.ndarray:
        return np.bincount(self.labels, self.distances, minlength=len(self.sizes)) / np.maximum(self.sizes, 1)

    @cached_property
    def _majority(self) -> list[tuple[str | None, float | None]] | None:
        """The most frequent true label of each cluster, and its share. Ties go to the first label by name."""
        classes, class_of = self.facts.classes, self.facts.class_of
        if classes is None or class_of is None:
            return None
        known = class_of >= 0
        pairs = self.labels[known].astype(np.int64) * len(classes) + class_of[known]
        found, counts = np.unique(pairs, return_counts=True)
        majority: list[tuple[str | None, float | None]] = [(None, None)] * len(self.sizes)
        for i in np.lexsort((-found, counts)):  # the last one of a cluster counts
            number, label = divmod(int(found[i]), len(classes))
            majority[number] = classes[label], round(float(counts[i] / self.sizes[number]), 4)
        return majority

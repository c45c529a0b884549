"""Run -> the clusters as people edited them: who is in which, from the center outwards, and what is said of each."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import coo_array

from bitmosaic.codes import cluster_bit_sums, hamming_distances, pack
from bitmosaic.edits import Edit, EditLog, in_force
from bitmosaic.errors import FileFormatError
from bitmosaic.images import display_path
from bitmosaic.metrics import clustering_scores
from bitmosaic.neighbours import outlier_scores
from bitmosaic.run import Run
from bitmosaic.threads import available_threads
from bitmosaic.views.core import read_rows

N_CENTRAL, N_NEAREST, N_LABELS, N_BINS, N_SAMPLED = 8, 6, 8, 24, 500
LEAST_SPREAD = 1e-3  # bits
FAR = 2.0  # the outlier score from which on a picture is called one


@dataclass(frozen=True)
class Pictures:
    """What does not change with edits: the run's codes, paths and true labels."""

    run: Run
    codes: np.ndarray  # (n, b) uint8
    bit_weights: np.ndarray | None  # (8b,) with a mean of 1; None if all bits weigh the same
    paths: list[str]  # printable
    classes: list[str] | None  # names of the true classes, where known
    class_of: np.ndarray | None  # (n,)

    @classmethod
    def of(cls, run: Run) -> "Pictures":
        weights = run.model.bit_weights_
        equal = np.ptp(weights) < 1e-9 * weights.max()
        names, class_of = None, None
        if run.views.labels is not None:
            unique, class_of = np.unique(run.views.labels, return_inverse=True)
            names = [str(name) for name in unique]
        paths = [display_path(path) for path in run.paths]
        codes = np.ascontiguousarray(run.column("codes"))
        for name in ("labels", "distances"):
            run.column(name)  # whoever opens a run is told at once of what does not fit
        if run.views.n_rows != len(codes):
            raise FileFormatError(
                f"All files of a run must belong together; {run.views_folder} does not fit the others. "
                "Copy the run again from where it was made."
            )
        return cls(run, codes, None if equal else weights / weights.mean(), paths, names, class_of)

    def __len__(self) -> int:
        return len(self.codes)

    @cached_property
    def log(self) -> EditLog:
        fitted = np.asarray(self.run.fitted_column("labels"))
        return EditLog(self.run.folder, np.asarray(self.run.column("labels")), self.run.next_number, fitted)

    def label(self, row: int) -> str | None:
        return None if self.classes is None or self.class_of is None else self.classes[self.class_of[row]]

    def distances(self, codes: np.ndarray, centers: np.ndarray) -> np.ndarray:
        """In bits, (n, c) float32."""
        threads = available_threads()
        return hamming_distances(codes, centers, self.bit_weights, threads).astype(np.float32)


class Clusters:
    """The clusters at one version of the edit log. Numbers of emptied clusters are not used again."""

    def __init__(self, pictures: Pictures, entries: list[Edit] | None = None):
        self.pictures = pictures
        self.entries = pictures.log.entries() if entries is None else entries
        self.version, self.edits = len(self.entries), in_force(self.entries)
        state = pictures.log.replay(self.entries)
        self.labels, self.names, self.touched = state.labels, state.names, state.touched
        self.sizes = np.bincount(self.labels, minlength=state.n_numbers)
        self.numbers = np.flatnonzero(self.sizes).tolist()
        self.centers, self.distances = self._centers_and_distances(state.n_numbers)
        self._order = np.lexsort((self.distances, self.labels))  # stable: rows in order where distances are equal
        self._starts = np.concatenate([[0], np.cumsum(self.sizes)])

    def _centers_and_distances(self, n_numbers: int) -> tuple[np.ndarray, np.ndarray]:
        """The run's own, but for clusters that edits have changed: their bits are the majority of their pictures'.

        A cluster for which the run has several centers is shown by the first; the others count for distances.
        """
        codes, run = self.pictures.codes, self.pictures.run
        centers = np.zeros((n_numbers, codes.shape[1]), np.uint8)
        ids, first = np.unique(run.ids, return_index=True)
        centers[ids] = run.model.cluster_centers_[first]
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
                distances[members] = self.pictures.distances(codes[members], centers[[number]])[:, 0]
        return centers, distances

    def distances_to(self, codes: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Distances of codes to some clusters, (n, len(numbers)): of several centers the nearest counts."""
        table = self.pictures.distances(codes, self.centers[numbers])
        run = self.pictures.run
        for center in self._more:
            for column in np.flatnonzero(numbers == run.ids[center]):
                other = self.pictures.distances(codes, run.model.cluster_centers_[[center]])[:, 0]
                table[:, column] = np.minimum(table[:, column], other)
        return table

    # ---- one cluster

    def members(self, number: int) -> np.ndarray:
        """Rows of a cluster, the most central first."""
        return self._order[self._starts[number] : self._starts[number + 1]]

    def position(self, row: int) -> int:
        """Where a picture stands among the members of its cluster."""
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
        """From which member on pictures are unusually far from the center."""
        return int(np.searchsorted(self.outlier_scores[self.members(number)], FAR, side="right"))

    def histogram(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Counts of the members' distances, and the edges between them. An empty cluster is none, and has no page."""
        distances = self.distances[self.members(number)].astype(np.float64)
        low, high = distances.min(), distances.max()
        around = 0.5 if high - low < LEAST_SPREAD else 0.0  # NumPy finds no bins between numbers that are nearly equal
        return np.histogram(distances, N_BINS, (low - around, high + around))

    def labels_within(self, number: int) -> list[tuple[str, int]]:
        """The most frequent true labels of a cluster with their counts."""
        if self.pictures.classes is None or self.pictures.class_of is None:
            return []
        counts = np.bincount(self.pictures.class_of[self.members(number)], minlength=len(self.pictures.classes))
        best = np.argsort(-counts, kind="stable")[:N_LABELS]
        return [(self.pictures.classes[i], int(counts[i])) for i in best if counts[i]]

    def nearest_clusters(self, code: np.ndarray, count: int = N_NEAREST, without: int = -1) -> list[tuple[int, float]]:
        """The clusters whose centers are nearest to a code, with their distances in bits."""
        numbers = np.array([number for number in self.numbers if number != without], np.int64)
        if not len(numbers):
            return []
        distances = self.distances_to(code[None], numbers)[0]
        best = np.argsort(distances, kind="stable")[:count]
        return [(int(numbers[i]), round(float(distances[i]), 2)) for i in best]

    def views_within(self, number: int) -> tuple[int, list[tuple[str, float, tuple[int, float] | None]]]:
        """How many pictures were asked; for each view alone the share it puts here, and where it puts most others."""
        members, run = self.members(number), self.pictures.run
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

    # ---- all of them

    @cached_property
    def scores(self) -> dict[str, float] | None:
        class_of = self.pictures.class_of
        return None if class_of is None else clustering_scores(class_of, self.labels)

    @cached_property
    def outlier_scores(self) -> np.ndarray:
        return outlier_scores(self.labels, self.distances)

    @cached_property
    def _tightness(self) -> np.ndarray:
        return np.bincount(self.labels, self.distances, minlength=len(self.sizes)) / np.maximum(self.sizes, 1)

    @cached_property
    def _majority(self) -> list[tuple[str | None, float | None]] | None:
        """The most frequent true label of each cluster and its share; the first by name among equals."""
        classes, class_of = self.pictures.classes, self.pictures.class_of
        if classes is None or class_of is None:
            return None
        table = coo_array((np.ones(len(self.labels), np.int64), (self.labels, class_of))).tocsr()
        best, most = np.zeros(len(self.sizes), np.int64), np.zeros(len(self.sizes), np.int64)
        for number in self.numbers:
            counts, columns = (
                values[table.indptr[number] : table.indptr[number + 1]] for values in (table.data, table.indices)
            )
            most[number] = counts.max()
            best[number] = columns[counts == most[number]].min()
        shares = most / np.maximum(self.sizes, 1)
        return [
            (classes[b] if s else None, round(float(share), 4) if s else None)
            for b, share, s in zip(best, shares, self.sizes, strict=True)
        ]

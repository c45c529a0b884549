"""The data of each explorer page, as plain values for JSON. A row is the index of an image in the run."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from bitmosaic.errors import BitmosaicError, MissingFileError, StaleEditError
from bitmosaic.explorer.map import MapPoints, make_map, store_map, stored_map
from bitmosaic.explorer.thumbnails import Thumbnails
from bitmosaic.hamming.search import nearest_codes
from bitmosaic.images import Progress, display_path
from bitmosaic.io.threads import available_threads
from bitmosaic.pipeline.duplicates import Duplicates, find_duplicates
from bitmosaic.run.clusters import Clusters, ImageFacts
from bitmosaic.run.edits import in_words
from bitmosaic.run.folder import ADDITIONS, Run

# ---- Slow computations that run once, in a background thread, and report their progress.


class Job:
    """Runs `work(progress)` in a thread. The first call of `ready` starts it; a later one raises its error."""

    def __init__(self, work: Callable[[Progress], Any]):
        self._work = work
        self._lock = threading.Lock()
        self._begun = self._done = False
        self._result: Any = None
        self._error: Exception | None = None
        self.stage: tuple[str, int, int] = ("starting", 0, 0)

    def ready(self) -> bool:
        """Whether the result is available. Starts the work on the first call, and again after an error."""
        with self._lock:
            if self._done:
                return True
            if self._error is not None:
                error, self._error, self._begun = self._error, None, False  # the next call starts it again
                raise error
            if not self._begun:
                self._begun = True
                threading.Thread(target=self._run, daemon=True).start()
            return False

    def result(self) -> Any:
        return self._result

    def _run(self) -> None:
        result, error = None, None
        try:
            result = self._work(self._report)
        except Exception as raised:
            error = raised
        with self._lock:
            self._result, self._error, self._done = result, error, error is None

    def _report(self, stage: str, done: int, total: int) -> None:
        self.stage = (stage, done, total)


N_FOUND, N_LOGGED = 60, 20  # search results and log entries per answer
MAX_COUNT, MAX_GROUP_SIZE = 1000, 100  # rows per answer, and images shown of one duplicate group

Answer = dict[str, Any]


class Api:
    """Answers the requests of the pages from one run folder, its edits and its thumbnails. Thread-safe."""

    def __init__(self, run: Run, source: Any = None):
        """`source`: the current place of the images, if they were moved since the run."""
        self._source, self._lock = source, threading.Lock()
        self._load(run, _run_state(run))

    def _load(self, run: Run, run_state: Any) -> None:
        """Switch to this run. `run_state` describes its files before they were read."""
        images = ImageFacts.of(run)
        self.run, self.images, self.thumbnails = run, images, Thumbnails(run, self._source)
        self.map_job = Job(lambda progress: _stored_or_new_map(run, images.codes, progress))
        self.duplicates_job = Job(lambda progress: find_duplicates(run, source=self._source, progress=progress))
        self._log_state: tuple[int, int] | None = None
        self._clusters: Clusters | None = None
        self.__dict__.pop("_folded_paths", None)  # of the previous run
        self._run_state = run_state

    @property
    def name(self) -> str:
        return display_path(self.run.folder.resolve().name)

    def warm_up(self) -> None:
        """Load the kernels that the first pages need."""
        with suppress(BitmosaicError):  # the request that needs it reports the error
            number = self.clusters.numbers[0]
            self.overview()
            self.cluster(number)
            self.neighbors(0, 1)
            self.cluster_views(number)

    # ---- the run and its clusters

    @property
    def clusters(self) -> Clusters:
        """The clusters as edited now, including edits and additions by other processes."""
        with self._lock:
            run_state = _run_state(self.run)
            if run_state != self._run_state:
                with suppress(BitmosaicError):  # another process may be writing; the next request tries again
                    self._load(Run(self.run.folder), run_state)
            log_state = _file_state(self.images.log.path)
            if self._clusters is None or log_state != self._log_state:
                self._clusters, self._log_state = Clusters(self.images), log_state
            return self._clusters

    def overview(self) -> Answer:
        manifest, clusters = self.run.manifest, self.clusters
        return {
            "name": self.name,
            "images": len(self.images),
            "clusters": len(clusters.numbers),
            "skipped": manifest.skipped,
            "bits": 8 * self.images.codes.shape[1],
            "begun": manifest.begun,
            "bitmosaic": manifest.bitmosaic,
            "views": [{"name": name, "weight": weight} for name, weight in manifest.view_weights.items()],
            "scores": clusters.scores,
            "original_scores": manifest.scores,
            "has_labels": self.images.classes is not None,
            "seed": manifest.arguments.get("seed"),
            "seconds": manifest.seconds,
            "images_found": self.thumbnails.available,
            "how_many": manifest.how_many["words"] if manifest.how_many else None,
            "edits": self._edits(clusters),
        }

    def _edits(self, clusters: Clusters) -> Answer:
        log = [in_words(entry) for entry in clusters.entries[: -N_LOGGED - 1 : -1]]
        last = in_words(clusters.edits[-1]) if clusters.edits else None
        return {"version": clusters.version, "count": len(clusters.edits), "last": last, "log": log}

    def all_clusters(self) -> Answer:
        clusters = self.clusters
        return {"clusters": [clusters.summary(number) for number in clusters.numbers], "version": clusters.version}

    def edit(self, edit: Any, version: int) -> Answer:
        n_refits = self.run.n_refits
        _ = self.clusters  # loads the run again if it was refitted
        if self.run.n_refits != n_refits:
            raise StaleEditError("The run was refitted since this page was loaded. Check the new clusters, then edit.")
        made = self.images.log.append(edit, version)
        return {"edits": self._edits(self.clusters), "message": in_words(made)}

    # ---- one cluster

    def cluster(self, number: int) -> Answer:
        clusters = self._with_cluster(number)
        counts, edges = clusters.histogram(number)
        nearest = []
        for other, distance in clusters.nearest_clusters(clusters.centers[number], without=number):
            summary = clusters.summary(other)
            nearest.append({key: summary[key] for key in ("number", "name", "label")})
            nearest[-1] |= {"distance": distance, "central": summary["central"][:4]}
        return clusters.summary(number) | {
            "nearest": nearest,
            "histogram": {"edges": edges.round(2).tolist(), "counts": counts.tolist()},
            "labels": [{"label": label, "count": count} for label, count in clusters.labels_within(number)],
            "outliers_from": clusters.outliers_from(number),
        }

    def cluster_rows(self, number: int, start: int, count: int) -> Answer:
        clusters = self._with_cluster(number)
        members = clusters.members(number)
        rows = members[_part(start, count)]
        return {"total": len(members)} | self._table(clusters, rows)

    def cluster_views(self, number: int) -> Answer:
        clusters = self._with_cluster(number)
        sampled, found = clusters.views_within(number)
        views = []
        for view, share, other in found:
            views.append({"view": view, "share": round(share, 4), "other": None})
            if other is not None:
                name = clusters.names.get(other[0])
                views[-1]["other"] = {"number": other[0], "name": name, "share": round(other[1], 4)}
        return {"views": views, "sampled": sampled}

    # ---- one image

    def image(self, row: int) -> Answer:
        self._require_row(row)
        clusters = self.clusters
        number, code = int(clusters.labels[row]), self.images.codes[row]
        members, position = clusters.members(number), clusters.position(row)
        nearest = clusters.nearest_clusters(code)
        self.thumbnails.get(row)  # also stores the size of the image
        size = self.thumbnails.size(row)
        return {
            "row": row,
            "path": self.images.paths[row],
            "label": self.images.label(row),
            "cluster": number,
            "cluster_name": clusters.names.get(number),
            "was": int(self.run.column("labels")[row]),
            "distance": round(float(clusters.distances[row]), 2),
            "code": code.tobytes().hex(),
            "bits": 8 * len(code),
            "width": size and size[0],
            "height": size and size[1],
            "clusters": [
                {"distance": distance} | {key: clusters.summary(other)[key] for key in ("number", "name", "label")}
                for other, distance in nearest
            ],
            "previous": int(members[position - 1]) if position else None,
            "next": int(members[position + 1]) if position + 1 < len(members) else None,
            "position": position,
            "size": len(members),
        }

    def neighbors(self, row: int, count: int) -> Answer:
        self._require_row(row)
        codes, begun = self.images.codes, time.perf_counter()
        n_nearest = min(max(count, 1), MAX_COUNT) + 1  # the image itself is one of them
        (distances,), (rows,) = nearest_codes(codes, codes[[row]], n_nearest, available_threads())
        seconds = time.perf_counter() - begun
        others = rows != row
        rows, distances = rows[others][:count], distances[others][:count]
        table = self._table(self.clusters, rows)
        return table | {"distances": distances.tolist(), "milliseconds": round(1000 * seconds, 2)}

    def search(self, text: str) -> Answer:
        """Images whose path contains this text; case is ignored."""
        text = text.casefold()
        paths = enumerate(self._folded_paths) if text else ()
        found = list(islice((row for row, path in paths if text in path), N_FOUND + 1))
        rows = np.array(found[:N_FOUND], np.int64)
        return {"images": self._table(self.clusters, rows) | {"total": len(rows), "more": len(found) > N_FOUND}}

    @cached_property
    def _folded_paths(self) -> list[str]:
        return [path.casefold() for path in self.images.paths]

    # ---- all images

    def map(self) -> Answer:
        rows, x, y = self.map_job.result()
        images = self.images
        return {
            "rows": rows.tolist(),
            "x": x.tolist(),
            "y": y.tolist(),
            "clusters": self.clusters.labels[rows].tolist(),
            "labels": None if images.classes is None else [images.label(row) for row in rows],
            "sampled": len(rows) < len(images),
            "total": len(images),
        }

    def outliers(self, start: int, count: int) -> Answer:
        clusters, part = self.clusters, _part(start, count)
        scores = clusters.outlier_scores
        rows = np.argsort(-scores, kind="stable")[part]
        return self._table(clusters, rows) | {"total": len(scores), "scores": scores[rows].round(2).tolist()}

    def duplicates(self, start: int, count: int) -> Answer:
        """Groups as found by the command `duplicates`, the image to keep first."""
        found: Duplicates = self.duplicates_job.result()
        clusters, shown = self.clusters, []
        for group in found.groups[_part(start, count)]:
            copies = group[:MAX_GROUP_SIZE]
            table = self._table(clusters, np.array([copy.row for copy in copies]))
            shown.append(table | {"distances": [copy.distance for copy in copies], "size": len(group)})
        return {"total": len(found.groups), "by": found.way, "radius": found.radius, "groups": shown}

    # ---- shared

    def _table(self, clusters: Clusters, rows: np.ndarray) -> Answer:
        images = self.images
        return {
            "rows": rows.tolist(),
            "distances": clusters.distances[rows].round(2).tolist(),
            "paths": [images.paths[row] for row in rows],
            "clusters": clusters.labels[rows].tolist(),
            "labels": None if images.classes is None else [images.label(row) for row in rows],
        }

    def _with_cluster(self, number: int) -> Clusters:
        clusters = self.clusters
        if not 0 <= number < len(clusters.sizes) or not clusters.sizes[number]:
            raise MissingFileError(f"This run has no cluster {number}. It may have been merged into another one.")
        return clusters

    def _require_row(self, row: int) -> None:
        if not 0 <= row < len(self.images):
            raise MissingFileError(f"This run has no image {row}. Its images are numbered 0 to {len(self.images) - 1}.")


def _part(start: int, count: int) -> slice:
    start = max(start, 0)
    return slice(start, start + min(max(count, 0), MAX_COUNT))


def _stored_or_new_map(run: Run, codes: np.ndarray, progress: Progress) -> MapPoints:
    points = stored_map(run)
    if points is None:
        points = make_map(codes, progress=progress)
        store_map(run, points)
    return points


def _run_state(run: Run) -> tuple[Any, list[str]]:
    """A value that changes when images are added to the run, or when it is refitted."""
    folder = run.folder / ADDITIONS
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    return _file_state(run.folder / "manifest.json"), [name for name in names if not name.startswith(".")]


def _file_state(path) -> tuple[int, int] | None:
    """Size and modification time; None if there is no such file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns

"""What each page of the explorer asks for, as plain data for JSON. A row is the number of a picture."""

import threading
import time
from bisect import bisect_right
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np

from bitmosaic.additions import FOLDER
from bitmosaic.edits import StaleEditError, in_words
from bitmosaic.errors import BitmosaicError, MissingFileError
from bitmosaic.explorer.clusters import Clusters, Pictures
from bitmosaic.explorer.duplicates import duplicates_of
from bitmosaic.explorer.jobs import Job
from bitmosaic.explorer.placing import place, store_places, stored_places
from bitmosaic.explorer.thumbnails import Thumbnails
from bitmosaic.images import Progress, display_path
from bitmosaic.neighbours import nearest_codes
from bitmosaic.run import Run
from bitmosaic.threads import available_threads

N_FOUND, N_LOGGED, MOST_AT_ONCE, MOST_OF_GROUP = 60, 20, 1000, 100

Answer = dict[str, Any]


class Pages:
    """A run folder, its edits and its thumbnails, for any number of threads that ask."""

    def __init__(self, run: Run, source: Any = None):
        """`source`: where the pictures are now, if not where the run has read them."""
        self._source, self._lock = source, threading.Lock()
        self._take(run, _growth(run))

    def _take(self, run: Run, grown: Any) -> None:
        """Show this run from now on; `grown` is what was to be seen of its files before it was read."""
        pictures = Pictures.of(run)
        self.run, self.pictures, self.thumbnails = run, pictures, Thumbnails(run, self._source)
        self.places = Job(self._place)
        self.duplicate_groups = Job(lambda progress: duplicates_of(run, pictures.codes, progress))
        self._seen: tuple[int, int] | None = None
        self._clusters: Clusters | None = None
        for name in ("_lines", "_line_starts"):
            self.__dict__.pop(name, None)
        self._grown = grown

    @property
    def name(self) -> str:
        return display_path(self.run.folder.resolve().name)

    def warm_up(self) -> None:
        """Do once what the first pages need, so that nobody waits for kernels to be loaded."""
        with suppress(BitmosaicError):  # whoever asks for it will be told
            number = self.clusters.numbers[0]
            self.overview()
            self.cluster(number)
            self.neighbours(0, 1)
            self.cluster_views(number)

    # ---- the run and its clusters

    @property
    def clusters(self) -> Clusters:
        """The clusters as the log has them now, whoever wrote it, with whatever was added to the run meanwhile."""
        with self._lock:
            grown = _growth(self.run)
            if grown != self._grown:
                with suppress(BitmosaicError):  # it may be about to change; who asks next will see
                    self._take(Run(self.run.folder), grown)
            stamp = _stamp(self.pictures.log.path)
            if self._clusters is None or stamp != self._seen:
                self._clusters, self._seen = Clusters(self.pictures), stamp
            return self._clusters

    def overview(self) -> Answer:
        manifest, clusters = self.run.manifest, self.clusters
        return {
            "name": self.name,
            "images": len(self.pictures),
            "clusters": len(clusters.numbers),
            "skipped": manifest.get("skipped", 0),
            "bits": 8 * self.pictures.codes.shape[1],
            "begun": manifest["begun"],
            "bitmosaic": manifest["bitmosaic"],
            "views": [{"name": name, "weight": weight} for name, weight in manifest["view_weights"].items()],
            "scores": clusters.scores,
            "original_scores": manifest.get("scores"),
            "has_labels": self.pictures.classes is not None,
            "seed": manifest["arguments"].get("seed"),
            "seconds": manifest["seconds"],
            "pictures": self.thumbnails.available,
            "how_many": manifest["how_many"]["words"] if "how_many" in manifest else None,
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
        seen = self.run
        if self.clusters.pictures.run.n_refits != seen.n_refits:
            raise StaleEditError("The run was refitted meanwhile. Look at its clusters again first.")
        made = self.pictures.log.append(edit, version)
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

    # ---- one picture

    def picture(self, row: int) -> Answer:
        self._require_row(row)
        clusters = self.clusters
        number, code = int(clusters.labels[row]), self.pictures.codes[row]
        members, position = clusters.members(number), clusters.position(row)
        nearest = clusters.nearest_clusters(code)
        self.thumbnails.get(row)  # which tells the size of the picture
        size = self.thumbnails.size(row)
        return {
            "row": row,
            "path": self.pictures.paths[row],
            "label": self.pictures.label(row),
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

    def neighbours(self, row: int, count: int) -> Answer:
        self._require_row(row)
        codes, begun = self.pictures.codes, time.perf_counter()
        at_most = min(max(count, 1), MOST_AT_ONCE) + 1
        (distances,), (rows,) = nearest_codes(codes, codes[[row]], at_most, available_threads())
        took = time.perf_counter() - begun
        others = rows != row
        rows, distances = rows[others][:count], distances[others][:count]
        table = self._table(self.clusters, rows)
        return table | {"distances": distances.tolist(), "milliseconds": round(1000 * took, 2)}

    def search(self, text: str) -> Answer:
        """Pictures with this text in their path, in any case."""
        text = text.casefold().replace("\n", " ")
        found: list[int] = []
        start = self._lines.find(text) if text else -1
        while start >= 0 and len(found) <= N_FOUND:
            found.append(bisect_right(self._line_starts, start) - 1)
            end = self._line_starts[found[-1] + 1] if found[-1] + 1 < len(self._line_starts) else len(self._lines)
            start = self._lines.find(text, end)
        rows = np.array(found[:N_FOUND], np.int64)
        return {"pictures": self._table(self.clusters, rows) | {"total": len(rows), "more": len(found) > N_FOUND}}

    @cached_property
    def _lines(self) -> str:
        return "".join(path.casefold().replace("\n", " ") + "\n" for path in self.pictures.paths)

    @cached_property
    def _line_starts(self) -> list[int]:
        ends = np.flatnonzero(np.frombuffer(self._lines.encode("utf-32-le"), np.uint32) == ord("\n"))
        return [0, *(ends[:-1] + 1).tolist()]

    # ---- lists of many

    def map(self) -> Answer:
        rows, x, y = self.places.result()
        pictures = self.pictures
        return {
            "rows": rows.tolist(),
            "x": x.tolist(),
            "y": y.tolist(),
            "clusters": self.clusters.labels[rows].tolist(),
            "labels": None if pictures.classes is None else [pictures.label(row) for row in rows],
            "sampled": len(rows) < len(pictures),
            "total": len(pictures),
        }

    def outliers(self, start: int, count: int) -> Answer:
        clusters, part = self.clusters, _part(start, count)
        scores = clusters.outlier_scores
        rows = np.argsort(-scores, kind="stable")[part]
        return self._table(clusters, rows) | {"total": len(scores), "scores": scores[rows].round(2).tolist()}

    def duplicates(self, start: int, count: int) -> Answer:
        radius, groups = self.duplicate_groups.result()
        shown = []
        for group in groups[_part(start, count)]:
            rows = group.rows[:MOST_OF_GROUP]
            shown.append(
                self._table(self.clusters, rows)
                | {"distances": group.distances[:MOST_OF_GROUP].tolist(), "size": len(group.rows)}
            )
        return {"total": len(groups), "radius": radius, "groups": shown}

    def _place(self, progress: Progress):
        places = stored_places(self.run)
        if places is None:
            places = place(self.pictures.codes, progress=progress)
            store_places(self.run, places)
        return places

    # ---- shared

    def _table(self, clusters: Clusters, rows: np.ndarray) -> Answer:
        pictures = self.pictures
        return {
            "rows": rows.tolist(),
            "distances": clusters.distances[rows].round(2).tolist(),
            "paths": [pictures.paths[row] for row in rows],
            "clusters": clusters.labels[rows].tolist(),
            "labels": None if pictures.classes is None else [pictures.label(row) for row in rows],
        }

    def _with_cluster(self, number: int) -> Clusters:
        clusters = self.clusters
        if not 0 <= number < len(clusters.sizes) or not clusters.sizes[number]:
            raise MissingFileError(f"There is no cluster {number} in this run, or none any more.")
        return clusters

    def _require_row(self, row: int) -> None:
        if not 0 <= row < len(self.pictures):
            raise MissingFileError(f"This run has the pictures 0 to {len(self.pictures) - 1}; there is no {row}.")


def _part(start: int, count: int) -> slice:
    start = max(start, 0)
    return slice(start, start + min(max(count, 0), MOST_AT_ONCE))


def _growth(run: Run) -> tuple[Any, list[str]]:
    """What tells that pictures were added to a run, or that it was fitted again."""
    folder = run.folder / FOLDER
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    return _stamp(run.folder / "manifest.json"), [name for name in names if not name.startswith(".")]


def _stamp(path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns

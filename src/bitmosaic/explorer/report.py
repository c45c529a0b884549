"""Run -> one HTML file with its clusters, that opens anywhere without a network: report.html, filled in.

The bytes of a picture stand once in the file, in a style sheet at its end, however often it is shown.
"""

import base64
import io
import json
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from PIL import Image

from bitmosaic.errors import ExportError, ParameterError
from bitmosaic.explorer.jobs import Job
from bitmosaic.explorer.pages import Pages
from bitmosaic.explorer.report_page import (
    COLOURS,
    HERE,
    REST,
    as_it_is,
    bits,
    by_size,
    cluster_title,
    drawn_points,
    indices,
    legend,
    packed,
    policy_source,
    readable,
    report_template,
)
from bitmosaic.files import result_file
from bitmosaic.images import Progress, quiet
from bitmosaic.places import check_output
from bitmosaic.run import Run
from bitmosaic.threads import available_threads, in_order

MAX_BYTES = 20_000_000
SIDES = (96, 64)  # pixels; the smaller where it lets every cluster show more
FEW = 8  # pictures of a cluster
MOST_PICTURES, MOST_EACH, MOST_LISTED, MOST_POINTS = 12_000, 150, 120, 50_000
MOST_ASKED = 40  # clusters for which each view alone is asked
FIXED_BYTES, CLUSTER_BYTES, TILE_BYTES, POINT_BYTES = 60_000, 5500, 150, 11  # about, of text
LEAST_ROOM = 1000  # bytes, where nothing is left to leave out
STYLES = (HERE / "static" / "style.css", HERE / "static" / "pages.css", HERE / "report.css")


@dataclass(frozen=True)
class Report:
    """What `write_report` has written."""

    n_bytes: int
    pictures: int
    clusters: int


def write_report(
    run: Run, path: Any, max_bytes: float = MAX_BYTES, progress: Progress = quiet, source: Any = None
) -> Report:
    """The clusters as edited, as one HTML file of at most `max_bytes` with as many pictures as fit and help.

    `source`: where the pictures are now, if not where the run has read them.
    """
    if not isinstance(max_bytes, Real) or not 0 < max_bytes < math.inf:
        raise ParameterError(f"A report has a number of bytes above 0 as its limit; got {max_bytes!r}. Say 20e6.")
    check_output(path, run.folder)
    template, pages = report_template(), Pages(run, source)
    pages.thumbnails.prepare(progress)
    content = Content(pages, progress)
    room, html = 0.97 * max_bytes, b""
    while not html or len(html) > max_bytes:  # what text takes is known only when it is there
        if html:
            room *= min(0.9, max_bytes / len(html))
        if room < LEAST_ROOM:
            raise ParameterError(f"A report of this run has {len(html):,} bytes at least; got max_bytes {max_bytes:,}.")
        facts = content.of(Plan.within(room, content))
        html = template.render(facts).encode()
    try:
        with result_file(path) as file:
            file.write(html)
    except OSError as error:
        raise ExportError(f"{path} could not be written: {error.strerror or error}.") from error
    return Report(len(html), len(facts["inside"]), len(facts["clusters"]))


@dataclass(frozen=True)
class Plan:
    """How much of a run goes into a report."""

    clusters: int
    side: int
    central: int  # pictures of each cluster
    far: int
    listed: int  # pictures in each of the lists below
    points: int

    @classmethod
    def within(cls, room: float, content: "Content") -> "Plan":
        """What takes about `room` bytes."""
        points = min(len(content.pages.pictures), MOST_POINTS, int(room / 20 / POINT_BYTES))
        clusters = min(len(content.numbers), max(1, int(0.4 * room / CLUSTER_BYTES)))
        left = max(0, room - FIXED_BYTES - clusters * CLUSTER_BYTES - points * POINT_BYTES)
        for side in SIDES:
            pictures = left / (content.picture_bytes[side] + TILE_BYTES)
            listed = min(MOST_LISTED, int(pictures / 20))
            each = min(MOST_EACH, int(min(pictures - 2 * listed, MOST_PICTURES) / clusters))
            if each >= FEW:
                break
        far = min(each // 5, max(0, each - FEW))  # a card shows the most central
        return cls(clusters, side, each - far, far, listed, points)


class Content:
    """What a report says, for plans of any size."""

    def __init__(self, pages: Pages, progress: Progress):
        self.pages, self.progress = pages, progress
        self.clusters = pages.clusters
        self.numbers = sorted(self.clusters.numbers, key=lambda number: (-self.clusters.sizes[number], number))
        self.outliers = pages.outliers(0, MOST_LISTED)["rows"]
        _wait(pages.duplicate_groups, progress)
        self.duplicates = pages.duplicates(0, MOST_LISTED)
        _wait(pages.places, progress)
        self.map = {key: np.array(value) for key, value in pages.map().items() if key in ("rows", "x", "y")}
        self._encoded: dict[tuple[int, int], bytes] = {}
        self._views: dict[int, Any] = {}
        some = [int(self.clusters.members(n)[0]) for n in self.numbers[:: max(1, len(self.numbers) // 40)]]
        self.picture_bytes = {side: 4 / 3 * _mean(self._pictures(some, side)) for side in SIDES}

    def of(self, plan: Plan) -> dict[str, Any]:
        """The variables of the template."""
        pages = self.pages
        clusters = [self._cluster(number, plan) for number in self.numbers[: plan.clusters]]
        groups = [group["rows"][:FEW] for group in self.duplicates["groups"]]
        kept = np.cumsum([len(group) for group in groups]) <= plan.listed
        groups = [group for group, keep in zip(groups, kept, strict=True) if keep]
        rows = [row for cluster in clusters for row in (*cluster["inner"], *cluster["outer"])]
        rows += [row for group in groups for row in group] + self.outliers[: plan.listed]
        inside = self._pictures(rows, plan.side)
        icon = base64.b64encode((HERE / "static" / "icon.svg").read_bytes()).decode()
        style = "\n".join(style.read_text() for style in STYLES) + "".join(
            [f".w{share}{{width:{share}%}}" for share in range(101)]
            + [f".k{i}{{--k:{colour}}}" for i, colour in enumerate(COLOURS)]
            + [f".icon{{background-image:url(data:image/svg+xml;base64,{icon})}}"]
        )
        script = (HERE / "report.js").read_text()
        picture_style = "".join(
            f".p{row}{{background-image:url(data:image/webp;base64,{base64.b64encode(picture).decode()})}}\n"
            for row, picture in inside.items()
        )
        return {
            "run": pages.overview(),
            "clusters": clusters,
            "shown": {cluster["number"] for cluster in clusters},
            "map": self._map(plan.points) if plan.points else None,
            "duplicates": {"total": self.duplicates["total"], "groups": groups},
            "outliers": self.outliers[: plan.listed],
            "inside": inside.keys(),
            "paths": pages.pictures.paths,
            "words": self._words,
            "cluster_of": lambda row: self._named(int(self.clusters.labels[row])),
            "style": as_it_is(style),
            "picture_style": as_it_is(picture_style),
            "script": as_it_is(script),
            "style_hashes": as_it_is(f"{policy_source(style)} {policy_source(picture_style)}"),
            "script_hash": as_it_is(policy_source(script)),
        }

    # ---- clusters

    def _cluster(self, number: int, plan: Plan) -> dict[str, Any]:
        members = self.clusters.members(number)
        outer = members[max(plan.central, len(members) - plan.far) :]
        asked = len(self.numbers) <= MOST_ASKED
        if asked and number not in self._views:
            self._views[number] = self.pages.cluster_views(number)["views"]
            self.progress("asking each view", len(self._views), len(self.numbers))
        return self.pages.cluster(number) | {
            "inner": members[: plan.central].tolist(),
            "outer": outer[::-1].tolist(),
            "views": self._views[number] if asked else [],
        }

    def _named(self, number: int) -> dict[str, Any]:
        return {"number": number, "name": self.clusters.names.get(number)}

    def _words(self, row: int) -> str:
        path, off = readable(self.pages.pictures.paths[row]), f"{bits(self.clusters.distances[row])} off center"
        label = self.pages.pictures.label(row)
        return f"{path}\n{off}" if label is None else f"{path}\n{off} · {readable(label)}"

    # ---- pictures

    def _pictures(self, rows: Iterable[int], side: int) -> dict[int, bytes]:
        """WebP, which at the same looks has two thirds of the bytes of JPEG, or half where pictures are tiny."""
        rows = dict.fromkeys(rows)
        missing = [row for row in rows if (row, side) not in self._encoded]
        found = self.pages.thumbnails.many(missing, self.progress)
        made = in_order(lambda row: (row, _webp(found[row], side)), found, available_threads())
        for number, (row, picture) in enumerate(made, 1):
            self._encoded[row, side] = picture
            self.progress("encoding pictures", number, len(found))
        return {row: self._encoded[row, side] for row in rows if (row, side) in self._encoded}

    # ---- the map

    def _map(self, n_points: int) -> dict[str, Any]:
        step = max(1, -(-len(self.map["rows"]) // n_points))
        rows, x, y = (self.map[key][::step] for key in ("rows", "x", "y"))
        pictures = self.pages.pictures
        numbers, cluster_of = by_size(self.clusters.labels[rows])
        named = [self._named(number) for number in numbers.tolist()]
        data: dict[str, Any] = {
            "points": len(rows),
            "x": packed(x, "<u2"),
            "y": packed(y, "<u2"),
            "colours": COLOURS,
            "clusters": [cluster["number"] for cluster in named],
            "names": {cluster["number"]: readable(cluster["name"]) for cluster in named if cluster["name"]},
            "cluster_of": indices(cluster_of),
        }
        labels = None
        if pictures.classes is not None and pictures.class_of is not None:
            classes, label_of = by_size(pictures.class_of[rows])
            data["labels"] = [readable(pictures.classes[i]) for i in classes]
            data["label_of"] = indices(label_of)
            labels = legend([{"number": None, "title": title} for title in data["labels"]], label_of)
        return {
            "points": len(rows),
            "data": as_it_is(json.dumps(data).replace("<", "\\u003c")),
            "clusters": legend([cluster | {"title": cluster_title(cluster)} for cluster in named], cluster_of),
            "labels": labels,
            "drawn": drawn_points(x, y, np.minimum(cluster_of, REST)),
        }


def _webp(jpeg: bytes, side: int) -> bytes:
    file = io.BytesIO()
    with Image.open(io.BytesIO(jpeg), formats=["JPEG"]) as picture:
        picture.thumbnail((side, side), Image.Resampling.LANCZOS)
        picture.save(file, "WEBP", quality=75, method=4)
    return file.getvalue()


def _mean(pictures: dict[int, bytes]) -> float:
    return float(np.mean([len(picture) for picture in pictures.values()])) if pictures else 0.0


def _wait(job: Job, progress: Progress) -> None:
    while not job.ready():
        progress(*job.stage)
        time.sleep(0.05)

"""Run -> one HTML file that shows its clusters and needs no network. The template is report.html.

Each image is stored once, in a style sheet at the end of the file, even if it is shown several times.
"""

import base64
import hashlib
import io
import json
import math
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bitmosaic.errors import ParameterError, import_extra
from bitmosaic.estimators.estimate import in_time
from bitmosaic.explorer.api import Api, Job
from bitmosaic.images import Progress, display_path, quiet
from bitmosaic.io.files import check_output, result_file
from bitmosaic.io.threads import available_threads, in_order
from bitmosaic.run.folder import Run

HERE = Path(__file__).parent
MAX_LENGTH = 160  # characters of a path or name
MAX_SVG_POINTS = 2000  # of the map without scripts
# The same as in static/legend.js: one color for each of the largest groups on the map, the last for all others.
COLORS = (
    *("#3b82d6", "#e5762f", "#3da35d", "#d8475a", "#8a63d2", "#96704f", "#d667a8", "#1fa5a5", "#b8a11f", "#6f87a8"),
    *("#5ab4e8", "#f2a25c", "#7cc576", "#f08a8a", "#b79cf0", "#c4a182", "#f0a3cf", "#6fd0c8", "#dccb5c", "#9db3cc"),
    "#8b8f96",
)
REST = len(COLORS) - 1
_INVISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")  # control and bidi characters

MAX_BYTES = 20_000_000
SIDES = (96, 64)  # pixels; the smaller one if fewer than FEW images per cluster fit otherwise
FEW = 8  # images of a cluster
MAX_IMAGES, MAX_PER_CLUSTER, MAX_LISTED, MAX_POINTS = 12_000, 150, 120, 50_000
MAX_VIEW_CHARTS = 40  # more clusters than this: no chart of the single views
FIXED_BYTES, CLUSTER_BYTES, TILE_BYTES, POINT_BYTES = 60_000, 5500, 150, 11  # estimates of the text size
MIN_ROOM = 1000  # bytes; nothing more can be left out below this
STYLES = (HERE / "static" / "style.css", HERE / "static" / "pages.css", HERE / "report.css")


@dataclass(frozen=True)
class Report:
    """Size and content of a written report."""

    n_bytes: int
    images: int
    clusters: int


def write_report(
    run: Run, path: Any, max_bytes: float = MAX_BYTES, progress: Progress = quiet, source: Any = None
) -> Report:
    """Write the edited clusters as one HTML file of at most `max_bytes`. The size limits the number of images.

    `source`: the current place of the images, if they were moved since the run.
    """
    if not isinstance(max_bytes, Real) or not 0 < max_bytes < math.inf:
        raise ParameterError(f"max_bytes must be a positive finite number such as 20e6, got {max_bytes!r}.")
    check_output(path, run.folder)
    template, api = report_template(), Api(run, source)
    api.thumbnails.prepare(progress)
    content = Content(api, progress)
    room, html = 0.97 * max_bytes, b""
    while not html or len(html) > max_bytes:  # the size of the text is known only after rendering
        if html:
            room *= min(0.9, max_bytes / len(html))
        if room < MIN_ROOM:
            raise ParameterError(
                f"A report of this run needs at least {len(html):,} bytes, got max_bytes={max_bytes:,}."
            )
        facts = content.of(Plan.within(room, content))
        html = template.render(facts).encode()
    with result_file(path) as file:
        file.write(html)
    return Report(len(html), len(facts["inside"]), len(facts["clusters"]))


@dataclass(frozen=True)
class Plan:
    """The amounts that a report shows."""

    clusters: int
    side: int
    central: int  # images of each cluster
    far: int
    listed: int  # images in each list: duplicates, outliers
    points: int

    @classmethod
    def within(cls, room: float, content: "Content") -> "Plan":
        """A plan that takes about `room` bytes."""
        points = min(len(content.api.images), MAX_POINTS, int(room / 20 / POINT_BYTES))
        clusters = min(len(content.numbers), max(1, int(0.4 * room / CLUSTER_BYTES)))
        left = max(0, room - FIXED_BYTES - clusters * CLUSTER_BYTES - points * POINT_BYTES)
        for side in SIDES:
            images = left / (content.image_bytes[side] + TILE_BYTES)
            listed = min(MAX_LISTED, int(images / 20))
            each = min(MAX_PER_CLUSTER, int(min(images - 2 * listed, MAX_IMAGES) / clusters))
            if each >= FEW:
                break
        far = min(each // 5, max(0, each - FEW))  # the card needs FEW central images
        return cls(clusters, side, each - far, far, listed, points)


class Content:
    """The data of a report, for any plan."""

    def __init__(self, api: Api, progress: Progress):
        self.api, self.progress = api, progress
        self.clusters = api.clusters
        self.numbers = sorted(self.clusters.numbers, key=lambda number: (-self.clusters.sizes[number], number))
        self.outliers = api.outliers(0, MAX_LISTED)["rows"]
        _wait(api.duplicates_job, progress)
        self.duplicates = api.duplicates(0, MAX_LISTED)
        _wait(api.map_job, progress)
        self.map = {key: np.array(value) for key, value in api.map().items() if key in ("rows", "x", "y")}
        self._encoded: dict[tuple[int, int], bytes] = {}
        self._views: dict[int, Any] = {}
        some = [int(self.clusters.members(n)[0]) for n in self.numbers[:: max(1, len(self.numbers) // 40)]]
        self.image_bytes = {side: 4 / 3 * _mean(self._images(some, side)) for side in SIDES}

    def of(self, plan: Plan) -> dict[str, Any]:
        """The variables of the template."""
        api = self.api
        clusters = [self._cluster(number, plan) for number in self.numbers[: plan.clusters]]
        groups = [group["rows"][:FEW] for group in self.duplicates["groups"]]
        kept = np.cumsum([len(group) for group in groups]) <= plan.listed
        groups = [group for group, keep in zip(groups, kept, strict=True) if keep]
        rows = [row for cluster in clusters for row in (*cluster["inner"], *cluster["outer"])]
        rows += [row for group in groups for row in group] + self.outliers[: plan.listed]
        inside = self._images(rows, plan.side)
        icon = base64.b64encode((HERE / "static" / "icon.svg").read_bytes()).decode()
        style = "\n".join(style.read_text() for style in STYLES) + "".join(
            [f".w{share}{{width:{share}%}}" for share in range(101)]
            + [f".k{i}{{--k:{color}}}" for i, color in enumerate(COLORS)]
            + [f".icon{{background-image:url(data:image/svg+xml;base64,{icon})}}"]
        )
        script = (HERE / "report.js").read_text()
        image_style = "".join(
            f".p{row}{{background-image:url(data:image/webp;base64,{base64.b64encode(image).decode()})}}\n"
            for row, image in inside.items()
        )
        return {
            "run": api.overview(),
            "clusters": clusters,
            "shown": {cluster["number"] for cluster in clusters},
            "map": self._map(plan.points) if plan.points else None,
            "duplicates": {"total": self.duplicates["total"], "groups": groups},
            "outliers": self.outliers[: plan.listed],
            "inside": inside.keys(),
            "paths": api.images.paths,
            "words": self._tooltip,
            "cluster_of": lambda row: self._named(int(self.clusters.labels[row])),
            "style": as_it_is(style),
            "image_style": as_it_is(image_style),
            "script": as_it_is(script),
            "style_hashes": as_it_is(f"{policy_source(style)} {policy_source(image_style)}"),
            "script_hash": as_it_is(policy_source(script)),
        }

    # ---- clusters

    def _cluster(self, number: int, plan: Plan) -> dict[str, Any]:
        members = self.clusters.members(number)
        outer = members[max(plan.central, len(members) - plan.far) :]
        has_views = len(self.numbers) <= MAX_VIEW_CHARTS
        if has_views and number not in self._views:
            self._views[number] = self.api.cluster_views(number)["views"]
            self.progress("evaluating each view", len(self._views), len(self.numbers))
        return self.api.cluster(number) | {
            "inner": members[: plan.central].tolist(),
            "outer": outer[::-1].tolist(),
            "views": self._views[number] if has_views else [],
        }

    def _named(self, number: int) -> dict[str, Any]:
        return {"number": number, "name": self.clusters.names.get(number)}

    def _tooltip(self, row: int) -> str:
        path, far = readable(self.api.images.paths[row]), f"{bits(self.clusters.distances[row])} from center"
        label = self.api.images.label(row)
        return f"{path}\n{far}" if label is None else f"{path}\n{far} · {readable(label)}"

    # ---- images

    def _images(self, rows: Iterable[int], side: int) -> dict[int, bytes]:
        """Images by row as WebP, which at the same quality takes two thirds of the bytes of JPEG."""
        rows = dict.fromkeys(rows)
        missing = [row for row in rows if (row, side) not in self._encoded]
        found = self.api.thumbnails.many(missing, self.progress)
        made = in_order(lambda row: (row, _webp(found[row], side)), found, available_threads())
        for number, (row, image) in enumerate(made, 1):
            self._encoded[row, side] = image
            self.progress("encoding images", number, len(found))
        return {row: self._encoded[row, side] for row in rows if (row, side) in self._encoded}

    # ---- the map

    def _map(self, n_points: int) -> dict[str, Any]:
        step = max(1, -(-len(self.map["rows"]) // n_points))
        rows, x, y = (self.map[key][::step] for key in ("rows", "x", "y"))
        images = self.api.images
        numbers, cluster_of = by_size(self.clusters.labels[rows])
        named = [self._named(number) for number in numbers.tolist()]
        data: dict[str, Any] = {
            "points": len(rows),
            "x": packed(x, "<u2"),
            "y": packed(y, "<u2"),
            "colors": COLORS,
            "clusters": [cluster["number"] for cluster in named],
            "names": {cluster["number"]: readable(cluster["name"]) for cluster in named if cluster["name"]},
            "cluster_of": indices(cluster_of),
        }
        labels = None
        if images.classes is not None and images.class_of is not None:
            classes, label_of = by_size(images.class_of[rows])
            data["labels"] = [readable(images.classes[i]) if i >= 0 else "no label" for i in classes]
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
    with Image.open(io.BytesIO(jpeg), formats=["JPEG"]) as image:
        image.thumbnail((side, side), Image.Resampling.LANCZOS)
        image.save(file, "WEBP", quality=75, method=4)
    return file.getvalue()


def _mean(images: dict[int, bytes]) -> float:
    return float(np.mean([len(image) for image in images.values()])) if images else 0.0


def _wait(job: Job, progress: Progress) -> None:
    while not job.ready():
        progress(*job.stage)
        time.sleep(0.05)


# ---- the map


def by_size(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct values by descending frequency, and the index of each input value among them."""
    distinct, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return distinct[order], np.argsort(order, kind="stable")[places]


def legend(groups: list[dict[str, Any]], group_of: np.ndarray) -> list[dict[str, Any]]:
    sizes = np.bincount(group_of).tolist()
    entries = [group | {"color": i, "size": sizes[i]} for i, group in enumerate(groups[:REST])]
    if len(groups) > REST:
        title = f"{len(groups) - REST:,} smaller {'group' if len(groups) - REST == 1 else 'groups'}"
        entries.append({"number": None, "title": title, "color": REST, "size": sum(sizes[REST:])})
    return entries


def drawn_points(x: np.ndarray, y: np.ndarray, colors: np.ndarray) -> list[tuple[int, str]]:
    """A sample of the points as paths of a 1,000 by 1,000 SVG, one per color. Shown if scripts are disabled."""
    some = slice(None, None, -(-len(x) // MAX_SVG_POINTS))
    across, up = (np.rint((values[some] + 1500.0) / 68.535).astype(int) for values in (x, y))
    colors = colors[some]
    places = {color: np.flatnonzero(colors == color) for color in np.unique(colors).tolist()}
    return [(color, "".join(f"M{across[i]} {1000 - up[i]}h0" for i in found)) for color, found in places.items()]


def packed(values: np.ndarray, kind: str) -> str:
    return base64.b64encode(values.astype(kind).tobytes()).decode()


def indices(values: np.ndarray) -> str:
    return packed(values, "<u2" if values.max() < 2**16 else "<u4")


# ---- the template


def report_template() -> Any:
    jinja2 = import_extra("jinja2", "web", "A report")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "bits": bits,
        "duration": in_time,
        "counted": lambda number, one: f"{number:,} {one}{'' if number == 1 else 's'}",
        "drawn": _drawn_histogram,
        "file_name": lambda path: readable(path.rpartition("/")[2], 60),
        "percent": percent,
        "readable": readable,
        "title": cluster_title,
        "whole": "{:,}".format,
    }
    return environment.from_string((HERE / "report.html").read_text())


def as_it_is(text: str) -> Any:
    """Mark trusted text, which the template must not escape."""
    from markupsafe import Markup

    return Markup(text)


def policy_source(text: str) -> str:
    """The hash that allows one inline script or style sheet in a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def bits(distance: float) -> str:
    number = f"{distance:.1f}".removesuffix(".0")
    return f"{number} bit" if number == "1" else f"{number} bits"


def percent(share: float) -> str:
    return f"{100 * share:.1f}\u00a0%"


def cluster_title(cluster: dict[str, Any]) -> str:
    return readable(cluster["name"]) if cluster["name"] else f"Cluster {cluster['number']}"


def readable(text: str, longest: int = MAX_LENGTH) -> str:
    """Escape control characters, and cut the middle of long texts."""
    text = _INVISIBLE.sub(lambda match: f"\\u{ord(match[0]):04x}", display_path(text))
    return text if len(text) <= longest else f"{text[: longest // 2]}…{text[-longest // 2 :]}"


def _drawn_histogram(histogram: dict[str, Any]) -> dict[str, Any]:
    """The columns as one SVG path in a box of 360 by 98, and the ticks of the axis."""
    edges, counts = histogram["edges"], np.array(histogram["counts"])
    low, high = edges[0], edges[-1]
    width = 340 / len(counts)
    heights = 92 * counts / max(1, counts.max())
    path = "".join(f"M{10 + i * width:.1f} 98v-{h:.1f}h{width - 1:.1f}v{h:.1f}z" for i, h in enumerate(heights) if h)
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 10**9) if high - low <= 6 * step)
    shown = range(math.ceil(low / step) * step, math.floor(high) + 1, step)
    return {"path": path, "ticks": [(round(10 + 340 * (value - low) / (high - low)), value) for value in shown]}

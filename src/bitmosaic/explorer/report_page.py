"""The page of a report: its template and how numbers, names, the map and histograms are put into it."""

import base64
import hashlib
import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from bitmosaic.errors import MissingExtraError
from bitmosaic.images import display_path
from bitmosaic.terminal import clock

HERE = Path(__file__).parent
LONGEST = 160  # letters of a path or name
MOST_DRAWN = 2000  # points where no script runs
# As in static/legend.js: the largest groups on the map have a colour of their own, the rest share the last.
COLOURS = (
    *("#3b82d6", "#e5762f", "#3da35d", "#d8475a", "#8a63d2", "#96704f", "#d667a8", "#1fa5a5", "#b8a11f", "#6f87a8"),
    *("#5ab4e8", "#f2a25c", "#7cc576", "#f08a8a", "#b79cf0", "#c4a182", "#f0a3cf", "#6fd0c8", "#dccb5c", "#9db3cc"),
    "#8b8f96",
)
REST = len(COLOURS) - 1
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")  # controls, and turns of direction


def by_size(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different values, the most frequent first, and for each its place among them."""
    distinct, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return distinct[order], np.argsort(order, kind="stable")[places]


def legend(groups: list[dict[str, Any]], group_of: np.ndarray) -> list[dict[str, Any]]:
    sizes = np.bincount(group_of).tolist()
    entries = [group | {"colour": i, "size": sizes[i]} for i, group in enumerate(groups[:REST])]
    if len(groups) > REST:
        title = f"{len(groups) - REST:,} smaller ones"
        entries.append({"number": None, "title": title, "colour": REST, "size": sum(sizes[REST:])})
    return entries


def drawn_points(x: np.ndarray, y: np.ndarray, colours: np.ndarray) -> list[tuple[int, str]]:
    """Some of the points for an SVG of 1,000 by 1,000, a path for each colour: what is seen where no script runs."""
    some = slice(None, None, -(-len(x) // MOST_DRAWN))
    across, up = (np.rint((values[some] + 1500.0) / 68.535).astype(int) for values in (x, y))
    colours = colours[some]
    places = {colour: np.flatnonzero(colours == colour) for colour in np.unique(colours).tolist()}
    return [(colour, "".join(f"M{across[i]} {1000 - up[i]}h0" for i in found)) for colour, found in places.items()]


def packed(values: np.ndarray, kind: str) -> str:
    return base64.b64encode(values.astype(kind).tobytes()).decode()


def indices(values: np.ndarray) -> str:
    return packed(values, "<u2" if values.max() < 2**16 else "<u4")


# ---- filling in the template


def report_template() -> Any:
    try:
        import jinja2
    except ImportError:
        raise MissingExtraError("A report needs jinja2: pip install 'bitmosaic[web]'") from None
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "bits": bits,
        "clock": clock,
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
    """Text of our own, which the template does not escape."""
    from markupsafe import Markup

    return Markup(text)


def policy_source(text: str) -> str:
    """How a content security policy names one script or style sheet, and no other."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def bits(distance: float) -> str:
    number = f"{distance:.1f}".removesuffix(".0")
    return f"{number} bit" if number == "1" else f"{number} bits"


def percent(share: float) -> str:
    return f"{100 * share:.1f}\u00a0%"


def cluster_title(cluster: dict[str, Any]) -> str:
    return readable(cluster["name"]) if cluster["name"] else f"Cluster {cluster['number']}"


def readable(text: str, longest: int = LONGEST) -> str:
    """Control characters made visible, the middle left out of what is very long."""
    text = _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", display_path(text))
    return text if len(text) <= longest else f"{text[: longest // 2]}…{text[-longest // 2 :]}"


def _drawn_histogram(histogram: dict[str, Any]) -> dict[str, Any]:
    """The columns as one path in a box of 360 by 98, and round numbers below."""
    edges, counts = histogram["edges"], np.array(histogram["counts"])
    low, high = edges[0], edges[-1]
    width = 340 / len(counts)
    heights = 92 * counts / max(1, counts.max())
    path = "".join(f"M{10 + i * width:.1f} 98v-{h:.1f}h{width - 1:.1f}v{h:.1f}z" for i, h in enumerate(heights) if h)
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 10**9) if high - low <= 6 * step)
    shown = range(math.ceil(low / step) * step, math.floor(high) + 1, step)
    return {"path": path, "ticks": [(round(10 + 340 * (value - low) / (high - low)), value) for value in shown]}

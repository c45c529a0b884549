"""The main job in one go on real data that is already there: views -> codes -> clusters -> scores and a picture."""

import time
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from bitmosaic.bench.digits import digit_views
from bitmosaic.codes import hamming_distances
from bitmosaic.hsic import HSIC
from bitmosaic.metrics import clustering_scores

TILE, GAP, TEXT = 40, 4, 190  # pixels
INK, PAPER, FAINT = (32, 36, 48), (250, 250, 248), (128, 132, 140)


@dataclass(frozen=True)
class Demo:
    model: HSIC
    names: tuple[str, ...]
    widths: tuple[int, ...]
    images: np.ndarray  # (n, 8, 8)
    digits: np.ndarray  # (n,) true ones
    distances: np.ndarray  # (n,) to the own center, in bits
    scores: dict[str, float]
    seconds: float


def run_demo(seed=0):
    """Cluster the handwritten digits into ten clusters."""
    views, images = digit_views()
    start = time.perf_counter()
    model = HSIC(n_clusters=10, random_state=seed).fit(views)
    seconds = time.perf_counter() - start
    own = hamming_distances(model.codes_, model.cluster_centers_)[np.arange(len(images)), model.labels_]
    scores = clustering_scores(views.labels, model.labels_)
    return Demo(model, views.names, views.widths, images, views.labels, own, scores, seconds)


def cluster_rows(demo):
    """For each cluster, largest first: its members from the most central on, its most frequent digit and purity."""
    rows = []
    for cluster in np.argsort(-np.bincount(demo.model.labels_, minlength=10), kind="stable"):
        members = np.flatnonzero(demo.model.labels_ == cluster)
        members = members[np.argsort(demo.distances[members], kind="stable")]
        counts = np.bincount(demo.digits[members], minlength=10)
        rows.append((int(cluster), members, int(counts.argmax()), counts.max() / len(members)))
    return rows


def draw_clusters(demo, path, n_central=14, n_far=5):
    """A row for each cluster: its most central digits, and behind a gap those farthest from its center."""
    rows = cluster_rows(demo)
    step = TILE + GAP
    width = TEXT + (n_central + n_far + 1) * step + GAP
    head = 2 * step
    sheet = Image.new("RGB", (width, head + len(rows) * step + GAP), PAPER)
    draw = ImageDraw.Draw(sheet)
    title, body, small = (ImageFont.load_default(size) for size in (20, 15, 12))
    draw.text((GAP * 3, GAP * 2), "Handwritten digits, clustered by their 16-byte codes", INK, font=title)
    draw.text((TEXT, head - 20), "most central", FAINT, font=small)
    draw.text((TEXT + (n_central + 1) * step, head - 20), "farthest from the center", FAINT, font=small)
    for number, (_, members, digit, purity) in enumerate(rows):
        y = head + number * step
        draw.text((GAP * 3, y + 4), f"mostly {digit}", INK, font=body)
        draw.text((GAP * 3, y + 22), f"{len(members)} images, {purity:.0%} pure", FAINT, font=small)
        near, far = members[:n_central], members[n_central:][-n_far:]
        places = [*enumerate(near), *enumerate(far, start=n_central + 1)]
        for column, member in places:
            tile = Image.fromarray((255 * (1 - demo.images[member])).astype(np.uint8))
            box = (TEXT + column * step, y)
            sheet.paste(tile.resize((TILE, TILE), Image.Resampling.BICUBIC).convert("RGB"), box)
            if demo.digits[member] != digit:
                draw.rectangle((box[0] - 1, y - 1, box[0] + TILE, y + TILE), outline=(200, 60, 40), width=2)
    legend = "Framed: another digit than most of its cluster."
    draw.text((width - 12 - draw.textlength(legend, font=small), 14), legend, (200, 60, 40), font=small)
    sheet.save(path)

"""Contact sheets of clusters, an overview of all clusters, and a chart of the cluster counts that were tried."""

from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from bitmosaic.solver.n_clusters import ClusterCounts

TILE, GAP, MARGIN, TEXT = 72, 4, 16, 250  # pixels
SYSTEM_FONTS = ("NotoSansCJK-Regular.ttc", "DejaVuSans.ttf", "NotoSans-Regular.ttf", "Arial Unicode.ttf", "Arial.ttf")
INK, FAINT, PAPER = (32, 36, 48), (120, 124, 134), (250, 250, 248)
LINE, RANGE, GRID, SPREAD = (44, 92, 160), (255, 236, 200), (228, 228, 224), (196, 212, 234)
CHART = (860, 460)  # pixels
TICKS = (2, 3, 5, 10, 20, 50, 100, 200, 500)


def tile(image: np.ndarray, size: int = TILE) -> Image.Image:
    """The image centered in a square. Small images are enlarged."""
    scaled = Image.fromarray(image)
    scale = size / max(scaled.size)
    target = (max(1, round(scaled.width * scale)), max(1, round(scaled.height * scale)))
    if scale >= 1:
        scaled = scaled.resize(target, Image.Resampling.BICUBIC)
    else:
        scaled = scaled.resize(target, Image.Resampling.LANCZOS, reducing_gap=2)
    square = Image.new("RGB", (size, size), (236, 236, 234))
    square.paste(scaled, ((size - target[0]) // 2, (size - target[1]) // 2))
    return square


def contact_sheet(
    title: str, subtitle: str, central: Sequence[np.ndarray], far: Sequence[np.ndarray], columns: int = 12
):
    """The images nearest to the center of a cluster as a grid, and below them those farthest from it."""
    step = TILE + GAP
    rows = -(-len(central) // columns)
    far_rows = -(-len(far) // columns)
    head, gap = 64, 34 if far else 0
    width = 2 * MARGIN + columns * step - GAP
    sheet = Image.new("RGB", (width, head + (rows + far_rows) * step + gap + MARGIN - GAP), PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((MARGIN, 12), title, INK, font=font(20, title))
    draw.text((MARGIN, 38), subtitle, FAINT, font=font(13, subtitle))
    for i, image in enumerate(central):
        sheet.paste(tile(image), (MARGIN + i % columns * step, head + i // columns * step))
    if far:
        y = head + rows * step
        draw.text((MARGIN, y + 10), "farthest from the center", FAINT, font=font(13))
        for i, image in enumerate(far):
            sheet.paste(tile(image), (MARGIN + i % columns * step, y + gap + i // columns * step))
    return sheet


def overview(title: str, rows: Sequence[tuple[str, str, Sequence[np.ndarray]]], columns: int = 12):
    """One row per cluster: two lines of text, and the images nearest to its center."""
    step = TILE + GAP
    head = 56
    width = MARGIN + TEXT + columns * step + MARGIN - GAP
    sheet = Image.new("RGB", (width, head + len(rows) * step + MARGIN - GAP), PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((MARGIN, 16), title, INK, font=font(20, title))
    for number, (name, facts, images) in enumerate(rows):
        y = head + number * step
        draw.text((MARGIN, y + 16), fitted(draw, name, 17, TEXT - MARGIN), INK, font=font(17, name))
        draw.text((MARGIN, y + 38), fitted(draw, facts, 13, TEXT - MARGIN), FAINT, font=font(13))
        for i, image in enumerate(images[:columns]):
            sheet.paste(tile(image), (MARGIN + TEXT + i * step, y))
    return sheet


def neighbors_sheet(
    title: str,
    queries: Sequence[tuple[str, np.ndarray | None, Sequence[tuple[int, np.ndarray | None]]]],
    columns: int = 10,
):
    """For each query: its name, its image, and the images found, each with its distance in bits."""
    step, caption, line = TILE + GAP, 18, 24
    heights = [line + max(1, -(-len(found) // columns)) * (step + caption) + MARGIN for _, _, found in queries]
    left = MARGIN + step + MARGIN
    sheet = Image.new("RGB", (left + columns * step - GAP + MARGIN, 56 + sum(heights)), PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((MARGIN, 16), title, INK, font=font(20, title))
    y = 56
    for (name, image, found), height in zip(queries, heights, strict=True):
        draw.text((MARGIN, y), fitted(draw, name, 14, sheet.width - 2 * MARGIN), INK, font=font(14, name))
        top = y + line
        if image is not None:
            draw.rectangle((MARGIN - 3, top - 3, MARGIN + TILE + 2, top + TILE + 2), LINE)
            sheet.paste(tile(image), (MARGIN, top))
        for i, (distance, near) in enumerate(found):
            at = left + i % columns * step, top + i // columns * (step + caption)
            draw.text((at[0] + TILE // 2, at[1] + TILE + 3), str(distance), FAINT, font=font(13), anchor="mt")
            sheet.paste(tile(near) if near is not None else Image.new("RGB", (TILE, TILE), GRID), at)
        y += height
    return sheet


def group_sheet(title: str, groups: Sequence[tuple[str, Sequence[np.ndarray]]], columns: int = 14):
    """Small groups of images, each under its caption. The first image of a group has a frame."""
    step, caption, frame, head = TILE + GAP, 20, 3, 56
    places, x, y = [], 0.0, 0  # x in tiles, y in lines
    for _, images in groups:
        if x and x + len(images) > columns:
            x, y = 0, y + 1
        places.append((MARGIN + round(x * step), head + y * (step + caption + GAP)))
        x += min(len(images), columns) + 0.4
    height = head + (y + bool(groups)) * (step + caption + GAP) + MARGIN
    sheet = Image.new("RGB", (2 * MARGIN + columns * step - GAP, height), PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((MARGIN, 16), title, INK, font=font(20, title))
    for (words, images), (left, top) in zip(groups, places, strict=True):
        draw.text((left, top), words, FAINT, font=font(12, words))
        for i, image in enumerate(images[:columns]):
            sheet.paste(tile(image), (left + i * step, top + caption))
        edge = (left - frame, top + caption - frame, left + TILE + frame - 1, top + caption + TILE + frame - 1)
        draw.rectangle(edge, outline=LINE, width=frame)
    return sheet


def how_many_chart(counts: ClusterCounts) -> Image.Image:
    """A chart of the silhouette of each cluster count that was tried, with the choice and the range of similar ones."""
    sheet = Image.new("RGB", (2 * CHART[0], 2 * CHART[1]), PAPER)  # drawn at twice its size, for smooth lines
    draw = ImageDraw.Draw(sheet)
    draw.text((2 * MARGIN, 24), f"{counts.chosen} clusters", INK, font=font(40))
    draw.text((2 * MARGIN, 80), f"Tried: {_tried(counts)}", FAINT, font=font(26))
    if counts.candidates:
        _draw_curve(draw, counts, left=130, top=180, right=2 * CHART[0] - 2 * MARGIN, bottom=2 * CHART[1] - 110)
    return sheet.resize(CHART, Image.Resampling.LANCZOS)


def _tried(counts):
    if not counts.candidates:
        return "nothing, because there are too few distinct rows"
    first, last = counts.candidates[0], counts.candidates[-1]
    return f"{first} to {last}. Chosen: {counts}"


def _draw_curve(draw, counts, left, top, right, bottom):
    """Draw the curve into a box given in pixels, with a logarithmic axis of cluster counts."""
    mean, spread = np.array(counts.silhouette), np.array(counts.spread)
    first, last = counts.candidates[0], counts.candidates[-1]
    chance = np.array(counts.chance)
    highest, lowest = max((mean + spread).max(), chance.max()), min((mean - spread).min(), chance.min(), 0)

    def x(number):
        return left + (right - left) * np.log(number / first) / max(np.log(last / first), 1e-9)

    def y(value):
        return bottom - (bottom - top) * (value - lowest) / max(highest - lowest, 1e-9)

    small = font(24)
    draw.rectangle((x(counts.low) - 8, top, min(x(counts.high) + 8, right + 8), bottom), RANGE)
    step = _round_step((highest - lowest) / 4)
    for value in np.arange(np.ceil(lowest / step), highest / step) * step:
        draw.line((left, y(value), right, y(value)), GRID, 2)
        draw.text((left - 16, y(value)), f"{value:.10g}", FAINT, font=small, anchor="rm")
    for number in TICKS:
        if first <= number <= last:
            draw.line((x(number), bottom, x(number), bottom + 10), FAINT, 2)
            draw.text((x(number), bottom + 16), str(number), FAINT, font=small, anchor="mt")
    draw.text(((left + right) / 2, bottom + 58), "number of clusters", FAINT, font=small, anchor="mt")
    draw.text((left, top - 16), "silhouette of rows held out", FAINT, font=small, anchor="lb")

    xs = [x(number) for number in counts.candidates]
    above, below = y(mean + spread), y(mean - spread)
    if len(xs) > 1:
        band = [*zip(xs, above, strict=True), *zip(xs[::-1], below[::-1], strict=True)]
        draw.polygon(band, SPREAD)
        draw.line(list(zip(xs, y(chance), strict=True)), FAINT, 3, joint="curve")
        draw.text((xs[-1], y(chance[-4:].max()) - 10), "by chance", FAINT, font=small, anchor="rb")
        draw.line(list(zip(xs, y(mean), strict=True)), LINE, 5, joint="curve")
    for a, b in zip(xs, y(mean), strict=True):
        draw.ellipse((a - 6, b - 6, a + 6, b + 6), LINE)
    a, b = x(counts.chosen), y(mean[counts.candidates.index(counts.chosen)])
    draw.line((a, b, a, bottom), INK, 3)
    draw.ellipse((a - 13, b - 13, a + 13, b + 13), PAPER, INK, 5)


def _round_step(size):
    """1, 2 or 5 times a power of ten, at least `size`."""
    power = 10.0 ** np.floor(np.log10(max(size, 1e-9)))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= size * (1 - 1e-9))


def fitted(draw: ImageDraw.ImageDraw, text: str, size: int, width: int) -> str:
    """The text, shortened to `width` pixels by an ellipsis before its last word."""
    chosen = font(size, text)
    if draw.textlength(text, font=chosen) <= width:
        return text
    head, _, tail = text.rpartition(" ")
    while head and draw.textlength(f"{head}… {tail}", font=chosen) > width:
        head = head[:-1]
    return f"{head}… {tail}"


@lru_cache
def font(size: int, text: str = "") -> Any:
    """Pillow's default font, or a system font for text that is not ASCII."""
    if not text.isascii():
        for name in SYSTEM_FONTS:
            with suppress(OSError):
                return ImageFont.truetype(name, size)
    return ImageFont.load_default(size)

"""Pictures of clusters: a contact sheet for each, and an overview of all."""

from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

TILE, GAP, MARGIN, TEXT = 72, 4, 16, 250  # pixels
SYSTEM_FONTS = ("NotoSansCJK-Regular.ttc", "DejaVuSans.ttf", "NotoSans-Regular.ttf", "Arial Unicode.ttf", "Arial.ttf")
INK, FAINT, PAPER = (32, 36, 48), (120, 124, 134), (250, 250, 248)


def tile(image: np.ndarray, size: int = TILE) -> Image.Image:
    """A picture in the middle of a square; a small one is enlarged."""
    picture = Image.fromarray(image)
    scale = size / max(picture.size)
    target = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    if scale >= 1:
        picture = picture.resize(target, Image.Resampling.BICUBIC)
    else:
        picture = picture.resize(target, Image.Resampling.LANCZOS, reducing_gap=2)
    square = Image.new("RGB", (size, size), (236, 236, 234))
    square.paste(picture, ((size - target[0]) // 2, (size - target[1]) // 2))
    return square


def contact_sheet(
    title: str, subtitle: str, central: Sequence[np.ndarray], far: Sequence[np.ndarray], columns: int = 12
):
    """The most central pictures of one cluster as a grid, and below them those farthest from its center."""
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
    """A row for each cluster: two lines of text and its most central pictures."""
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


def fitted(draw: ImageDraw.ImageDraw, text: str, size: int, width: int) -> str:
    """The text, its first words cut with an ellipsis where it is longer than `width` pixels; the last one stays."""
    chosen = font(size, text)
    if draw.textlength(text, font=chosen) <= width:
        return text
    head, _, tail = text.rpartition(" ")
    while head and draw.textlength(f"{head}… {tail}", font=chosen) > width:
        head = head[:-1]
    return f"{head}… {tail}"


@lru_cache
def font(size: int, text: str = "") -> Any:
    """Pillow's own font, or one of the system's for letters that it lacks."""
    if not text.isascii():
        for name in SYSTEM_FONTS:
            with suppress(OSError):
                return ImageFont.truetype(name, size)
    return ImageFont.load_default(size)

"""Pictures of clusters: a contact sheet for each, and an overview of all."""

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

TILE, GAP, MARGIN, TEXT = 72, 4, 16, 250  # pixels
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
    draw.text((MARGIN, 12), title, INK, font=ImageFont.load_default(20))
    draw.text((MARGIN, 38), subtitle, FAINT, font=ImageFont.load_default(13))
    for i, image in enumerate(central):
        sheet.paste(tile(image), (MARGIN + i % columns * step, head + i // columns * step))
    if far:
        y = head + rows * step
        draw.text((MARGIN, y + 10), "farthest from the center", FAINT, font=ImageFont.load_default(13))
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
    draw.text((MARGIN, 16), title, INK, font=ImageFont.load_default(20))
    for number, (name, facts, images) in enumerate(rows):
        y = head + number * step
        draw.text((MARGIN, y + 16), fitted(draw, name, 17, TEXT - MARGIN), INK, font=ImageFont.load_default(17))
        draw.text((MARGIN, y + 38), fitted(draw, facts, 13, TEXT - MARGIN), FAINT, font=ImageFont.load_default(13))
        for i, image in enumerate(images[:columns]):
            sheet.paste(tile(image), (MARGIN + TEXT + i * step, y))
    return sheet


def fitted(draw: ImageDraw.ImageDraw, text: str, size: int, width: int) -> str:
    """The text, cut with an ellipsis where it is longer than `width` pixels."""
    font = ImageFont.load_default(size)
    if draw.textlength(text, font=font) <= width:
        return text
    while text and draw.textlength(text + "…", font=font) > width:
        text = text[:-1]
    return text + "…"

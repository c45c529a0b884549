"""Small plain JPEGs -> pictures, without the work in Python that Pillow spends on each file it opens.

For 32×32 pixels that work takes longer than decoding, and the threads cannot share it. Pillow's decoder is the same,
so the pixels are too; whatever is not quite plain is left to `decode`.
"""

from PIL import Image

_START_OF_SCAN = 0xDA
_FRAMES = (0xC0, 0xC1, 0xC2)  # baseline, extended, progressive
# JFIF header, quantisation and Huffman tables, restart interval, comment: nothing that turns or recolours a picture.
_PLAIN = (0xE0, 0xDB, 0xC4, 0xDD, 0xFE)
_MODES = {1: "L", 3: "RGB"}
_LARGEST_SIDE = 256


def decode_small_jpeg(content: bytes, max_side: int | None) -> Image.Image | None:
    """The picture, in mode RGB or L, if it is a small JPEG with nothing special about it; otherwise None."""
    frame = _plain_frame(content)
    if frame is None:
        return None
    mode, width, height = frame
    largest_side = min(max_side or _LARGEST_SIDE, _LARGEST_SIDE)
    if not 0 < width <= largest_side or not 0 < height <= largest_side:
        return None
    if Image.MAX_IMAGE_PIXELS is not None and width * height > Image.MAX_IMAGE_PIXELS:
        return None
    try:
        return Image.frombytes(mode, (width, height), content, "jpeg", mode, "")
    except ValueError:  # cut or damaged: opened as a file, it gets its cause
        return None


def _plain_frame(content: bytes) -> tuple[str, int, int] | None:
    """Mode, width and height from the segments before the scan, or None if one of them is not plain."""
    frame = None
    at = 2
    while at + 10 <= len(content) and content[at] == 0xFF:
        marker = content[at + 1]
        if marker == _START_OF_SCAN:
            return frame
        if marker in _FRAMES:
            precision, mode = content[at + 4], _MODES.get(content[at + 9])
            if frame is not None or precision != 8 or mode is None:
                return None
            frame = mode, content[at + 7] << 8 | content[at + 8], content[at + 5] << 8 | content[at + 6]
        elif marker not in _PLAIN:
            return None
        at += 2 + (content[at + 2] << 8 | content[at + 3])
    return None

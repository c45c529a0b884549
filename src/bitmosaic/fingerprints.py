"""Picture -> 16 bytes that stay nearly the same when it is resized, recompressed or toned.

The grey picture is squeezed to 32 × 32 pixels. Its bits are the signs of its 128 slowest waves (of the discrete cosine
transform, without the mean): coarse shapes, which scaling keeps and compression hardly touches. Codes of features tell
what a picture is like; this tells which picture it is. Of unrelated pictures about half the bits differ.
"""

import numpy as np
from PIL import Image

SIDE, BITS = 32, 128
DECODED_SIDE = 64  # pixels a side that are enough to read a picture at
FAINT = 4.0  # waves up to this are what rounding and compression leave of none: no sign
FLAT = 2.0  # grey levels by which the pixels of a picture without shapes deviate from their mean, at most
SIXTH = 6  # grey levels for each bit of the colour of such a one


def _waves():
    """The first 16 of 32 orthonormal cosine waves, (16, 32), and which pairs of them count, the slowest first."""
    order, pixel = np.arange(16), np.arange(SIDE)
    waves = np.cos(np.pi / SIDE * order[:, None] * (pixel + 0.5)) * np.sqrt(2 / SIDE)
    waves[0] /= np.sqrt(2)
    down, across = np.divmod(np.arange(256), 16)
    chosen = np.lexsort((down, abs(down - across), down + across))[1 : BITS + 1]
    return waves, chosen


_WAVES, _CHOSEN = _waves()


def fingerprint(image) -> np.ndarray:
    """RGB uint8 (h, w, 3) -> (16,) uint8, bits packed as those of codes.

    A picture of one colour has no shapes: its fingerprint is its mean colour, a bit for each six levels of red, green
    and blue, so that here, too, few bits differ where the pictures do.
    """
    picture = Image.fromarray(image)
    if max(picture.size) > DECODED_SIDE:
        picture = picture.resize((DECODED_SIDE, DECODED_SIDE), Image.Resampling.LANCZOS, reducing_gap=2.0)
    grey = np.asarray(picture.convert("L").resize((SIDE, SIDE), Image.Resampling.BICUBIC), np.float64)
    if grey.std() <= FLAT:
        levels = np.asarray(picture).reshape(-1, 3).mean(0)
        bits = levels[:, None] >= SIXTH * np.arange(1, 43)  # (3, 42)
        return np.packbits(np.pad(bits.ravel(), (0, BITS - bits.size)))
    strengths = _WAVES @ grey @ _WAVES.T
    return np.packbits(strengths.ravel()[_CHOSEN] > FAINT)

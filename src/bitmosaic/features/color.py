"""Color features of NUS-WIDE: histogram, block moments and auto-correlogram.

All three work per pixel or on exact counts, so the features of an image do not depend on the batch.
"""

from collections.abc import Callable

import numpy as np

from bitmosaic.features.registry import check_count, register
from bitmosaic.io.threads import row_ranges

PIXELS_AT_ONCE = 2**15  # small enough for the CPU cache

# sRGB under D65 (IEC 61966-2-1) and CIE 1976 LAB, with the constants of scikit-image.
BYTE = np.arange(256) / 255
LINEAR = np.where(BYTE > 0.04045, ((BYTE + 0.055) / 1.055) ** 2.4, BYTE / 12.92).astype(np.float32)
XYZ_FROM_RGB = np.array(
    [[0.412453, 0.357580, 0.180423], [0.212671, 0.715160, 0.072169], [0.019334, 0.119193, 0.950227]]
)
WHITE = np.array([0.95047, 1.0, 1.08883])
XYZ_TO_WHITE = (XYZ_FROM_RGB / WHITE[:, None]).astype(np.float32)

# The range of LAB in bytes. With an even number of bins the middle border is at -0.5 and not at 0, the value of gray:
# rounding errors cannot move gray pixels to another bin.
LAB_LOWEST = np.array([0, -128, -128], np.float32)
LAB_HIGHEST = np.array([100, 127, 127], np.float32)

# 36 colors of HSV after Zhang, Lin and Zhang (1999): black, 6 grays, white, and 7 hues × 2 saturations × 2 values.
N_COLORS = 36
GRAY_BORDERS = np.arange(2, 9) / 10  # of the value: below is black, above is white
HUE_BORDERS = np.array([22, 45, 70, 155, 186, 278, 330], np.float32) / 360  # red is from 330° to 22°
GRAY_SATURATION, STRONG_SATURATION, BRIGHT_VALUE = 0.2, 0.65, 0.7
LEVEL_OF_VALUE = np.searchsorted(GRAY_BORDERS, BYTE, side="right").astype(np.uint8)  # 0 black, 1–6 gray, 7 white


def by_pieces(extract: Callable[[np.ndarray], np.ndarray], images: np.ndarray, width: int) -> np.ndarray:
    """Apply ``extract`` to a few images at a time. Memory is bounded, and the rows are the same as all at once."""
    features = np.empty((len(images), width), np.float32)
    step = max(1, PIXELS_AT_ONCE // (images.shape[1] * images.shape[2]))
    for rows in row_ranges(len(images), step):
        features[rows] = extract(images[rows])
    return features


def planes_of(images: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(images, -1, 0))  # (3, b, h, w)


def luminance(images: np.ndarray) -> np.ndarray:
    """0.299 R + 0.587 G + 0.114 B, rounded to 0…255 in 16-bit fixed point exactly as Pillow's mode L; int32."""
    red, green, blue = planes_of(images).astype(np.int32)
    return (19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16  # (b, h, w)


def rgb_to_lab(images: np.ndarray) -> np.ndarray:
    """Planes L, a and b as float32 (3, b, h, w)."""
    red, green, blue = LINEAR[planes_of(images)]
    lab = np.empty((3, *red.shape), np.float32)
    for plane, weights in zip(lab, XYZ_TO_WHITE, strict=True):
        # Not a matrix product: BLAS may round a row differently in another batch.
        share = weights[0] * red + weights[1] * green + weights[2] * blue
        np.cbrt(share, out=plane)
        dark = share <= np.float32(0.008856)
        plane[dark] = np.float32(7.787) * share[dark] + np.float32(16 / 116)
    x, y, z = lab
    z[:] = 200 * (y - z)
    x[:] = 500 * (x - y)
    y[:] = 116 * y - 16
    return lab[[1, 0, 2]]  # (3, b, h, w)


def rgb_to_hsv(images: np.ndarray) -> np.ndarray:
    """Planes hue, saturation and value, each in [0, 1], as float32 (3, b, h, w). Grays have hue 0."""
    red, green, blue = planes_of(images).astype(np.float32)
    value = np.maximum(np.maximum(red, green), blue)
    chroma = value - np.minimum(np.minimum(red, green), blue)
    per_chroma = 1 / np.maximum(chroma, 1)  # bytes: a chroma below 1 is 0
    hue = np.where(
        value == red,
        (green - blue) * per_chroma,
        np.where(value == green, 2 + (blue - red) * per_chroma, 4 + (red - green) * per_chroma),
    )
    hue[hue < 0] += 6
    hue[chroma == 0] = 0
    return np.stack([hue / 6, chroma / np.maximum(value, 1), value / 255])  # (3, b, h, w)


def quantize_hsv(images: np.ndarray) -> np.ndarray:
    """The index (0 to 35) of each pixel's color, as uint8 (b, h, w).

    0 is black (value < 0.2); 1 to 6 are grays (saturation < 0.2) by tenths of the value and 7 is white (≥ 0.8);
    8 + 4·hue + 2·(saturation ≥ 0.65) + (value ≥ 0.7) are red, orange, yellow, green, cyan, blue and purple.
    """
    hue, saturation, value = rgb_to_hsv(images)
    sector = np.searchsorted(HUE_BORDERS, hue, side="right") % len(HUE_BORDERS)
    color = 8 + 4 * sector + 2 * (saturation >= np.float32(STRONG_SATURATION)) + (value >= np.float32(BRIGHT_VALUE))
    level = LEVEL_OF_VALUE[images.max(axis=-1)]
    return np.where((level == 0) | (saturation < np.float32(GRAY_SATURATION)), level, color).astype(np.uint8)


@register("ch")
class ColorHistogram:
    """Share of the pixels in each of `bins`³ boxes of LAB; L varies slowest. A mirror image has the same features."""

    name = "ch"

    def __init__(self, *, bins: int = 4, mirror: bool = False):
        check_count("ch", "bins", bins)
        self.bins = bins
        self.mirror = mirror
        self.width = self.bins**3

    def __call__(self, images: np.ndarray) -> np.ndarray:
        return by_pieces(self._histograms, images, self.width)

    def _histograms(self, images):
        per_bin = self.bins / (LAB_HIGHEST - LAB_LOWEST)
        box = np.repeat(np.arange(len(images)), images[0, :, :, 0].size)  # the image of each pixel
        for plane, lowest, scale in zip(rgb_to_lab(images), LAB_LOWEST, per_bin, strict=True):
            box *= self.bins
            box += np.clip((plane.ravel() - lowest) * scale, 0, self.bins - 1).astype(np.intp)
        counts = np.bincount(box, minlength=len(images) * self.width).reshape(len(images), self.width)
        return counts / images[0, :, :, 0].size


@register("cm")
class ColorMoments:
    """Mean, standard deviation and cube root of the third central moment of L, a and b in `grid` × `grid` blocks.

    Block i of n covers pixels ⌊i·size/n⌋ to ⌈(i+1)·size/n⌉: no block is empty, even for a tiny image, and the blocks
    of a mirror image are the mirrored blocks. Features are ordered by block row, block column, channel, moment.
    """

    name = "cm"

    def __init__(self, *, grid: int = 5, mirror: bool = False):
        check_count("cm", "grid", grid)
        self.grid = grid
        self.mirror = mirror
        self.width = self.grid * self.grid * 9

    def __call__(self, images: np.ndarray) -> np.ndarray:
        features = by_pieces(self._moments, images, self.width)
        if self.mirror:
            blocks = features.reshape(-1, self.grid, self.grid, 9)
            features = np.maximum(blocks, blocks[:, :, ::-1]).reshape(features.shape)
        return features

    def _moments(self, images):
        from bitmosaic.features.kernels import block_moments

        moments = np.empty((len(images), self.grid, self.grid, 3, 3), np.float32)
        block_moments(rgb_to_lab(images), self._borders(images.shape[1]), self._borders(images.shape[2]), moments)
        return moments.reshape(len(images), self.width)

    def _borders(self, size):
        block = np.arange(self.grid)
        return np.stack([block * size // self.grid, -(-(block + 1) * size // self.grid)], axis=1)  # (grid, 2)


@register("corr")
class ColorCorrelogram:
    """Color auto-correlogram (Huang et al. 1997) over the 36 colors of `quantize_hsv`.

    Feature (c, d): the probability that a pixel at chessboard distance d from a pixel of color c also has color c.
    Only pixels inside the image count; without any, the feature is 0. Ordered by color, then distance. A mirror image
    has the same features.
    """

    name = "corr"

    def __init__(self, *, distances: tuple[int, ...] = (1, 3, 5, 7), mirror: bool = False):
        for distance in distances:
            check_count("corr", "each distance", distance)
        self.distances = tuple(distances)
        self.mirror = mirror
        self.width = N_COLORS * len(self.distances)

    def __call__(self, images: np.ndarray) -> np.ndarray:
        return by_pieces(self._correlograms, images, self.width)

    def _correlograms(self, images):
        from bitmosaic.features.kernels import auto_correlogram

        features = np.empty((len(images), N_COLORS, len(self.distances)), np.float32)
        same = np.empty(images.shape[1:3], np.uint32)
        auto_correlogram(quantize_hsv(images), np.array(self.distances, np.int64), same, features)
        return features.reshape(len(images), self.width)

"""Edge direction histogram of NUS-WIDE: Canny edges counted by the direction of the Sobel gradient.

All steps before the histogram use integers, so ties are exact and a mirror image gives the mirrored edges.
"""

import numpy as np

from bitmosaic.errors import ParameterError
from bitmosaic.features.color import by_pieces, luminance
from bitmosaic.features.registry import register

N_DIRECTIONS = 72
SMOOTH, DIFFERENCE = (1, 2, 1), (-1, 0, 1)
SMOOTH_GAIN = 16  # sum of the weights of 1-2-1 in both directions
# tan of the borders between bins in the first quadrant. Bins are centered on the multiples of 5°: no integer gradient
# lies on a border (the tangents are irrational), and the most frequent ones, 0° and 90°, are farthest from a border.
BORDERS = np.tan(np.radians(np.arange(2.5, 90, 5)))  # (18,)


def taps(values: np.ndarray, weights: tuple[int, int, int], axis: int) -> np.ndarray:
    """Correlate with three weights along an axis. The border pixel is repeated outside the image."""
    padding = [(0, 0)] * values.ndim
    padding[axis] = (1, 1)
    padded = np.moveaxis(np.pad(values, padding, "edge"), axis, -1)
    before, here, after = padded[..., :-2], padded[..., 1:-1], padded[..., 2:]
    result = weights[0] * before + weights[2] * after
    if weights[1]:
        result += weights[1] * here
    return np.moveaxis(result, -1, axis)


def gradients(gray: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sobel gradients to the right and down of the 1-2-1 smoothed image, not divided by `SMOOTH_GAIN`."""
    smooth = taps(taps(gray, SMOOTH, 1), SMOOTH, 2)
    right = taps(taps(smooth, DIFFERENCE, 2), SMOOTH, 1)
    down = taps(taps(smooth, DIFFERENCE, 1), SMOOTH, 2)
    return right, down  # (b, h, w), at most 16,320 in size: squares fit in int32


def canny_edges(right: np.ndarray, down: np.ndarray, low: float, high: float) -> np.ndarray:
    """Canny edge pixels, bool (b, h, w), from integer gradients; low and high are magnitudes.

    An edge pixel has a magnitude of at least `low`, not below the two magnitudes one step along its gradient
    (interpolated between neighbors), and is connected to a pixel of at least `high`. As in scikit-image, pixels on the
    border of the image are not edges.
    """
    from scipy import ndimage

    magnitude = np.rint(np.sqrt((right * right + down * down).astype(np.float64))).astype(np.int32)
    edges = np.zeros(right.shape, bool)
    edges[:, 1:-1, 1:-1] = magnitude[:, 1:-1, 1:-1] >= low
    at = np.flatnonzero(edges)
    across, downwards = right.ravel()[at], down.ravel()[at]
    wide, tall = np.abs(across), np.abs(downwards)
    small, large = np.minimum(wide, tall), np.maximum(wide, tall)
    to_side, to_row = np.sign(across), np.sign(downwards) * right.shape[2]  # offsets in the flat array
    straight, diagonal = np.where(wide >= tall, to_side, to_row), to_side + to_row
    size = magnitude.ravel()
    stays = np.ones(len(at), bool)
    for way in (1, -1):
        beyond = size[at + way * straight] * (large - small) + size[at + way * diagonal] * small
        stays &= beyond <= size[at] * large
    edges.ravel()[at[~stays]] = False

    within_an_image = np.zeros((3, 3, 3), bool)
    within_an_image[1] = True
    line, n_lines = ndimage.label(edges, within_an_image)
    strong = np.zeros(n_lines + 1, bool)
    strong[line[edges & (magnitude >= high)]] = True
    return strong[line]


def direction_bins(right: np.ndarray, down: np.ndarray) -> np.ndarray:
    """The nearest multiple of 5° to the gradient's direction, 0…71, clockwise from the right on the screen."""
    with np.errstate(divide="ignore"):
        bins = np.searchsorted(BORDERS, np.abs(down) / np.abs(right))
    bins = np.where(right < 0, N_DIRECTIONS // 2 - bins, bins)
    return np.where(down < 0, N_DIRECTIONS - bins, bins) % N_DIRECTIONS


@register("edh")
class EdgeDirectionHistogram:
    """72 shares of the edge pixels by direction, and the share of all pixels that are not edges.

    `low` and `high` are the Canny thresholds on the Sobel magnitude of an image scaled to 0…1. A full step from black
    to white has magnitude 4. Without any edge, the 72 shares are 0.
    """

    name = "edh"
    width = N_DIRECTIONS + 1

    def __init__(self, *, low: float = 0.1, high: float = 0.2, mirror: bool = False):
        if not 0 < low <= high:
            raise ParameterError(f"The thresholds must be 0 < low <= high; got low={low}, high={high}.")
        self.low, self.high = low, high
        self.mirror = mirror

    def __call__(self, images: np.ndarray) -> np.ndarray:
        features = by_pieces(self._histograms, images, self.width)
        if self.mirror:
            # Left and right swap: direction θ becomes 180° - θ, bin k becomes 36 - k.
            mirrored = (N_DIRECTIONS // 2 - np.arange(N_DIRECTIONS)) % N_DIRECTIONS
            features = np.maximum(features, features[:, np.append(mirrored, N_DIRECTIONS)])
        return features

    def _histograms(self, images):
        right, down = gradients(luminance(images))
        unit = 255 * SMOOTH_GAIN
        edges = canny_edges(right, down, self.low * unit, self.high * unit)
        image = np.nonzero(edges)[0]
        cells = image * N_DIRECTIONS + direction_bins(right[edges], down[edges])
        counts = np.bincount(cells, minlength=len(images) * N_DIRECTIONS).reshape(len(images), N_DIRECTIONS)
        n_edges = counts.sum(axis=1, keepdims=True)
        n_pixels = images.shape[1] * images.shape[2]
        return np.hstack([counts / np.maximum(n_edges, 1), 1 - n_edges / n_pixels])

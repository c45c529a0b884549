"""Histograms of gradients: HOG in the cells of a grid, and the edge direction histogram of NUS-WIDE."""

import numpy as np

from bitmosaic.errors import ParameterError
from bitmosaic.features import kernels
from bitmosaic.features.color import by_pieces, luminance
from bitmosaic.features.registry import check_count, register

# ---- HOG

CLIP = np.float32(0.2)
FLOOR = np.float32(60**2)  # added to a block's energy, in squared gray levels: faint texture does not count as edges


@register("hog")
class HOG:
    """Histograms of oriented gradients: `orientations` directions over the full circle in each cell of a grid.

    A pixel votes with the gradient of its strongest color channel, for the two nearest directions and the four
    nearest cells. Each cell is divided by the lengths of its four 2 × 2 blocks, clipped at 0.2, and averaged.

    grid: cells along each side; the features are orientations · grid². A cell is 1/grid of the image.
    orientations: an even number; light-to-dark and dark-to-light edges are counted separately.
    """

    name = "hog"

    def __init__(self, *, grid: int = 8, orientations: int = 18, mirror: bool = False):
        check_count("hog", "grid", grid)
        check_count("hog", "orientations", orientations)
        if orientations % 2:
            raise ParameterError(f"hog: orientations must be even, as each has its opposite; got {orientations}.")
        self.grid, self.orientations, self.mirror = grid, orientations, mirror
        self.width = orientations * grid**2
        # In the mirror image, the direction t becomes half a circle minus t.
        mirrored = (orientations // 2 - np.arange(orientations)) % orientations
        columns = np.arange(grid)[::-1, None] * orientations + mirrored  # (g, o)
        self._partner = (np.arange(grid)[:, None, None] * grid * orientations + columns).reshape(-1)

    def __call__(self, images: np.ndarray) -> np.ndarray:
        histograms = gradient_histograms(images, self.grid, self.orientations)  # (b, g, g, o)
        features = np.empty_like(histograms)
        energy = np.empty((self.grid, self.grid), np.float32)
        kernels.normalize_cells(histograms, FLOOR, CLIP, energy, features)
        features = features.reshape(len(images), self.width)
        if not self.mirror:
            return features
        out = np.empty_like(features)
        kernels.mirror_maximum(features, self._partner, out)
        return out


def gradient_histograms(
    images: np.ndarray, grid: int, orientations: int, *, signed: bool = True, soft: bool = True
) -> np.ndarray:
    """(b, h, w, 3) uint8 -> (b, grid, grid, orientations) float32: mean length of the gradients, by direction.

    Bins are centered on the directions k/orientations of the circle. `signed=False` merges opposite directions, over
    half a circle. `soft=False` assigns each pixel to one cell and one bin, and bins then begin at their direction.
    """
    images = np.require(images, requirements=["C", "W"])  # one array layout: one compilation
    n, height, width, _ = images.shape
    bins_per_turn = orientations if signed else 2 * orientations
    planes = np.empty((3, height + 2, width + 2), np.float32)
    gradient = np.empty((3, width), np.float32)
    bins = np.empty((n, height, width), np.int32)
    votes = np.empty((n, height, 2, width), np.float32)
    kernels.gradient_votes(images, np.float32(bins_per_turn), np.float32(soft), planes, gradient, bins, votes)
    band = np.empty((grid + 2, bins_per_turn + 1), np.float32)  # one more slot for votes after the last bin
    cells = np.empty((grid + 2, grid + 2, bins_per_turn + 1), np.float32)
    out = np.empty((n, grid, grid, orientations), np.float32)
    kernels.cell_histograms(
        bins, votes, cell_positions(height, grid, soft), cell_positions(width, grid, soft), band, cells, out
    )
    out *= np.float32(grid**2 / (height * width))
    return out


def cell_positions(n_pixels: int, grid: int, soft: bool) -> tuple[np.ndarray, np.ndarray]:
    """The cell of each pixel, counted from a margin cell 0, and the share of its vote that goes to the next cell."""
    pixel = np.arange(n_pixels)
    if not soft:
        return (2 * pixel + 1) * grid // (2 * n_pixels) + 1, np.zeros(n_pixels, np.float32)
    position = (pixel + 0.5) * grid / n_pixels + 0.5
    cell = np.floor(position)
    return cell.astype(np.int64), (position - cell).astype(np.float32)


# ---- Edge direction histogram: Canny edges counted by the direction of the Sobel gradient.
#
# All steps before the histogram use integers, so ties are exact and a mirror image gives the mirrored edges.

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

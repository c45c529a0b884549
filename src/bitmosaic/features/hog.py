"""HOG: histograms of oriented gradients in the cells of a grid."""

import numpy as np

from bitmosaic.errors import ParameterError
from bitmosaic.features import kernels
from bitmosaic.features.registry import check_count, register

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

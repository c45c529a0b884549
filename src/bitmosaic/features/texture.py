"""Texture: local binary patterns in the cells of a grid, and the wavelet texture of NUS-WIDE."""

import numpy as np

from bitmosaic.errors import ParameterError
from bitmosaic.features import kernels
from bitmosaic.features.color import by_pieces, luminance
from bitmosaic.features.registry import check_count, register

# ---- LBP: counts of the 58 uniform local binary patterns

NORMALISATIONS = ("root", "l1", "l2", "none")


def _is_uniform(code: int) -> bool:
    """At most two changes between 0 and 1 around the circle."""
    return (code ^ (code >> 1 | (code & 1) << 7)).bit_count() <= 2


def _mirrored(code: int) -> int:
    """The code of the mirrored neighborhood: neighbor k, counter-clockwise from the right, becomes 4 - k."""
    return sum(1 << (4 - k) % 8 for k in range(8) if code >> k & 1)


UNIFORM = [code for code in range(256) if _is_uniform(code)]
N_PATTERNS = len(UNIFORM)  # 58
BIN_OF_CODE = np.full(256, N_PATTERNS, np.uint8)  # all other codes share one bin, which is dropped
BIN_OF_CODE[UNIFORM] = np.arange(N_PATTERNS)
MIRRORED_BIN = BIN_OF_CODE[[_mirrored(code) for code in UNIFORM]].astype(np.int64)


@register("lbp")
class LBP:
    """Local binary patterns: how often each uniform pattern of 8 neighbors occurs in each cell of a grid.

    The pattern of a pixel has one bit per neighbor (8 in a square), set where the neighbor is at least as light. Border
    pixels lack neighbors and are left out, unless the image is less than 3 pixels wide or high: then its border is
    repeated. Where the border between two cells cuts through pixels, both cells count them, so no cell is empty and
    the grid of a mirrored image is the mirrored grid.

    grid: cells along each side; the features are 58 · grid².
    normalisation: of each cell, "root" (square root of the share of each pattern, so the length is 1), "l1", "l2",
        or "none" for the counts.
    """

    name = "lbp"

    def __init__(self, *, grid: int = 5, normalisation: str = "root", mirror: bool = False):
        check_count("lbp", "grid", grid)
        if normalisation not in NORMALISATIONS:
            raise ParameterError(f"lbp: normalisation must be one of {NORMALISATIONS}; got {normalisation!r}.")
        self.grid, self.normalisation, self.mirror = grid, normalisation, mirror
        self.width = N_PATTERNS * grid**2
        columns = np.arange(grid)[::-1, None] * N_PATTERNS + MIRRORED_BIN  # (g, 58)
        self._partner = (np.arange(grid)[:, None, None] * grid * N_PATTERNS + columns).reshape(-1)

    def __call__(self, images: np.ndarray) -> np.ndarray:
        counts = pattern_counts(images, self.grid).astype(np.float32)  # (b, g, g, 58)
        features = _normalize(counts, self.normalisation).reshape(len(images), self.width)
        if not self.mirror:
            return features
        out = np.empty_like(features)
        kernels.mirror_maximum(features, self._partner, out)
        return out


def pattern_counts(images: np.ndarray, grid: int) -> np.ndarray:
    """(b, h, w, 3) uint8 -> (b, grid, grid, 58) int32: how often each uniform pattern occurs in each cell."""
    images = np.require(images, requirements=["C", "W"])  # one array layout: one compilation
    n, height, width, _ = images.shape
    counts = np.empty((n, grid, grid, N_PATTERNS + 1), np.int32)
    gray = np.empty((height + 2, width + 2), np.uint16)
    codes = np.empty((height, width), np.uint8)
    kernels.lbp_counts(images, BIN_OF_CODE, cell_ranges(height, grid), cell_ranges(width, grid), gray, codes, counts)
    return counts[..., :N_PATTERNS]


def cell_ranges(n_pixels: int, grid: int) -> np.ndarray:
    """First and end pixel of each cell along one side, (grid, 2). Without border pixels, if there are 3 or more."""
    margin = 1 if n_pixels >= 3 else 0
    inside = n_pixels - 2 * margin
    cell = np.arange(grid)
    return np.stack([cell * inside // grid, -((cell + 1) * -inside // grid)], axis=1) + margin


def _normalize(counts: np.ndarray, normalisation: str) -> np.ndarray:
    if normalisation == "none":
        return counts
    if normalisation == "l2":
        return counts / np.maximum(np.sqrt((counts * counts).sum(axis=-1, keepdims=True)), 1)
    shares = counts / np.maximum(counts.sum(axis=-1, keepdims=True), 1)
    return np.sqrt(shares) if normalisation == "root" else shares


# ---- Wavelet texture: strengths of the bands of a Haar wavelet tree.
#
# Sums and differences of gray values are integers, so every sum is exact and its order does not matter.

N_LEVELS = 3
N_NODES = 1 + 3 + 9  # images that are split: the gray image, then all bands except the diagonal ones
SMOOTH_CHAIN = [0, 1, 4]  # nodes of the pyramid: the image, its smooth band, and the smooth band of that


def split(values: np.ndarray) -> np.ndarray:
    """One Haar step without its factor 1/2: (..., h, w) -> bands (..., 4, ⌈h/2⌉, ⌈w/2⌉).

    The bands are smooth, differences down, differences across, and both. On an odd side, the last line is repeated.
    """
    odd_sides = [(0, 0)] * (values.ndim - 2) + [(0, values.shape[-2] % 2), (0, values.shape[-1] % 2)]
    values = np.pad(values, odd_sides, "edge")
    upper, lower = values[..., ::2, :], values[..., 1::2, :]
    bands = []
    for rows in (upper + lower, upper - lower):
        left, right = rows[..., ::2], rows[..., 1::2]
        bands += [left + right, left - right]
    smooth, across, down, diagonal = bands
    return np.stack([smooth, down, across, diagonal], axis=-3)


def strengths(bands: np.ndarray, level: int) -> np.ndarray:
    """Mean and standard deviation of |coefficient|, in units of the orthonormal wavelet: (..., 2)."""
    size = np.abs(bands)
    n = bands.shape[-2] * bands.shape[-1]
    mean = size.sum(axis=(-2, -1), dtype=np.int64) / n
    mean_square = (size * size).sum(axis=(-2, -1), dtype=np.int64) / n
    deviation = np.sqrt(np.maximum(mean_square - mean * mean, 0))
    return np.stack([mean, deviation], axis=-1) / 2**level


@register("wt")
class WaveletTexture:
    """24 features of the pyramid and 104 of the tree-structured wavelet transform (Manjunath and Ma 1996), 3 levels.

    The pyramid splits the smooth band again at each level (3 splits), the tree every band except the diagonal one
    (13 splits). Each split gives 4 bands, and each band the mean and the standard deviation of |coefficient|.
    """

    name = "wt"
    width = 2 * 4 * (N_LEVELS + N_NODES)

    def __init__(self, *, mirror: bool = False):
        self.mirror = mirror

    def __call__(self, images: np.ndarray) -> np.ndarray:
        features = by_pieces(self._textures, images, self.width)
        # If the width is even at each level, mirroring only mirrors the bands and changes signs.
        if self.mirror and images.shape[2] % 2**N_LEVELS:
            features = np.maximum(features, by_pieces(self._textures, images[:, :, ::-1], self.width))
        return features

    def _textures(self, images):
        nodes = luminance(images)[:, None]  # (b, 1, h, w)
        tree = []
        for level in range(1, N_LEVELS + 1):
            bands = split(nodes)  # (b, nodes, 4, h, w)
            tree.append(strengths(bands, level))
            nodes = bands[:, :, :3].reshape(len(images), -1, *bands.shape[-2:])
        all_nodes = np.concatenate(tree, axis=1)  # (b, 13, 4, 2)
        return np.concatenate([all_nodes[:, SMOOTH_CHAIN], all_nodes], axis=1).reshape(len(images), self.width)

"""LBP: counts of 58 uniform local binary patterns in the cells of a grid."""

import numpy as np

from bitmosaic.errors import ParameterError
from bitmosaic.features import kernels
from bitmosaic.features.registry import check_count, register

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

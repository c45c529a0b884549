"""GIST: energies of Gabor filters by scale, orientation and position.

A Gabor filter is nonzero only in a small box of frequencies. Shifted to the center, the box gives the same |response|
at far fewer points (8 × 8 or 16 × 16 for images of 32 × 32), so no filter runs at full size. All orientations of a
scale share one transform, which the compiler vectorizes.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from bitmosaic.errors import ParameterError
from bitmosaic.features import kernels
from bitmosaic.features.registry import check_count, register

FINEST, RATIO, N_SCALES = 0.35, 1.85, 4  # cycles per pixel of the finest scale, and the step to the next
RADIAL_WEIGHT, ANGULAR_WEIGHT = 3.5, np.pi / 32  # of the Gaussians, in frequency / center and in angle · orientations
SMALLEST_SIZE = 32
CONTRAST_FLOOR = np.float32(0.2)
BLUR_SHARE = 1 / 16  # of the local contrast: standard deviation of the blur / side of the image
KEPT_ENERGY = 0.995  # of a filter, inside its box
LOG_LEVEL = np.log1p(np.arange(256)).astype(np.float32)


@register("gist")
class GIST:
    """Gabor energies: 4 scales × `orientations`, root mean square over each cell of a grid.

    Before filtering, the logarithm of the gray image is resized to `size` × `size` and its local contrast is
    normalized. An image whose longer side is below `size` is resized to the next smaller power of two, at least
    32 × 32: compare such images with each other, not with large ones.

    grid: cells along each side, 1, 2, 4 or 8; the features are 4 · orientations · grid².
    orientations: directions over half a circle.
    size: a power of two from 32; large images keep details down to 1/size of their side.
    """

    name = "gist"

    def __init__(self, *, grid: int = 4, orientations: int = 16, size: int = 64, mirror: bool = False):
        check_count("gist", "orientations", orientations)
        check_count("gist", "size", size)
        if grid not in (1, 2, 4, 8):
            raise ParameterError(f"gist: grid must be 1, 2, 4 or 8; got {grid!r}.")
        if size < SMALLEST_SIZE or size & (size - 1):
            raise ParameterError(f"gist: size must be a power of two of at least {SMALLEST_SIZE}; got {size}.")
        self.grid, self.orientations, self.size, self.mirror = grid, orientations, size, mirror
        self.width = N_SCALES * orientations * grid**2
        feature = np.arange(self.width).reshape(N_SCALES, orientations, grid, grid)
        # In the mirror image, the direction t becomes half a circle minus t.
        self._partner = feature[:, -np.arange(orientations), :, ::-1].reshape(-1)

    def __call__(self, images: np.ndarray) -> np.ndarray:
        features = gabor_energies(normalize_contrast(images, self.size), self.orientations, self.grid)
        features = features.reshape(len(images), self.width)
        if not self.mirror:
            return features
        out = np.empty_like(features)
        kernels.mirror_maximum(features, self._partner, out)
        return out


def normalize_contrast(images: np.ndarray, size: int) -> np.ndarray:
    """(b, h, w, 3) uint8 -> (b, s, s) float32: log gray minus its local mean, over its local deviation + 0.2."""
    images = np.require(images, requirements=["C", "W"])  # one array layout: one compilation
    n, height, width, _ = images.shape
    side = working_size(height, width, size)
    light = np.empty((n, height, width), np.float32)
    kernels.gray_levels(images, LOG_LEVEL, light)
    if (height, width) != (side, side):
        light = _both_sides(resampling(height, side), light, resampling(width, side).T)
    blur = blurring(side)
    light -= _both_sides(blur, light, blur)
    light /= CONTRAST_FLOOR + np.sqrt(_both_sides(blur, light * light, blur))
    return light


def gabor_energies(light: np.ndarray, orientations: int, grid: int) -> np.ndarray:
    """(b, s, s) float32 -> (b, 4, orientations, grid, grid) float32: root mean square of |response|, by cell."""
    n, side, _ = light.shape
    spectrum = np.empty((n, 2, side - 1, side - 1), np.float32)
    kernels.spectra(light, *fourier_waves(side), np.empty((3, side, side), np.float32), spectrum)
    spectrum = spectrum.reshape(n, 2, -1)
    out = np.empty((n, N_SCALES, orientations, grid, grid), np.float32)
    for k, scale in enumerate(gabor_scales(side, orientations)):
        cell_of_row = scale.order // (scale.points // grid)
        work = np.empty((4, scale.points, scale.points * orientations), np.float32)
        pooled = np.empty((grid, scale.points * orientations), np.float32)
        energy = np.empty((n, grid, grid, orientations), np.float32)
        kernels.pooled_energies(spectrum, scale.places, scale.weights, scale.turns, cell_of_row, work, pooled, energy)
        np.sqrt(np.moveaxis(energy, 3, 1) * np.float32((grid / scale.points) ** 2), out=out[:, k])
    return out


def _both_sides(left: np.ndarray, images: np.ndarray, right: np.ndarray) -> np.ndarray:
    work = np.empty((left.shape[0], right.shape[0]), np.float32)
    out = np.empty((len(images), left.shape[0], right.shape[1]), np.float32)
    kernels.both_sides(left, images, np.ascontiguousarray(right), work, out)
    return out


def working_size(height: int, width: int, size: int) -> int:
    """The largest power of two within the longer side and `size`, but at least 32."""
    return max(SMALLEST_SIZE, min(size, 1 << (max(height, width).bit_length() - 1)))


@lru_cache(maxsize=64)
def resampling(n_pixels: int, n_points: int) -> np.ndarray:
    """(n_points, n_pixels): each point is a mean of the pixels around it with triangular weights.

    With fewer points than pixels, the triangle is two points wide and averages areas. With fewer pixels than points,
    it is two pixels wide and interpolates.
    """
    pixels_per_point = n_pixels / n_points
    center = (np.arange(n_points) + 0.5) * pixels_per_point - 0.5
    distance = np.abs(center[:, None] - np.arange(n_pixels)) / max(pixels_per_point, 1.0)
    weights = np.maximum(1 - distance, 0)
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


@lru_cache(maxsize=8)
def blurring(side: int) -> np.ndarray:
    """(side, side): a Gaussian blur along one axis with reflected borders; symmetric."""
    deviation = BLUR_SHARE * side
    reach = int(4 * deviation)
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / deviation) ** 2)
    matrix = np.zeros((side, side))
    for offset, weight in zip(range(-reach, reach + 1), weights / weights.sum(), strict=True):
        pixel = np.arange(side)
        source = pixel + offset
        source = np.where(source < 0, -1 - source, np.where(source >= side, 2 * side - 1 - source, source))
        matrix[pixel, source] += weight
    return matrix.astype(np.float32)


@lru_cache(maxsize=8)
def fourier_waves(side: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The factors of `kernels.spectra`: columns for one axis, cosines and sines for the other."""
    angle = 2 * np.pi * np.arange(side // 2)[:, None] * np.arange(side) / side  # (s / 2, s)
    cosines, sines = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    return np.ascontiguousarray(np.concatenate([cosines, -sines]).T), cosines, sines


class Scale(NamedTuple):
    """The filters of one scale, as inputs of `kernels.pooled_energies`."""

    points: int  # along a side of the small response
    places: np.ndarray  # (e, 2) index in the spectrum, index in the box
    weights: np.ndarray  # (e, 2) real and imaginary part
    turns: np.ndarray  # (points / 2, 2)
    order: np.ndarray  # (points,) bit-reversed


@lru_cache(maxsize=8)
def gabor_scales(side: int, orientations: int) -> list[Scale]:
    """The frequency boxes of the filters, scale by scale."""
    scales = []
    for k in range(N_SCALES):
        filters = gabor_filters(side, FINEST / RATIO**k, orientations)  # (o, s - 1, s - 1)
        points = 8
        while points < side and min(_kept(filters, points)) < KEPT_ENERGY:
            points *= 2
        scales.append(_scale(filters, points))
    return scales


def gabor_filters(side: int, center: float, orientations: int) -> np.ndarray:
    """(orientations, s - 1, s - 1) in frequencies from -(s / 2 - 1) to s / 2 - 1, down and across; 0 for the mean.

    The highest frequency, s / 2, has no counterpart of the other sign and is left out.
    """
    frequency = np.arange(1 - side // 2, side // 2) / side
    down, across = frequency[:, None], frequency[None, :]
    direction = np.pi * np.arange(orientations)[:, None, None] / orientations
    off_direction = (np.arctan2(down, across) - direction + np.pi) % (2 * np.pi) - np.pi
    off_center = np.hypot(down, across) / center - 1
    filters = np.exp(-RADIAL_WEIGHT * off_center**2 - ANGULAR_WEIGHT * (orientations * off_direction) ** 2)
    filters[:, side // 2 - 1, side // 2 - 1] = 0
    return filters


def _corner(filter_: np.ndarray, points: int) -> tuple[int, int]:
    """The first row and column of the box of points - 1 frequencies around the filter's center of mass."""
    place = np.arange(len(filter_)) - len(filter_) // 2
    down, across = (np.rint(np.round(place @ filter_.sum(axis=axis) / filter_.sum(), 6)) for axis in (1, 0))
    first = len(filter_) // 2 - (points // 2 - 1)
    return first + int(down), first + int(across)


def _kept(filters: np.ndarray, points: int) -> list[float]:
    """The share of each filter's energy inside its box."""
    kept = []
    for filter_ in filters:
        row, column = _corner(filter_, points)
        box = filter_[max(row, 0) : row + points - 1, max(column, 0) : column + points - 1]
        kept.append(float((box**2).sum() / (filter_**2).sum()))
    return kept


def _scale(filters: np.ndarray, points: int) -> Scale:
    n_orientations, n_frequencies, _ = filters.shape
    side = n_frequencies + 1
    places, weights = [], []
    for orientation, filter_ in enumerate(filters):
        first_row, first_column = _corner(filter_, points)
        # The points of a response are symmetric about the image center, so a mirrored image has mirrored points.
        shift = np.pi * (1 / points - 1 / side)
        for j in range(points - 1):
            for i in range(points - 1):
                row, column = first_row + j, first_column + i
                if not (0 <= row < n_frequencies and 0 <= column < n_frequencies):
                    continue
                if (value := filter_[row, column]) < 1e-4:
                    continue
                places.append((row * n_frequencies + column, (j * points + i) * n_orientations + orientation))
                angle = shift * (row + column - (side - 2))
                weights.append((value * np.cos(angle) / side**2, value * np.sin(angle) / side**2))
    turn = 2 * np.pi * np.arange(points // 2) / points
    bits = points.bit_length() - 1
    order = [int(f"{row:0{bits}b}"[::-1], 2) for row in range(points)]
    return Scale(
        points,
        np.array(places, np.int64),
        np.array(weights, np.float32),
        np.stack([np.cos(turn), np.sin(turn)], axis=1).astype(np.float32),
        np.array(order),
    )

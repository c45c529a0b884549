"""Wavelet texture of NUS-WIDE: strengths of the bands of a Haar wavelet tree.

Sums and differences of gray values are integers, so every sum is exact and its order does not matter.
"""

import numpy as np

from bitmosaic.features.color import by_pieces, luminance
from bitmosaic.features.registry import register

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

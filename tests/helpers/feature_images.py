"""Images for the tests of feature extractors."""

import numpy as np
from skimage import data

SIZES = [(1, 1), (2, 3), (7, 5), (32, 32), (100, 60)]


def random_images(n, height, width, seed=0):
    return np.random.default_rng(seed).integers(256, size=(n, height, width, 3), dtype=np.uint8)


def photo(height, width):
    return np.ascontiguousarray(data.astronaut()[40 : 40 + height, 180 : 180 + width])

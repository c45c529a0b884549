"""Wavelet texture against PyWavelets, at even, odd and tiny sizes."""

import numpy as np
import pytest
import pywt
from PIL import Image
from skimage import data

from bitmosaic.features.registry import extractor
from bitmosaic.features.texture import split

SHAPES = [(1, 1), (1, 7), (5, 3), (8, 8), (32, 32), (33, 46)]


def random_images(n, height, width):
    return np.stack([data.astronaut()[5 * k : 5 * k + height, 4 * k : 4 * k + width] for k in range(n)])


def bands_by_pywavelets(gray):
    return pywt.dwt2(gray, "haar", mode="symmetric")  # smooth, (down, across, diagonal)


def strengths(band):
    return [np.abs(band).mean(), np.abs(band).std()]


@pytest.mark.parametrize("shape", SHAPES)
def test_coefficients_agree_with_pywavelets(shape):
    gray = np.random.default_rng(1).integers(0, 256, shape).astype(np.int32)
    smooth, details = bands_by_pywavelets(gray)
    np.testing.assert_allclose(split(gray) / 2, np.stack([smooth, *details]), atol=1e-10)


@pytest.mark.parametrize("shape", SHAPES)
def test_features_agree_with_a_walk_of_pywavelets_tree(shape):
    image = random_images(3, *shape)[2]
    nodes = [np.asarray(Image.fromarray(image).convert("L"), np.float64)]
    pyramid, tree = [], []
    for _level in range(3):
        children = []
        for k, node in enumerate(nodes):
            smooth, (down, across, diagonal) = bands_by_pywavelets(node)
            numbers = [number for band in (smooth, down, across, diagonal) for number in strengths(band)]
            tree += numbers
            pyramid += numbers if k == 0 else []  # the first node of a level is the smooth band of the first above
            children += [smooth, down, across]
        nodes = children
    assert (len(pyramid), len(tree)) == (24, 104)
    np.testing.assert_allclose(extractor("wt")(image[None])[0], pyramid + tree, rtol=1e-5, atol=1e-4)


def test_a_plain_image_has_strength_in_the_smooth_bands_only():
    features = extractor("wt")(np.full((1, 16, 16, 3), 40, np.uint8))[0]
    assert features[[0, 8, 16]].tolist() == [80, 160, 320]
    assert np.count_nonzero(features) == 6  # each of the three in the pyramid and in the tree


def test_horizontal_stripes_differ_downwards_only():
    stripes = np.zeros((1, 16, 16, 3), np.uint8)
    stripes[:, ::2] = 100
    first_level = extractor("wt")(stripes)[0, :8].reshape(4, 2)
    np.testing.assert_array_equal(first_level[:, 0], [100, 100, 0, 0])

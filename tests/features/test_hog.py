"""Histograms of gradients agree with scikit-image where both mean the same, with plain NumPy, and with the mirror."""

import numpy as np
import pytest
import skimage.feature
from feature_images import photo, random_images

from bitmosaic.errors import ParameterError
from bitmosaic.features import extractor, gradients


def gradient_histograms_numpy(image, grid, orientations):
    """Pixel by pixel, in float64, with NumPy's arctan2; every cell looks at every pixel."""
    padded = np.pad(image.astype(float), ((1, 1), (1, 1), (0, 0)), mode="edge")
    across = padded[1:-1, 2:] - padded[1:-1, :-2]
    down = padded[2:, 1:-1] - padded[:-2, 1:-1]
    strongest = (across**2 + down**2).argmax(axis=2)[..., None]
    across, down = (np.take_along_axis(part, strongest, 2)[..., 0] for part in (across, down))
    height, width = across.shape
    direction = np.arctan2(down, across) / (2 * np.pi) * orientations
    out = np.zeros((grid, grid, orientations))
    for y in range(height):
        for x in range(width):
            row = np.maximum(0, 1 - np.abs((y + 0.5) * grid / height - 0.5 - np.arange(grid)))
            column = np.maximum(0, 1 - np.abs((x + 0.5) * grid / width - 0.5 - np.arange(grid)))
            apart = (direction[y, x] - np.arange(orientations) + orientations / 2) % orientations - orientations / 2
            bins = np.maximum(0, 1 - np.abs(apart))
            out += np.hypot(across[y, x], down[y, x]) * np.einsum("a,b,k", row, column, bins)
    return out * grid**2 / (height * width)


def hog_numpy(histograms):
    half = histograms.shape[2] // 2
    energy = np.pad(((histograms[..., :half] + histograms[..., half:]) ** 2).sum(axis=2), 1, mode="edge")
    out = np.zeros_like(histograms)
    blocks = energy[1:, 1:] + energy[:-1, 1:] + energy[1:, :-1] + energy[:-1, :-1]  # (g + 1, g + 1)
    for rows in (slice(None, -1), slice(1, None)):
        for columns in (slice(None, -1), slice(1, None)):
            out += np.minimum(histograms / np.sqrt(blocks[rows, columns, None] + 60**2), 0.2) / 4
    return out


@pytest.mark.parametrize(("height", "width"), [(2, 3), (7, 5), (32, 32), (20, 45)])
@pytest.mark.parametrize(("grid", "orientations"), [(8, 18), (3, 4)])
def test_kernels_agree_with_numpy(height, width, grid, orientations):
    for image in [random_images(1, height, width)[0], photo(height, width)]:
        histograms = gradient_histograms_numpy(image, grid, orientations)
        np.testing.assert_allclose(
            gradients.gradient_histograms(image[None], grid, orientations)[0], histograms, rtol=1e-4, atol=1e-4
        )
        features = extractor("hog", grid=grid, orientations=orientations)(image[None])
        np.testing.assert_allclose(features[0], hog_numpy(histograms).ravel(), atol=1e-5)


def test_histograms_are_those_of_scikit_image():
    # What differs: scikit-image shares no vote between cells or bins, folds opposite directions, normalises blocks its
    # own way, and has no gradient across the image's border, where this one takes the one-sided difference. Repeating
    # the outermost pixels makes both zero there.
    image = np.pad(photo(30, 30), ((1, 1), (1, 1), (0, 0)), mode="edge")
    ours = gradients.gradient_histograms(image[None], 8, 9, signed=False, soft=False)[0]
    theirs = skimage.feature.hog(
        image,
        orientations=9,
        pixels_per_cell=(4, 4),
        cells_per_block=(1, 1),
        block_norm="L2",
        channel_axis=2,
        feature_vector=False,
    )[:, :, 0, 0]
    lengths = np.sqrt((ours**2).sum(axis=2, keepdims=True) + 1e-10)
    np.testing.assert_allclose(ours / lengths, theirs, atol=1e-5)


def test_a_flat_image_has_no_edges():
    assert not extractor("hog")(np.full((1, 20, 20, 3), 77, np.uint8)).any()


@pytest.mark.parametrize("bin_", [0, 9])
def test_an_edge_votes_for_its_direction(bin_):
    angle = 2 * np.pi * bin_ / 18
    y, x = np.mgrid[:64, :64] - 31.5
    image = np.repeat((127 + 2.5 * (x * np.cos(angle) + y * np.sin(angle)))[..., None], 3, axis=2).astype(np.uint8)
    assert gradients.gradient_histograms(image[None], 1, 18)[0, 0, 0].argmax() == bin_


def test_bad_options_are_refused():
    with pytest.raises(ParameterError, match="hog: orientations must be even, as each has its opposite; got 9"):
        extractor("hog", orientations=9)
    with pytest.raises(ParameterError, match=r"hog: grid must be an integer of at least 1; got 2\.5"):
        extractor("hog", grid=2.5)

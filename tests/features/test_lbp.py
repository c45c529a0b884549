"""Local binary patterns agree with scikit-image, with plain NumPy, and with the mirrored image."""

import numpy as np
import pytest
from feature_images import SIZES, photo, random_images
from skimage.feature import local_binary_pattern

from bitmosaic.errors import ParameterError
from bitmosaic.features import extractor, kernels, texture


def gray_and_codes(image):
    """The kernel's padded gray image and codes."""
    height, width, _ = image.shape
    gray, codes = np.empty((height + 2, width + 2), np.uint16), np.empty((height, width), np.uint8)
    kernels.pad_gray(image, gray)
    kernels.lbp_codes(gray, codes)
    return gray, codes


def codes_numpy(image):
    gray = np.pad(image.astype(int) @ [77, 150, 29], 1, mode="edge")
    height, width = image.shape[:2]
    codes = np.zeros((height, width), int)
    around = [(0, 1), (-1, 1), (-1, 0), (-1, -1), (0, -1), (1, -1), (1, 0), (1, 1)]
    for bit, (down, right) in enumerate(around):
        neighbor = gray[1 + down : 1 + down + height, 1 + right : 1 + right + width]
        codes += (neighbor >= gray[1:-1, 1:-1]) << bit
    return codes


def pattern_counts_numpy(image, grid):
    """Histograms of the codes of each cell; a cell reaches from the pixel its border cuts to the one its end cuts."""
    codes = codes_numpy(image)
    inner = codes[tuple(slice(1, -1) if side >= 3 else slice(None) for side in codes.shape)]
    height, width = inner.shape
    counts = np.zeros((grid, grid, 58), int)
    for a in range(grid):
        for b in range(grid):
            rows = slice(int(np.floor(a * height / grid)), int(np.ceil((a + 1) * height / grid)))
            columns = slice(int(np.floor(b * width / grid)), int(np.ceil((b + 1) * width / grid)))
            counts[a, b] = np.bincount(inner[rows, columns].ravel(), minlength=256)[texture.UNIFORM]
    return counts


@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize("grid", [1, 4, 5])
def test_counts_agree_with_numpy(height, width, grid):
    for image in [*random_images(2, height, width), photo(height, width)]:
        counts = texture.pattern_counts(image[None], grid)[0]
        np.testing.assert_array_equal(counts, pattern_counts_numpy(image, grid))


def test_codes_are_those_of_scikit_image():
    # scikit-image takes neighbors on a circle. Radius 1 has the four beside the pixel, radius √2 the four diagonal
    # ones; the others of its neighbors lie between pixels and have no counterpart here.
    gray, codes = gray_and_codes(photo(64, 48))
    image = gray[1:-1, 1:-1].astype(np.int64)
    beside = local_binary_pattern(image, P=4, R=1).astype(int)
    diagonal = local_binary_pattern(image, P=8, R=np.sqrt(2)).astype(int)
    for bit in range(4):
        np.testing.assert_array_equal((codes >> 2 * bit & 1)[1:-1, 1:-1], (beside >> bit & 1)[1:-1, 1:-1])
        np.testing.assert_array_equal((codes >> 2 * bit + 1 & 1)[1:-1, 1:-1], (diagonal >> 2 * bit + 1 & 1)[1:-1, 1:-1])


def test_the_58_patterns_are_the_uniform_ones_of_scikit_image():
    around = [(1, 2), (0, 2), (0, 1), (0, 0), (1, 0), (2, 0), (2, 1), (2, 2)]
    labels = []
    for code in range(256):
        patch = np.full((3, 3), 100)
        for bit, place in enumerate(around):  # diagonal neighbors are strong enough to outvote the interpolation
            patch[place] += (1 if code >> bit & 1 else -1) * (50 if bit % 2 else 1)
        labels.append(int(local_binary_pattern(patch, 8, 1, "nri_uniform")[1, 1]))
    pairs = set(zip(texture.BIN_OF_CODE.tolist(), labels, strict=True))
    assert len(pairs) == len({ours for ours, _ in pairs}) == len({theirs for _, theirs in pairs}) == 59
    assert (58, 58) in pairs  # what is not uniform is so for both


@pytest.mark.parametrize(("normalisation", "order"), [("l1", 1), ("l2", 2)])
def test_cells_are_normalized(normalisation, order):
    image = photo(32, 32)[None]
    counts = extractor("lbp", normalisation="none")(image).reshape(25, 58)
    features = extractor("lbp", normalisation=normalisation)(image).reshape(25, 58)
    np.testing.assert_allclose(features, counts / np.linalg.norm(counts, order, axis=1, keepdims=True), rtol=1e-6)


def test_a_change_of_brightness_and_contrast_changes_nothing():
    dark = photo(32, 32) // 4
    lbp_ = extractor("lbp")
    np.testing.assert_array_equal(lbp_((2 * dark + 40)[None]), lbp_(dark[None]))


def test_bad_options_are_refused():
    with pytest.raises(ParameterError, match="lbp: grid must be an integer of at least 1; got 0"):
        extractor("lbp", grid=0)
    with pytest.raises(ParameterError, match=r"normalisation must be one of \('root'.*got 'max'"):
        extractor("lbp", normalisation="max")

"""Color features against scikit-image, Pillow and plain loops."""

import numpy as np
import pytest
from PIL import Image
from skimage import data
from skimage.color import rgb2hsv, rgb2lab

from bitmosaic.errors import ParameterError
from bitmosaic.features import color
from bitmosaic.features.registry import extractor

NAMES = ["ch", "cm", "corr"]
SHAPES = [(1, 1), (1, 9), (3, 2), (32, 32), (37, 50)]
FEW_COLORS = np.array([[250, 20, 30], [20, 200, 40], [30, 60, 220], [128, 128, 128], [250, 250, 250], [5, 5, 5]])


def random_images(n, height, width, seed=0):
    """Noisy crops of a photograph: many colors, and gray, black and white among them."""
    rng = np.random.default_rng(seed)
    photo = data.astronaut()
    crops = []
    for _ in range(n):
        top, left = rng.integers(0, 512 - height), rng.integers(0, 512 - width)
        crops.append(photo[top : top + height, left : left + width])
    return np.stack(crops)


def every_kind_of_color():
    """A 64 × 64 image with all combinations of 16 levels of red, green and blue."""
    levels = np.arange(0, 256, 17, dtype=np.uint8)
    return np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(1, 64, 64, 3)


def test_lab_agrees_with_scikit_image():
    images = np.concatenate([every_kind_of_color(), random_images(2, 64, 64)])
    np.testing.assert_allclose(np.moveaxis(color.rgb_to_lab(images), 0, -1), rgb2lab(images), atol=2e-3)


def test_hsv_agrees_with_scikit_image():
    images = np.concatenate([every_kind_of_color(), random_images(2, 64, 64)])
    np.testing.assert_allclose(np.moveaxis(color.rgb_to_hsv(images), 0, -1), rgb2hsv(images), atol=1e-6)


def test_luminance_is_identical_to_pillows():
    image = every_kind_of_color()[0]
    np.testing.assert_array_equal(color.luminance(image[None])[0], np.asarray(Image.fromarray(image).convert("L")))


@pytest.mark.parametrize(
    ("rgb", "number"),
    [
        ((0, 0, 0), 0),
        ((50, 0, 0), 0),  # value 0.196: black at any hue
        ((51, 51, 51), 1),
        ((128, 128, 128), 4),
        ((203, 203, 203), 6),
        ((204, 204, 204), 7),
        ((255, 255, 255), 7),
        ((255, 0, 0), 8 + 3),
        ((100, 0, 0), 8 + 2),
        ((255, 128, 128), 8 + 1),
        ((100, 60, 60), 8),
        ((255, 0, 64), 8 + 3),  # hue 345°, also red
        ((255, 128, 0), 12 + 3),
        ((255, 255, 0), 16 + 3),
        ((0, 255, 0), 20 + 3),
        ((0, 255, 255), 24 + 3),
        ((0, 0, 255), 28 + 3),
        ((255, 0, 255), 32 + 3),
    ],
)
def test_a_known_color_gets_its_number(rgb, number):
    assert color.quantize_hsv(np.array(rgb, np.uint8).reshape(1, 1, 1, 3)).item() == number


def test_all_36_colors_are_reached():
    assert set(color.quantize_hsv(every_kind_of_color()).ravel()) == set(range(36))


def test_histogram_agrees_with_numpys_on_scikit_images_lab():
    image = random_images(1, 48, 40)[0]
    expected, _ = np.histogramdd(rgb2lab(image).reshape(-1, 3), 4, range=[(0, 100), (-128, 127), (-128, 127)])
    found = extractor("ch")(image[None])[0]
    assert np.abs(found * 48 * 40 - expected.ravel()).sum() <= 4  # two pixels may lie on a border within rounding
    assert found.sum() == pytest.approx(1)


def test_histogram_bins_cover_all_srgb_colors():
    lab = rgb2lab(every_kind_of_color()).reshape(-1, 3)
    assert (lab.min(axis=0) >= color.LAB_LOWEST - 1e-4).all()
    assert (lab.max(axis=0) <= color.LAB_HIGHEST + 1e-4).all()


def test_grays_of_similar_lightness_share_a_bin():
    grays = np.arange(256, dtype=np.uint8).reshape(256, 1, 1, 1).repeat(3, axis=3)
    assert np.count_nonzero(extractor("ch")(grays).sum(axis=0)) == 4


def test_moments_agree_with_numpy_block_by_block():
    images = random_images(2, 32, 47)
    found = extractor("cm")(images).reshape(2, 5, 5, 3, 3)
    lab = rgb2lab(images)
    for row, (top, bottom) in enumerate([(0, 7), (6, 13), (12, 20), (19, 26), (25, 32)]):
        for column, (left, right) in enumerate([(0, 10), (9, 19), (18, 29), (28, 38), (37, 47)]):
            block = lab[:, top:bottom, left:right].reshape(2, -1, 3)
            mean = block.mean(axis=1)
            third = ((block - mean[:, None]) ** 3).mean(axis=1)
            expected = np.stack([mean, block.std(axis=1), np.cbrt(third)], axis=-1)
            np.testing.assert_allclose(found[:, row, column], expected, atol=5e-3)


def test_a_mirrored_block_gives_the_same_bits_even_in_double_precision():
    from bitmosaic.features.kernels import block_moments

    planes = color.rgb_to_lab(random_images(3, 20, 23))
    borders, mirrored_borders = np.array([[0, 8], [3, 14], [9, 20]]), np.array([[15, 23], [9, 20], [3, 14]])
    found, mirrored = np.empty((2, 3, 3, 3, 3, 3))
    block_moments(planes, borders, borders, found)
    block_moments(np.ascontiguousarray(planes[..., ::-1]), borders, mirrored_borders, mirrored)
    np.testing.assert_array_equal(found, mirrored)


def test_moments_of_one_pixel_are_its_color_without_spread():
    pixel = np.array([200, 30, 90], np.uint8).reshape(1, 1, 1, 3)
    moments = extractor("cm")(pixel).reshape(25, 3, 3)
    np.testing.assert_allclose(moments[:, :, 0], np.tile(rgb2lab(pixel).ravel(), (25, 1)), atol=1e-3)
    np.testing.assert_array_equal(moments[:, :, 1:], 0)


@pytest.mark.parametrize("shape", [(1, 1), (9, 12)])
def test_correlogram_agrees_with_a_loop_over_all_pairs(shape):
    rng = np.random.default_rng(3)
    image = FEW_COLORS[rng.integers(0, len(FEW_COLORS), shape)].astype(np.uint8)
    colors = color.quantize_hsv(image[None])[0]
    expected = np.zeros((36, 4))
    places = np.argwhere(np.ones(shape))
    apart = np.abs(places[:, None] - places).max(axis=-1)
    equal = colors.ravel()[:, None] == colors.ravel()
    for number in np.unique(colors):
        mine = colors.ravel() == number
        for k, distance in enumerate((1, 3, 5, 7)):
            ring = apart[mine] == distance
            expected[number, k] = equal[mine][ring].sum() / max(ring.sum(), 1)
    np.testing.assert_allclose(extractor("corr")(image[None]).reshape(36, 4), expected, rtol=1e-6)


def test_correlogram_of_one_color_is_certain_at_every_distance():
    features = extractor("corr")(np.full((1, 20, 20, 3), 255, np.uint8)).reshape(36, 4)
    np.testing.assert_array_equal(features[7], 1)
    assert features.sum() == 4


def test_widths_are_those_of_nus_wide():
    assert [extractor(name).width for name in NAMES] == [64, 225, 144]


@pytest.mark.parametrize(
    ("name", "options", "width"), [("ch", {"bins": 3}, 27), ("cm", {"grid": 2}, 36), ("corr", {"distances": (2,)}, 36)]
)
def test_options_change_the_width(name, options, width):
    features = extractor(name, **options)
    assert features.width == width
    assert features(random_images(2, 10, 10)).shape == (2, width)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ch", {"bins": 0}, "ch: bins must be an integer of at least 1; got 0"),
        ("ch", {"bins": True}, "ch: bins must be an integer of at least 1; got True"),
        ("cm", {"grid": 2.5}, "cm: grid must be an integer of at least 1; got 2.5"),
        ("corr", {"distances": (1, 0)}, "corr: each distance must be an integer of at least 1; got 0"),
    ],
)
def test_an_invalid_option_is_named(name, options, message):
    with pytest.raises(ParameterError, match=message):
        extractor(name, **options)

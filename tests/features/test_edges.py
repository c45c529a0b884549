"""Edge directions against scikit-image's Canny and SciPy's Sobel, and on images whose edges are known."""

import numpy as np
import pytest
from scipy import ndimage
from skimage import data
from skimage.feature import canny

from bitmosaic.errors import ParameterError
from bitmosaic.features import gradients
from bitmosaic.features.registry import extractor


def photo(height=128, width=128):
    return data.astronaut()[None, 30 : 30 + height, 160 : 160 + width]


def in_gray(values):
    return np.repeat(np.asarray(values, np.uint8)[None, :, :, None], 3, axis=3)


def ramp_disc():
    """A bright disc with a soft rim, whose gradient points inwards in every direction."""
    y, x = np.mgrid[-40:41, -40:41]
    return in_gray(np.clip(255 * (30 - np.hypot(y, x)) / 10, 0, 255))


def test_gradients_are_scipys_sobel_of_the_smoothed_image():
    gray = photo()[..., 1].astype(np.int32)
    right, down = gradients.gradients(gray)
    smooth = ndimage.correlate(gray[0], np.outer([1, 2, 1], [1, 2, 1]), mode="nearest")
    np.testing.assert_array_equal(right[0], ndimage.sobel(smooth, axis=1, mode="nearest"))
    np.testing.assert_array_equal(down[0], ndimage.sobel(smooth, axis=0, mode="nearest"))


def test_edges_are_scikit_images_canny():
    gray = photo()[..., 1].astype(np.int32)
    smooth = ndimage.correlate(gray[0], np.outer([1, 2, 1], [1, 2, 1]), mode="nearest") / (16 * 255)
    right, down = gradients.gradients(gray)
    for low, high in [(0.1, 0.2), (0.2, 0.5), (0.4, 1.0)]:
        found = gradients.canny_edges(right, down, low * 16 * 255, high * 16 * 255)[0]
        expected = canny(smooth, sigma=0, low_threshold=low, high_threshold=high)
        # Magnitudes are rounded to integers here, so a near tie may be decided differently.
        assert np.mean(found != expected) < 0.002
        assert 0.02 < found.mean() < 0.4


def test_weak_edges_stay_only_where_they_touch_a_strong_one():
    step = np.zeros((40, 40))
    step[:20, 20:] = np.linspace(60, 12, 20)[:, None]  # strong at the top, weaker toward the bottom
    step[27:, 20:] = 12  # equally weak, and not connected
    right, down = gradients.gradients(in_gray(step)[..., 0].astype(np.int32))
    unit = 16 * 255
    weak = gradients.canny_edges(right, down, 0.1 * unit, 0.1 * unit)[0]
    found = gradients.canny_edges(right, down, 0.1 * unit, 0.5 * unit)[0]
    assert weak[30:35, 19:21].any()
    assert not found[25:].any()
    assert found[2:18, 19:21].any(axis=1).all()


def test_hysteresis_does_not_reach_into_the_next_image():
    weak, strong = np.zeros((20, 20)), np.zeros((20, 20))
    weak[:, 10:], strong[:, 10:] = 12, 200
    together = np.concatenate([in_gray(strong), in_gray(weak), in_gray(strong)])
    features = extractor("edh")(together)
    assert features[1, 72] == 1
    assert features[0, 72] < 1


@pytest.mark.parametrize(("turns", "direction"), [(0, 0), (1, 54), (2, 36), (3, 18)])
def test_a_step_has_one_direction_from_dark_to_bright(turns, direction):
    step = np.zeros((24, 24))
    step[:, 12:] = 255
    features = extractor("edh")(in_gray(np.rot90(step, turns)))[0]
    assert features[direction] == 1
    assert features[:72].sum() == 1
    assert features[72] == pytest.approx(1 - 2 * 22 / 24**2)  # two columns of equal magnitude, without the borders


def test_directions_are_the_nearest_multiple_of_five_degrees():
    rng = np.random.default_rng(0)
    right, down = rng.integers(-16320, 16321, (2, 5000))
    expected = np.rint(np.degrees(np.arctan2(down, right)) / 5).astype(int) % 72
    np.testing.assert_array_equal(gradients.direction_bins(right, down), expected)


def test_a_disc_has_every_direction():
    features = extractor("edh")(ramp_disc())[0]
    assert (features[:72] > 0).all()
    assert features[:72].sum() == pytest.approx(1)


@pytest.mark.parametrize("shape", [(1, 1), (1, 30), (2, 2), (12, 12)])
def test_an_image_without_edges_is_all_in_the_last_bin(shape):
    features = extractor("edh")(np.full((1, *shape, 3), 77, np.uint8))[0]
    np.testing.assert_array_equal(features, np.append(np.zeros(72), 1))


def test_last_bin_is_the_share_of_pixels_that_are_not_edges():
    image = photo()
    right, down = gradients.gradients(gradients.luminance(image))
    found = gradients.canny_edges(right, down, 0.2 * 16 * 255, 0.5 * 16 * 255)
    assert extractor("edh", low=0.2, high=0.5)(image)[0, 72] == pytest.approx(1 - found.mean())


@pytest.mark.parametrize(("low", "high"), [(0, 0.5), (0.6, 0.5), (float("nan"), 0.5)])
def test_thresholds_out_of_order_are_refused(low, high):
    with pytest.raises(ParameterError, match=f"must be 0 < low <= high; got low={low}, high={high}"):
        extractor("edh", low=low, high=high)

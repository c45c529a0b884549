"""Gabor energies agree with filtering at full size, with NumPy's Fourier transform, and with the mirrored image."""

import numpy as np
import pytest
from feature_images import photo
from scipy.ndimage import gaussian_filter

from bitmosaic.errors import ParameterError
from bitmosaic.features import extractor, gist, kernels


def energies_at_full_size(light, orientations, grid):
    """Each filter on the whole spectrum, |response|² at every pixel, in float64."""
    side = len(light)
    spectrum = np.fft.fft2(light)
    out = []
    for k in range(4):
        for filter_ in gist.gabor_filters(side, 0.35 / 1.85**k, orientations):
            whole = np.zeros((side, side))
            whole[1:, 1:] = filter_
            response = np.abs(np.fft.ifft2(spectrum * np.fft.ifftshift(whole))) ** 2
            out.append(np.sqrt(response.reshape(grid, side // grid, grid, side // grid).mean(axis=(1, 3))))
    return np.array(out).reshape(4, orientations, grid, grid)


@pytest.mark.parametrize("side", [32, 64])
def test_small_boxes_of_frequencies_give_the_energies_of_full_size(side):
    light = gist.normalize_contrast(photo(side, side)[None], 64)
    small = gist.gabor_energies(light, 16, 4)[0]
    full = energies_at_full_size(light[0], 16, 4)
    # Fewer points to average over, and up to 0.5 % of a filter's energy outside its box.
    errors = np.linalg.norm((small - full).reshape(4, -1), axis=1) / np.linalg.norm(full.reshape(4, -1), axis=1)
    assert errors.max() < 0.03


@pytest.mark.parametrize("side", [32, 64])
def test_energy_over_the_whole_image_is_that_of_the_filtered_spectrum(side):
    light = gist.normalize_contrast(photo(side, side)[None], 64)
    np.testing.assert_allclose(
        gist.gabor_energies(light, 16, 1)[0], energies_at_full_size(light[0], 16, 1), rtol=0.03, atol=1e-5
    )


def test_spectra_are_numpys():
    light = np.random.default_rng(0).normal(size=(3, 32, 32)).astype(np.float32)
    out = np.empty((3, 2, 31, 31), np.float32)
    kernels.spectra(light, *gist.fourier_waves(32), np.empty((3, 32, 32), np.float32), out)
    expected = np.fft.fftshift(np.fft.fft2(light), axes=(1, 2))[:, 1:, 1:]
    np.testing.assert_allclose(out[:, 0] + 1j * out[:, 1], expected, atol=1e-4)


def test_inverse_transform_is_numpys_in_bit_reversed_order():
    rng = np.random.default_rng(0)
    for scale in gist.gabor_scales(64, 4):
        values = rng.normal(size=(2, scale.points, 5)).astype(np.float32)
        expected = np.fft.ifft(values[0] + 1j * values[1], axis=0, norm="forward")
        kernels.inverse_transform(values[0], values[1], scale.turns)
        np.testing.assert_allclose(values[0] + 1j * values[1], expected[scale.order], atol=1e-4)


def test_contrast_is_normalized_by_a_gaussian_blur():
    image = photo(32, 32)
    log = np.log1p((image.astype(int) @ [77, 150, 29] + 128) // 256)
    centerd = log - gaussian_filter(log, 2, mode="reflect")
    expected = centerd / (0.2 + np.sqrt(gaussian_filter(centerd**2, 2, mode="reflect")))
    np.testing.assert_allclose(gist.normalize_contrast(image[None], 64)[0], expected, atol=1e-4)


@pytest.mark.parametrize("orientation", [0, 8])
def test_a_grating_has_its_maximum_at_its_own_direction_and_scale(orientation):
    angle = np.pi * orientation / 16
    y, x = np.mgrid[:64, :64]
    wave = np.sin(2 * np.pi * 0.19 * (x * np.cos(angle) + y * np.sin(angle)))
    image = np.repeat((127 + 100 * wave)[..., None], 3, axis=2).astype(np.uint8)
    energy = extractor("gist")(image[None]).reshape(4, 16, 16).mean(axis=2)
    assert np.unravel_index(energy.argmax(), energy.shape) == (1, orientation)


@pytest.mark.parametrize(("pixels", "points"), [(1, 32), (100, 64)])
def test_resampling_keeps_a_flat_image_flat_and_is_symmetric(pixels, points):
    weights = gist.resampling(pixels, points)
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(weights, weights[::-1, ::-1], atol=1e-6)
    if pixels == points:
        np.testing.assert_array_equal(weights, np.eye(pixels))


def test_an_enlarged_image_keeps_its_features():
    image = photo(128, 128)
    large = image.repeat(3, axis=0).repeat(3, axis=1)
    small, big = extractor("gist")(image[None]), extractor("gist")(large[None])
    assert np.corrcoef(small[0], big[0])[0, 1] > 0.99


def test_a_flat_image_has_no_structure():
    assert extractor("gist")(np.full((1, 40, 40, 3), 200, np.uint8)).max() < 1e-4


def test_bad_options_are_refused():
    with pytest.raises(ParameterError, match="gist: grid must be 1, 2, 4 or 8; got 3"):
        extractor("gist", grid=3)
    with pytest.raises(ParameterError, match="gist: size must be a power of two of at least 32; got 100"):
        extractor("gist", size=100)

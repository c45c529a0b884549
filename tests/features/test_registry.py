"""The registry finds extractors, reports errors, and keeps the order of images of mixed shapes."""

import subprocess
import sys
from importlib import import_module
from importlib.metadata import EntryPoint

import numpy as np
import pytest

from bitmosaic.errors import BitmosaicError, InvalidDataError, ParameterError
from bitmosaic.features import extract, extractor, extractor_names, register, registry


class Brightness:
    """A user's own extractor: the mean of each channel, times `gain`."""

    name, width = "brightness", 3

    def __init__(self, *, gain=1.0, mirror=False):
        self.gain = gain

    def __call__(self, images):
        return (self.gain * images.mean(axis=(1, 2))).astype(np.float32)


class Broken(Brightness):
    width = 4


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch):
    """Undo the registrations of a test. The built-in modules register only on import, so they are imported first."""
    for module in registry.BUILT_IN.values():
        import_module(module)
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))


def mixed_images(n=150, seed=0):
    rng = np.random.default_rng(seed)
    shapes = [(32, 32), (7, 5), (40, 64), (1, 1)]
    return [rng.integers(256, size=(*shapes[i], 3), dtype=np.uint8) for i in rng.integers(4, size=n)]


def install(monkeypatch, name, value):
    points = [EntryPoint(name, value, registry.ENTRY_POINTS)]
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == registry.ENTRY_POINTS else [])


def test_the_built_in_names_are_listed():
    assert {"lbp", "gist", "hog", "ch", "cm", "corr", "edh", "wt", "onnx"} <= set(extractor_names())
    assert extractor_names() == sorted(extractor_names())


def test_importing_the_features_loads_no_heavy_library():
    code = "import sys, bitmosaic.features; print([m for m in ('numba', 'scipy', 'sklearn') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(BitmosaicError, match=r"Unknown extractor 'sift'; the extractors are .*gist, hog, lbp"):
        extractor("sift")


def test_an_unknown_option_is_named():
    with pytest.raises(ParameterError, match=r"'lbp' takes other options: .* argument 'cells'"):
        extractor("lbp", cells=3)


def test_a_registered_class_is_found_with_its_options():
    assert register("brightness")(Brightness) is Brightness
    assert "brightness" in extractor_names()
    assert extractor("brightness", gain=2.0).gain == 2.0


def test_a_factory_that_takes_any_keyword_gets_them_all():
    @register("own")
    def own(**options):
        return Brightness(gain=options["anything"])

    assert extractor("own", anything=3.0).gain == 3.0


def test_a_built_in_name_cannot_be_taken():
    with pytest.raises(ParameterError, match="'hog' is the name of a built-in extractor"):
        register("hog")(Brightness)


def test_a_name_must_be_a_valid_file_name():
    with pytest.raises(ParameterError, match=r"must be letters, digits, '_' and '-'.*got 'a/b'"):
        register("a/b")


def test_an_installed_extractor_is_found_by_its_entry_point(monkeypatch):
    monkeypatch.setitem(sys.modules, "a_package", sys.modules[__name__])
    install(monkeypatch, "glow", "a_package:Brightness")
    assert "glow" in extractor_names()
    assert isinstance(extractor("glow", gain=2.0), Brightness)


def test_an_installed_extractor_that_fails_to_load_says_why(monkeypatch):
    install(monkeypatch, "glow", "no_such_package:Glow")
    with pytest.raises(ParameterError, match=r"'glow' could not be loaded from 'no_such_package:Glow': ModuleNotFound"):
        extractor("glow")


@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_rows_are_in_the_order_of_the_images_for_any_shapes_and_threads(n_threads):
    images = mixed_images()
    plain, double = extract([Brightness(), Brightness(gain=2)], images, n_threads)
    expected = np.array([image.mean(axis=(0, 1)) for image in images])
    assert plain.dtype == np.float32
    np.testing.assert_allclose(plain, expected, rtol=1e-6)
    np.testing.assert_array_equal(double, 2 * plain)


@pytest.mark.parametrize("name", sorted(registry.HAND_MADE))
def test_an_image_has_the_same_bits_alone_in_a_batch_and_on_any_number_of_threads(name):
    images, one = mixed_images(90), extractor(name, mirror=name != "lbp")
    (expected,) = extract([one], images, 1)
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(extract([one], images, 3)[0], expected)
    np.testing.assert_array_equal(extract([one], images[::-1], 2)[0], expected[::-1])
    for image, row in zip(images, expected, strict=True):
        np.testing.assert_array_equal(one(image[None])[0], row)


@pytest.mark.parametrize("name", sorted(registry.HAND_MADE))
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (9, 12), (33, 47)])
def test_mirror_is_the_maximum_over_the_image_and_its_mirror_image(name, shape):
    images = np.random.default_rng(0).integers(256, size=(5, *shape, 3), dtype=np.uint8)
    features = extractor(name)
    expected = np.maximum(features(images), features(images[:, :, ::-1]))
    rounding = 1e-5 if name in ("gist", "hog") else 0  # they add up in another order
    np.testing.assert_allclose(extractor(name, mirror=True)(images), expected, rtol=0, atol=rounding)


def test_no_images_give_views_without_rows():
    assert extract([Brightness()], [])[0].shape == (0, 3)


def test_an_extractor_that_returns_another_shape_is_named():
    with pytest.raises(InvalidDataError, match=r"'brightness' must return shape \(2, 4\) for 2 images; got \(2, 3\)"):
        extract([Broken()], list(np.zeros((2, 4, 4, 3), np.uint8)))

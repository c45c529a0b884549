"""Arrays of images: uint8 or floats, gray or color, in memory or in a .npy file."""

import numpy as np
import pytest
from image_files import sample_image

from bitmosaic.errors import DataTypeError, FileFormatError, InvalidDataError
from bitmosaic.images import open_images


@pytest.fixture
def color():
    return np.stack([sample_image(i, 12, 16) for i in range(5)])


def images_of(array, **options):
    (batch,) = open_images(array).batches(**options)
    assert not batch.skipped
    return np.stack(batch.images)


def test_color_images_are_returned_unchanged_as_copies(color):
    images = images_of(color)
    np.testing.assert_array_equal(images, color)
    (batch,) = open_images(color).batches()
    assert not np.shares_memory(batch.images[0], color)
    assert open_images(color).paths == ("0", "1", "2", "3", "4")
    assert open_images(color).labels() is None


@pytest.mark.parametrize("channels", [(), (1,)])
def test_gray_is_repeated(color, channels):
    gray = color[..., 0]
    np.testing.assert_array_equal(images_of(gray.reshape(*gray.shape, *channels)), np.repeat(gray[..., None], 3, 3))


def test_alpha_is_composited_on_white(color):
    alpha = np.random.default_rng(0).integers(0, 256, (5, 12, 16, 1), dtype=np.uint8)
    expected = color * (alpha / 255) + 255 - alpha
    np.testing.assert_allclose(images_of(np.concatenate([color, alpha], axis=3)), expected, atol=0.51)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_from_0_to_1_become_bytes(color, dtype):
    np.testing.assert_array_equal(images_of((color / 255).astype(dtype)), color)


def test_booleans_become_black_and_white(color):
    np.testing.assert_array_equal(images_of(color > 100), np.where(color > 100, 255, 0))


def test_strided_and_reversed_arrays_are_read(color):
    np.testing.assert_array_equal(images_of(color[::-2, ::-1, ::2]), color[::-2, ::-1, ::2])
    assert images_of(np.zeros((2, 300, 20), np.uint8)[:, ::-1]).shape == (2, 128, 128, 3)


def test_floats_out_of_range_are_skipped(color):
    floats = color / 255
    floats[2, 0, 0, 0] = 1.5
    floats[3, 0, 0, 0] = np.nan
    (batch,) = open_images(floats).batches()
    assert batch.positions.tolist() == [0, 1, 4]
    causes = [skipped.cause for _, skipped in batch.skipped]
    assert causes[0].startswith("floats must be from 0 to 1, got 0")
    assert causes[0].endswith("to 1.5")
    assert causes[1] == "floats must be from 0 to 1, got nan to nan"


def test_a_npy_file_equals_its_array(color, tmp_path):
    np.save(tmp_path / "images.npy", color)
    source = open_images(tmp_path / "images.npy")
    np.testing.assert_array_equal(images_of(tmp_path / "images.npy"), color)
    np.save(tmp_path / "images.npy", color[:, :5])
    assert open_images(tmp_path / "images.npy").image_signature(0) != source.image_signature(0)


def test_the_signature_of_an_image_changes_with_it(color):
    source = open_images(color)
    before = [source.image_signature(i) for i in range(2)]
    color[1, 3, 3] += 1
    assert source.image_signature(0) == before[0]
    assert source.image_signature(1) != before[1]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((5, 7), r"must be \(n, height, width\), or .*; got shape \(5, 7\)\.$"),
        ((5, 3, 8, 8), r"got shape \(5, 3, 8, 8\)\. Move the channels to the end: np.moveaxis\(array, 1, -1\)"),
        ((5, 8, 8, 2), r"got shape \(5, 8, 8, 2\)\.$"),
        ((64, 48, 3), r"looks like one image: pass array\[None\]"),
        ((0, 8, 8), r"with at least one pixel; got shape \(0, 8, 8\)"),
        ((5, 0, 8, 3), r"with at least one pixel"),
    ],
)
def test_shapes_that_are_not_images_are_refused(shape, message):
    with pytest.raises(InvalidDataError, match=message):
        open_images(np.zeros(shape, np.uint8))


@pytest.mark.parametrize("dtype", [np.int64, np.uint16, complex, "U3", object])
def test_types_that_are_not_pixels_are_refused(dtype):
    with pytest.raises(DataTypeError, match=r"must be uint8, or floats from 0 to 1; got .*\. Scale them first"):
        open_images(np.zeros((2, 8, 8), dtype))


def test_floats_up_to_255_are_refused_when_opened(color):
    with pytest.raises(
        InvalidDataError, match=r"the maximum of the first is \d+\. Divide by the maximum, or pass uint8"
    ):
        open_images(color.astype(float))


def test_a_truncated_or_pickled_npy_file_is_refused(color, tmp_path):
    path = tmp_path / "images.npy"
    np.save(path, color)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(
        FileFormatError, match=r"npy is not a whole .npy file .*greater than file size.* write it again"
    ):
        open_images(path)
    np.save(path, np.array([{}, {}]), allow_pickle=True)
    with pytest.raises(FileFormatError, match=r"images.npy holds pickled objects, and these are refused"):
        open_images(path)

"""Arrays of pictures: uint8 or floats, grey or colour, in memory or in a .npy file."""

import numpy as np
import pytest
from image_files import picture

from bitmosaic.errors import DataTypeError, FileFormatError, InvalidDataError
from bitmosaic.images import open_images


@pytest.fixture
def colour():
    return np.stack([picture(i, 12, 16) for i in range(5)])


def images_of(array, **options):
    (batch,) = open_images(array).batches(**options)
    assert not batch.skipped
    return np.stack(batch.images)


def test_colour_comes_back_as_it_is_in_memory_of_its_own(colour):
    images = images_of(colour)
    np.testing.assert_array_equal(images, colour)
    (batch,) = open_images(colour).batches()
    assert not np.shares_memory(batch.images[0], colour)
    assert open_images(colour).paths == ("0", "1", "2", "3", "4")
    assert open_images(colour).labels() is None


@pytest.mark.parametrize("channels", [(), (1,)])
def test_grey_is_repeated(colour, channels):
    grey = colour[..., 0]
    np.testing.assert_array_equal(images_of(grey.reshape(*grey.shape, *channels)), np.repeat(grey[..., None], 3, 3))


def test_alpha_is_composited_on_white(colour):
    alpha = np.random.default_rng(0).integers(0, 256, (5, 12, 16, 1), dtype=np.uint8)
    expected = colour * (alpha / 255) + 255 - alpha
    np.testing.assert_allclose(images_of(np.concatenate([colour, alpha], axis=3)), expected, atol=0.51)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_from_0_to_1_become_bytes(colour, dtype):
    np.testing.assert_array_equal(images_of((colour / 255).astype(dtype)), colour)


def test_truth_values_become_black_and_white(colour):
    np.testing.assert_array_equal(images_of(colour > 100), np.where(colour > 100, 255, 0))


def test_strided_and_reversed_arrays_are_read(colour):
    np.testing.assert_array_equal(images_of(colour[::-2, ::-1, ::2]), colour[::-2, ::-1, ::2])
    assert images_of(np.zeros((2, 300, 20), np.uint8)[:, ::-1]).shape == (2, 128, 128, 3)


def test_floats_out_of_range_are_skipped(colour):
    floats = colour / 255
    floats[2, 0, 0, 0] = 1.5
    floats[3, 0, 0, 0] = np.nan
    (batch,) = open_images(floats).batches()
    assert batch.positions.tolist() == [0, 1, 4]
    causes = [skipped.cause for _, skipped in batch.skipped]
    assert causes[0].startswith("floats must be from 0 to 1, and these are from 0")
    assert causes[0].endswith("to 1.5")
    assert causes[1] == "floats must be from 0 to 1, and these are from nan to nan"


def test_a_npy_file_equals_its_array(colour, tmp_path):
    np.save(tmp_path / "pictures.npy", colour)
    source = open_images(tmp_path / "pictures.npy")
    np.testing.assert_array_equal(images_of(tmp_path / "pictures.npy"), colour)
    before = source.fingerprint(0)
    np.save(tmp_path / "pictures.npy", colour[:, :5])
    assert source.fingerprint(0) != before


def test_the_fingerprint_of_a_picture_changes_with_it(colour):
    source = open_images(colour)
    before = [source.fingerprint(i) for i in range(2)]
    colour[1, 3, 3] += 1
    assert source.fingerprint(0) == before[0]
    assert source.fingerprint(1) != before[1]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((5, 7), r"must be \(n, height, width\), or .*; got shape \(5, 7\)\.$"),
        ((5, 3, 8, 8), r"got shape \(5, 3, 8, 8\)\. Move the channels to the end: np.moveaxis\(array, 1, -1\)"),
        ((5, 8, 8, 2), r"got shape \(5, 8, 8, 2\)\.$"),
        ((64, 48, 3), r"looks like one picture: pass array\[None\]"),
        ((0, 8, 8), r"hold a pixel at least; got shape \(0, 8, 8\)"),
        ((5, 0, 8, 3), r"hold a pixel at least"),
    ],
)
def test_shapes_that_are_no_pictures_are_refused(shape, message):
    with pytest.raises(InvalidDataError, match=message):
        open_images(np.zeros(shape, np.uint8))


@pytest.mark.parametrize("dtype", [np.int64, np.uint16, complex, "U3", object])
def test_types_that_are_no_pixels_are_refused(dtype):
    with pytest.raises(DataTypeError, match=r"must be uint8, or floats from 0 to 1; got .*\. Scale them first"):
        open_images(np.zeros((2, 8, 8), dtype))


def test_floats_up_to_255_are_refused_at_the_door(colour):
    with pytest.raises(InvalidDataError, match=r"the first goes up to \d+\. Divide by the maximum, or pass uint8"):
        open_images(colour.astype(float))


def test_a_npy_file_that_is_cut_or_pickled_is_refused(colour, tmp_path):
    path = tmp_path / "pictures.npy"
    np.save(path, colour)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(
        FileFormatError, match=r"npy is not a whole .npy file .*2,880 bytes, and 372 are there.* write it again"
    ):
        open_images(path)
    np.save(path, np.array([{}, {}]), allow_pickle=True)
    with pytest.raises(FileFormatError, match=r"pictures.npy holds pickled objects, and these are refused"):
        open_images(path)

"""Every format and mode becomes upright 8-bit RGB; large images are resized."""

import io
import warnings

import numpy as np
import pytest
from image_files import encoded, sample_image
from PIL import Image, ImageCms, ImageOps

from bitmosaic.images.decode import decode, quiet_pillow

LOSSLESS = {"PNG": {}, "BMP": {}, "TIFF": {}, "PPM": {}, "WEBP": {"lossless": True}}


@pytest.mark.parametrize("file_format", LOSSLESS)
def test_lossless_formats_give_the_same_pixels(file_format):
    pixels = decode(encoded(sample_image(), file_format, **LOSSLESS[file_format]))
    assert pixels.dtype == np.uint8
    np.testing.assert_array_equal(pixels, sample_image())


@pytest.mark.parametrize(("file_format", "tolerance"), [("JPEG", 6), ("WEBP", 6), ("GIF", 20)])
def test_lossy_formats_give_similar_pixels(file_format, tolerance):
    difference = np.abs(decode(encoded(sample_image(), file_format)).astype(int) - sample_image())
    assert difference.mean() < tolerance


@pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_deflate", "packbits", "jpeg"])
def test_compressed_tiffs_are_read(compression):
    difference = np.abs(decode(encoded(sample_image(), "TIFF", compression=compression)).astype(int) - sample_image())
    assert difference.mean() < 6


def gray():
    return Image.fromarray(sample_image()).convert("L")


@pytest.mark.parametrize("file_format", ["PNG", "PPM", "TIFF", "BMP", "JPEG"])
def test_gray_becomes_rgb_with_equal_channels(file_format):
    pixels = decode(encoded(gray(), file_format))
    assert pixels.shape == (24, 32, 3)
    assert (pixels == pixels[..., :1]).all()
    np.testing.assert_allclose(pixels[..., 0].astype(int), np.asarray(gray()), atol=12 if file_format == "JPEG" else 0)


@pytest.mark.parametrize("file_format", ["PNG", "PPM", "TIFF", "BMP"])
def test_black_and_white_becomes_0_and_255(file_format):
    bits = gray().convert("1")
    np.testing.assert_array_equal(decode(encoded(bits, file_format))[..., 0], np.asarray(bits) * 255)


@pytest.mark.parametrize("file_format", ["PNG", "GIF", "BMP", "TIFF"])
def test_palettes_become_their_colors(file_format):
    image = Image.fromarray(sample_image()).quantize(32)
    np.testing.assert_array_equal(decode(encoded(image, file_format)), np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
@pytest.mark.parametrize("file_format", ["PNG", "TIFF"])
def test_alpha_is_composited_on_white(mode, file_format):
    alpha = np.linspace(0, 255, 24 * 32).reshape(24, 32).round().astype(np.uint8)
    image = Image.fromarray(sample_image()).convert(mode)
    image.putalpha(Image.fromarray(alpha))
    color = np.asarray(image.convert("RGB"), dtype=float)
    weight = alpha[..., None] / 255
    expected = color * weight + 255 * (1 - weight)
    np.testing.assert_allclose(decode(encoded(image, file_format)), expected, atol=1)


def test_a_transparent_palette_entry_shows_white():
    image = Image.new("P", (4, 2), 0)
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putpixel((1, 0), 1)
    for file_format in ("GIF", "PNG"):
        pixels = decode(encoded(image, file_format, transparency=0))
        assert pixels[0, 0].tolist() == [255, 255, 255]
        assert pixels[0, 1].tolist() == [0, 0, 255]


@pytest.mark.parametrize(("mode", "color"), [("RGB", (9, 8, 7)), ("L", 9)])
def test_a_transparent_color_of_a_png_shows_white(mode, color):
    image = Image.new(mode, (4, 2), color)
    image.putpixel((0, 0), 200 if mode == "L" else (200, 0, 0))
    pixels = decode(encoded(image, transparency=color))
    assert pixels[1, 1].tolist() == [255, 255, 255]
    assert pixels[0, 0, 0] == 200


@pytest.mark.parametrize("file_format", ["PNG", "TIFF", "PPM"])
def test_16_bit_gray_is_scaled_and_not_clipped(file_format):
    values = np.array([[0, 128, 129, 257, 257 * 100, 40_000, 65_535]], dtype=np.uint16)
    pixels = decode(encoded(Image.fromarray(values), file_format))
    np.testing.assert_array_equal(pixels[0, :, 0], [0, 0, 1, 1, 100, 156, 255])


def test_16_bit_color_keeps_its_high_byte():
    values = np.array([[[65_535, 257 * 100, 0]]], dtype=">u2")
    ppm = b"P6 1 1 65535\n" + values.tobytes()
    assert decode(ppm)[0, 0].tolist() == [255, 100, 0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 100, 255], [0, 100, 255]),
        ([0, 1000, 2000], [0, 128, 255]),
        ([1000, 2000, 3000], [0, 128, 255]),
        ([-5, 0, 5], [0, 128, 255]),
        ([-(2**31), 0, 2**31 - 1], [0, 128, 255]),
        ([1000, 1000, 1000], [255, 255, 255]),
        ([0, 0, 0], [0, 0, 0]),
    ],
)
def test_32_bit_integers_are_scaled_by_their_own_range_if_it_is_above_255(values, expected):
    image = Image.fromarray(np.array([values], dtype=np.int32))
    assert decode(encoded(image, "TIFF"))[0, :, 0].tolist() == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 0.5, 1], [0, 128, 255]),
        ([0, 100, 255], [0, 100, 255]),
        ([-1, 0, 1], [0, 128, 255]),
        ([0, 5e4, 1e5], [0, 128, 255]),
        ([-3.4e38, 0, 3.4e38], [0, 128, 255]),
        ([0, np.nan, 1], [0, 0, 255]),
        ([0, np.inf, 1000], [0, 255, 255]),
        ([np.nan, np.nan, np.nan], [0, 0, 0]),
    ],
)
def test_floats_are_scaled_by_their_own_range_if_it_is_above_255(values, expected):
    image = Image.fromarray(np.array([values], dtype=np.float32))
    assert decode(encoded(image, "TIFF"))[0, :, 0].tolist() == expected


def test_cmyk_becomes_rgb():
    image = Image.fromarray(sample_image()).convert("CMYK")
    np.testing.assert_array_equal(decode(encoded(image, "TIFF")), sample_image())
    jpeg = decode(encoded(image, "JPEG", quality=95)).astype(int)
    assert np.abs(jpeg - sample_image()).mean() < 6


def test_ycbcr_becomes_rgb():
    pixels = decode(encoded(Image.fromarray(sample_image()).convert("YCbCr"), "JPEG", quality=95))
    assert np.abs(pixels.astype(int) - sample_image()).mean() < 4


def test_lab_becomes_rgb():
    srgb, lab = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
    image = ImageCms.profileToProfile(Image.fromarray(sample_image()), srgb, lab, outputMode="LAB")
    assert np.abs(decode(encoded(image, "TIFF")).astype(int) - sample_image()).mean() < 4


@pytest.mark.parametrize("file_format", ["GIF", "WEBP", "TIFF", "PNG"])
def test_an_animation_is_read_as_its_first_frame(file_format):
    frames = [Image.new("RGB", (16, 12), color) for color in ("red", "lime", "blue")]
    content = encoded(frames[0], file_format, save_all=True, append_images=frames[1:])
    assert decode(content)[0, 0].argmax() == 0


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_the_exif_orientation_is_applied(orientation, file_format):
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encoded(sample_image(), file_format, exif=exif)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    np.testing.assert_array_equal(decode(content), np.asarray(upright))
    assert decode(content).shape == ((24, 32, 3) if orientation < 5 else (32, 24, 3))


@pytest.mark.parametrize("exif", [b"Exif\0\0garbage", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0"])
def test_broken_exif_does_not_make_an_image_bad(exif):
    with quiet_pillow():
        assert decode(encoded(sample_image(), "JPEG", exif=exif)).shape == (24, 32, 3)


@pytest.mark.parametrize("shape", [(129, 10), (10, 129), (256, 256), (257, 256), (256, 400), (400, 300), (2000, 150)])
@pytest.mark.parametrize(("file_format", "options"), [("JPEG", {"quality": 95, "subsampling": 0}), ("PNG", {})])
def test_an_image_with_a_side_above_max_side_becomes_a_square(shape, file_format, options):
    pixels = decode(encoded(sample_image(0, *shape), file_format, **options), max_side=128)
    assert pixels.shape == (128, 128, 3)
    expected = Image.fromarray(sample_image(0, *shape)).resize((128, 128), Image.Resampling.LANCZOS)
    assert np.abs(pixels.astype(int) - np.asarray(expected)).mean() < 4


def test_smaller_images_and_no_max_side_keep_the_size():
    assert decode(encoded(sample_image(0, 128, 20)), max_side=128).shape == (128, 20, 3)
    assert decode(encoded(sample_image(0, 300, 200)), max_side=None).shape == (300, 200, 3)
    assert decode(encoded(sample_image(0, 1, 1)), max_side=128).shape == (1, 1, 3)


def test_decoded_images_are_writable():
    for content in (encoded(sample_image(), "JPEG"), encoded(sample_image(), "PNG")):
        assert decode(content).flags.writeable


def test_warnings_of_pillow_are_silenced_and_the_filters_of_the_user_restored():
    exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\xff\xff\0\0\xff\xff\0\0"
    content = encoded(sample_image(), "JPEG", exif=exif)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rules = list(warnings.filters)
        Image.open(io.BytesIO(content)).getexif()
        n_loud = len(caught)
        with quiet_pillow(), quiet_pillow():
            decode(content)
        assert len(caught) == n_loud > 0
        assert list(warnings.filters) == rules

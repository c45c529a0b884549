"""The bytes of one file -> an RGB picture, uint8 (h, w, 3), or the cause why there is none."""

import errno
import io
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageCms, JpegImagePlugin, UnidentifiedImageError

from bitmosaic.images.jpeg import decode_small_jpeg
from bitmosaic.images.sniff import FORMATS, HEAD_BYTES, foreign_format, looks_cut, picture_format

LARGEST_FILE = 512 * 2**20
"""A file or an archive's member above this size is not read at all."""

TOO_LARGE = f"larger than {LARGEST_FILE // 2**20} MB"

OUTSIDE = "its name leads out of the archive"

_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_LYING = (5, 6, 7, 8)  # orientations that exchange width and height
# Where Pillow finds an orientation. Parsing EXIF takes as long as decoding a small JPEG, so look first.
_EXIF_KEYS = {"exif", "xmp", "XML:com.adobe.xmp", "Raw profile type exif", "Raw profile type APP1"}


class BadPictureError(Exception):
    """A picture that cannot be had; the message is the cause, as the user will read it."""


def decode(content: bytes, max_side: int | None = None) -> np.ndarray:
    """Decode one file; see `fit` for `max_side`. Raises whatever the decoder raises: `cause_of` puts it into words."""
    if not content:
        raise BadPictureError("empty file")
    head = content[:HEAD_BYTES]
    name = picture_format(head)
    if name is None:
        foreign = foreign_format(head)
        raise BadPictureError(f"format {foreign} is not supported" if foreign else "not an image")
    small = decode_small_jpeg(content, max_side) if name == "JPEG" else None
    if small is not None:
        return to_array(_rgb(small))
    with Image.open(io.BytesIO(content), formats=[FORMATS[name]]) as image:
        refuse_bomb(*image.size)
        if max_side is not None and isinstance(image, JpegImagePlugin.JpegImageFile):
            # libjpeg shrinks by 2, 4 or 8 while decoding, and never below the size asked for: half the time or less,
            # for a mean difference of half a grey level.
            image.draft(None, (max_side, max_side))
        image.load()
        return to_array(fit(_rgb(_upright(image)), max_side))


def size_of(file: BinaryIO) -> tuple[int, int]:
    """Width and height of a picture as it is shown, from the header of its file. Raises as `decode` does."""
    name = picture_format(file.read(HEAD_BYTES))
    if name is None:
        raise BadPictureError("not an image")
    file.seek(0)
    with Image.open(file, formats=[FORMATS[name]]) as image:
        width, height = image.size
        return (height, width) if _orientation(image) in _LYING else (width, height)


def to_array(image: Image.Image) -> np.ndarray:
    """RGB -> uint8 (h, w, 3), writable. Half the time of np.array for a small picture."""
    width, height = image.size
    return np.frombuffer(image.tobytes(), np.uint8).reshape(height, width, 3).copy()


def fit(image: Image.Image, max_side: int | None) -> Image.Image:
    """Squeeze a picture that has a side above `max_side` to max_side × max_side pixels; leave a smaller one alone."""
    if max_side is None or max(image.size) <= max_side:
        return image
    return image.resize((max_side, max_side), Image.Resampling.LANCZOS, reducing_gap=2.0)


def shrink(image: np.ndarray, side: int) -> np.ndarray:
    """An array of a picture, reduced in its proportions to at most `side` pixels a side."""
    if max(image.shape[:2]) <= side:
        return image
    picture = Image.fromarray(image)
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    return to_array(picture)


def refuse_bomb(width: int, height: int) -> None:
    """Pillow only warns above its limit and refuses above twice the limit; here the limit is the limit."""
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and width * height > limit:
        raise BadPictureError(f"decompression bomb: {width}×{height} pixels exceed the limit of {limit:,}")


def _upright(image: Image.Image) -> Image.Image:
    """Turn and mirror a picture as its EXIF orientation says."""
    orientation = _orientation(image)
    return image if orientation is None else image.transpose(_UPRIGHT[orientation])


def _orientation(image: Image.Image) -> int | None:
    """How it is to be turned or mirrored, None if not at all."""
    if not _EXIF_KEYS.intersection(image.info) and image.format != "TIFF":
        return None
    try:
        orientation = image.getexif().get(_ORIENTATION)
    except Exception:  # broken metadata does not make a picture bad
        return None
    return orientation if orientation in _UPRIGHT else None


def _rgb(image: Image.Image) -> Image.Image:
    """Any mode of Pillow -> RGB; what is transparent shows white."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_eight_bits(image)).convert("RGB")
    if image.mode == "LAB":
        lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        converted = ImageCms.profileToProfile(image, lab, srgb, outputMode="RGB")
        assert converted is not None  # it is None only when converting in place
        return converted
    if image.has_transparency_data:
        rgba = image.convert("LA" if image.mode == "La" else "RGBA").convert("RGBA")
        canvas = Image.new("RGB", rgba.size, "white")
        canvas.paste(rgba, mask=rgba)
        return canvas
    return image.convert("RGB")


def _eight_bits(image: Image.Image) -> np.ndarray:
    """Grey of 16 or 32 bits -> 8 bits: scaled, where Pillow's own conversion would clip."""
    grey = np.asarray(image)
    # Pillow gives 16-bit PGM, and 16-bit PNG in older versions, as 32-bit integers.
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        return ((grey.astype(np.int64) + 128) // 257).astype(np.uint8)
    with np.errstate(invalid="ignore"):  # a file may hold any kind of NaN
        grey = grey.astype(np.float64)
    finite = grey[np.isfinite(grey)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
    if image.mode == "F" and low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    elif low >= 0 and high <= 255:
        low, high = 0.0, 255.0
    elif low == high:
        low, high = min(low, 0.0), max(high, 0.0)
    grey = np.nan_to_num(grey, nan=low, posinf=high, neginf=low)
    # Halved first, since the range of two huge floats need not be a float.
    return np.rint((grey / 2 - low / 2) / (high / 2 - low / 2) * 255).astype(np.uint8)


def cause_of(error: Exception, content: bytes | None = None) -> str:
    """What went wrong with a file, in a few words a person understands. `content`: what was read of it, if it was."""
    if isinstance(error, BadPictureError):
        return str(error)
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        pixels = re.search(r"\((\d+) pixels\)", str(error))
        count = f"{int(pixels[1]):,}" if pixels else "its"
        return f"decompression bomb: {count} pixels exceed the limit of {Image.MAX_IMAGE_PIXELS:,}"
    if isinstance(error, MemoryError):
        return "too large for the memory of this machine"
    if content is None:
        return _cause_of_no_content(error)
    words = " ".join((str(error) or type(error).__name__).split())
    name = picture_format(content[:HEAD_BYTES]) or "image"
    if looks_cut(name, content) or re.search("truncat|end of|not enough|eof", words, re.IGNORECASE):
        return "cut short"
    if isinstance(error, UnidentifiedImageError):
        return f"damaged: the {name} header makes no sense"
    return f"damaged: {words}"


def _cause_of_no_content(error: Exception) -> str:
    match error:
        case FileNotFoundError() | NotADirectoryError():
            return "no such file"
        case PermissionError():
            return "permission denied"
        case IsADirectoryError():
            return "it is a folder"
        case OSError(errno=errno.ELOOP):
            return "a link that leads back to itself"
        case OSError(strerror=str(words)):
            return f"cannot be read: {words}"
    return f"cannot be read: {error or type(error).__name__}"


# The comment inside makes the rule ours, so that a user's own rule about Pillow is never removed.
_PILLOW_MODULES = r"PIL\.(?#bitmosaic)"
_quiet_lock = threading.Lock()
_quiet_depth = 0


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Silence the warnings of Pillow's modules. Unlike `warnings.catch_warnings`, threads may overlap in it."""
    global _quiet_depth
    with _quiet_lock:
        _quiet_depth += 1
        if _quiet_depth == 1:
            warnings.filterwarnings("ignore", module=_PILLOW_MODULES)
    try:
        yield
    finally:
        with _quiet_lock:
            _quiet_depth -= 1
            if _quiet_depth == 0:
                ours = [rule for rule in warnings.filters if getattr(rule[3], "pattern", None) == _PILLOW_MODULES]
                for rule in ours:
                    warnings.filters.remove(rule)  # type: ignore[attr-defined]

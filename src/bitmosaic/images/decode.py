"""Decode the bytes of one file to an RGB image, uint8 (h, w, 3), or report why it cannot be decoded."""

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

LARGEST_FILE = 512 * 2**20
"""A file or an archive member above this size is not read."""

TOO_LARGE = f"larger than {LARGEST_FILE // 2**20} MB"
NOT_REGULAR = "not a regular file"

# Formats that are read: the usual name, and the name of Pillow's decoder.
FORMATS = {
    "JPEG": "JPEG",
    "PNG": "PNG",
    "WebP": "WEBP",
    "BMP": "BMP",
    "TIFF": "TIFF",
    "GIF": "GIF",
    "PPM/PGM": "PPM",
}
FORMAT_NAMES = ", ".join(FORMATS)

# The two-letter magics (BM, P5) also begin ordinary texts, so they include some of the bytes that must follow.
_MAGIC = {
    "JPEG": re.compile(rb"\xff\xd8\xff"),
    "PNG": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "WebP": re.compile(rb"RIFF....WEBP", re.DOTALL),
    "BMP": re.compile(rb"BM.{12}[\x0c\x10\x28\x34\x38\x40\x6c\x7c]\x00\x00\x00", re.DOTALL),
    "TIFF": re.compile(rb"II[\x2a\x2b]\x00|MM\x00[\x2a\x2b]"),
    "GIF": re.compile(rb"GIF8[79]a"),
    "PPM/PGM": re.compile(rb"P[1-6f]\s*(\s-?\d|#)"),
}
# Formats that are detected but not read. The cause names them.
_FOREIGN_MAGIC = {
    "AVIF": re.compile(rb"....ftypavi[fs]", re.DOTALL),
    "HEIC": re.compile(rb"....ftyp(hei|hev|mif1|msf1)", re.DOTALL),
    "JPEG 2000": re.compile(rb"\x00\x00\x00\x0cjP  |\xff\x4f\xff\x51"),
    "JPEG XL": re.compile(rb"\xff\x0a|\x00\x00\x00\x0cJXL "),
    "PSD": re.compile(rb"8BPS"),
    "ICO": re.compile(rb"\x00\x00\x01\x00.\x00", re.DOTALL),
    "EPS": re.compile(rb"%!PS"),
    "PDF": re.compile(rb"%PDF"),
    "SVG": re.compile(rb"\s*(<\?xml[^>]*>\s*)?<svg"),
    "HTML": re.compile(rb"\s*<(!doctype html|html)", re.IGNORECASE),
}
_SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".webp", ".bmp", ".tif", ".tiff", ".gif"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".pfm"),
    # Not read, but reported in skipped.csv.
    *(".heic", ".heif", ".avif", ".jp2", ".jxl"),
)
HEAD_BYTES = 64


def has_image_suffix(path: str) -> bool:
    return path.lower().endswith(_SUFFIXES)


def image_format(head: bytes) -> str | None:
    """The key of `FORMATS` that the first bytes of a file belong to, or None."""
    return next((name for name, magic in _MAGIC.items() if magic.match(head)), None)


def foreign_format(head: bytes) -> str | None:
    """The name of a format that is known but not read."""
    return next((name for name, magic in _FOREIGN_MAGIC.items() if magic.match(head)), None)


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
_SWAPS_SIDES = (5, 6, 7, 8)  # orientations that exchange width and height
# Metadata where Pillow finds an orientation. Parsing EXIF takes as long as decoding a small JPEG, so check first.
_EXIF_KEYS = {"exif", "xmp", "XML:com.adobe.xmp", "Raw profile type exif", "Raw profile type APP1"}


class BadImageError(Exception):
    """An image that cannot be read; the message is the cause shown to the user."""


def decode(content: bytes, max_side: int | None = None) -> np.ndarray:
    """Decode one file; see `fit` for `max_side`. Errors of the decoder are raised as they are; see `cause_of`."""
    if not content:
        raise BadImageError("empty file")
    head = content[:HEAD_BYTES]
    name = image_format(head)
    if name is None:
        foreign = foreign_format(head)
        raise BadImageError(f"format {foreign} is not supported" if foreign else "not an image")
    with Image.open(io.BytesIO(content), formats=[FORMATS[name]]) as image:
        refuse_bomb(*image.size)
        if max_side is not None and isinstance(image, JpegImagePlugin.JpegImageFile):
            # libjpeg shrinks by 2, 4 or 8 while decoding, and never below the size asked for: half the time or less,
            # for a mean difference of half a gray level.
            image.draft(None, (max_side, max_side))
        image.load()
        return to_array(fit(_rgb(_upright(image)), max_side))


def size_of(file: BinaryIO) -> tuple[int, int]:
    """Width and height of the upright image, read from the file header. Raises the same errors as `decode`."""
    name = image_format(file.read(HEAD_BYTES))
    if name is None:
        raise BadImageError("not an image")
    file.seek(0)
    with Image.open(file, formats=[FORMATS[name]]) as image:
        width, height = image.size
        return (height, width) if _orientation(image) in _SWAPS_SIDES else (width, height)


def to_array(image: Image.Image) -> np.ndarray:
    """RGB -> uint8 (h, w, 3), writable. Half the time of np.array for a small image."""
    width, height = image.size
    return np.frombuffer(image.tobytes(), np.uint8).reshape(height, width, 3).copy()


def fit(image: Image.Image, max_side: int | None) -> Image.Image:
    """Resize an image with a side above `max_side` to max_side × max_side pixels; keep a smaller one as it is."""
    if max_side is None or max(image.size) <= max_side:
        return image
    return image.resize((max_side, max_side), Image.Resampling.LANCZOS, reducing_gap=2.0)


def shrink(image: np.ndarray, side: int) -> np.ndarray:
    """Reduce an image array to at most `side` pixels per side, keeping the aspect ratio."""
    if max(image.shape[:2]) <= side:
        return image
    small = Image.fromarray(image)
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    return to_array(small)


def refuse_bomb(width: int, height: int) -> None:
    """Pillow only warns above its limit and raises above twice the limit. This raises above the limit."""
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and width * height > limit:
        raise BadImageError(f"decompression bomb: {width}×{height} pixels exceed the limit of {limit:,}")


def _upright(image: Image.Image) -> Image.Image:
    """Rotate and flip an image according to its EXIF orientation."""
    orientation = _orientation(image)
    return image if orientation is None else image.transpose(_UPRIGHT[orientation])


def _orientation(image: Image.Image) -> int | None:
    """The EXIF orientation, or None if the image is already upright."""
    if not _EXIF_KEYS.intersection(image.info) and image.format != "TIFF":
        return None
    try:
        orientation = image.getexif().get(_ORIENTATION)
    except Exception:  # broken metadata does not make an image bad
        return None
    return orientation if orientation in _UPRIGHT else None


def _rgb(image: Image.Image) -> Image.Image:
    """Convert any Pillow mode to RGB. Transparent pixels become white."""
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
    """Scale 16-bit or 32-bit gray to 8 bits. Pillow's own conversion would clip."""
    gray = np.asarray(image)
    # Pillow gives 16-bit PGM, and 16-bit PNG in older versions, as 32-bit integers.
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        return ((gray.astype(np.int64) + 128) // 257).astype(np.uint8)
    with np.errstate(invalid="ignore"):  # the file may contain signaling NaNs
        gray = gray.astype(np.float64)
    finite = gray[np.isfinite(gray)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
    if image.mode == "F" and low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    elif low >= 0 and high <= 255:
        low, high = 0.0, 255.0
    elif low == high:
        low, high = min(low, 0.0), max(high, 0.0)
    gray = np.nan_to_num(gray, nan=low, posinf=high, neginf=low)
    # Halve first: the difference of two huge floats may overflow.
    return np.rint((gray / 2 - low / 2) / (high / 2 - low / 2) * 255).astype(np.uint8)


def cause_of(error: Exception, content: bytes | None = None) -> str:
    """A short cause for the user. `content`: the bytes of the file, None if it could not be read."""
    if isinstance(error, BadImageError):
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
    name = image_format(content[:HEAD_BYTES]) or "image"
    if re.search("truncat|end of|not enough|eof", words, re.IGNORECASE):
        return "truncated"
    if isinstance(error, UnidentifiedImageError):
        return f"damaged: the {name} header is invalid"
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
            return "a symbolic link that points to itself"
        case OSError(strerror=str(words)):
            return f"cannot be read: {words}"
    return f"cannot be read: {error or type(error).__name__}"


# The regex comment marks our filter, so that a filter of the user for Pillow is never removed.
_PILLOW_MODULES = r"PIL\.(?#bitmosaic)"
_quiet_lock = threading.Lock()
_quiet_depth = 0


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Silence the warnings of Pillow's modules. Unlike `warnings.catch_warnings`, it is safe in several threads."""
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

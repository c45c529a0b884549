"""First bytes and suffix -> is this a picture, and of which format? Nothing is decoded here."""

import re

# What is read: the name a person knows, and the name of Pillow's decoder.
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

# The two-letter magics (BM, P5) also begin ordinary texts, so a little of what must follow is asked for.
_MAGIC = {
    "JPEG": re.compile(rb"\xff\xd8\xff"),
    "PNG": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "WebP": re.compile(rb"RIFF....WEBP", re.DOTALL),
    "BMP": re.compile(rb"BM.{12}[\x0c\x10\x28\x34\x38\x40\x6c\x7c]\x00\x00\x00", re.DOTALL),
    "TIFF": re.compile(rb"II[\x2a\x2b]\x00|MM\x00[\x2a\x2b]"),
    "GIF": re.compile(rb"GIF8[79]a"),
    "PPM/PGM": re.compile(rb"P[1-6f]\s*(\s-?\d|#)"),
}
# Pictures and look-alikes that are not read: naming them spares the user a riddle.
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
    # Not read, yet reported: photos that were left out in silence would be missed too late.
    *(".heic", ".heif", ".avif", ".jp2", ".jxl"),
)
HEAD_BYTES = 64


def has_picture_suffix(path: str) -> bool:
    return path.lower().endswith(_SUFFIXES)


def picture_format(head: bytes) -> str | None:
    """The key of `FORMATS` that the first bytes of a file belong to, or None."""
    return next((name for name, magic in _MAGIC.items() if magic.match(head)), None)


def foreign_format(head: bytes) -> str | None:
    """The name of a format that is known but not read."""
    return next((name for name, magic in _FOREIGN_MAGIC.items() if magic.match(head)), None)


def is_hidden(path: str) -> bool:
    """Whether a name on the way to the file begins with a dot, on any system; "." and ".." are no names."""
    return any(part.startswith(".") and part not in (".", "..") for part in re.split(r"[/\\]", path))


def leads_out(name: str) -> bool:
    """Whether the name of an archive's member is that of a place outside, on any system: ../x, /x, C:\\x."""
    return re.match(r"[/\\]|[A-Za-z]:[/\\]", name) is not None or ".." in re.split(r"[/\\]", name)


def looks_cut(format_name: str, content: bytes) -> bool:
    """Whether a file that could not be decoded lacks its end. Only words hang on it."""
    match format_name:
        case "JPEG":
            return b"\xff\xd9" not in content[-1024:]
        case "PNG":
            return b"IEND" not in content[-1024:]
        case "GIF":
            return not content.rstrip(b"\x00").endswith(b";")
        case "WebP":
            return int.from_bytes(content[4:8], "little") + 8 > len(content)
        case "BMP":
            return int.from_bytes(content[2:6], "little") > len(content)
    return False

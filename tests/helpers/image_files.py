"""Real image files, good and bad, for the tests of images."""

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

SUFFIXES = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp", "BMP": "bmp", "TIFF": "tiff", "GIF": "gif", "PPM": "ppm"}


def sample_image(seed: int = 0, height: int = 24, width: int = 32) -> np.ndarray:
    """A smooth image with a dark corner, so that turning it and compressing it can be told apart."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(80, 256, (4, 4, 3), dtype=np.uint8))
    pixels = np.array(coarse.resize((width, height), Image.Resampling.BICUBIC))
    pixels[: height // 3, : width // 3] //= 4
    return pixels


def encoded(image: Image.Image | np.ndarray, file_format: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(buffer, file_format, **options)
    return buffer.getvalue()


def good_files(folder: Path, n: int = 20) -> dict[str, np.ndarray]:
    """PNG files in three folders; what they show by their relative paths, in the order of the paths."""
    shown = {}
    for i in range(n):
        path = f"{'abc'[i % 3]}/{i:03}.png"
        shown[path] = sample_image(i, 10 + i % 20, 40 - i % 20)
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(encoded(shown[path]))
    return dict(sorted(shown.items()))


def png_claiming(width: int, height: int) -> bytes:
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"IDAT" + zlib.compress(b"\0" * 1000)
    chunks = [header, data, b"IEND"]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in chunks
    )


def png_with_text_bomb() -> bytes:
    good = encoded(sample_image())
    text = b"zTXtComment\0\0" + zlib.compress(b"a" * 2**26)
    chunk = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
    return good[:33] + chunk + good[33:]


def patched(content: bytes, at: int, new: bytes) -> bytes:
    return content[:at] + new + content[at + len(new) :]


def half(file_format: str) -> bytes:
    content = encoded(sample_image(1, 200, 200), file_format)
    return content[: len(content) // 2]


def bad_files(folder: Path) -> dict[str, str]:
    """Thirty bad files of every kind; the cause that is expected by their names."""
    folder.mkdir(parents=True, exist_ok=True)
    jpeg, png, gif, tiff = (encoded(sample_image(), name) for name in ("JPEG", "PNG", "GIF", "TIFF"))
    bomb = "pixels exceed the limit of 89,478,485"
    contents: dict[str, tuple[bytes, str]] = {
        "empty.jpg": (b"", "empty file"),
        "empty.tiff": (b"", "empty file"),
        "text.jpg": (b"Dear diary, no image today.", "not an image"),
        "zeros.png": (bytes(5000), "not an image"),
        "noise.webp": (np.random.default_rng(0).bytes(5000), "not an image"),
        "error-page.jpg": (b"<!DOCTYPE html><html>404</html>", "format HTML is not supported"),
        "avif.jpg": (b"\x00\x00\x00\x20ftypavif" + bytes(500), "format AVIF is not supported"),
        "phone.heic": (b"\x00\x00\x00\x18ftypheic" + bytes(500), "format HEIC is not supported"),
        "photoshop.png": (b"8BPS\x00\x01" + bytes(500), "format PSD is not supported"),
        "head.jpg": (jpeg[:3], "damaged: "),
        "head.png": (png[:8], "damaged: "),
        "header.jpg": (jpeg[:100], "truncated"),
        **{
            f"half.{suffix}": (half(name), "damaged: " if name == "WEBP" else "truncated")
            for name, suffix in SUFFIXES.items()
        },
        "bomb.png": (png_claiming(10_000, 10_000), f"decompression bomb: 10000×10000 {bomb}"),
        "big-bomb.png": (png_claiming(60_000, 60_000), f"decompression bomb: 3,600,000,000 {bomb}"),
        "bomb.gif": (patched(gif, 6, b"\xff\xff\xff\xff"), f"decompression bomb: 4,294,836,225 {bomb}"),
        "text-bomb.png": (png_with_text_bomb(), "damaged: Decompressed data too large"),
        "checksum.png": (patched(png, 29, b"\0\0\0\0"), "damaged: "),
        "directory.tiff": (patched(tiff, 4, b"\xff\xff\xff\x7f"), "damaged: "),
        "tables.jpg": (jpeg[:20] + jpeg[-40:], "damaged: "),
    }
    for name, (content, _) in contents.items():
        (folder / name).write_bytes(content)
    causes = {name: cause for name, (_, cause) in contents.items()}
    with (folder / "huge.bmp").open("wb") as file:
        file.truncate(513 * 2**20)  # a hole: it takes no space
    os.symlink("nowhere", folder / "dangling.jpg")
    os.symlink("circle.jpg", folder / "circle.jpg")
    os.mkfifo(folder / "pipe.jpg")
    return causes | {
        "huge.bmp": "larger than 512 MB",
        "dangling.jpg": "no such file",
        "circle.jpg": "a symbolic link that points to itself",
        "pipe.jpg": "not a regular file",
    }

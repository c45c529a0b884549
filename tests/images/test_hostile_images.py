"""Malicious images and archives: decompression bombs, polyglots, invalid metadata, names that point outside."""

import gzip
import io
import struct
import subprocess
import sys
import tarfile
import tracemalloc
import zipfile

import numpy as np
import pytest
from image_files import encoded, patched, png_claiming, sample_image

from bitmosaic.errors import FileFormatError
from bitmosaic.images import open_images

SHOWN = sample_image()


def read(tmp_path, content, max_side=64, name="a.jpg"):
    """The image, or the cause if it is skipped."""
    (tmp_path / name).write_bytes(content)
    (batch,) = open_images(tmp_path / name).batches(max_side=max_side)
    return batch.images[0] if batch.images else batch.skipped[0][1].cause


def tiff_claiming(width, height):
    tiff = bytearray(encoded(SHOWN, "TIFF"))
    at = struct.unpack_from("<I", tiff, 4)[0]
    for entry in range(struct.unpack_from("<H", tiff, at)[0]):
        place = at + 2 + 12 * entry
        tag = struct.unpack_from("<H", tiff, place)[0]
        if tag in (256, 257):
            struct.pack_into("<HII", tiff, place + 2, 4, 1, width if tag == 256 else height)
    return bytes(tiff)


def webp_claiming(side):
    content = encoded(SHOWN, "WEBP", lossless=True)
    at = content.index(b"VP8L") + 9
    bits = int.from_bytes(content[at : at + 4], "little") >> 28 << 28
    return patched(content, at, (bits | (side - 1) | (side - 1) << 14).to_bytes(4, "little"))


BOMBS = {
    "PNG": png_claiming(60_000, 60_000),
    "GIF": patched(encoded(SHOWN, "GIF"), 6, b"\xff\xff\xff\xff"),
    "TIFF": tiff_claiming(60_000, 60_000),
    "WEBP": webp_claiming(16_384),
    "BMP": patched(encoded(SHOWN, "BMP"), 18, struct.pack("<ii", 60_000, 60_000)),
    "PPM": b"P6 60000 60000 255\n" + bytes(1000),
    "JPEG": patched(
        encoded(SHOWN, "JPEG"), encoded(SHOWN, "JPEG").index(b"\xff\xc0") + 5, struct.pack(">HH", 60_000, 60_000)
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_of_every_format_is_refused_by_its_size(tmp_path, name):
    cause = read(tmp_path, BOMBS[name])
    assert isinstance(cause, str)
    assert cause.startswith("decompression bomb") or (name == "WEBP" and "damaged" in cause)


@pytest.mark.parametrize("shape", [(1, 100_000), (60_000, 1)])
def test_an_image_of_one_row_or_column_is_read(tmp_path, shape):
    pixels = np.full((*shape, 3), 77, np.uint8)
    pixels[: shape[0] // 2 + 1, : shape[1] // 2] = 200
    small = read(tmp_path, encoded(pixels))
    assert small.shape == (64, 64, 3)
    assert {small.min(), small.max()} <= set(range(70, 210))
    if max(shape) < 65_500:
        assert read(tmp_path, encoded(pixels, "JPEG")).shape == (64, 64, 3)
    np.testing.assert_array_equal(read(tmp_path, encoded(pixels), max_side=None), pixels)


def test_a_polyglot_is_read_by_its_first_bytes(tmp_path):
    content, file = encoded(SHOWN, "JPEG"), io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("../other.png", encoded(sample_image(1)))
    content += file.getvalue()
    assert zipfile.is_zipfile(io.BytesIO(content))
    plain = read(tmp_path, encoded(SHOWN, "JPEG"))
    for path in ("a.jpg", "a.zip", "a.html"):
        np.testing.assert_array_equal(read(tmp_path, content, name=path), plain)


def exif(entries, after=0):
    """An EXIF block of (tag, type, count, value) entries."""
    body = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"Exif\0\0II*\0" + struct.pack("<IH", 8, len(entries)) + body + struct.pack("<I", after)


@pytest.mark.parametrize(
    "block",
    [
        exif([(0x0112, 3, 1, 99)]),  # no such orientation
        exif([(0x0112, 2, 2**32 - 1, 4)]),  # text of 4 GB
        exif([(0x8769, 4, 1, 8)], after=8),  # directories that contain themselves
        b"Exif\0\0" + b"\xff" * 300,
    ],
)
@pytest.mark.parametrize("name", ["JPEG", "PNG"])
def test_invalid_exif_is_ignored(tmp_path, name, block):
    plain = read(tmp_path, encoded(SHOWN, name))
    np.testing.assert_array_equal(read(tmp_path, encoded(SHOWN, name, exif=block)), plain)


@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_an_invalid_color_profile_is_ignored(tmp_path, name):
    plain = read(tmp_path, encoded(SHOWN, name))
    np.testing.assert_array_equal(read(tmp_path, encoded(SHOWN, name, icc_profile=b"\xff" * 4000)), plain)


def test_a_tiff_with_a_cycle_of_directories_is_read(tmp_path):
    content = encoded(SHOWN, "TIFF")
    at = struct.unpack_from("<I", content, 4)[0]
    end = at + 2 + 12 * struct.unpack_from("<H", content, at)[0]
    np.testing.assert_array_equal(read(tmp_path, patched(content, end, struct.pack("<I", at))), SHOWN)


# ---- archives


OUTSIDE = ["../a.png", "x/../../a.png", "/etc/a.png", "C:\\a.png", "\\\\host\\a.png", "..\\up.png", "x\\..\\..\\up.png"]


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz"])
def test_members_whose_names_point_outside_are_skipped(tmp_path, kind):
    path, content = tmp_path / f"made.{kind}", encoded(SHOWN)
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name in (*OUTSIDE, "b..c.png"):
                archive.writestr(name, content)
    else:
        with tarfile.open(path, "w:gz" if kind == "tar.gz" else "w") as archive:
            for member in map(tarfile.TarInfo, (*OUTSIDE, "b..c.png")):
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    (batch,) = open_images(path).batches()
    assert [s.cause for _, s in batch.skipped] == ["its name points outside the archive"] * len(OUTSIDE)
    assert len(batch.images) == 1
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", [".thumbs/a.png", ".thumbs\\a.png", "x\\.a.png"])
def test_a_member_that_is_hidden_on_any_system_is_ignored(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(name, encoded(SHOWN))
        archive.writestr("b.png", encoded(SHOWN))
    assert open_images(tmp_path / "a.zip").paths == ("b.png",)


def blocks_of(name, content, kind=tarfile.REGTYPE):
    """A member of a tar: its header, and what follows it."""
    header = tarfile.TarInfo(name)
    header.size, header.type = len(content), kind
    return header.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % 512)


def record(key, value):
    """A record of a pax header: its own length in seven digits, key and value."""
    return b"%07d %s=%s\n" % (len(key) + len(value) + 10, key, value)


def pax(n_letters, kind=tarfile.XHDTYPE, key=b"comment"):
    return blocks_of("x", record(key, b"x" * n_letters), kind)


def sparse_header(size):
    """A member of GNU tar's sparse format, with `size` bytes of further blocks that list its parts."""
    header = bytearray(blocks_of("a.png", b"", tarfile.GNUTYPE_SPARSE))
    header[482:495] = b"\1" + b"%011o\0" % 10**6
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    more = bytearray(512)
    more[:24], more[504] = b"%011o\0" % 512 * 2, 1
    return bytes(header) + bytes(more) * (size // 512)


HUGE_HEADERS = {
    "one pax header": pax(10**7),
    "global headers": pax(10_000, tarfile.XGLTYPE) * 1000,
    "a long name": blocks_of("x", b"n" * 10**7, tarfile.GNUTYPE_LONGNAME),
    "overlapping pax records": blocks_of("x", b"2 " * 10**6 + b"=1\n", tarfile.XHDTYPE),
    "a sparse map": sparse_header(10**7),
}


@pytest.mark.parametrize("name", HUGE_HEADERS)
def test_huge_tar_headers_are_refused_before_they_fill_the_memory(tmp_path, name):
    path = tmp_path / "made.tar.gz"
    path.write_bytes(gzip.compress(HUGE_HEADERS[name] + blocks_of("b.png", encoded(SHOWN)), 1))
    tracemalloc.start()
    with pytest.raises(FileFormatError, match="truncated or damaged: the headers of a member exceed 32 KB"):
        open_images(path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 10**7


def test_global_headers_of_a_tar_do_not_add_up_in_memory(tmp_path):
    image = blocks_of("a.png", encoded(SHOWN))
    some = [pax(10_000, tarfile.XGLTYPE, b"key%d" % i) + image for i in range(200)]
    (tmp_path / "few.tar").write_bytes(b"".join(some[:50]))
    assert open_images(tmp_path / "few.tar").paths == ("a.png",)
    (tmp_path / "many.tar").write_bytes(b"".join(some))
    with pytest.raises(FileFormatError, match="more than 100 global headers"):
        open_images(tmp_path / "many.tar")


UNDER_A_LIMIT = """
import resource, sys
from bitmosaic.images import open_images
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 200 * 2**20,) * 2)
for batch in open_images(sys.argv[1]).batches(n_threads=1):
    print(len(batch.images), [skipped.cause for _, skipped in batch.skipped])
"""


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_a_bomb_of_zeros_is_skipped_in_little_memory(tmp_path, kind):
    """256 or 528 MB of zeros that take a few MB in the archive."""
    path, good, block = tmp_path / f"bomb.{kind}", encoded(SHOWN), bytes(2**24)
    if kind == "tar.gz":
        with tarfile.open(path, "w:gz", compresslevel=1) as archive:
            member = tarfile.TarInfo("bomb.png")
            member.size = 2**28
            archive.addfile(member, _Zeros())
            small = tarfile.TarInfo("good.png")
            small.size = len(good)
            archive.addfile(small, io.BytesIO(good))
        expected = "not an image"
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            with archive.open("bomb.png", "w", force_zip64=True) as file:
                for _ in range(33):
                    file.write(block)
            archive.writestr("good.png", good)
        expected = "larger than 512 MB"
    done = subprocess.run([sys.executable, "-c", UNDER_A_LIMIT, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 [")
    assert expected in done.stdout


class _Zeros:
    def read(self, size):
        return bytes(size)

"""Images in .tar and .zip archives, read without extracting to disk."""

import bz2
import gzip
import lzma
import os
import stat
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import IO, Any

from bitmosaic.errors import FileFormatError
from bitmosaic.images.decode import (
    HEAD_BYTES,
    LARGEST_FILE,
    NOT_REGULAR,
    TOO_LARGE,
    BadImageError,
    has_image_suffix,
    image_format,
)
from bitmosaic.images.source import (
    LINK,
    OUTSIDE,
    ImageSource,
    Piece,
    Progress,
    display_path,
    is_hidden,
    points_outside,
    quiet,
)
from bitmosaic.io.files import megabytes

# ---- Images in a .tar archive, plain or compressed, read without extracting to disk.
#
# One pass lists the members and their offsets. A plain archive is then read at these offsets. A compressed one can
# only be read forward, so every further pass decompresses it again from the start.


OPENERS: dict[bytes, Any] = {b"\xfd7zXZ\x00": lzma.open, b"\x1f\x8b": gzip.open, b"BZh": bz2.open}
"""First bytes of a compressed archive -> the function that opens it."""

CHUNK = 2**20
PIECE_BYTES = 32 * 2**20
# tarfile keeps the headers of a member in memory. Up to Python 3.11.9 and 3.12.5, memory for overlapping pax records
# grows with the square of this size: 32 KB become 270 MB.
LARGEST_HEADER = 2**15
MOST_GLOBAL_HEADERS = 100
# tarfile raises the last two for invalid numbers in a header.
STREAM_ERRORS = (tarfile.TarError, OSError, EOFError, lzma.LZMAError, zlib.error, ValueError, OverflowError)


@dataclass(frozen=True, slots=True)
class Member:
    """Position of a member in the decompressed archive."""

    offset: int
    size: int
    check: int  # CRC-32 of the content, or the modification time in a plain archive
    refusal: str | None  # why it is not read
    wanted: int  # bytes to read: only the first ones if they are not those of an image format


class TarSource(ImageSource):
    """The members of a .tar in archive order. Of members with the same name, the last one counts."""

    def __init__(self, path: str, progress: Progress = quiet):
        self._status = _status(path)
        total = megabytes(self._status[0])
        try:
            with open(path, "rb") as file, self._decompressed(file) as stream:

                def report() -> None:
                    progress("finding images (MB)", megabytes(file.tell()), total)

                report()
                members = self._list(stream, stream is not file, report)
        except STREAM_ERRORS as error:
            raise FileFormatError(
                f"{display_path(path)} is truncated or damaged: {error}. Download or copy the archive again."
            ) from error
        progress("finding images (MB)", total, total)
        super().__init__(path, members)
        self._members = list(members.values())

    def image_signature(self, position: int) -> tuple[int, int]:
        member = self._members[position]
        return member.size, member.check

    def _list(self, stream: Any, read_all: bool, report: Callable[[], None]) -> "dict[str, Member]":
        return list_images(stream, read_all, report)

    def _decompressed(self, file: IO[bytes]) -> AbstractContextManager[Any]:
        return nullcontext(file)

    def _pieces(self, positions: Sequence[int], piece_size: int) -> Generator[Piece, None, None]:
        try:
            if _status(self.name) != self._status:
                raise ValueError("its size or modification time changed")
            yield from self._contents(positions, piece_size)
        except STREAM_ERRORS as error:
            raise FileFormatError(
                f"{display_path(self.name)} changed while it was read: {error}. Run the same command again."
            ) from error

    def _contents(self, positions: Sequence[int], piece_size: int) -> Iterator[Piece]:
        return super()._pieces(positions, piece_size)

    def _content(self, position: int) -> bytes:
        member = self._members[position]
        if member.refusal:
            raise BadImageError(member.refusal)
        with open(self.name, "rb") as file:
            file.seek(member.offset)
            return file.read(member.size)


class CompressedTarSource(TarSource):
    """Slow for single images, since each pass decompresses from the start: use `read_many`."""

    def __init__(self, path: str, opener: Any, progress: Progress = quiet):
        self._opener = opener
        super().__init__(path, progress)

    def _decompressed(self, file: IO[bytes]) -> AbstractContextManager[Any]:
        return self._opener(file, "rb")

    def _contents(self, positions: Sequence[int], piece_size: int) -> Iterator[Piece]:
        piece: Piece = []
        n_bytes = 0
        with open(self.name, "rb") as file, self._decompressed(file) as stream:
            for i in positions:
                member = self._members[i]
                content = None
                if not member.refusal:
                    stream.seek(member.offset)
                    content = stream.read(member.wanted)
                    n_bytes += member.wanted
                piece.append((i, content))
                if len(piece) == piece_size or n_bytes >= PIECE_BYTES:
                    yield piece
                    piece, n_bytes = [], 0
        if piece:
            yield piece


class _HeaderReader:
    """File wrapper that lets tarfile read at most `LARGEST_HEADER` header bytes per member."""

    def __init__(self, file: IO[bytes]):
        self.seek, self.tell = file.seek, file.tell
        self._read = file.read
        self.left = LARGEST_HEADER
        self.last = b""

    def read(self, size: int) -> bytes:
        if not 0 <= size <= self.left:
            raise tarfile.ReadError(f"the headers of a member exceed {LARGEST_HEADER // 1024} KB")
        self.left -= size
        self.last = self._read(size)
        return self.last


def list_images(stream: Any, read_all: bool, report: Callable[[], None]) -> dict[str, Member]:
    """Every image in the archive by name, in order.

    `read_all`: compute a CRC-32 of the content; a compressed archive is decompressed anyway. `report` is called for
    each chunk of the decompressed archive.
    """
    images: dict[str, Member] = {}
    end = 0
    headers: Any = _HeaderReader(stream)
    with tarfile.TarFile(fileobj=headers) as archive:
        while (member := archive.next()) is not None:
            archive.members = []  # type: ignore[attr-defined] # tarfile would keep every member
            headers.left = LARGEST_HEADER
            if len(archive.pax_headers) > MOST_GLOBAL_HEADERS:
                raise tarfile.ReadError(f"more than {MOST_GLOBAL_HEADERS} global headers")
            if archive.offset <= end or member.size < 0:
                raise tarfile.ReadError("its members overlap")
            if archive.offset // CHUNK > end // CHUNK:
                report()
            end = archive.offset
            name = member.name.removeprefix("./")
            if member.isdir() or is_hidden(name):
                continue
            refusal = _tar_refusal(member)
            head, check, wanted = b"", int(member.mtime), member.size
            if refusal is None:
                if read_all:
                    head, check = _checked(stream, member.size)
                    wanted = member.size if image_format(head) else len(head)
                elif not has_image_suffix(name):
                    head = stream.read(min(HEAD_BYTES, member.size))
            if has_image_suffix(name) or image_format(head):
                images.pop(name, None)
                images[name] = Member(member.offset_data, member.size, check, refusal, wanted)
    if any(headers.last):  # tarfile treats a damaged header as the end of the archive
        raise tarfile.ReadError("no valid header where the next member should begin")
    return images


def _checked(stream: Any, size: int) -> tuple[bytes, int]:
    """The first bytes of a member, and the CRC-32 of all of it."""
    chunk = stream.read(min(size, CHUNK))
    head, check, left = chunk[:HEAD_BYTES], zlib.crc32(chunk), size - len(chunk)
    while left and chunk:
        chunk = stream.read(min(left, CHUNK))
        check = zlib.crc32(chunk, check)
        left -= len(chunk)
    return head, check


def _tar_refusal(member: tarfile.TarInfo) -> str | None:
    """Why a member is not read as an image, or None."""
    if points_outside(member.name):
        return OUTSIDE
    if member.issym() or member.islnk():
        return LINK
    if not member.isreg():
        return NOT_REGULAR
    if member.issparse():
        return "stored as a sparse file, which is not supported"
    if member.size > LARGEST_FILE:
        return TOO_LARGE
    return None


def _status(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


# ---- Images in a .zip archive, read one by one without extracting to disk.


class ZipSource(ImageSource):
    """The members of a .zip in archive order. Of members with the same name, the last one counts."""

    def __init__(self, path: str, progress: Progress = quiet):
        try:
            self._zip = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError, EOFError) as error:
            raise FileFormatError(
                f"{display_path(path)} is truncated or damaged: {error}. Download or copy the archive again."
            ) from error
        self._lock = threading.Lock()
        members: dict[str, zipfile.ZipInfo] = {}
        for member in self._zip.infolist():
            name = member.filename.removeprefix("./")
            if name and not name.endswith("/") and not is_hidden(name):
                members.pop(name, None)
                members[name] = member
        images: dict[str, zipfile.ZipInfo] = {}
        for number, (name, member) in enumerate(members.items(), 1):
            if self._is_image(member):
                images[name] = member
            if number % 1000 == 0 or number == len(members):
                progress("finding images", number, len(members))
        super().__init__(path, images)
        self._members = list(images.values())

    def image_signature(self, position: int) -> tuple[int, int]:
        member = self._members[position]
        return member.file_size, member.CRC

    def _is_image(self, member: zipfile.ZipInfo) -> bool:
        if has_image_suffix(member.filename):
            return True
        if _zip_refusal(member):
            return False
        try:
            return image_format(self._bytes(member, HEAD_BYTES)) is not None
        except Exception:  # a damaged member without the suffix of an image
            return False

    def _content(self, position: int) -> bytes:
        member = self._members[position]
        refusal = _zip_refusal(member)
        if refusal:
            raise BadImageError(refusal)
        try:
            return self._bytes(member, member.file_size)
        except zipfile.BadZipFile as error:
            raise BadImageError(f"damaged: {error}") from error

    def _bytes(self, member: zipfile.ZipInfo, n_bytes: int) -> bytes:
        # ZipFile is not thread-safe: it counts its readers without a lock.
        with self._lock, self._zip.open(member) as file:
            return file.read(n_bytes)


def _zip_refusal(member: zipfile.ZipInfo) -> str | None:
    """Why a member is not opened, or None."""
    if points_outside(member.filename):
        return OUTSIDE
    kind = stat.S_IFMT(member.external_attr >> 16)  # 0 if the archive does not store it
    if kind == stat.S_IFLNK:
        return LINK
    if kind not in (0, stat.S_IFREG):
        return NOT_REGULAR
    if member.flag_bits & 0x1:
        return "encrypted"
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        # zipfile decompresses the other methods without a limit on memory.
        return "compressed by a method other than deflate"
    if member.file_size > LARGEST_FILE:
        return TOO_LARGE
    return None

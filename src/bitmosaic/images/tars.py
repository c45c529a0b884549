"""Pictures in a .tar archive, plain or compressed, read without unpacking to disk.

One pass lists the members and where their bytes lie. A plain archive is then read at these places; a compressed one
can only be read forwards, so every further pass unpacks it again, in a thread of its own while others decode.
"""

import bz2
import gzip
import lzma
import os
import re
import tarfile
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from typing import IO, Any

from bitmosaic.errors import FileFormatError
from bitmosaic.files import megabytes
from bitmosaic.images.decode import LARGEST_FILE, OUTSIDE, TOO_LARGE, BadPictureError
from bitmosaic.images.sniff import HEAD_BYTES, has_picture_suffix, is_hidden, leads_out, picture_format
from bitmosaic.images.source import ImageSource, Piece, Progress, display_path, quiet

OPENERS: dict[bytes, Any] = {b"\xfd7zXZ\x00": lzma.open, b"\x1f\x8b": gzip.open, b"BZh": bz2.open}
"""How a compressed archive begins, and what unpacks it."""

CHUNK = 2**20
PIECE_BYTES = 32 * 2**20
LARGEST_HEADER, MOST_SAID = 2**20, 1000  # bytes and facts
_ENDLESS_NUMBER = re.compile(rb"\d{256}")  # the name of a file has at most 255 bytes
_BLOCK, _EXTENDED = 512, 504  # bytes of a header, and where one of a sparse file says that another follows
# The last three come from tarfile itself, where a hostile header holds no numbers or leads to a thousand others.
STREAM_ERRORS = (
    *(tarfile.TarError, OSError, EOFError, lzma.LZMAError, zlib.error),
    *(ValueError, OverflowError, RecursionError),
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a member's bytes lie in the unpacked archive, a number that changes with them, or why it is refused."""

    offset: int
    size: int
    check: int
    refusal: str | None
    wanted: int  # bytes to read: of what begins as no picture, only the beginning


class TarSource(ImageSource):
    """The members of a .tar in the order of the archive; of two with the same name, the later one."""

    def __init__(self, path: str, progress: Progress = quiet):
        self._status = _status(path)
        total = megabytes(self._status[0])
        try:
            with open(path, "rb") as file, self._unpacked(file) as stream:

                def report() -> None:
                    # Asked of the system, since another thread reads from the file.
                    place = os.lseek(file.fileno(), 0, os.SEEK_CUR)
                    progress("finding pictures (MB)", megabytes(place), total)

                report()
                places = list_pictures(stream, isinstance(stream, ForwardStream), report)
        except STREAM_ERRORS as error:
            raise FileFormatError(
                f"A .tar must be whole to be read; {display_path(path)} is cut short or damaged: {error}. "
                "Get the archive again."
            ) from error
        progress("finding pictures (MB)", total, total)
        super().__init__(path, places)
        self._places = list(places.values())

    def fingerprint(self, position: int) -> tuple[int, int]:
        place = self._places[position]
        return place.size, place.check

    def _unpacked(self, file: IO[bytes]) -> AbstractContextManager[Any]:
        return nullcontext(file)

    def _pieces(self, positions: Sequence[int], piece_size: int) -> Generator[Piece, None, None]:
        try:
            if _status(self.name) != self._status:
                raise ValueError("its size or date changed")
            yield from self._members(positions, piece_size)
        except STREAM_ERRORS as error:
            raise FileFormatError(
                f"An archive must stay as it is while it is read; {display_path(self.name)} no longer is what was "
                f"listed: {error}. Start again."
            ) from error
        except MemoryError as error:
            raise FileFormatError(
                f"A member of a compressed archive is read whole, up to {LARGEST_FILE // 2**20} MB; there is no memory "
                f"for one of {display_path(self.name)}. Unpack the archive into a folder."
            ) from error

    def _members(self, positions: Sequence[int], piece_size: int) -> Iterator[Piece]:
        return super()._pieces(positions, piece_size)

    def _content(self, position: int) -> bytes:
        place = self._places[position]
        if place.refusal:
            raise BadPictureError(place.refusal)
        with open(self.name, "rb") as file:
            file.seek(place.offset)
            return file.read(place.size)


class CompressedTarSource(TarSource):
    """Slow at single pictures, since each pass begins at the front: use `read_many`."""

    def __init__(self, path: str, opener: Any, progress: Progress = quiet):
        self._opener = opener
        super().__init__(path, progress)

    def _unpacked(self, file: IO[bytes]) -> AbstractContextManager[Any]:
        return closing(ForwardStream(self._opener(file, "rb")))

    def _members(self, positions: Sequence[int], piece_size: int) -> Iterator[Piece]:
        piece: Piece = []
        n_bytes = 0
        with open(self.name, "rb") as file, self._unpacked(file) as stream:
            for i in positions:
                place = self._places[i]
                content = None
                if not place.refusal:
                    stream.seek(place.offset)
                    content = stream.read(place.wanted)
                    n_bytes += place.wanted
                piece.append((i, content))
                if len(piece) == piece_size or n_bytes >= PIECE_BYTES:
                    yield piece
                    piece, n_bytes = [], 0
        if piece:
            yield piece


class ForwardStream:
    """A compressed file read forwards only, with a few chunks unpacked ahead by a thread of its own."""

    def __init__(self, file: IO[bytes], n_ahead: int = 4):
        self._file = file
        self._pool = ThreadPoolExecutor(1)
        self._ahead: deque[Future[bytes]] = deque(self._pool.submit(file.read, CHUNK) for _ in range(n_ahead))
        self._chunk = b""
        self._used = 0  # of the chunk
        self._passed = 0  # before the chunk

    def tell(self) -> int:
        return self._passed + self._used

    def seek(self, offset: int) -> None:
        """Go forward; stop at the end, if it comes first."""
        if offset < self.tell():
            raise tarfile.ReadError("its members overlap")
        while offset > self._passed + len(self._chunk) and self._next_chunk():
            pass
        self._used = min(offset - self._passed, len(self._chunk))

    def read(self, n_bytes: int) -> bytes:
        part = self._chunk[self._used : self._used + n_bytes]
        self._used += len(part)
        if len(part) == n_bytes:
            return part
        parts = [part]
        missing = n_bytes - len(part)
        while missing and self._next_chunk():
            parts.append(self._chunk[:missing])
            self._used = len(parts[-1])
            missing -= self._used
        return b"".join(parts)

    def _next_chunk(self) -> bool:
        chunk = self._ahead[0].result()
        if not chunk:
            return False
        self._ahead.popleft()
        self._ahead.append(self._pool.submit(self._file.read, CHUNK))
        self._passed += len(self._chunk)
        self._chunk = chunk
        self._used = 0
        return True

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._file.close()


class _Said(dict[str, str]):
    """What the extended headers of an archive say: keys and values, counted as they come, before tarfile keeps them.

    A record may begin inside of another, so that what a header says can be far longer than the header itself.
    """

    n_letters, n_waiting = 0, 0  # of keys and values; bytes of headers whose member is still to come

    def __setitem__(self, key: str, value: str) -> None:
        self.n_letters += len(value) - len(self[key]) if key in self else len(key) + len(value)
        super().__setitem__(key, value)
        if len(self) > MOST_SAID or self.n_letters > LARGEST_HEADER:
            raise tarfile.ReadError("headers that say too much about members")

    def copy(self) -> "_Said":
        """What all members share, to be filled up with what is said about one."""
        said = _Said(self)
        said.n_letters = self.n_letters
        return said

    def begin(self, header_size: int | None) -> None:
        """Another header comes; None: the member itself."""
        self.n_waiting = 0 if header_size is None else self.n_waiting + header_size
        if self.n_waiting > LARGEST_HEADER:
            raise tarfile.ReadError("headers that say too much about one member")


class _PutBack:
    """A stream of which a piece was read too early: it comes again, and then what follows."""

    def __init__(self, piece: bytes, stream: Any):
        self._piece, self._stream = piece, stream

    def read(self, n_bytes: int) -> bytes:
        piece, self._piece = self._piece, b""
        return piece or self._stream.read(n_bytes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Member(tarfile.TarInfo):
    """A header that is checked: tarfile takes a damaged one for the end, and follows a hostile one anywhere."""

    sparse: Any
    _sparse_structs: Any
    _block: Any

    @classmethod
    def frombuf(cls, buf, encoding, errors):
        try:
            member = super().frombuf(buf, encoding, errors)
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(f"no valid header where the next member should begin ({error})") from error
        if member.size < 0 or (member.type in _HEADER_TYPES and member.size > LARGEST_HEADER):
            raise tarfile.ReadError(f"a header that claims {member.size} bytes")
        return member

    # Headers stand before the member that they are about, and tarfile keeps each until it has found that member.

    def _proc_member(self, tarfile):
        tarfile.pax_headers.begin(self.size if self.type in _HEADER_TYPES else None)
        return super()._proc_member(tarfile)  # type: ignore[misc]

    # Some Pythons look for a word after digits, from each digit on: a million of them would take them an hour.

    def _proc_pax(self, archive):
        stream = archive.fileobj
        body = stream.read(self._block(self.size))
        if _ENDLESS_NUMBER.search(body):
            raise tarfile.ReadError("a header with a number that does not end")
        archive.fileobj = _PutBack(body, stream)
        try:
            return super()._proc_pax(archive)  # type: ignore[misc]
        finally:
            archive.fileobj = stream

    # The parts of a sparse file, which is not read anyway, may be listed in gigabytes: that there are some is enough.

    def _proc_sparse(self, tarfile):
        _, extended, whole_size = self._sparse_structs
        while extended:
            extended = any(tarfile.fileobj.read(_BLOCK)[_EXTENDED : _EXTENDED + 1])
        self.sparse = []
        self.offset_data = tarfile.fileobj.tell()
        tarfile.offset = self.offset_data + self._block(self.size)
        self.size = whole_size
        return self

    def _proc_gnusparse_10(self, next, pax_headers, tarfile):
        next.sparse = []


_HEADER_TYPES = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)


def list_pictures(stream: Any, read_all: bool, report: Callable[[], None]) -> dict[str, Place]:
    """Every picture in the archive by name, in order. `read_all`: the bytes pass by anyway, so check them too.

    `report` is called whenever another chunk of the unpacked archive has been passed.
    """
    places: dict[str, Place] = {}
    end = 0
    with tarfile.TarFile(fileobj=stream, tarinfo=_Member, pax_headers=_Said()) as archive:
        while (member := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined] # or tarfile keeps them all
            if archive.offset <= end or member.size < 0:  # an extended header may say anything
                raise tarfile.ReadError("its members overlap")
            if archive.offset // CHUNK > end // CHUNK:
                report()
            end = archive.offset
            name = member.name.removeprefix("./")
            if member.isdir() or is_hidden(name):
                continue
            refusal = _refusal(member)
            head, check, wanted = b"", int(member.mtime), member.size
            if refusal is None:
                if read_all:
                    head, check = _checked(stream, member.size)
                    wanted = member.size if picture_format(head) else len(head)
                elif not has_picture_suffix(name):
                    head = stream.read(min(HEAD_BYTES, member.size))
            if has_picture_suffix(name) or picture_format(head):
                places.pop(name, None)
                places[name] = Place(member.offset_data, member.size, check, refusal, wanted)
    return places


def _checked(stream: Any, size: int) -> tuple[bytes, int]:
    chunk = stream.read(min(size, CHUNK))
    head, check, left = chunk[:HEAD_BYTES], zlib.crc32(chunk), size - len(chunk)
    while left and chunk:
        chunk = stream.read(min(left, CHUNK))
        check = zlib.crc32(chunk, check)
        left -= len(chunk)
    return head, check


def _refusal(member: tarfile.TarInfo) -> str | None:
    """Why a member is not read as a picture, or None."""
    if leads_out(member.name):
        return OUTSIDE
    if member.issym() or member.islnk():
        return "a link inside an archive is not followed"
    if not member.isreg():
        return "not a regular file"
    if member.issparse():
        return "stored as a sparse file, which is not supported"
    if member.size > LARGEST_FILE:
        return TOO_LARGE
    return None


def _status(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns

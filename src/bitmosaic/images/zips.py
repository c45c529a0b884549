"""Pictures in a .zip archive, read one by one without unpacking to disk."""

import stat
import threading
import zipfile

from bitmosaic.errors import FileFormatError
from bitmosaic.images.decode import LARGEST_FILE, OUTSIDE, TOO_LARGE, BadPictureError
from bitmosaic.images.sniff import HEAD_BYTES, has_picture_suffix, is_hidden, leads_out, picture_format
from bitmosaic.images.source import ImageSource, Progress, display_path, quiet
from bitmosaic.reading import unpacks_bit_by_bit


class ZipSource(ImageSource):
    """The members of a .zip in the order of the archive; of two with the same name, the later one."""

    def __init__(self, path: str, progress: Progress = quiet):
        try:
            self._zip = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError, EOFError) as error:
            raise FileFormatError(
                f"A .zip must be whole to be read; {display_path(path)} is cut short or damaged: {error}. "
                "Get the archive again."
            ) from error
        self._lock = threading.Lock()
        members: dict[str, zipfile.ZipInfo] = {}
        for member in self._zip.infolist():
            name = member.filename.removeprefix("./")
            if name and not name.endswith("/") and not is_hidden(name):
                members.pop(name, None)
                members[name] = member
        kept: dict[str, zipfile.ZipInfo] = {}
        for number, (name, member) in enumerate(members.items(), 1):
            if self._is_picture(member):
                kept[name] = member
            if number % 1000 == 0 or number == len(members):
                progress("finding pictures", number, len(members))
        super().__init__(path, kept)
        self._members = list(kept.values())

    def fingerprint(self, position: int) -> tuple[int, int]:
        member = self._members[position]
        return member.file_size, member.CRC

    def _is_picture(self, member: zipfile.ZipInfo) -> bool:
        if has_picture_suffix(member.filename):
            return True
        if _refusal(member):
            return False
        try:
            return picture_format(self._bytes(member, HEAD_BYTES)) is not None
        except Exception:  # a damaged member that is not even named like a picture
            return False

    def _content(self, position: int) -> bytes:
        member = self._members[position]
        refusal = _refusal(member)
        if refusal:
            raise BadPictureError(refusal)
        try:
            content = self._bytes(member, LARGEST_FILE + 1)
        except zipfile.BadZipFile as error:
            raise BadPictureError(f"damaged: {error}") from error
        if len(content) > LARGEST_FILE:
            raise BadPictureError(TOO_LARGE)
        return content

    def _bytes(self, member: zipfile.ZipInfo, n_bytes: int) -> bytes:
        # A ZipFile counts its readers without a lock of its own.
        with self._lock, self._zip.open(member) as file:
            return file.read(n_bytes)


def _refusal(member: zipfile.ZipInfo) -> str | None:
    """Why a member is not even opened, or None."""
    if leads_out(member.filename):
        return OUTSIDE
    kind = stat.S_IFMT(member.external_attr >> 16)  # 0 where the archive does not tell
    if kind == stat.S_IFLNK:
        return "a link inside an archive is not followed"
    if kind not in (0, stat.S_IFREG):
        return "not a regular file"
    if member.flag_bits & 0x1:
        return "encrypted"
    if not unpacks_bit_by_bit(member):
        return "packed by another method than deflate"
    if member.file_size > LARGEST_FILE:
        return TOO_LARGE
    return None

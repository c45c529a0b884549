"""What all kinds of exports have in common: what is said of one, and a file that is there whole or not at all."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from bitmosaic.errors import ExportError
from bitmosaic.files import result_file
from bitmosaic.images import Progress
from bitmosaic.run_pictures import RunPictures

if TYPE_CHECKING:
    from bitmosaic.explorer.clusters import Clusters


@dataclass(frozen=True)
class Exported:
    """What an export has made: facts for programs, words and notes for people."""

    facts: dict[str, int]
    words: str
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, clusters: "Clusters", notes: list[str] | None = None, **facts: int) -> "Exported":
        """An export of all pictures."""
        counts = {"pictures": len(clusters.labels), "clusters": len(clusters.numbers)}
        words = f"{counted(counts['pictures'], 'picture')} in {counted(counts['clusters'], 'cluster')}"
        return cls(counts | facts, words, notes or [])


Pictures = Callable[[], RunPictures]  # looked for only by those who need them
Write = Callable[["Clusters", Path, Pictures, Progress], Exported]


@dataclass(frozen=True)
class Kind:
    """A format, the suffixes that tell it, and how it is written."""

    name: str
    suffixes: tuple[str, ...]
    write: Write


@contextmanager
def saving(path: Path) -> Iterator[BinaryIO]:
    """A file to write to; what the system refuses becomes one sentence."""
    try:
        with result_file(path) as file:
            yield file
    except OSError as error:
        raise ExportError(f"{path} could not be written: {error.strerror or error}.") from error


def counted(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"

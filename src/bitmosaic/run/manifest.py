"""manifest.json of a run folder and of an addition, as dataclasses."""

from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from bitmosaic.errors import FileFormatError, MissingFileError
from bitmosaic.io.files import write_json
from bitmosaic.io.read import read_json

MANIFEST = "manifest.json"
STAGES = ("extract", "fit", "tables", "sheets")
REFIT = ("images", "kept", "split", "merged", "born", "died")  # counts in an entry of `refits`


class _Stored:
    """A dataclass that is stored as manifest.json. Fields without a default are required."""

    FORMAT: ClassVar[str]
    WHAT: ClassVar[str]
    ADVICE: ClassVar[str]  # for a folder without a readable manifest
    VERSION = 1

    @classmethod
    def read(cls, folder: Path) -> Self:
        path = folder / MANIFEST
        try:
            found = read_json(path)
        except FileNotFoundError:
            raise MissingFileError(
                f"{cls.WHAT.capitalize()} has a manifest.json; there is none in {folder}. {cls.ADVICE}"
            ) from None
        except (OSError, ValueError) as error:
            raise FileFormatError(f"{path} cannot be read ({error}). {cls.ADVICE}") from error
        if not isinstance(found, dict) or found.get("format") != cls.FORMAT:
            raise FileFormatError(f"{folder} is not {cls.WHAT}: its manifest has another format. {cls.ADVICE}")
        if found.get("version") != cls.VERSION:
            raise FileFormatError(
                f"{folder} is {cls.WHAT} of version {found.get('version')!r}; this bitmosaic reads {cls.VERSION}. "
                "Update bitmosaic."
            )
        known = {part.name for part in fields(cls)}  # type: ignore[arg-type]
        try:
            return cls(**{name: value for name, value in found.items() if name in known})
        except TypeError as error:  # a field is missing
            raise FileFormatError(f"{path} is incomplete ({error}). {cls.ADVICE}") from error

    def write(self, folder: Path) -> None:
        write_json(folder / MANIFEST, self.as_json())

    def as_json(self) -> dict[str, Any]:
        return {"format": self.FORMAT, "version": self.VERSION} | asdict(self)  # type: ignore[call-overload]


@dataclass
class Manifest(_Stored):
    """The manifest of a run. Empty fields are not written."""

    FORMAT: ClassVar[str] = "bitmosaic-run"
    WHAT: ClassVar[str] = "a run folder"
    ADVICE: ClassVar[str] = "Check the path, copy the run again, or create a new one: bitmosaic cluster"
    COUNTS: ClassVar[dict[str, str]] = {  # stage of each count, which is written even if it is 0
        "images": "extract",
        "skipped": "extract",
        "iterations": "fit",
        "sheets": "sheets",
    }

    bitmosaic: str  # the version that began the run
    begun: str  # ISO time
    arguments: dict[str, Any]  # of `cluster` or `fit`; a run is resumed only with the same
    seconds: dict[str, float]  # of each finished stage
    python: str = ""
    packages: dict[str, str] = field(default_factory=dict)
    bytes: dict[str, dict[str, int]] = field(default_factory=dict)  # sizes of the files of each stage
    # extract
    images: int = 0
    skipped: int = 0
    views_folder: str | None = None  # if it is not in the run folder
    # fit
    view_weights: dict[str, float] = field(default_factory=dict)
    iterations: int = 0
    how_many: dict[str, Any] | None = None  # with `auto`: the cluster counts that were tried
    # tables
    sizes: list[int] = field(default_factory=list)  # by cluster number
    mean_distances: list[float] = field(default_factory=list)
    scores: dict[str, float] | None = None
    # sheets
    sheets: int = 0
    # refits
    absorbed: int = 0  # number of additions that the last fit included
    ids: list[int] | None = None  # cluster number of each center; None: 0, 1, 2 …
    next_number: int | None = None  # lowest cluster number that was never used
    refits: list[dict[str, Any]] = field(default_factory=list)
    request: dict[str, Any] | None = None  # arguments of the last refit

    def __post_init__(self) -> None:
        # The stage "sheets" is called "pictures" in runs of version 0.1.0.
        if "pictures" in self.seconds:
            self.seconds["sheets"] = self.seconds.pop("pictures")
        if "pictures" in self.bytes:
            self.bytes["sheets"] = self.bytes.pop("pictures")

    def as_json(self) -> dict[str, Any]:
        empty = {part.name for part in fields(self) if _has_default(part) and not getattr(self, part.name)}
        empty -= {name for name, stage in self.COUNTS.items() if stage in self.seconds}
        return {name: value for name, value in super().as_json().items() if name not in empty}


@dataclass
class AdditionManifest(_Stored):
    """The manifest of an addition."""

    FORMAT: ClassVar[str] = "bitmosaic-addition"
    WHAT: ClassVar[str] = "an addition to a run"
    ADVICE: ClassVar[str] = "Copy the run again from where it was made."

    at: str  # ISO time
    source: str
    images: int
    known: int  # number of images that the run already had
    skipped: int
    updated: bool  # whether the centers were updated
    bitmosaic: str = ""
    fingerprint: str | None = None  # signature of the source
    drift: dict[str, Any] | None = None


def _has_default(part: Any) -> bool:
    return part.default is not MISSING or part.default_factory is not MISSING

"""What stands where a file or folder should, and is none: links that lead elsewhere or nowhere, pipes, folders."""

import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from torture.victims import FILE, FOLDER

LINKS = {  # to what, seen from the victims
    "a link to the same of somebody else": "{reader}/{name}",
    "a link to a file of somebody else": FILE,
    "a link to a folder of somebody else": FOLDER,
    "a link to a new file of somebody else": "new",
    "a link to /dev/zero": "/dev/zero",
}
# What is written to where it stands: a link there is what does most harm.
WRITTEN = (
    *(".refit", "additions", "additions/.adding", "history", "clusters", "checkpoint", ".views.extracting"),
    *("edits.jsonl", "thumbnails.sqlite", "skipped.jsonl", "codes.unfinished"),
)
SHAPES = (*LINKS, "a link to itself", "a pipe", "an empty folder", "nothing")
# Names that bitmosaic writes to or reads from, whether a seed has them or not.
EXTRACTING = (
    *("state.json", "skipped.jsonl", "known.jsonl", "positions.i64", "digests.u8", "ch.f32", "views"),
    *(".lock", ".bitmosaic-0.tmp"),
)
CHECKPOINT = ("codes.unfinished", "loop.safetensors", "codes.safetensors", ".lock", ".bitmosaic-0.tmp")
RUN = (
    *(".lock", ".bitmosaic-0.tmp", "manifest.json", "model.safetensors", "codes.npy", "labels.npy", "distances.npy"),
    *("clusters.csv", "clusters.parquet", "clusters", "clusters/0.jpg", "overview.png", "how-many.png", "skipped.csv"),
    *(
        "edits.jsonl",
        "thumbnails.sqlite",
        "thumbnails.sqlite-journal",
        "thumbnails.sqlite-wal",
        "thumbnails.sqlite-shm",
    ),
    *("map.npz", "duplicates.npz", "lineage.csv", "pinned.npy", "history", "history/0001", "checkpoint"),
    *(f"checkpoint/{name}" for name in CHECKPOINT),
    *("views", "views/labels.npy", "views/extraction.json", "views/manifest.json", "views/skipped.csv", "views/.lock"),
    *(".views.extracting", *(f".views.extracting/{name}" for name in EXTRACTING)),
    *("additions", "additions/.lock", "additions/.adding", "additions/0001", "additions/0001/manifest.json"),
    *("additions/.adding/views", "additions/.adding/views/known.csv", "additions/.adding/.views.extracting"),
    *(".refit", ".refit/.ready", ".refit/.gone", ".refit/.replaced", ".refit/clusters", ".refit/edits.jsonl"),
    *(".refit/checkpoint", ".refit/manifest.json", ".refit/model.safetensors", ".refit/history", ".refit/.lock"),
    *(".refit/.gone/clusters", ".refit/.gone/edits.jsonl"),
)
VIEWS = (
    ".lock",
    "labels.npy",
    "paths.jsonl",
    "manifest.json",
    "digests.npy",
    "extraction.json",
    "skipped.csv",
    "parts",
    ".bitmosaic-0.tmp",
)
NAMES = {
    "run": RUN,
    "grown run": RUN,
    "growing run": RUN,
    "stopped run": RUN,
    "views folder": VIEWS,
    "parts folder": VIEWS,
    "checkpoint": CHECKPOINT,
    "extraction": EXTRACTING,
}
READY = 0.3  # of the tries in a folder with a refit: its files are about to take their places


@dataclass(frozen=True)
class Shape:
    """One of SHAPES at a name below a folder; what stood there is gone."""

    reader: str
    name: str
    what: str
    victims: Path
    ready: bool = False  # the refit that was stopped counts as finished
    gone: tuple[str, ...] = ()  # what else is taken away

    def put(self, folder: Path) -> None:
        for name in self.gone:
            remove(folder / name)
        if self.ready:
            (folder / ".refit").mkdir(exist_ok=True)
            (folder / ".refit" / ".ready").touch()
        path = folder / self.name
        for parent in reversed(path.relative_to(folder).parents[:-1]):
            if not (folder / parent).is_dir():
                remove(folder / parent)
                (folder / parent).mkdir()
        remove(path)
        if self.what in LINKS:
            path.symlink_to(self.victims / LINKS[self.what].format(reader=self.reader, name=self.name))
        elif self.what == "a link to itself":
            path.symlink_to(path.name)
        elif self.what == "a pipe":
            os.mkfifo(path)
        elif self.what == "an empty folder":
            path.mkdir()

    def __str__(self) -> str:
        also = [f"{', '.join(self.gone)} gone"] * bool(self.gone) + ["with the mark .refit/.ready"] * self.ready
        return ", ".join([f"{self.what} at {self.name}", *also])


def first_shapes(reader: str, victims: Path) -> list[Shape]:
    """Links to the files of others, where this kind of folder is written to."""
    places = [name for name in WRITTEN if name in NAMES.get(reader, ())]
    return [Shape(reader, name, what, victims) for name in places for what in (*LINKS,)[:3]]


def any_shape(rng, reader: str, name: str, victims: Path) -> Shape:
    """At the name of a seed, or at one of those that a reader of this kind comes to."""
    names = NAMES[reader]
    name = name if rng.random() < 0.3 else names[rng.integers(len(names))]
    ready = "run" in reader and bool(rng.random() < READY)
    gone = ("views",) if reader in ("run", "stopped run") and rng.random() < 0.2 else ()
    return Shape(reader, name, SHAPES[rng.integers(len(SHAPES))], victims, ready, gone)


def remove(path: Path) -> None:
    """Whatever it is; never what a link leads to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def copy_as_it_is(folder: Path, to: Path) -> Path:
    """A copy of a folder in which links stay links and pipes pipes."""
    return Path(shutil.copytree(folder, to, symlinks=True, copy_function=_copy))


def _copy(source, to):
    if stat.S_ISFIFO(os.lstat(source).st_mode):
        os.mkfifo(to)
    else:
        shutil.copy2(source, to)

"""Many files of a folder are replaced together: made in a hidden folder inside it, then each moved to its place.

Once all are made, a mark says so. From then on whoever opens the folder first puts them in their places, or goes on
with that where a process died: half old and half new is never read.
"""

from collections.abc import Sequence
from pathlib import Path

from bitmosaic.errors import UnwritableFileError
from bitmosaic.files import locked, refuse_links, remove, sync_folder, write_whole, writing

READY, GONE, REPLACED = ".ready", ".gone", ".replaced"  # in the hidden folder


def announce(work: Path, names: Sequence[str]) -> None:
    """All that is to appear is in `work`; of these names, what is not there is to go. No way back from here.

    What the mark speaks of is on the disk before the mark.
    """
    with writing(work):
        (work / GONE).mkdir(exist_ok=True)
        for name in names:
            if not (work / name).exists():
                (work / GONE / name).touch()
        for folder in (work / GONE, work, work.parent):
            sync_folder(folder)
    write_whole(work / READY, b"")


def is_announced(work: Path) -> bool:
    """Whether files are taking their places, or a process died while they did."""
    return (work / READY).is_file()


def publish(folder: Path, work: Path, names: Sequence[str]) -> None:
    """Put what was announced in its place in `folder`, in the order of the names. For who holds the lock."""
    if not is_announced(work):
        return
    refuse_links(work)
    with writing(folder):
        for name in names:
            new, place, gone = work / name, folder / name, work / GONE / name
            if new.exists():
                if place.is_dir():  # a folder cannot be replaced in one step
                    place.rename(work / REPLACED)
                new.replace(place)
                remove(work / REPLACED, gently=True)
            elif gone.exists():
                remove(place)
                gone.unlink()
        sync_folder(folder)
        (work / READY).unlink()
    remove(work, gently=True)


def finish_publishing(folder: Path, work: Path, names: Sequence[str]) -> None:
    """What a process that died left announced takes its place before anything is read."""
    if not is_announced(work):
        return
    try:
        with locked(folder):
            publish(folder, work, names)
    except UnwritableFileError as error:
        raise UnwritableFileError(
            f"New files must take their places in {folder} before it is read, and cannot ({error.strerror}). "
            "Open it once where it may be written to."
        ) from error

"""Pictures whose place says their class -> pictures with classes: class folders as of ImageNet, YouTube Faces."""

import os
import re
import tarfile
from pathlib import Path

import numpy as np

from bitmosaic.bench.selection import LabelledSource, called, labelled
from bitmosaic.errors import FileFormatError, InvalidDataError
from bitmosaic.files import megabytes
from bitmosaic.images import ImageSource, Progress, display_path, folder_name, quiet
from bitmosaic.images.tars import STREAM_ERRORS, Place, TarSource, list_pictures

ALIGNED = "aligned_images_DB/"
_FRAME = re.compile(r"(?:.*/)?[^/]+/(\d+)/(?:aligned_detect_)?\1\.\d+\.jpg")  # PERSON/VIDEO/aligned_detect_VIDEO.FRAME
_OF_PERSON = re.compile(r"(?:.*/)?([^/]+)/\d+/[^/]+")


class TarOfTars(TarSource):
    """ILSVRC2012_img_train.tar: a plain .tar with one of pictures for each class, n01440764.tar and so on."""

    def __init__(self, path: str, progress: Progress = quiet):
        status = os.stat(path)
        self._status = status.st_size, status.st_mtime_ns
        total = megabytes(status.st_size)
        places: dict[str, Place] = {}
        try:
            with open(path, "rb") as file, tarfile.open(fileobj=file, mode="r:") as archive:

                def report() -> None:
                    progress("finding pictures (MB)", megabytes(file.tell()), total)

                for member in archive.getmembers():
                    if not member.isreg() or not member.name.endswith(".tar"):
                        continue
                    file.seek(member.offset_data + max(0, member.size - 512))
                    if file.read(512) != bytes(512):  # or its end would be looked for in the next one
                        raise tarfile.ReadError(f"{member.name} has no end")
                    file.seek(member.offset_data)  # an archive may begin anywhere, and its places count from the front
                    for name, place in list_pictures(file, False, report).items():
                        places[f"{Path(member.name).stem}/{name}"] = place
        except STREAM_ERRORS as error:
            raise FileFormatError(
                f"A .tar of .tar files must be whole to be read; {display_path(path)} is cut short or damaged: "
                f"{error}. Get the archive again."
            ) from error
        progress("finding pictures (MB)", total, total)
        ImageSource.__init__(self, path, places)
        self._places = list(places.values())


def class_folders(source: ImageSource) -> LabelledSource:
    """The class of a picture is the name of its folder, which holds no folders with pictures in turn."""
    folders = {path.rpartition("/")[0]: path for path in source.paths}
    for folder, path in folders.items():
        above = next((part for part in _above(folder) if part in folders), None)
        if above is not None:
            raise InvalidDataError(
                f"Pictures must lie in a folder for each class; those of {called(source.name)} lie at several depths, "
                f"such as {display_path(folders[above])} and {display_path(path)}. Move them, or choose one folder."
            )
    return labelled(source, np.array([folder_name(path) for path in source.paths]))


def _above(folder: str) -> list[str]:
    """Every folder that a folder lies in; "" is the top."""
    parts = folder.split("/") if folder else []
    return ["/".join(parts[:n]) for n in range(len(parts))]


def is_youtube_faces(source: ImageSource) -> bool:
    """Whether the pictures are named as its frames are."""
    return all(_FRAME.fullmatch(path) for path in source.paths)


def youtube_faces(source: ImageSource) -> LabelledSource:
    """PERSON/VIDEO/FRAME.jpg; the class is the person. Where the aligned pictures are there, only these are taken.

    Wolf, Hassner & Maoz, Face Recognition in Unconstrained Videos with Matched Background Similarity, CVPR 2011.
    """
    aligned = [i for i, path in enumerate(source.paths) if ALIGNED in path]
    positions = aligned or range(len(source))
    matches = [_OF_PERSON.fullmatch(source.paths[i]) for i in positions]
    people = [match[1] for match in matches if match]
    if len(people) < len(matches):
        stray = source.paths[positions[matches.index(None)]]
        raise InvalidDataError(
            f"Frames of YouTube Faces lie in aligned_images_DB/PERSON/VIDEO NUMBER; {len(matches) - len(people):,} of "
            f"{len(matches):,} pictures in {called(source.name)} do not, such as {display_path(stray)}. Choose "
            "the folder aligned_images_DB."
        )
    return LabelledSource(source, np.array(positions), np.array([display_path(person) for person in people]))

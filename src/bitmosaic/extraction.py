"""Pictures -> a views folder. What has been extracted survives a kill: the same call goes on where it was.

While it works, rows are appended to raw files in a hidden folder beside the views folder; a small state file, written
anew after each batch, says how much of them counts. At the end a views folder is made there, and takes its place whole.
"""

import csv
import hashlib
import io
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bitmosaic.digests import KnownPictures, digests_of
from bitmosaic.errors import FileFormatError, InvalidDataError, ParameterError
from bitmosaic.extraction_work import Work
from bitmosaic.features import HAND_MADE, Extractor, extract, extractor
from bitmosaic.files import locked, refuse_links, remove, sync_folder, write_json, write_whole, writing
from bitmosaic.images import ImageSource, Progress, display_path, open_images, quiet
from bitmosaic.places import as_path
from bitmosaic.reading import read_json, read_lines
from bitmosaic.threads import ahead
from bitmosaic.views import Views, read_digests, read_views
from bitmosaic.views.folder import EXTRACTION
from bitmosaic.views.writer import TAKEN

DEFAULT_VIEWS = ("lbp", "gist", "hog")
BATCH, SLOW_BATCH = 1024, 128  # pictures; what a stop can cost
RECIPE, SKIPPED, KNOWN = EXTRACTION, "skipped.csv", "known.csv"
STAGE = "extracting features"
_LONGEST_LINE = 2**20  # bytes of a CSV; a path has some thousand at most


@dataclass(frozen=True)
class ViewSpec:
    """A view to extract: its name, and the extractor and options behind it."""

    name: str
    extractor: str
    options: dict[str, Any]

    @classmethod
    def parse(cls, text: str, mirror: bool = True) -> "ViewSpec":
        """From hog, hog?mirror=false, or deep=model.onnx?size=112 for an ONNX encoder under a name of its own.

        `mirror` is for the hand-made features; an encoder would take twice as long, and is mirrored only by its own
        option, deep=model.onnx?mirror=true. So is a user's extractor.
        """
        view, _, query = text.partition("?")
        name, equals, path = view.partition("=")
        if not name or (equals and not path):
            raise ParameterError(f"A view is the name of an extractor, or NAME=MODEL.onnx; got {text!r}.")
        options = dict(_option(text, part) for part in query.split("&") if part)
        if not equals:
            return cls(name, name, ({"mirror": mirror} if name in HAND_MADE else {}) | options)
        return cls(name, "onnx", {"path": os.path.realpath(path)} | options)

    @classmethod
    def again(cls, made: dict[str, Any]) -> "ViewSpec":
        """From what `recipe` gave, checked: it still is what decides the features."""
        spec = cls(made["name"], made["extractor"], made["options"])
        if as_json(spec.recipe()) != made:
            raise InvalidDataError(
                f"View {spec.name!r} must be made from the same model again; its file has changed, or is gone."
            )
        return spec

    def open(self) -> Extractor:
        return extractor(self.extractor, **self.options)

    def recipe(self) -> dict[str, Any]:
        """What decides the features: name, options, and the content of a model file."""
        recipe: dict[str, Any] = {"name": self.name, "extractor": self.extractor, "options": self.options}
        model = self.options.get("path")
        if model and Path(model).is_file():
            recipe["sha256"] = hashlib.sha256(Path(model).read_bytes()).hexdigest()
        return recipe


def _option(text: str, part: str) -> tuple[str, Any]:
    """size=112 -> ("size", 112); numbers with commas are a list."""
    key, equals, value = part.partition("=")
    if not key or not equals or not value:
        raise ParameterError(f"The options of a view are written NAME?option=value&option=value; got {text!r}.")
    try:
        return key, json.loads(f"[{value}]" if "," in value else value)
    except ValueError:
        return key, value


def view_specs(views: Sequence[str | ViewSpec], mirror: bool = True) -> list[ViewSpec]:
    specs = [view if isinstance(view, ViewSpec) else ViewSpec.parse(view, mirror) for view in views]
    names = [spec.name for spec in specs]
    if not names or len({name.casefold() for name in names}) < len(names):
        raise ParameterError(f"There must be at least one view, and each name once; got {names}.")
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name) or name.casefold() in TAKEN:
            raise ParameterError(
                f"A view's name is letters, digits, '_', '-' and '.', and not 'labels' or 'digests'; got {name!r}."
            )
    return specs


def usual_side(specs: Sequence[ViewSpec]) -> int:
    """Enough for the features at hand: encoders want to see more than histograms."""
    return 256 if any(spec.extractor == "onnx" for spec in specs) else 128


def extract_views(
    src: Any,
    out: Any,
    views: Sequence[str | ViewSpec] = DEFAULT_VIEWS,
    *,
    mirror: bool = True,
    labels: str | None = None,
    max_side: int | None = None,
    n_threads: int | None = None,
    strict: bool = False,
    progress: Progress = quiet,
) -> Views:
    """Extract features of all pictures of `src` into the views folder `out`, or go on with what was begun there.

    `mirror` makes hand-made features blind to left and right; an ONNX encoder or an extractor of one's own has the
    option in its view, as in deep=model.onnx?mirror=true.
    `labels="folder"` takes the name of a picture's folder as its true label. Larger pictures are reduced to `max_side`
    pixels a side: 128 or, for an ONNX encoder, 256. Pictures that cannot be read are left out, with their cause, in
    skipped.csv; `strict` stops instead. `progress(stage, done, total)` is called after each batch.
    """
    job = Extraction.prepare(src, out, views, mirror, labels, max_side, progress)
    if (done := job.result(progress)) is not None:
        return done
    with job.working() as folder:
        if (done := job.result(progress)) is not None:  # by another process, until now
            return done
        job.publish(job.extract(folder, None, n_threads, strict, progress))
    return read_views(job.out)


class Extracted(NamedTuple):
    """What an extraction has come to."""

    whole: Path | None  # a views folder that is to be published; None if no picture was new
    skipped: list[tuple[str, str]]  # paths and causes
    known: list[tuple[str, str]] | None  # paths, and those of the same pictures; None where nobody asked


@dataclass(frozen=True)
class Extraction:
    """What is to be extracted and where to, checked: wherever it is done, the recipe decides the features."""

    source: ImageSource
    specs: list[ViewSpec]
    out: Path
    labels: str | None
    max_side: int
    recipe: dict[str, Any]

    @classmethod
    def prepare(
        cls,
        src: Any,
        out: Any,
        views: Sequence[str | ViewSpec],
        mirror: bool,
        labels: str | None,
        max_side: int | None,
        progress: Progress,
        after: int | None = None,
    ) -> "Extraction":
        """`after`: so many additions of a run, which these pictures are to join; their folders are what they are."""
        specs = view_specs(views, mirror)
        max_side = max_side or usual_side(specs)
        source = open_images(src, progress)
        if after is None:
            check_labels(source, labels)
        recipe = as_json(
            {
                "source": source_name(source),
                "pictures": len(source),
                "fingerprint": fingerprint(source),
                "max_side": max_side,
                "labels": labels,
                "views": [spec.recipe() for spec in specs],
            }
            | ({} if after is None else {"after": after})
        )
        return cls(source, specs, as_path(out, "A views folder"), labels, max_side, recipe)

    @property
    def slow(self) -> bool:
        return any(spec.extractor == "onnx" for spec in self.specs)

    @property
    def work_folder(self) -> Path:
        return self.out.with_name(f".{self.out.name}.extracting")

    def result(self, progress: Progress) -> Views | None:
        """The views if they are there already, None if not. What was made in another way is refused."""
        if (done := finished(self.out)) is None:
            return None
        remove(self.work_folder, gently=True)
        if done != self.recipe:
            raise InvalidDataError(
                f"A views folder is made from one source in one way; {self.out} was made "
                f"{difference(done, self.recipe)}. Choose another folder, or remove this one."
            )
        views = read_views(self.out)
        read_digests(self.out)  # or what is lost would be missed by the first who adds pictures
        if not _lists_skipped(self.out / SKIPPED, len(self.source) - views.n_rows):
            write_whole(self.out / SKIPPED, skipped_csv(self._skipped(views)))
        progress(STAGE, len(self.source), len(self.source))
        return views

    def _skipped(self, views: Views) -> list[tuple[str, str]]:
        """What these views, made of the same pictures, have left out."""
        there = set(views.paths or ())
        missing = [i for i, path in enumerate(self.source.paths) if path not in there]
        return [(s.path, s.cause) for s in self.source.unreadable(missing, self.max_side)]

    @contextmanager
    def working(self) -> Iterator[Path]:
        """The hidden folder to work in, for one process at a time."""
        refuse_links(self.work_folder)
        with locked(self.work_folder):
            yield self.work_folder

    def extract(
        self, folder: Path, known: KnownPictures | None, n_threads: int | None, strict: bool, progress: Progress
    ) -> Extracted:
        """Extract into the hidden folder, from where it was left. Pictures that are `known` are not extracted."""
        extractors = [spec.open() for spec in self.specs]
        widths = {spec.name: e.width for spec, e in zip(self.specs, extractors, strict=True)}
        paths, n_pictures = self.source.paths, len(self.source)
        with closing(Work(folder, self.recipe, widths)) as work:
            if known is not None:
                positions, digests = work.collected()
                known.sort_out(digests, [paths[i] for i in positions])
            progress(STAGE, work.next, n_pictures)
            size = SLOW_BATCH if self.slow else BATCH
            for batch in ahead(self.source.batches(size, work.next, self.max_side, n_threads, strict)):
                digests = digests_of(batch.images, n_threads)
                new, same = np.arange(len(digests)), list[tuple[str, str]]()
                if known is not None:
                    new, same = known.sort_out(digests, [paths[i] for i in batch.positions])
                features = extract(extractors, [batch.images[i] for i in new], n_threads)
                skipped = [(s.path, s.cause) for _, s in batch.skipped]
                work.append(batch.positions[new], features, digests[new], skipped, same)
                progress(STAGE, work.next, n_pictures)
            skipped, same = work.left_out()
            if not same:
                self.check_some(work.rows, skipped)
            whole = work.finish(self.source, self._labels(), progress) if work.rows else None
        return Extracted(whole, skipped, None if known is None else same)

    def _labels(self) -> np.ndarray | None:
        """Of all pictures of the source, "" where they have no folders."""
        names = self.source.labels() if self.labels else None
        return np.full(len(self.source), "") if self.labels and names is None else names

    def check_some(self, n_rows: int, skipped: Sequence[tuple[str, str]]) -> None:
        if n_rows == 0:
            causes = "; ".join(f"{display_path(path)}: {cause}" for path, cause in skipped[:3])
            remove(self.work_folder, gently=True)
            raise InvalidDataError(f"At least one picture must be readable; none of {len(self.source)} was ({causes}).")

    def publish(self, made: Extracted) -> None:
        """A finished views folder in the hidden one takes its place at once."""
        assert made.whole is not None
        write_whole(made.whole / SKIPPED, skipped_csv(made.skipped))
        if made.known is not None:
            write_whole(made.whole / KNOWN, pairs_csv(("path", "same_as"), made.known))
        write_json(made.whole / RECIPE, self.recipe)
        with writing(self.out):
            if self.out.is_dir():
                self.out.rmdir()  # empty, as `finished` has seen
            made.whole.rename(self.out)
            sync_folder(self.out.parent)
        remove(self.work_folder, gently=True)


def check_labels(source: ImageSource, labels: str | None) -> None:
    if labels not in (None, "folder"):
        raise ParameterError(f"labels must be 'folder', the name of a picture's folder, or None; got {labels!r}.")
    names = source.labels() if labels else None
    if labels and (names is None or len(set(names.tolist())) < 2):
        raise InvalidDataError(
            f"labels='folder' needs pictures in several folders; {display_path(source.name)} has one folder or none."
        )


def source_name(source: ImageSource) -> str:
    """The whole path of a source that is a file or folder, so that it is found from anywhere."""
    path = Path(source.name)
    return display_path(str(path.resolve()) if path.exists() else source.name)


def as_json(recipe: dict[str, Any]) -> dict[str, Any]:
    """As it will be read back."""
    try:
        return json.loads(json.dumps(recipe))
    except (TypeError, ValueError) as error:
        raise ParameterError(f"The options of a view must be plain numbers, texts and lists; {error}.") from None


def fingerprint(source: ImageSource) -> str:
    """A hash over the names of all pictures and what tells that one has changed."""
    digest = hashlib.sha256()
    for position, path in enumerate(source.paths):
        digest.update(repr((path, source.fingerprint(position))).encode())
    return digest.hexdigest()


def finished(out: Path) -> dict[str, Any] | None:
    """The recipe of a finished extraction in `out`, None where there is none."""
    try:
        taken = bool(os.listdir(out))  # before we look for the recipe: another process may finish meanwhile
    except FileNotFoundError:
        taken = False
    except NotADirectoryError:
        taken = True
    except OSError as error:
        raise FileFormatError(
            f"Views go into a folder that can be read; {out} cannot ({error.strerror}). Choose another."
        ) from error
    path = out / RECIPE
    if not path.exists():
        if taken:
            raise InvalidDataError(f"Views go into a folder of their own; {out} holds other things. Choose another.")
        return None
    return read_recipe(path)


def read_recipe(path: Path) -> dict[str, Any]:
    try:
        recipe = read_json(path)
        if not all(isinstance(view["name"] + view["extractor"], str) for view in recipe["views"]):
            raise ValueError("its views have no names")
        if not all(isinstance(view["options"].get("path", ""), str) for view in recipe["views"]):
            raise ValueError("its models have no paths")
        if type(recipe["max_side"]) is not int or not 0 < recipe["max_side"] < 2**16:
            raise ValueError("its pictures have no size")
        return recipe
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(
            f"{path} cannot be read ({error}). Copy it again, or extract into another folder."
        ) from error


def difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    """In words, what differs between two recipes."""
    parts = []
    for key, what in (("source", "from"), ("views", "with the views"), ("max_side", "with max_side")):
        if old.get(key) != new[key]:
            show = [view["name"] for view in old[key]] if key == "views" else old.get(key)
            parts.append(f"{what} {show}")
    return " and ".join(parts) or "from pictures that have changed since, or with other options"


def _lists_skipped(path: Path, number: int) -> bool:
    """Whether a skipped.csv is there and whole, with so many pictures."""
    try:
        return count_rows(path) == number
    except (OSError, ValueError, csv.Error):
        return False


def count_rows(path: Path) -> int:
    """How many rows a CSV of ours has below its head; a ValueError if it was cut."""
    line = b""

    def lines() -> Iterator[str]:
        nonlocal line
        for line in read_lines(path, _LONGEST_LINE):
            yield line.decode()

    n_rows = sum(1 for _ in csv.reader(lines())) - 1
    if not line.endswith(b"\r\n"):
        raise ValueError("it was cut")
    return n_rows


def skipped_csv(skipped: Sequence[tuple[str, str]]) -> bytes:
    return pairs_csv(("path", "cause"), skipped)


def pairs_csv(names: tuple[str, str], pairs: Sequence[tuple[str, str]]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(names)
    writer.writerows([display_path(path), display_path(other)] for path, other in pairs)
    return text.getvalue().encode()

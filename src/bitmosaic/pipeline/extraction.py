"""Images -> a views folder, and new images -> codes of a run. An interrupted extraction is resumed by the same call.

The views folder grows in a hidden folder beside its place: rows are appended to its .npy files, and a small state file,
replaced after each batch, counts them. At the end the .npy headers get their row counts, and the folder is renamed.
"""

import csv
import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bitmosaic.errors import FileFormatError, InvalidDataError, MissingFileError, ParameterError
from bitmosaic.features import HAND_MADE, Extractor, extract, extractor
from bitmosaic.images import Batch, ImageSource, Progress, display_path, open_images, quiet
from bitmosaic.images.hashes import CONTENT_HASH_BYTES, KnownImages, content_hashes
from bitmosaic.io.files import (
    LOCK,
    locked,
    remove,
    remove_unfinished,
    sync_folder,
    write_json,
    write_whole,
    writing,
)
from bitmosaic.io.read import read_json
from bitmosaic.io.threads import ahead
from bitmosaic.run.folder import Run
from bitmosaic.views import Views, read_content_hashes, read_views
from bitmosaic.views.folder import DIGESTS, RECIPE, open_matrix, read_recipe
from bitmosaic.views.writer import TAKEN, GrowingMatrix, write_notes

DEFAULT_VIEWS = ("lbp", "gist", "hog")
BATCH, SLOW_BATCH = 1024, 128  # images; an interruption costs at most one batch
SKIPPED, KNOWN = "skipped.csv", "known.csv"
STAGE = "extracting features"


@dataclass(frozen=True)
class ViewSpec:
    """A view to extract: its name, and the extractor and options behind it."""

    name: str
    extractor: str
    options: dict[str, Any]

    @classmethod
    def parse(cls, text: str, mirror: bool = True) -> "ViewSpec":
        """From hog, hog?mirror=false, or deep=model.onnx?size=112 for an ONNX encoder under a name of its own.

        `mirror` applies to the hand-made features. An encoder would take twice as long, so it has its own option:
        deep=model.onnx?mirror=true. The same holds for a user's extractor.
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
    def from_recipe(cls, made: dict[str, Any]) -> "ViewSpec":
        """From the result of `recipe`. An error if the model file has changed since."""
        spec = cls(made["name"], made["extractor"], made["options"])
        if as_json(spec.recipe()) != made:
            raise InvalidDataError(
                f"View {spec.name!r} needs the model file that it was made with; the file has changed or is missing."
            )
        return spec

    def open(self) -> Extractor:
        """The extractor. It is opened by the first call, and kept until `close`."""
        return self._extractor

    def close(self) -> None:
        """Free the extractor: the session of an ONNX model can be large."""
        self.__dict__.pop("_extractor", None)

    @cached_property
    def _extractor(self) -> Extractor:
        return extractor(self.extractor, **self.options)

    @cached_property
    def _model_hash(self) -> str | None:
        model = self.options.get("path")
        return hashlib.sha256(Path(model).read_bytes()).hexdigest() if model and Path(model).is_file() else None

    def recipe(self) -> dict[str, Any]:
        """Everything that the features depend on: name, options, and the content of a model file."""
        recipe = {"name": self.name, "extractor": self.extractor, "options": self.options}
        return recipe | ({} if self._model_hash is None else {"sha256": self._model_hash})


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


def default_side(specs: Sequence[ViewSpec]) -> int:
    """The default `max_side`: encoders need more pixels than histograms."""
    return 256 if any(spec.extractor == "onnx" for spec in specs) else 128


@dataclass(frozen=True)
class ExtractOptions:
    """Options of an extraction. Those that change the features are stored in `recipe`, and read by `from_recipe`.

    `mirror` makes hand-made features ignore left and right; an ONNX encoder or a user's extractor has the option in
    its view, as in deep=model.onnx?mirror=true. `labels="folder"` takes the name of an image's folder as its true
    label. Larger images are reduced to `max_side` pixels a side: 128 or, for an ONNX encoder, 256. Unreadable images
    are skipped; with `strict`, the first one is an error. `n_threads` is for this machine only.
    """

    views: Sequence[str | ViewSpec] = DEFAULT_VIEWS
    mirror: bool = True
    labels: str | None = None
    max_side: int | None = None
    n_threads: int | None = None
    strict: bool = False

    @cached_property
    def specs(self) -> list[ViewSpec]:
        return view_specs(self.views, self.mirror)

    @property
    def side(self) -> int:
        return self.max_side or default_side(self.specs)

    def recipe(self) -> dict[str, Any]:
        """Everything that the features of an image depend on, as stored in a views folder and in a run."""
        return {"max_side": self.side, "labels": self.labels, "views": [spec.recipe() for spec in self.specs]}

    @classmethod
    def from_recipe(
        cls, recipe: dict[str, Any], n_threads: int | None = None, strict: bool = False
    ) -> "ExtractOptions":
        """The options by which other images get the same features. An error if a model file has changed since."""
        specs = [ViewSpec.from_recipe(view) for view in recipe["views"]]
        return cls(specs, True, recipe.get("labels"), recipe["max_side"], n_threads, strict)

    def batches(self, source: ImageSource, size: int, start: int) -> Iterator[Batch]:
        """Decoded images of a source, `size` at a time."""
        return source.batches(size, start, self.side, self.n_threads, self.strict)

    @property
    def slow(self) -> bool:
        return any(spec.extractor == "onnx" for spec in self.specs)


def extract_views(src: Any, out: Any, options: ExtractOptions | None = None, progress: Progress = quiet) -> Views:
    """Extract features of all images of `src` into the views folder `out`, or resume what was begun there.

    skipped.csv lists unreadable images with their causes. `progress(stage, done, total)` is called after each batch.
    """
    job = Extraction.prepare(src, out, options or ExtractOptions(), progress)
    return job.run(job.batches, progress)


class FeatureBatch(NamedTuple):
    """Features of neighboring images of a source."""

    positions: np.ndarray  # (b,) int64, ascending
    features: list[np.ndarray]  # of each view, (b, d_v)
    hashes: np.ndarray  # (b, 16) uint8, of the content
    left_out: list[tuple[int, str, str]]  # (position, SKIPPED, cause) or (position, KNOWN, path of the same image)


def features_of(
    batch: Batch,
    extractors: Sequence[Extractor],
    n_threads: int | None,
    paths: Sequence[str] = (),
    known: KnownImages | None = None,
) -> FeatureBatch:
    """Features of decoded images; those that are `known` are left out."""
    hashes, positions = content_hashes(batch.images, n_threads), batch.positions
    left_out = [(i, SKIPPED, skipped.cause) for i, skipped in batch.skipped]
    new = np.arange(len(positions))
    if known is not None:
        new, same = known.sort_out(hashes, [paths[i] for i in positions])
        old = np.delete(positions, new).tolist()
        left_out += [(i, KNOWN, other) for i, (_, other) in zip(old, same, strict=True)]
    features = extract(extractors, [batch.images[i] for i in new], n_threads)
    return FeatureBatch(positions[new], features, hashes[new], left_out)


MakeBatches = Callable[[int], Generator[FeatureBatch, None, None]]
"""Features of all images of a source from a position on, in order."""


class Extracted(NamedTuple):
    """The result of an extraction."""

    whole: Path | None  # a views folder to be published; None if no image was new
    skipped: list[tuple[str, str]]  # paths and causes
    known: list[tuple[str, str]] | None  # paths, and those of the same images; None where no image can be known


@dataclass(frozen=True)
class Extraction:
    """A checked extraction. Its features depend on the recipe alone, not on the process that computes them."""

    source: ImageSource
    options: ExtractOptions
    out: Path
    recipe: dict[str, Any]

    @classmethod
    def prepare(
        cls, src: Any, out: Any, options: ExtractOptions, progress: Progress = quiet, after: int | None = None
    ) -> "Extraction":
        """`after`: the number of additions of the run that these images join; their labels are not checked."""
        source = open_images(src, progress)
        if after is None:
            check_labels(source, options.labels)
        # "pictures" and "fingerprint" are the words of version 0.1.0, whose recipes are compared with this one.
        recipe = {"source": source_name(source), "pictures": len(source), "fingerprint": source.signature}
        recipe |= options.recipe() | ({} if after is None else {"after": after})
        return cls(source, options, Path(out), as_json(recipe))

    @property
    def work_folder(self) -> Path:
        return self.out.with_name(f".{self.out.name}.extracting")

    def run(self, make: MakeBatches, progress: Progress) -> Views:
        """Extract and publish, unless the views are there already."""
        try:
            with locked(self.work_folder):
                if (done := self.result(progress)) is not None:
                    return done
                self.publish(self.extract(make, progress))
        finally:
            for spec in self.options.specs:
                spec.close()
        return read_views(self.out)

    def result(self, progress: Progress) -> Views | None:
        """The finished views, None if there are none. Views of another recipe are refused."""
        if (done := finished(self.out)) is None:
            return None
        remove(self.work_folder, ignore_errors=True)
        if done != self.recipe:
            raise InvalidDataError(
                f"A views folder is made from one source in one way; {self.out} was made "
                f"{difference(done, self.recipe)}. Choose another folder, or remove this one."
            )
        views = read_views(self.out)
        read_content_hashes(self.out)  # an error if the hashes are lost: `add` needs them
        if not (self.out / SKIPPED).is_file():
            raise FileFormatError(
                f"{self.out} has lost its {SKIPPED}. Copy it again, or remove the folder to extract it again."
            )
        progress(STAGE, len(self.source), len(self.source))
        return views

    def batches(self, start: int, known: KnownImages | None = None) -> Generator[FeatureBatch, None, None]:
        """Features made by this process. Images that are `known` are left out."""
        o, source = self.options, self.source
        extractors = [spec.open() for spec in o.specs]
        for batch in ahead(o.batches(source, SLOW_BATCH if o.slow else BATCH, start)):
            yield features_of(batch, extractors, o.n_threads, source.paths, known)

    def extract(self, make: MakeBatches, progress: Progress, known: KnownImages | None = None) -> Extracted:
        """Extract into the hidden folder, or resume there. Caller must hold its lock.

        Images extracted before are added to `known`.
        """
        paths, n_images = self.source.paths, len(self.source)
        widths = {spec.name: spec.open().width for spec in self.options.specs}
        with closing(GrowingViews(self.work_folder, self.recipe, widths)) as grown:
            if known is not None:
                known.sort_out(grown.hashes(), [paths[i] for i in grown.positions()])
            progress(STAGE, grown.next, n_images)
            with closing(make(grown.next)) as batches:
                for batch in batches:
                    grown.append(batch)
                    progress(STAGE, grown.next, n_images)
            skipped, same = (
                [(paths[i], text) for i, why, text in grown.left_out if why == wanted] for wanted in (SKIPPED, KNOWN)
            )
            if not grown.n_rows and not same:
                self._refuse_all(skipped)
            whole = grown.finish(self.source, self._labels()) if grown.n_rows else None
        return Extracted(whole, skipped, None if known is None else same)

    def _labels(self) -> np.ndarray | None:
        """Of all images of the source, "" (no label) for images outside of any folder."""
        names = self.source.labels() if self.options.labels else None
        return np.full(len(self.source), "") if self.options.labels and names is None else names

    def _refuse_all(self, skipped: Sequence[tuple[str, str]]) -> None:
        causes = "; ".join(f"{display_path(path)}: {cause}" for path, cause in skipped[:3])
        remove(self.work_folder, ignore_errors=True)
        raise InvalidDataError(f"At least one image must be readable; none of {len(self.source)} was ({causes}).")

    def publish(self, made: Extracted) -> None:
        """Rename the finished views folder from the hidden folder to its place."""
        assert made.whole is not None
        write_whole(made.whole / SKIPPED, skipped_csv(made.skipped))
        if made.known is not None:
            write_whole(made.whole / KNOWN, pairs_csv(("path", "same_as"), made.known))
        write_json(made.whole / RECIPE, self.recipe)
        with writing(self.out):
            if self.out.is_dir():
                self.out.rmdir()  # empty, as checked by `finished`
            made.whole.rename(self.out)
            sync_folder(self.out.parent)
        remove(self.work_folder, ignore_errors=True)


class GrowingViews:
    """The views folder of an unfinished extraction, in the hidden folder. Only rows counted by its state are kept."""

    def __init__(self, folder: Path, recipe: dict[str, Any], widths: dict[str, int]):
        self.folder, self.views, self.recipe, self.names = folder, folder / "views", recipe, tuple(widths)
        self._matrices = [GrowingMatrix(self.views / f"{name}.npy", width) for name, width in widths.items()]
        self._matrices.append(GrowingMatrix(self.views / DIGESTS, CONTENT_HASH_BYTES, np.uint8))
        self._lines = folder / "left_out.jsonl"
        with writing(folder):
            remove_unfinished(folder)
            self.next, self._n_bytes, self.left_out = self._counted() or self._begin()
            for matrix in self._matrices:
                matrix.open(self.n_rows)
            self._left_out_file = self._lines.open("ab")
            self._left_out_file.truncate(self._n_bytes)
            sync_folder(self.views)

    @property
    def n_rows(self) -> int:
        return self.next - len(self.left_out)

    def _counted(self) -> tuple[int, int, list[tuple[int, str, str]]] | None:
        """The interrupted extraction of this recipe, None if there is none or its files are damaged."""
        try:
            state = read_json(self.folder / "state.json")
            n_done, n_bytes = int(state["next"]), int(state["left_out"])
            lines = self._lines.read_bytes()[:n_bytes].splitlines()
            left_out = [(int(i), str(why), str(text)) for i, why, text in map(json.loads, lines)]
            whole = all(matrix.holds(n_done - len(left_out)) for matrix in self._matrices)
            return (n_done, n_bytes, left_out) if whole and state["recipe"] == self.recipe else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _begin(self) -> tuple[int, int, list[tuple[int, str, str]]]:
        for entry in self.folder.iterdir():
            if entry.name != LOCK:
                remove(entry)
        self.views.mkdir()
        return 0, 0, []

    def close(self) -> None:
        for close in (*(matrix.close for matrix in self._matrices), self._left_out_file.close):
            with suppress(OSError):  # a full disk was reported before
                close()

    def positions(self) -> np.ndarray:
        """The positions of the rows so far, in the source, (n,) int64."""
        return np.delete(np.arange(self.next), [position for position, _, _ in self.left_out])

    def hashes(self) -> np.ndarray:
        """The content hashes of the rows so far, (n, 16) uint8."""
        return self._matrices[-1].rows()

    def append(self, batch: FeatureBatch) -> None:
        """Add a batch. It counts once the state file is written."""
        lines = b"".join(json.dumps(entry).encode() + b"\n" for entry in batch.left_out)
        with writing(self.folder):
            for matrix, rows in zip(self._matrices, [*batch.features, batch.hashes], strict=True):
                matrix.append(rows)
            self._left_out_file.write(lines)
            self._left_out_file.flush()
            os.fsync(self._left_out_file.fileno())
        self.next += len(batch.positions) + len(batch.left_out)
        self._n_bytes += len(lines)
        self.left_out += batch.left_out
        state = {"recipe": self.recipe, "next": self.next, "left_out": self._n_bytes}
        write_json(self.folder / "state.json", state)

    def finish(self, source: ImageSource, labels: np.ndarray | None) -> Path:
        """Complete the views folder and return its path. `labels`: of all images of the source."""
        positions = self.positions()
        with writing(self.folder):
            for matrix in self._matrices:
                matrix.finish()
        arrays = tuple(open_matrix(self.views / f"{name}.npy") for name in self.names)
        paths = tuple(source.paths[i] for i in positions)
        views = Views(self.names, arrays, None if labels is None else labels[positions], paths)
        write_notes(self.views, views, digests=True)
        return self.views


def check_labels(source: ImageSource, labels: str | None) -> None:
    if labels not in (None, "folder"):
        raise ParameterError(f"labels must be 'folder', the name of an image's folder, or None; got {labels!r}.")
    names = source.labels() if labels else None
    if labels and (names is None or len({*names.tolist()} - {""}) < 2):
        raise InvalidDataError(
            f"labels='folder' needs images in several folders; {display_path(source.name)} has one folder or none."
        )


def source_name(source: ImageSource) -> str:
    """The absolute path of a source that is a file or folder."""
    path = Path(source.name)
    return display_path(str(path.resolve()) if path.exists() else source.name)


def as_json(recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe as it will be read back from its file."""
    try:
        return json.loads(json.dumps(recipe))
    except (TypeError, ValueError) as error:
        raise ParameterError(f"The options of a view must be numbers, strings and lists: {error}.") from None


def finished(out: Path) -> dict[str, Any] | None:
    """The recipe of a finished extraction in `out`, None where there is none."""
    # The folder is listed first: another process may publish its views between the two checks.
    taken = out.exists() and (not out.is_dir() or any(out.iterdir()))
    if (out / RECIPE).exists():
        return read_recipe(out / RECIPE)
    if taken:
        raise InvalidDataError(f"Views go into a folder of their own; {out} holds other things. Choose another.")
    return None


def difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    """The difference between two recipes, in words."""
    parts = []
    for key, words in (("source", "from"), ("views", "with the views"), ("max_side", "with max_side")):
        if old.get(key) != new[key]:
            show = [view["name"] for view in old[key]] if key == "views" else old.get(key)
            parts.append(f"{words} {show}")
    return " and ".join(parts) or "from images that have changed since, or with other options"


def count_rows(path: Path) -> int:
    """The number of rows of a CSV below its head."""
    with path.open(newline="", encoding="utf-8") as file:
        return sum(1 for _ in csv.reader(file)) - 1


def skipped_csv(skipped: Sequence[tuple[str, str]]) -> bytes:
    return pairs_csv(("path", "cause"), skipped)


def pairs_csv(names: tuple[str, str], pairs: Sequence[tuple[str, str]]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(names)
    writer.writerows([display_path(path), display_path(other)] for path, other in pairs)
    return text.getvalue().encode()


# ---- new images of a run: the first half of `predict`, and of a search by images


@dataclass(frozen=True)
class Encoded:
    """Images as codes of a run's model."""

    source: ImageSource
    positions: list[int]  # of the readable images, in the source
    codes: np.ndarray  # (n, b) uint8
    skipped: list[tuple[str, str]]  # paths and causes

    @property
    def names(self) -> list[str]:
        """Printable paths."""
        return [display_path(self.source.paths[i]) for i in self.positions]


def encode_images(run: Run, src: Any, stage: str, n_threads: int | None, strict: bool, progress: Progress) -> Encoded:
    """Encode new images with the run's extractors and model. `stage` names the progress bar."""
    options = extraction_options(run, n_threads, strict)
    source = open_images(src, progress)
    extractors = [spec.open() for spec in options.specs]
    codes: list[np.ndarray] = []
    positions: list[int] = []
    skipped: list[tuple[str, str]] = []
    for batch in options.batches(source, BATCH, 0):
        skipped += [(s.path, s.cause) for _, s in batch.skipped]
        if len(batch.positions):
            features = extract(extractors, batch.images, n_threads)
            codes.append(run.model.transform({s.name: f for s, f in zip(options.specs, features, strict=True)}))
            positions += batch.positions.tolist()
        progress(stage, len(positions) + len(skipped), len(source))
    if not codes:
        raise InvalidDataError(
            f"At least one image must be readable; none of {len(source)} was. The first cause: {skipped[0][1]}."
        )
    return Encoded(source, positions, np.concatenate(codes), skipped)


def extraction_options(run: Run, n_threads: int | None = None, strict: bool = False) -> ExtractOptions:
    """The options by which new images get the features of a run. An error if a model file has changed since."""
    run.require("fit")
    path = run.views_folder / RECIPE
    if not path.is_file():
        raise MissingFileError(
            f"New images need the extractors of the run, but {run.folder} was fitted on features made elsewhere. "
            "Make features in the same way, and use HSIC.load(…).predict or add them: bitmosaic add RUN VIEWS."
        )
    return ExtractOptions.from_recipe(read_recipe(path), n_threads, strict)

"""Every reader of files that others may have made, and what is done with what it gives: that must not fail either."""

import json
import shutil
from collections.abc import Callable
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from io import BytesIO, TextIOWrapper
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np

from bitmosaic import HSIC, BinaryKMeans, checkpoint, pipeline
from bitmosaic.bench.cifar import read_cifar
from bitmosaic.cli import _print_run
from bitmosaic.errors import BitmosaicError, InvalidDataError
from bitmosaic.explorer.pages import Pages
from bitmosaic.explorer.report import write_report
from bitmosaic.exports.kinds import KINDS, export
from bitmosaic.features.onnx import OnnxExtractor
from bitmosaic.images import open_images, quiet
from bitmosaic.images.decode import cause_of
from bitmosaic.run import Run
from bitmosaic.searching import search
from bitmosaic.views import read_rows, read_views
from torture.seeds import EXTRACTED, cluster_into, extract_from, fit_kept_in
from torture.shapes import Shape, copy_as_it_is, remove

SAMPLE = 8  # rows and pictures that are looked at
OUT_OF_MEMORY = cause_of(MemoryError())


def read_model(path):
    if "kmeans" in path.name:
        model = BinaryKMeans.load(path)
        model.predict(np.zeros((3, model.n_features_in_), model.cluster_centers_.dtype))
        return
    model = HSIC.load(path)
    rng = np.random.default_rng(0)
    rows = {
        name: rng.normal(size=(3, width)).astype(np.float32)
        for name, width in zip(model.view_names_, model._model.widths, strict=True)
    }
    model.nearest(rows)
    model.predict(list(rows.values()))


def use_views(views):
    repr(views)
    for array in views.arrays:
        n = views.n_rows
        some = np.unique(np.linspace(0, n - 1, min(n, SAMPLE)).astype(np.int64))
        if array.shape[1] < 10**5:  # a lazy matrix may claim any width; a fit would ask for its memory first
            read_rows(array, slice(0, SAMPLE))
            read_rows(array, some)
    assert views.labels is None or len(views.labels) == views.n_rows
    assert views.paths is None or all(isinstance(path, str) for path in views.paths)


def read_views_from(path):
    use_views(read_views(path))


def read_run(folder):
    run = Run(folder)
    with redirect_stdout(TextIOWrapper(BytesIO(), "utf-8")):
        _print_run(run, False)
    with suppress(InvalidDataError), Run.at_work(folder, {"source": "another", "views": [], "clusters": 1}):
        pass
    if not run.done("tables"):
        return
    pages = Pages(run)
    answers = [pages.overview(), pages.all_clusters(), pages.outliers(0, 9), pages.search("a"), pages.picture(0)]
    answers += [pages.neighbours(0, 5)]
    for number in pages.clusters.numbers:
        answers += [pages.cluster(number), pages.cluster_rows(number, 0, 9), pages.cluster_views(number)]
    for job in (pages.places, pages.duplicate_groups):
        job._result = job._work(quiet)
    answers += [pages.map(), pages.duplicates(0, 9)]
    json.dumps(answers)
    pages.thumbnails.many(range(3))
    for kind in KINDS.keys() - {"links"}:
        export(pages.clusters, folder.with_name(f"export.{kind}"), kind)
    search(run, np.asarray(run.column("codes")[:2]), 3).table()
    pipeline.run_views(run)
    for labels in ("folder", *folder.glob("true.*")):
        pipeline.evaluate(run, labels)


def use_run(folder):
    """As read_run; then what takes too long to do it for every mutant."""
    told = None
    for use in (read_run, report_run, predict_with_run, grow_with_run):
        try:
            use(folder)
        except BitmosaicError as error:  # what one of them refuses, another may not
            told = error
    if told is not None:
        raise told


def report_run(folder):
    with redirect_stdout(TextIOWrapper(BytesIO(), "utf-8")):
        _print_run(Run(folder), True)
    write_report(Run(folder), folder.with_name("report.html"))


def predict_with_run(folder):
    pipeline.predict(Run(folder), _pictures_for(folder), folder.with_name("predicted"))


def grow_with_run(folder):
    pipeline.add(Run(folder), _pictures_for(folder))


def _pictures_for(folder):
    return folder.parents[1] / "seeds" / EXTRACTED


def read_pictures(path):
    source = open_images(path)
    for batch in source.batches(4, max_side=64, n_threads=1):
        for image in batch.images:
            assert (image.dtype, image.shape[2:]) == (np.uint8, (3,))
            assert max(image.shape) <= 64
        for _, skipped in batch.skipped:
            assert "\n" not in skipped.cause
            if skipped.cause == OUT_OF_MEMORY:
                raise MemoryError(skipped.cause)
        if batch.positions.size and batch.positions[-1] > SAMPLE:
            break
    len(source), source.labels(), source.fingerprint(0)


def read_onnx(path):
    OnnxExtractor(path)(np.zeros((2, 8, 8, 3), np.uint8))


def read_batch(path):
    source = read_cifar(path)
    source.labels(), source.read(0)


def grow_run(folder):
    """Take up what was stopped in it: an addition, then a refit."""
    with copied(folder, "grown") as copy:
        pipeline.add(Run(copy), folder.parents[1] / "seeds" / EXTRACTED, update=True)
        pipeline.refit(Run(copy))


def go_on_with_run(folder):
    """What was stopped while it was extracted goes on to its end, with a checkpoint after every iteration."""
    with copied(folder, "going on") as copy, patch.multiple(checkpoint, EVERY=0.0, COST=0.0):
        cluster_into(_pictures_for(folder), copy)


def go_on_with_fit(folder):
    with copied(folder, "kept") as copy:
        fit_kept_in(copy)


def go_on_with_extraction(folder):
    with copied(folder, ".out.extracting") as copy:
        extract_from(folder.parents[1] / "seeds" / EXTRACTED, copy.with_name("out"))


@contextmanager
def copied(folder, name):
    """A copy to work in: what goes on with a folder changes it."""
    with TemporaryDirectory(dir=folder.parent) as place:
        yield copy_as_it_is(folder, Path(place) / name)


# By the name of the folder with its seeds. For a folder one file is changed at a time, for the others the file itself.
FILES = {
    "model": read_model,
    "views file": read_views_from,
    "picture": read_pictures,
    "archive": read_pictures,
    "onnx": read_onnx,
    "pickle": read_batch,
}
FOLDERS = {
    "run": read_run,
    "views folder": read_views_from,
    "parts folder": read_views_from,
    "grown run": read_run,
    "growing run": grow_run,
    "stopped run": go_on_with_run,
    "checkpoint": go_on_with_fit,
    "extraction": go_on_with_extraction,
}
KINDS_OF_VIEWS = ("h5", "mat", "npy", "npz", "parquet", "v73.mat")  # each a line of its own
READERS = (
    *(f"{what} .{kind}" for what in FILES for kind in KINDS_OF_VIEWS if what == "views file"),
    *(what for what in (*FILES, *FOLDERS) if what != "views file"),
)
SHAPED = {"run": use_run, "grown run": use_run}  # where more is done with what meets a shape
# What of a run is read back; the rest is for people.
RUN_FILES = (
    *("manifest.json", "codes.npy", "labels.npy", "distances.npy", "model.safetensors", "edits.jsonl", "map.npz"),
    *("duplicates.npz", "thumbnails.sqlite", "true.csv", "true.npy", "pinned.npy"),
)
RUN_FOLDERS = ("views/", "additions/", ".refit/", ".views.extracting/")


@dataclass
class Target:
    """One kind of file of one reader: its valid contents, and how to read another in its place."""

    reader: str  # a line of the table
    name: str
    contents: list[bytes]
    read: Callable[[Path], None]
    home: Path | None = None  # the folder in which it stands

    def attempt(self, content: bytes | Shape, work: Path) -> None:
        """Read `content` where a file of this kind stands."""
        if isinstance(content, Shape):
            self._meet(content, work / self.reader)
            return
        if self.home is None:
            (work / self.name).write_bytes(content)
            self.read(work / self.name)
            return
        folder = work / self.reader
        if not folder.exists():
            shutil.copytree(self.home, folder)
        (folder / self.name).write_bytes(content)
        try:
            self.read(folder)
        finally:
            shutil.copy(self.home / self.name, folder / self.name)

    def _meet(self, shape: Shape, folder: Path) -> None:
        """Let a reader go to a folder with this shape in it; whatever it does there, the folder is made anew."""
        remove(folder)
        copy_as_it_is(self.home, folder)
        try:
            shape.put(folder)
            SHAPED.get(self.reader, self.read)(folder)
        finally:
            remove(folder)


def targets(seeds: Path) -> list[Target]:
    """All kinds of files, from the folder that `write_seeds` has filled."""
    found = []
    for what, read in FILES.items():
        kinds: dict[str, list[Path]] = {}
        for path in sorted((seeds / what).iterdir()):
            kinds.setdefault(path.name.partition(".")[2], []).append(path)
        for kind, paths in kinds.items():
            reader = f"{what} .{kind}" if what == "views file" else what
            found.append(Target(reader, paths[0].name, [path.read_bytes() for path in paths], read))
    for what, read in FOLDERS.items():
        home = seeds / what
        for path in sorted(path for path in home.rglob("*") if path.is_file() and not path.name.startswith(".")):
            name = path.relative_to(home).as_posix()
            below = name.startswith(RUN_FOLDERS) and path.suffix not in (".csv", ".png", ".jpg", ".parquet")
            if not what.endswith("run") or name in RUN_FILES or below or path.name == "known.csv":
                found.append(Target(what, name, [path.read_bytes()], read, home))
    assert {target.reader for target in found} == set(READERS)
    return found

"""Search the images of a run that are nearest to a query, by exact Hamming distance."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bitmosaic.errors import FileFormatError, InvalidDataError, MissingFileError
from bitmosaic.estimators.binary_kmeans import as_bytes
from bitmosaic.estimators.neighbor_index import NeighborIndex
from bitmosaic.hamming.search import nearest_codes
from bitmosaic.images import ImageSource, Progress, display_path, quiet
from bitmosaic.io.read import load_npy
from bitmosaic.io.threads import available_threads
from bitmosaic.pipeline.extraction import encode_images
from bitmosaic.run.clusters import Clusters, ImageFacts
from bitmosaic.run.folder import AnyRun, Run, as_run
from bitmosaic.run.images import RunImages
from bitmosaic.run.sheets import TILE, neighbors_sheet

K = 20
WORTH_AN_INDEX = 1000  # queries; for fewer, comparing all codes is faster than building an index
MOST_ON_SHEET = 20  # queries
_HEX = re.compile(rb"\s*((?:[0-9a-fA-F]{2})+)\s*")


@dataclass(frozen=True)
class Queries:
    """The codes of the queries, and their origin."""

    names: list[str]  # printable
    codes: np.ndarray  # (q, b) uint8
    rows: list[int | None]  # the row in the run, for a query given by its path in the run
    source: ImageSource | None = None  # of the query images, if they are not in the run
    positions: Sequence[int] = ()  # of the query images in the source
    skipped: list[tuple[str, str]] = field(default_factory=list)  # unreadable images, and their causes


@dataclass(frozen=True)
class Found:
    """The nearest images of each query, the nearest first, ties by lowest row."""

    run: Run
    queries: Queries
    distances: list[np.ndarray]  # (k_i,) int32 each, in bits
    rows: list[np.ndarray]  # (k_i,) int64 each

    def clusters(self) -> Clusters:
        """The clusters of the run, as edited."""
        return Clusters(ImageFacts.of(self.run))

    def table(self) -> dict[str, Any]:
        """The columns query, rank (from 1), row, path, distance, cluster, and name where clusters have names."""
        clusters, sizes = self.clusters(), [len(rows) for rows in self.rows]
        rows = np.concatenate([np.empty(0, np.int64), *self.rows])
        columns = {
            "query": [name for name, size in zip(self.queries.names, sizes, strict=True) for _ in range(size)],
            "rank": np.concatenate([np.empty(0, np.int64), *(np.arange(1, size + 1) for size in sizes)]),
            "row": rows,
            "path": [clusters.facts.paths[row] for row in rows],
            "distance": np.concatenate([np.empty(0, np.int32), *self.distances]),
            "cluster": clusters.labels[rows],
        }
        if clusters.names:
            columns["name"] = [clusters.names.get(number) for number in columns["cluster"].tolist()]
        return columns

    def sheet(self, progress: Progress = quiet) -> Any:
        """A contact sheet of the first queries and their results, with distances."""
        shown = range(min(len(self.rows), MOST_ON_SHEET))
        wanted = {int(row) for i in shown for row in self.rows[i]} | {
            row for row in self.queries.rows if row is not None
        }
        images = RunImages(self.run, None, progress).thumbnails(wanted, TILE, progress)
        own: dict[int, np.ndarray] = {}
        if self.queries.source is not None:
            own = self.queries.source.thumbnails([self.queries.positions[i] for i in shown], TILE, progress)
        lines = []
        for i in shown:
            row = self.queries.rows[i]
            query = own.get(self.queries.positions[i]) if own else images.get(row) if row is not None else None
            near = [(int(d), images.get(int(r))) for d, r in zip(self.distances[i], self.rows[i], strict=True)]
            lines.append((self.queries.names[i], query, near))
        left = f", the first {len(shown)} of {len(self.rows):,} queries" if len(shown) < len(self.rows) else ""
        title = f"The nearest of {len(self.run.paths):,} images, with distances in bits{left}"
        return neighbors_sheet(title, lines)


def search(
    run: AnyRun,
    what: Any,
    k: int = K,
    radius: int | None = None,
    *,
    n_threads: int | None = None,
    progress: Progress = quiet,
) -> Found:
    """The `k` nearest images of each query, or all within `radius` bits. The search is exact.

    `what`: the path of an image in the run (it is not among its own results); an image file, or a folder, list or
    archive of images, which are encoded with the run's model; or codes: an array, a .npy file, or a text file with one
    code in hexadecimal digits per line.
    """
    run = as_run(run)
    run.require("tables")
    codes = run.column("codes")
    queries = read_queries(run, what, n_threads, progress)
    if queries.codes.shape[1] != codes.shape[1]:
        raise InvalidDataError(
            f"Codes must have {8 * codes.shape[1]} bits, as those of the run; got {8 * queries.codes.shape[1]}."
        )
    threads = available_threads(n_threads)
    with_itself = k + any(row is not None for row in queries.rows)
    found = _nearest(codes, queries.codes, with_itself, radius, threads)
    most = k if radius is None else None
    others = [slice(None) if row is None else near[1] != row for row, near in zip(queries.rows, found, strict=True)]
    distances = [near[0][kept][:most] for near, kept in zip(found, others, strict=True)]
    rows = [near[1][kept][:most] for near, kept in zip(found, others, strict=True)]
    return Found(run, queries, distances, rows)


def _nearest(
    codes: np.ndarray, queries: np.ndarray, k: int, radius: int | None, n_threads: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Distances and rows of the nearest codes of each query."""
    if radius is not None:
        found = NeighborIndex(codes, n_threads).radius_neighbors(queries, radius)
    elif len(queries) < WORTH_AN_INDEX:
        found = nearest_codes(codes, queries, k, n_threads)
    else:
        found = NeighborIndex(codes, n_threads).kneighbors(queries, k)
    return list(zip(*found, strict=True))


# ---- queries


def read_queries(run: Run, what: Any, n_threads: int | None = None, progress: Progress = quiet) -> Queries:
    """The codes of the queries that `search` accepts."""
    if isinstance(what, np.ndarray) and what.ndim <= 2:
        return _queries_of_codes(what)
    if not isinstance(what, str | bytes | os.PathLike):
        return _queries_of_images(run, what, n_threads, progress)
    path = os.fsdecode(what)
    if path in run.paths:
        row = run.paths.index(path)
        if run.paths.count(path) > 1:
            raise InvalidDataError(
                f"A path must name one image; several images of {run.folder}, from different sources, have the path "
                f"{display_path(path)}. Pass the absolute path of the file."
            )
        return Queries([display_path(path)], np.array(run.column("codes")[[row]]), [row])
    if not os.path.exists(path):
        raise MissingFileError(
            f"{display_path(path)} is neither an image of {run.folder} nor a file or folder. Check the path; the paths "
            "of the run are in its clusters.csv."
        )
    if os.path.isfile(path):
        with open(path, "rb") as file:
            head = file.read(4096)
        if head.startswith(b"\x93NUMPY"):
            array = load_npy(path)
            if array.ndim <= 2:
                return _queries_of_codes(array)
        elif (first := head.lstrip().split(b"\n")[0]) and _HEX.fullmatch(first):
            return _queries_of_text(path, 8 * run.column("codes").shape[1])
    return _queries_of_images(run, path, n_threads, progress)


def _queries_of_codes(codes: np.ndarray) -> Queries:
    codes = as_bytes(codes[None] if codes.ndim == 1 else codes)
    if not len(codes):
        raise InvalidDataError("A search needs at least one code; got none.")
    return Queries([f"code {i}" for i in range(len(codes))], codes, [None] * len(codes))


def _queries_of_text(path: str, n_bits: int) -> Queries:
    codes = []
    for number, line in enumerate(Path(path).read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        match = _HEX.fullmatch(line)
        if not match or 4 * len(match[1]) != n_bits:
            got = f"has {4 * len(match[1])} bits" if match else "has other characters"
            raise FileFormatError(
                f"A code has {n_bits // 4} hexadecimal digits, for the {n_bits} bits of the run; "
                f"line {number} of {display_path(path)} {got}."
            )
        codes.append(bytes.fromhex(match[1].decode()))
    packed = np.frombuffer(b"".join(codes), np.uint8).reshape(len(codes), -1)
    return Queries([code.hex() for code in codes], packed, [None] * len(codes))


def _queries_of_images(run: Run, src: Any, n_threads: int | None, progress: Progress) -> Queries:
    found = encode_images(run, src, "encoding", n_threads, False, progress)
    return Queries(found.names, found.codes, [None] * len(found.codes), found.source, found.positions, found.skipped)

"""Clustering of packed codes on a Dask cluster: `bitmosaic.solver.clustering` without moving the codes.

In each round the centers are sent to the workers, which return the sizes and bit sums of the clusters.
"""

from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np

from bitmosaic.estimators.dask.fit import new_key
from bitmosaic.estimators.dask.parts import Column
from bitmosaic.estimators.dask.rows import map_parts, part_views
from bitmosaic.hamming.codes import Assignment, assign_codes, cluster_bit_sums, nearest_centers, pack
from bitmosaic.solver.blocks import Blocks, Sums
from bitmosaic.solver.clustering import Problem, Step, change_of_sums, farthest_distinct, plain_if_equal

FEW_SUMS = 8192  # up to this many bit sums stay in one result with the labels of a part, which saves a task

# Maximum number of steps that depend on each other. The scheduler keeps all of them, and repeats them if a worker dies.
CHAIN = 8


@dataclass(frozen=True)
class ClusterStep(Step):
    """A step whose `nearest` is a column of assignments, which contain the labels."""

    n_before: int = 0  # number of steps it depends on

    @property
    def labels(self):
        return self.nearest


@dataclass(frozen=True)
class ClusterProblem(Problem):
    """The clustering of a column of codes.

    A column of labels holds, for each part, an array or an assignment, or a pair of that and its sums.
    """

    codes: Column

    @property
    def parts(self):
        return self.codes.parts

    def take(self, rows):
        return self.parts.take(self.codes, rows)

    def sums(self, labels, n_clusters):
        const = self.parts.send(n_clusters)
        parts = self.parts.map("sums", sums_part, const, self.codes, labels)
        return self.parts.total("sums", parts, self.codes.workers)[0]

    def step(self, Q, bit_weights, last=None, labels=None, S=None):
        if last is not None and last.n_before == CHAIN:
            new = self.step(Q, bit_weights)
            if labels is None:
                return new
            moved = self.parts.map("moved", moved_part, None, new.labels, labels)
            return replace(new, n_moved=int(self.parts.total("moved", moved, self.codes.workers)[0]))
        const, nothing = self.parts.send((pack(Q), plain_if_equal(bit_weights))), [None] * len(self.parts)
        before = nothing if last is None else last.nearest
        outs = self.parts.map("assign", step_part, const, self.codes, before, nothing if labels is None else labels)
        if Q.size > FEW_SUMS:
            nearest, total = self.parts.split_sums("assign", outs, self.codes.workers)
        else:
            nearest = Column(self.parts, list(outs), self.codes.workers)
            total = self.parts.total("assign", outs, self.codes.workers)
        sizes, change, n_moved = total
        n_before = 0 if last is None else last.n_before + 1
        return ClusterStep(nearest, sizes, change if S is None else S + change, int(n_moved), n_before)

    def labels_with(self, Q, rows, values):
        const, wheres = self.parts.send((pack(Q), plain_if_equal(self.initial_weights))), self.parts.positions(rows)
        edges = np.cumsum([0, *map(len, wheres)])
        own = [values[a:b] for a, b in pairwise(edges)]
        futures = self.parts.map("labels", labels_part, const, self.codes, wheres, own)
        return Column(self.parts, futures, self.codes.workers)

    def farthest(self, nearest, count):
        firsts = self.parts.bounds[:-1].tolist()
        futures = self.parts.map("farthest", farthest_part, count, self.codes, nearest, firsts)
        found = self.parts.reduced("farthest-of-all", partial(farthest_of_all, count), futures, self.codes.workers)
        return found[2]


# ---- functions that run on the workers


def nearest_of(part):
    return part[0] if isinstance(part, tuple) else part


def labels_of(part):
    nearest = nearest_of(part)
    return nearest.labels if isinstance(nearest, Assignment) else nearest


def sums_part(const, codes, labels):
    sums = Sums()
    sums.add([cluster_bit_sums(codes, labels_of(labels), const.value)])
    return None, sums


def step_part(const, codes, before, labels):
    centers, bit_weights = const.value
    nearest, sums = assign_codes(codes, centers, bit_weights, before=nearest_of(before)), Sums()
    sizes, c = np.bincount(nearest.labels, minlength=len(centers)), len(centers)
    if labels is None:
        sums.add([sizes, cluster_bit_sums(codes, nearest.labels, c), len(codes)])
    else:
        old = labels_of(labels)
        moved = np.flatnonzero(nearest.labels != old)
        sums.add([sizes, change_of_sums(codes[moved], old[moved], nearest.labels[moved], c), len(moved)])
    return nearest, sums


def moved_part(const, labels, old):
    sums = Sums()
    sums.add([np.count_nonzero(labels_of(labels) != labels_of(old))])
    return None, sums


def labels_part(const, codes, where, values):
    labels = nearest_centers(codes, *const.value)[0]
    labels[where] = values
    return labels


def farthest_part(count, codes, nearest, first):
    """Return the candidates of a part for the farthest codes: row numbers, distances and codes."""
    distances = nearest_of(nearest).distances
    rows = farthest_distinct(codes, distances, count)
    return first + rows, distances[rows], codes[rows]


def farthest_of_all(count, *parts):
    """Return the farthest codes of several parts; ties go to the first row."""
    rows, distances, codes = map(np.concatenate, zip(*(part for part in parts if part is not None), strict=True))
    order = np.argsort(rows)
    best = order[farthest_distinct(codes[order], distances[order], count)]
    return rows[best], distances[best], codes[best]


# ---- Embeddings of rows on a Dask cluster: `bitmosaic.solver.blocks` on each part, with a tree reduction of the sums.


@dataclass(frozen=True)
class Repeated:
    """A column whose rows are all equal."""

    row: np.ndarray


class ClusterBlocks(Blocks):
    """The embeddings of all rows. They are not cached: each pass computes them again."""

    is_local = False

    def __init__(self, data, embeddings, *, chunk_size=None, cache_bytes=0, n_threads=1):
        self.data, self.embeddings, self.n_threads, self.chunk_size = data, list(embeddings), n_threads, chunk_size
        self.n_rows, self.step = data.n_rows, data.step
        self.n_cached, self._cache = 0, []

    def __len__(self):
        return -(-self.n_rows // self.step)

    # ---- passes over the rows

    def run(self, work, *columns, embed=True):
        on_workers = [column for column in columns if isinstance(column, Column)]
        repeated = [column.row if isinstance(column, Repeated) else None for column in columns]
        outs = self._outs(work, columns=on_workers, repeated=repeated)
        column, sums = self.data.parts.split_sums(step_name(work), outs, on_workers[0].workers if on_workers else ())
        (width,) = column.parts.client.submit(np.shape, column.futures[0], key=new_key("shape")).result()[1:]
        return replace(column, width=width), sums

    def run_some(self, work, positions, *columns):
        parts, wheres = self.data.parts, self.data.parts.positions(positions)
        edges = np.cumsum([0, *map(len, wheres)])
        own = [[column[a:b] for column in columns] for a, b in pairwise(edges)]
        column, sums = parts.split_sums(step_name(work), self._outs(work, list(zip(wheres, own, strict=True))))
        rows = [part for part in parts.result(column.futures) if part is not None]
        return np.concatenate(rows) if rows else None, sums

    def add_up(self, work):
        return self.data.parts.total(step_name(work), self._outs(work))

    def _outs(self, work, extras=None, columns=(), repeated=()):
        const = self.data.parts.send((self.embeddings, work, repeated, self.n_rows, self.chunk_size))
        return map_parts(self.data, step_name(work), pass_part, const, extras, columns)

    def constant(self, row):
        return Repeated(row)

    def problem(self, codes, norm, balance):
        return ClusterProblem(codes, norm, balance, n_threads=self.n_threads)


def step_name(work):
    """Return the name of a pass on Dask's dashboard: that of its function."""
    return getattr(work, "func", work).__name__.replace("_", "-")  # Dask cuts names at an underscore


def pass_part(part, const):
    """Run one pass over a part, on a worker."""
    embeddings, work, repeated, n_rows, chunk_size = const.value
    stored = iter(part.columns)
    columns = [next(stored) if row is None else np.tile(row, (len(part.numbers), 1)) for row in repeated]
    wheres, own = part.extra or (None, ())
    blocks = Blocks(part_views(part), embeddings, part.numbers, chunk_size=chunk_size)
    return blocks.collect(work, [*map(labels_of, columns), *own], n_rows, wheres)

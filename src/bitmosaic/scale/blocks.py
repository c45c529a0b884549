"""Embeddings of rows that are on a cluster: `bitmosaic.solver.blocks` on each part, and its sums up a tree."""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from bitmosaic.scale.clustering import ClusterProblem, labels_of
from bitmosaic.scale.parts import Column, new_key
from bitmosaic.scale.rows import part_views, passed
from bitmosaic.solver.blocks import Blocks


@dataclass(frozen=True)
class Repeated:
    """A column with the same row throughout."""

    row: np.ndarray


class ClusterBlocks(Blocks):
    """The embeddings of all rows of the data. They are not kept: each pass computes them again."""

    def __init__(self, data, embeddings, *, chunk_size=None, cache_bytes=0, n_threads=1):
        self.data, self.embeddings, self.n_threads, self.chunk_size = data, list(embeddings), n_threads, chunk_size
        self.n_rows, self.step = data.n_rows, data.step
        self.n_cached, self._cache = 0, []
        self._near: Blocks  # rows at hand, and where they are
        self._positions = np.empty(0, np.int64)

    def __len__(self):
        return -(-self.n_rows // self.step)

    # ---- passes over the rows

    def run(self, work, *columns):
        there = [column for column in columns if isinstance(column, Column)]
        repeated = [column.row if isinstance(column, Repeated) else None for column in columns]
        outs = self._outs(work, columns=there, repeated=repeated)
        column, sums = self.data.parts.kept(step_name(work), outs, there[0].homes if there else ())
        (width,) = column.parts.client.submit(np.shape, column.futures[0], key=new_key("shape")).result()[1:]
        return replace(column, width=width), sums

    def run_some(self, work, positions, *columns):
        parts, wheres = self.data.parts, self.data.parts.positions(positions)
        edges = np.cumsum([0, *map(len, wheres)])
        own = [[column[a:b] for column in columns] for a, b in pairwise(edges)]
        column, sums = parts.kept(step_name(work), self._outs(work, list(zip(wheres, own, strict=True))))
        rows = [part for part in parts.gathered(column.futures, range(len(parts))) if part is not None]
        return np.concatenate(rows) if rows else None, sums

    def add_up(self, work):
        return self.data.parts.total(step_name(work), self._outs(work))

    def _outs(self, work, extras=None, columns=(), repeated=()):
        const = self.data.parts.send((self.embeddings, work, repeated, self.n_rows, self.chunk_size))
        return passed(self.data, step_name(work), pass_part, const, extras, columns)

    def constant(self, row):
        return Repeated(row)

    def problem(self, codes, norm, balance):
        return ClusterProblem(codes, norm, balance, n_threads=self.n_threads)

    # ---- raw rows

    def at_hand(self, positions):
        self._near = Blocks(
            self.data.bring(positions),
            self.embeddings,
            self.data.parts.row_numbers(positions),
            chunk_size=self.chunk_size,
        )
        self._positions = positions

    def raw(self, view, where):
        return self._near.raw(view, np.searchsorted(self._positions, where))

    def forget_pages(self, where, views):
        """There are none: what is at hand is in memory."""


def step_name(work):
    """What a pass is called on Dask's dashboard: as its function."""
    return getattr(work, "func", work).__name__.replace("_", "-")  # an underscore would end the name


def pass_part(part, const):
    """On a worker: one pass over a part."""
    embeddings, work, repeated, n_rows, chunk_size = const.value
    there = iter(part.columns)
    columns = [next(there) if row is None else np.tile(row, (len(part.numbers), 1)) for row in repeated]
    wheres, own = part.extra or (None, ())
    blocks = Blocks(part_views(part), embeddings, part.numbers, chunk_size=chunk_size)
    return blocks.collect(work, [*map(labels_of, columns), *own], n_rows, wheres)

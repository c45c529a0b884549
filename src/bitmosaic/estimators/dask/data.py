"""Dask arrays as the solver's data: the same interface as `bitmosaic.solver.blocks` has for one machine."""

from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import numpy as np

from bitmosaic.errors import InvalidDataError
from bitmosaic.estimators.dask.clustering import ClusterBlocks, ClusterProblem, labels_of
from bitmosaic.estimators.dask.fit import RESULT, fit_on_cluster, key_prefix, new_key, new_name
from bitmosaic.estimators.dask.parts import Column, Parts
from bitmosaic.estimators.dask.rows import aligned, as_array, as_delayed, identity, map_parts, on_parts, part_views
from bitmosaic.solver.blocks import FEW_ROWS, LocalData, Sums, TakenRows
from bitmosaic.solver.model import nearest_two
from bitmosaic.solver.scan import presence, rows_per_block
from bitmosaic.views import Views


@contextmanager
def cluster_data(views):
    """Yield the solver's data for one fit on the current client."""
    with fit_on_cluster() as client:
        yield ClusterData(views, client)


class ClusterData:
    """Views whose blocks are computed on the workers of a Dask cluster."""

    def __init__(self, views, client, numbers=None):
        """`numbers` (n,) are the row numbers in the user's data, if these are only some of its rows."""
        self.names, self.widths, self.n_rows = views.names, views.widths, views.n_rows
        self.chunks = views.arrays[0].chunks[0]  # chunks of the user
        self.step = rows_per_block(views.widths)
        self.arrays_ = aligned(views.arrays, self.step)
        self.parts = Parts(client, np.cumsum([0, *self.arrays_[0].chunks[0]]), numbers)
        self.n_here = 0  # rows in the memory of this machine
        self.held: Column | None = None  # row numbers and blocks of all views, if persisted

    def sample(self, rows):
        """Return data of some rows: on this machine if they are few, otherwise on the workers."""
        if len(rows) <= FEW_ROWS:
            return LocalData(self.fetch_rows(rows))
        if len(rows) == self.n_rows:
            return self
        taken = Views(self.names, tuple(array[rows] for array in self.arrays_))
        return ClusterData(taken, self.parts.client, rows).persist_rows()

    def persist_rows(self):
        """Compute the rows and keep them on the workers, all views of a part together. Dask may spill them to disk."""
        outs = map_parts(self, "hold", held)
        self.parts.result(self.parts.client.map(len, outs, pure=False, key=key_prefix("held")))
        self.held = Column(self.parts, outs, self.parts.workers(outs))
        return self

    def fetch_rows(self, positions):
        """Fetch the rows at some sorted positions to this machine, as views that are indexed by row number."""
        wheres = self.parts.positions(positions)
        some = [number for number, where in enumerate(wheres) if len(where)]
        found = self.parts.result(map_parts(self, "rows", rows_of_part, None, wheres, only=some))
        rows, n_rows = self.parts.row_numbers(positions), int(self.parts.row_numbers(self.n_rows - 1)) + 1
        values = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return Views(self.names, tuple(TakenRows(rows, X, n_rows) for X in values))

    def scan(self, rows, n_threads, scaling):
        """Return the facts of every view. Mean and variance are computed from every k-th row."""
        some = np.arange(0, self.n_rows, -(-self.n_rows // FEW_ROWS))
        facts = LocalData(self.fetch_rows(some)).scan(self.parts.row_numbers(some), n_threads, scaling)
        parts = self.parts.result(map_parts(self, "presence", presence_of_part, None))
        present = np.ones((len(self.names), self.n_rows), bool)
        for part, bounds in zip(parts, pairwise(self.parts.bounds), strict=True):
            if part is not None:
                present[:, slice(*bounds)] = part
        return [replace(f, present=p) for f, p in zip(facts, present, strict=True)]

    def arrays(self, rows):
        """Return arrays from which these few rows can be read."""
        return self.fetch_rows(self.parts.positions_of(rows)).arrays

    def blocks(self, embeddings, rows=None, **how):
        """Return the embeddings of all rows."""
        return ClusterBlocks(self, embeddings, **how)

    def outcome(self, column, dtype):
        """Return the column as a Dask array on the workers, with the chunks of the user's views."""
        return column_as_dask(column, dtype, self.chunks)


def column_as_dask(column, dtype, chunks):
    """Return a column as a Dask array with these chunks of rows. The values stay on the workers."""
    from distributed import wait

    parts = column.parts
    arrays = parts.map("outcome", labels_or_codes, None, column)
    sizes = [tuple(np.diff(parts.bounds).tolist()), *([(column.width,)] if column.width else [])]
    parts.result(parts.client.map(len, arrays, pure=False, key=key_prefix("outcome-there")))
    array = as_array(arrays, tuple(sizes), dtype).rechunk({0: chunks})
    array = parts.client.persist(array.map_blocks(identity, dtype=dtype, meta=array._meta, name=new_name(RESULT)))
    wait(array)
    return array


def code_column(client, array, as_bytes):
    """Compute a Dask array of packed codes, and return it as a column of bytes on the workers."""
    rows = array.rechunk({1: -1})
    parts = Parts(client, np.cumsum([0, *rows.chunks[0]]))
    blocks = rows.map_blocks(as_bytes, meta=np.empty((0, 0), np.uint8), name=new_key("bytes")[0])
    futures = client.compute(blocks.to_delayed().ravel().tolist(), optimize_graph=False)
    (n_rows,) = parts.total("codes", parts.map("codes", count_rows, None, Column(parts, futures)))
    if n_rows != parts.n_rows:
        raise InvalidDataError(f"The chunks have {n_rows} rows, expected {parts.n_rows} (from the shape of the array).")
    return Column(parts, futures, parts.workers(futures), array.shape[1] * array.dtype.itemsize)


@contextmanager
def cluster_problem(array, as_bytes, norm, balance, n_threads):
    """Yield the clustering problem of a Dask array of packed codes on the current client."""
    with fit_on_cluster() as client:
        yield ClusterProblem(code_column(client, array, as_bytes), norm, balance, n_threads=n_threads)


def count_rows(const, part):
    sums = Sums()
    sums.add([len(part)])
    return None, sums


def labels_or_codes(const, part):
    return labels_of(part)


def held(part, const):
    return [part.numbers, *(np.array(X) for X in part.raws)]


def rows_of_part(part, const):
    """Return the rows of a part at some positions, for every view."""
    return [X[part.extra] for X in part.raws]


def presence_of_part(part, const):
    """Return which rows of a part have which view; None if no view is missing."""
    present = presence(part_views(part), part.numbers)
    return None if present.all() else present


# ---- Codes and clusters of new rows in Dask arrays, as lazy Dask arrays with the same chunks of rows.
#
# Nothing is computed here, and no client is needed.


def encode(model, views, numbers, chunk_size=None):
    """Return packed codes (n, K/8); `numbers` are those of the views among the fitted views."""
    import dask.array as da
    from dask.highlevelgraph import HighLevelGraph

    arrays = aligned(views.arrays, rows_per_block(views.widths))
    edges = np.cumsum([0, *arrays[0].chunks[0]]).tolist()
    places = [slice(*pair) for pair in pairwise(edges)]
    n_bytes = model.centers.shape[1]
    blocks = on_parts(arrays, views.names, "encode", encode_part, (model, numbers, chunk_size), places)
    name = new_name("codes")
    columns = (0,) * len(arrays)
    tasks: dict = {(name, i, 0): (identity, (blocks.name, i, *columns)) for i in range(len(places))}
    graph = HighLevelGraph.from_collections(name, tasks, dependencies=[blocks])
    codes = da.Array(graph, name, (arrays[0].chunks[0], (n_bytes,)), dtype=np.uint8)
    return codes.rechunk({0: views.arrays[0].chunks[0]})


def encode_part(part, const):
    model, numbers, chunk_size = const
    return model.encode(part_views(part), numbers, chunk_size, rows=part.numbers)


def of_rows(function, const, array, width, dtype):
    """Apply ``function(rows, const)`` to each chunk of rows; returns (n, width), or (n,) if width is None."""
    rows = array.rechunk({1: -1})
    shape = {"drop_axis": 1} if width is None else {"chunks": (rows.chunks[0], (width,))}
    meta = np.empty((0,) * (1 if width is None else 2), dtype)
    return rows.map_blocks(function, const=as_delayed(const), dtype=dtype, meta=meta, **shape)


def assign(codes, const):
    return const.assign(codes)


def nearest(codes, const):
    return np.column_stack(nearest_two(codes, *const)).astype(np.float64)

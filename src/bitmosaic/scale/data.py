"""Views that are Dask arrays, for the solver: the same four doors as `bitmosaic.solver.data` has for one machine."""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from bitmosaic.errors import DataTypeError, InvalidDataError
from bitmosaic.scale.blocks import ClusterBlocks
from bitmosaic.scale.cluster import current_client
from bitmosaic.scale.clustering import labels_of
from bitmosaic.scale.parts import Column, Parts, named, new_key
from bitmosaic.scale.rows import aligned, as_array, is_dask, part_views, passed
from bitmosaic.solver.data import FEW_ROWS, LocalData, TakenRows
from bitmosaic.solver.scan import presence, rows_per_block
from bitmosaic.solver.sums import Sums
from bitmosaic.views import Views


def data_of(views):
    """The views for the solver, wherever they are."""
    return ClusterData(views, current_client()) if on_cluster(views) else LocalData(views)


def on_cluster(views):
    """Whether the views are Dask arrays: all are, or none is."""
    others = [name for name, array in zip(views.names, views.arrays, strict=True) if not is_dask(array)]
    if 0 < len(others) < len(views):
        raise DataTypeError(
            f"Either all views are Dask arrays or none is; got arrays of another kind for {', '.join(others)}. "
            "Turn them into Dask arrays with dask.array.from_array, or compute the others."
        )
    return not others


class ClusterData:
    """Views whose blocks are computed by the workers of a Dask cluster."""

    def __init__(self, views, client, numbers=None):
        """`numbers` (n,): of the rows in the user's data, where these are not all of them."""
        self.names, self.widths, self.n_rows = views.names, views.widths, views.n_rows
        self.chunks = views.arrays[0].chunks[0]  # as the user has them
        self.step = rows_per_block(views.widths)
        self.arrays_ = aligned(views.arrays, self.step)
        self.parts = Parts(client, np.cumsum([0, *self.arrays_[0].chunks[0]]), numbers)
        self.client = client
        self.held: Column | None = None  # numbers of the rows, and the blocks of all views

    def sample(self, rows):
        """Few rows are brought to this machine; of many, the workers keep what is theirs."""
        if len(rows) <= FEW_ROWS:
            return LocalData(self.bring(rows))
        if len(rows) == self.n_rows:
            return self
        taken = Views(self.names, tuple(array[rows] for array in self.arrays_))
        return ClusterData(taken, self.parts.client, rows).holding()

    def holding(self):
        """The same data, with the rows on the workers: all views of a part on one. Dask spills what is too much."""
        outs = passed(self, "hold", held)
        everyone = range(len(self.parts))
        self.parts.gathered(self.parts.client.map(len, outs, pure=False, key=named("held")), everyone)
        self.held = Column(self.parts, outs, self.parts.homes(outs))
        return self

    def bring(self, positions):
        """Views of all rows, of which only those at some sorted positions are there, on this machine."""
        wheres = self.parts.positions(positions)
        some = [number for number, where in enumerate(wheres) if len(where)]
        found = self.parts.gathered(passed(self, "rows", brought, None, wheres, only=some), some)
        rows, n_rows = self.parts.row_numbers(positions), int(self.parts.row_numbers(self.n_rows - 1)) + 1
        values = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return Views(self.names, tuple(TakenRows(rows, X, n_rows) for X in values))

    def scan(self, rows, n_threads, root):
        """Facts of every view over all rows; mean and variance from every k-th."""
        some = np.arange(0, self.n_rows, -(-self.n_rows // FEW_ROWS))
        facts = LocalData(self.bring(some)).scan(self.parts.row_numbers(some), n_threads, root)
        parts = self.parts.gathered(passed(self, "presence", found_present, None), range(len(self.parts)))
        present = np.ones((len(self.names), self.n_rows), bool)
        for part, bounds in zip(parts, pairwise(self.parts.bounds), strict=True):
            if part is not None:
                present[:, slice(*bounds)] = part
        return [replace(f, present=p) for f, p in zip(facts, present, strict=True)]

    def arrays(self, rows):
        """The views, to read these few rows from."""
        return self.bring(self.parts.positions_of(rows)).arrays

    def blocks(self, embeddings, rows=None, **how):
        """Embeddings of all rows."""
        return ClusterBlocks(self, embeddings, **how)

    def outcome(self, column, dtype):
        """A Dask array of the column, on the workers, with the chunks of the user's views."""
        return outcome(column, dtype, self.chunks)


def outcome(column, dtype, chunks):
    """A column as a Dask array with these chunks of rows; it stays on the workers."""
    from distributed import wait

    parts = column.parts
    arrays = parts.map("outcome", plain, None, column)
    sizes = [tuple(np.diff(parts.bounds).tolist()), *([(column.width,)] if column.width else [])]
    parts.gathered(parts.client.map(len, arrays, pure=False, key=named("outcome-there")), range(len(parts)))
    array = parts.client.persist(as_array(arrays, tuple(sizes), dtype).rechunk({0: chunks}))
    wait(array)
    return array


def code_column(array, as_bytes):
    """A Dask array of packed codes as a column of bytes, computed and kept by the workers."""
    client, rows = current_client(), array.rechunk({1: -1})
    parts = Parts(client, np.cumsum([0, *rows.chunks[0]]))
    blocks = rows.map_blocks(as_bytes, meta=np.empty((0, 0), np.uint8), name=new_key("bytes")[0])
    futures = client.compute(blocks.to_delayed().ravel().tolist(), optimize_graph=False)
    (n_rows,) = parts.total("codes", parts.map("codes", counted, None, Column(parts, futures)))
    if n_rows != parts.n_rows:
        raise InvalidDataError(f"Chunks must have the rows that the array says; {n_rows} came of {parts.n_rows}.")
    return Column(parts, futures, parts.homes(futures), array.shape[1] * array.dtype.itemsize)


def counted(const, part):
    sums = Sums()
    sums.add([len(part)])
    return None, sums


def plain(const, part):
    return labels_of(part)


def held(part, const):
    return [part.numbers, *(np.array(X) for X in part.raws)]


def brought(part, const):
    """Of one part, the rows at some positions, of every view."""
    return [X[part.extra] for X in part.raws]


def found_present(part, const):
    """Of one part, which rows have which view; None where all have all."""
    present = presence(part_views(part), part.numbers)
    return None if present.all() else present

"""New rows that are Dask arrays -> codes and clusters by a fitted model: lazy Dask arrays, cut as the rows are.

Nothing is computed here, and no client is needed: whoever computes the arrays decides where.
"""

from itertools import pairwise

import numpy as np

from bitmosaic.scale.parts import new_name
from bitmosaic.scale.rows import aligned, as_delayed, on_parts, part_views
from bitmosaic.solver.scan import rows_per_block


def encode(model, views, numbers, chunk_size=None):
    """Packed codes (n, K/8) of views that are the fitted ones with these `numbers`."""
    import dask.array as da
    from dask.highlevelgraph import HighLevelGraph

    arrays = aligned(views.arrays, rows_per_block(views.widths))
    edges = np.cumsum([0, *arrays[0].chunks[0]]).tolist()
    places = [slice(*pair) for pair in pairwise(edges)]
    n_bytes = model.centers.shape[1]
    blocks = on_parts(arrays, views.names, "encode", encode_part, (model, numbers, chunk_size), places)
    name = new_name("codes")
    columns = (0,) * len(arrays)
    tasks: dict = {(name, i, 0): (itself, (blocks.name, i, *columns)) for i in range(len(places))}
    graph = HighLevelGraph.from_collections(name, tasks, dependencies=[blocks])
    codes = da.Array(graph, name, (arrays[0].chunks[0], (n_bytes,)), dtype=np.uint8)
    return codes.rechunk({0: views.arrays[0].chunks[0]})


def itself(block):
    return block


def encode_part(part, const):
    model, numbers, chunk_size = const
    return model.encode(part_views(part), numbers, chunk_size, rows=part.numbers)


def of_rows(function, const, array, width, dtype):
    """``function(rows, const)`` of each chunk of whole rows: (n, width), or (n,) where the width is None."""
    rows = array.rechunk({1: -1})
    shape = {"drop_axis": 1} if width is None else {"chunks": (rows.chunks[0], (width,))}
    meta = np.empty((0,) * (1 if width is None else 2), dtype)
    return rows.map_blocks(function, const=as_delayed(const), dtype=dtype, meta=meta, **shape)


def assign(codes, const):
    return const.assign(codes)


def nearest_two(codes, const):
    return np.column_stack(const.nearest_two(codes)).astype(np.float64)

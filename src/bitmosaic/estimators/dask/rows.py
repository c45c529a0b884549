"""Divide Dask arrays into parts of rows at the solver's block boundaries, and map functions over the parts."""

import ctypes
import os
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np

from bitmosaic.errors import InvalidDataError
from bitmosaic.estimators.dask.fit import key_prefix, new_key, new_name
from bitmosaic.io.threads import single_threaded_blas
from bitmosaic.solver.blocks import TakenRows
from bitmosaic.views import Views

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
KEPT_BYTES, MAPPED_BYTES = 128 * 2**20, 64 * 2**20
LEAST_BLOCKS = 8  # minimum blocks per part: tiny chunks are merged to limit the number of tasks


def aligned(arrays, step):
    """Rechunk the arrays to common chunks of whole rows that start at multiples of `step`.

    The chunks of the first array are kept as far as possible: each boundary moves down to the next multiple of `step`.
    """
    n, cuts = arrays[0].shape[0], [0]
    for edge in np.cumsum(arrays[0].chunks[0][:-1]):
        edge = int(edge) // step * step
        if edge - cuts[-1] >= LEAST_BLOCKS * step:
            cuts.append(edge)
    rows = tuple(int(size) for size in np.diff([*cuts, n]))
    return tuple(array.rechunk({0: rows, 1: -1}) for array in arrays)


@dataclass(frozen=True)
class Part:
    """The rows of one part, on a worker."""

    names: tuple[str, ...]
    raws: list[np.ndarray]  # (k, d_v) for each view
    numbers: np.ndarray  # (k,) row numbers in the user's data
    columns: list[np.ndarray]
    extra: Any


def part_views(part):
    """Return the part as views that are indexed by row number."""
    n_rows = int(part.numbers[-1]) + 1
    return Views(part.names, tuple(TakenRows(part.numbers, X, n_rows) for X in part.raws))


def map_parts(data, step, function, const=None, extras=None, columns=(), only=None):
    """Submit ``function(part, const)`` for each part, or for the parts numbered in `only`; returns a list of futures.

    Dask fuses reading a block and working on it into one task, which runs on the worker that has the rows of the
    columns.
    """
    parts = data.parts
    if data.held is not None:
        work, extras = partial(on_held, function=function, names=data.names), extras or [None] * len(parts)
        if only is None:
            return parts.map(step, work, const, data.held, extras, *columns)
        chosen = ([values[number] for number in only] for values in (data.held.futures, extras))
        return parts.client.map(work, [const] * len(only), *chosen, pure=False, key=key_prefix(step))
    places = [slice(*bounds) for bounds in pairwise(parts.bounds.tolist())]
    if parts.numbers is not None:
        places = [parts.numbers[place] for place in places]
    blocks = on_parts(data.arrays_, data.names, step, function, const, places, extras, columns).to_delayed().ravel()

    def submit(numbers, **where):
        return parts.client.compute(culled([blocks[number] for number in numbers]), optimize_graph=False, **where)

    return submit(only) if only is not None else parts.submit_to_workers(submit, parts.workers_of(columns))


def on_parts(arrays, names, step, function, const, places, extras=None, columns=()):
    """Return a lazy array with one block per part: the result of ``function(part, const)``.

    It has an axis for the rows and one for the columns of each view, because Dask does not fuse functions that drop an
    axis.
    """
    import dask.array as da
    from dask.layers import ArrayValuesDep

    chunks = arrays[0].chunks[:1]
    places_and_extras = {(i,): (place, extras and extras[i]) for i, place in enumerate(places)}
    inputs = [argument for v, array in enumerate(arrays) for argument in (array, ("row", f"column{v}"))]
    for column in columns:
        inputs += [as_array(column.futures, chunks), ("row",)]
    return da.blockwise(
        on_part,
        ("row", *(f"column{v}" for v in range(len(arrays)))),
        ArrayValuesDep(chunks, places_and_extras),
        ("row",),
        *inputs,
        concatenate=True,
        align_arrays=False,
        name=new_name(step),
        function=function,
        names=names,
        const=const if const is None else as_delayed(const),
        dtype=object,
        meta=np.empty((0,) * (1 + len(arrays)), object),
    )


def on_part(places_and_extras, *blocks, function, names, const):
    """On a worker: assemble a Part and call the function."""
    tune_malloc()
    (place, extra), m = places_and_extras, len(names)
    numbers = np.arange(place.start, place.stop) if isinstance(place, slice) else place
    for name, X in zip(names, blocks[:m], strict=True):
        if len(X) != len(numbers):
            raise InvalidDataError(
                f"A chunk of view {name!r} has {len(X)} rows, expected {len(numbers)} "
                f"(rows {numbers[0]} to {numbers[-1]}, from the shape of the array)."
            )
    with single_threaded_blas():
        return function(Part(names, list(blocks[:m]), numbers, list(blocks[m:]), extra), const)


@cache
def tune_malloc():
    """Make malloc keep some freed memory for the next block.

    Dask's nanny configures malloc to return freed memory to the system at once. The solver allocates arrays of a
    megabyte hundreds of times a second, and clearing new pages each time takes as long as the arithmetic.
    """
    if "MALLOC_TRIM_THRESHOLD_" not in os.environ:
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # not glibc
        return
    mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)


def on_held(const, held, extra, *columns, function, names):
    """Like :func:`on_part`, for rows that are persisted on the workers."""
    numbers, *raws = held
    return on_part((numbers, extra), *raws, *columns, function=function, names=names, const=const)


def identity(block):
    return block


def as_array(futures, chunks, dtype=object):
    """Return a Dask array whose blocks are futures, one per chunk of rows."""
    import dask.array as da

    name = new_name("rows")
    edges = (0,) * (len(chunks) - 1)
    graph = {(name, i, *edges): future for i, future in enumerate(futures)}
    return da.Array(graph, name, chunks, dtype=dtype)


def culled(blocks):
    """Return delayed blocks with a graph of only these blocks; it is sent once per worker."""
    from dask.delayed import Delayed

    graph = blocks[0].dask.cull({block.key for block in blocks})
    (layer,) = graph.layers
    return [Delayed(block.key, graph, layer=layer) for block in blocks]


def as_delayed(value):
    from dask.delayed import Delayed, delayed

    if not hasattr(value, "key"):  # not a future
        return delayed(value, pure=False, traverse=False)
    name = new_key("const")
    return Delayed(name, {name: value})

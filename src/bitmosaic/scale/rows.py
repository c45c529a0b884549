"""Dask arrays -> parts of rows: cut where the solver's blocks begin, each handed to a function on some worker."""

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from bitmosaic.errors import InvalidDataError
from bitmosaic.scale.parts import named, new_key, new_name
from bitmosaic.scale.worker import settle
from bitmosaic.solver.data import TakenRows
from bitmosaic.threads import single_threaded_blas
from bitmosaic.views import Views

LEAST_BLOCKS = 8  # of a part, so that tiny chunks do not become as many tasks


def is_dask(array):
    return hasattr(array, "__dask_graph__")


def aligned(arrays, step):
    """The arrays with the same chunks of rows, each beginning where a block of `step` rows does, and whole rows.

    The chunks of the first array are kept as far as possible: only the rows between its own cut and the next one below
    that is a multiple of `step` move to the neighbour.
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
    """What a worker knows of the rows that are its own."""

    names: tuple[str, ...]
    raws: list[np.ndarray]  # (k, d_v) for each view
    numbers: np.ndarray  # (k,) of the rows in the user's data
    columns: list[np.ndarray]
    extra: Any


def part_views(part):
    """Of one part, as views in which rows are found by their numbers."""
    n_rows = int(part.numbers[-1]) + 1
    return Views(part.names, tuple(TakenRows(part.numbers, X, n_rows) for X in part.raws))


def passed(data, step, function, const=None, extras=None, columns=(), only=None):
    """``function(part, const)`` of each part, or `only` of those with some numbers, to be computed: a list of futures.

    Blocks that can be read or made on the spot are: reading and working on them becomes one task (Dask's fusion of
    blocks), which runs where the rows of the columns are.
    """
    parts = data.parts
    if data.held is not None:
        work, extras = partial(on_held, function=function, names=data.names), extras or [None] * len(parts)
        if only is None:
            return parts.map(step, work, const, data.held, extras, *columns)
        chosen = ([values[number] for number in only] for values in (data.held.futures, extras))
        return parts.client.map(work, [const] * len(only), *chosen, pure=False, key=named(step))
    places = [slice(*bounds) for bounds in pairwise(parts.bounds.tolist())]
    if parts.numbers is not None:
        places = [parts.numbers[place] for place in places]
    blocks = on_parts(data.arrays_, data.names, step, function, const, places, extras, columns).to_delayed().ravel()

    def submit(numbers, **where):
        return parts.client.compute(alone([blocks[number] for number in numbers]), optimize_graph=False, **where)

    return submit(only) if only is not None else parts.at_home(submit, parts.homes_of(columns))


def on_parts(arrays, names, step, function, const, places, extras=None, columns=()):
    """A lazy array of one block for each part, which is whatever ``function(part, const)`` gives.

    It has an axis for the rows and one for the columns of each view: Dask fuses no function that drops an axis.
    """
    import dask.array as da
    from dask.layers import ArrayValuesDep

    chunks = arrays[0].chunks[:1]
    told = {(i,): (place, extras and extras[i]) for i, place in enumerate(places)}
    inputs = [argument for v, array in enumerate(arrays) for argument in (array, ("row", f"column{v}"))]
    for column in columns:
        inputs += [as_array(column.futures, chunks), ("row",)]
    return da.blockwise(
        on_part,
        ("row", *(f"column{v}" for v in range(len(arrays)))),
        ArrayValuesDep(chunks, told),
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


def on_part(told, *blocks, function, names, const):
    """On a worker: what is known of a part, put together."""
    settle()
    (place, extra), m = told, len(names)
    numbers = np.arange(place.start, place.stop) if isinstance(place, slice) else place
    for name, X in zip(names, blocks[:m], strict=True):
        if len(X) != len(numbers):
            raise InvalidDataError(
                f"Chunks must have the rows that the array says; of view {name!r}, {len(X)} rows came for rows "
                f"{numbers[0]} to {numbers[-1]}."
            )
    with single_threaded_blas():
        return function(Part(names, list(blocks[:m]), numbers, list(blocks[m:]), extra), const)


def on_held(const, held, extra, *columns, function, names):
    """As :func:`on_part`, for rows that the worker holds, and their numbers."""
    numbers, *raws = held
    return on_part((numbers, extra), *raws, *columns, function=function, names=names, const=const)


def as_array(futures, chunks, dtype=object):
    """Futures, one for each chunk of rows, as the blocks of an array."""
    import dask.array as da

    name = new_name("rows")
    edges = (0,) * (len(chunks) - 1)
    graph = {(name, i, *edges): future for i, future in enumerate(futures)}
    return da.Array(graph, name, chunks, dtype=dtype)


def alone(blocks):
    """Delayed blocks, with a graph of these only: it is sent as it is, once for each worker."""
    from dask.delayed import Delayed

    graph = blocks[0].dask.cull({block.key for block in blocks})
    (layer,) = graph.layers
    return [Delayed(block.key, graph, layer=layer) for block in blocks]


def as_delayed(value):
    from dask.delayed import Delayed, delayed

    if not hasattr(value, "key"):  # not a future
        return delayed(value, pure=False, traverse=False)
    name = new_key("told")
    return Delayed(name, {name: value})

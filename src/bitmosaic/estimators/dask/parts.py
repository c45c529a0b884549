"""Parts of rows on the workers of a Dask cluster: map a function over parts, and reduce their sums in a tree.

Everything here uses futures of `distributed`: results stay on the workers and may spill to disk, and results of a dead
worker are computed again. Sums are exact (`bitmosaic.solver.blocks`), so they do not depend on the shape of the tree.
Parts on the same worker are merged there: the traffic between workers does not grow with the number of parts.
"""

import pickle
import warnings
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np

from bitmosaic.errors import BitmosaicError, ClusterError
from bitmosaic.estimators.dask.fit import LOST, connection_lost, key_prefix, new_key, new_name
from bitmosaic.solver.blocks import Sums

BRANCHES = 8  # of a tree node
FIRST = 10  # priority of tasks that free memory


@dataclass(frozen=True)
class Column:
    """A value for every row: one array per part, on the workers."""

    parts: "Parts"
    futures: list[Any]
    workers: list[str] = field(default_factory=list)  # address of the worker of each part, if known
    width: int = 0  # number of columns, 0 for a vector

    def __len__(self):
        return self.parts.n_rows

    @property
    def shape(self):
        return (len(self), self.width)


class Parts:
    """The division of the rows into parts, and the client of the cluster.

    `numbers` (n,) are the row numbers in the user's data, if these are only some of its rows.
    """

    def __init__(self, client, bounds, numbers=None):
        self.client, self.bounds = client, np.asarray(bounds)  # (p + 1,) first row of each part, and n
        self.n_rows, self.numbers = int(self.bounds[-1]), numbers

    def __len__(self):
        return len(self.bounds) - 1

    def send(self, value):
        """Send a small value to all workers, as a future that can be computed again if a worker dies."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph")  # intended: it is sent to the scheduler once
            return self.client.submit(Sent, value, len(pickle.dumps(value)), key=new_key("sent"))

    def map(self, step, function, const, *columns):
        """Submit ``function(const, *rows of the columns)`` for each part; returns a list of futures.

        An input that is not a Column is a list with a small value for each part.
        """
        inputs = [column.futures if isinstance(column, Column) else column for column in columns]

        def submit(numbers, **where):
            rows = ([values[number] for number in numbers] for values in inputs)
            return self.client.map(function, [const] * len(numbers), *rows, pure=False, key=key_prefix(step), **where)

        return self.submit_to_workers(submit, self.workers_of(columns))

    def submit_to_workers(self, submit, workers):
        """Call ``submit(numbers, **where)`` for the parts of each worker; returns the futures of all parts.

        Without this, Dask would send rows to idle workers.
        """
        if not workers:
            return submit(range(len(self)))
        futures: list[Any] = [None] * len(self)
        for worker, numbers in by_worker(range(len(self)), workers).items():
            where = {"workers": [worker], "allow_other_workers": True} if worker else {}
            for number, future in zip(numbers, submit(numbers, **where), strict=True):
                futures[number] = future
        return futures

    def split_sums(self, step, futures, workers=()):
        """Split futures of (array, Sums), one per part, into the column of arrays and the total of the sums."""
        arrays = self.client.map(first, futures, pure=False, key=key_prefix(f"{step}-rows"), priority=FIRST)
        total = self.total(step, futures, workers)
        return Column(self, arrays, list(workers) or self.workers(arrays)), total

    def total(self, step, futures, workers=()):
        """Wait for futures of (array or None, Sums), one per part, and return the values of the total."""
        return self.reduced(f"{step}-sums", merge, futures, workers)[1].values()

    def reduced(self, step, merge, futures, workers=()):
        """Reduce the results of all parts in a tree with ``merge(*results or None)``, and wait for the result.

        The list of futures is emptied, so that workers can release merged results.
        """
        if workers:
            groups = list(by_worker(futures, workers).values())
            futures.clear()
        else:
            groups = self.merged_per_worker(step, merge, futures)
        while True:
            branches = [
                (number, group[i : i + BRANCHES])
                for number, group in enumerate(groups)
                for i in range(0, len(group), BRANCHES)
            ]
            wide = zip_longest(*(branch for _, branch in branches))
            merged = self.client.map(merge, *wide, pure=False, key=key_prefix(step), priority=FIRST)
            if len(merged) == 1:
                return self.result(merged[0])
            groups = [[] for _ in groups]
            for (number, _), future in zip(branches, merged, strict=True):
                groups[number].append(future)
            if all(len(group) == 1 for group in groups):
                groups = [[group[0] for group in groups]]

    def merged_per_worker(self, step, merge, futures):
        """Merge results per worker as they finish; returns lists of futures, one list per worker.

        At most BRANCHES results of a worker wait to be merged.
        """
        from distributed import as_completed

        waiting: dict[str, list[Any]] = {}
        finished = as_completed(futures)
        futures.clear()
        for batch in finished.batches():
            for future, worker in zip(batch, self.workers(batch), strict=True):
                if future.status == "error":
                    self.result(future)
                group = waiting.setdefault(worker, [])
                group.append(future)
                if len(group) == BRANCHES:
                    where = {"workers": [worker], "allow_other_workers": True} if worker else {}
                    merged = self.client.submit(merge, *group, key=new_name(step), priority=FIRST, **where)
                    waiting[worker] = [merged]
        return list(waiting.values())

    def result(self, wanted):
        """Return the results of one or several futures."""
        try:
            return self.client.gather(wanted)
        except BitmosaicError:
            raise
        except Exception as error:
            name = type(error).__name__
            if name in LOST:
                raise connection_lost(error) from error
            if name == "KilledWorker":
                raise ClusterError(
                    "Several workers died while computing a block of the views, probably for lack of memory. "
                    "Make the chunks of the arrays smaller, or give the workers more memory."
                ) from error
            raise ClusterError(f"A block of the views could not be computed; it raised {name}: {error}.") from error

    def row_numbers(self, positions):
        """Return the row numbers in the user's data of some positions."""
        return positions if self.numbers is None else self.numbers[positions]

    def positions_of(self, rows):
        """Return the positions of sorted row numbers of the user's data."""
        return rows if self.numbers is None else np.searchsorted(self.numbers, rows)

    def workers_of(self, columns):
        """Return the workers of the first Column among `columns`; look them up again if one is gone."""
        column = next((column for column in columns if isinstance(column, Column)), None)
        if column is None:
            return ()
        if set(column.workers) - set(self.client.nthreads()):
            column.workers[:] = self.workers(column.futures)
        return column.workers

    def workers(self, futures):
        """Return the address of the worker of each future, "" if it is on none."""
        who_has = self.client.who_has(futures)
        return [next(iter(who_has.get(future.key, ())), "") for future in futures]

    def positions(self, rows):
        """Return sorted rows as positions within each part: a list of arrays."""
        edges = np.searchsorted(rows, self.bounds)
        return [rows[a:b] - start for (a, b), start in zip(pairwise(edges), self.bounds, strict=False)]

    def take(self, column, rows):
        """Return the values of some sorted rows of a column."""
        wheres = self.positions(rows)
        numbers = [number for number, where in enumerate(wheres) if len(where)]
        chosen = [column.futures[number] for number in numbers], [wheres[number] for number in numbers]
        futures = self.client.map(take, *chosen, pure=False, key=key_prefix("take"))
        return np.concatenate(self.result(futures))


def by_worker(futures, workers):
    """Group futures (or numbers) by worker; one group if the workers are not known."""
    groups: dict[str, list[Any]] = {}
    for future, worker in zip_longest(futures, workers, fillvalue=""):
        groups.setdefault(worker, []).append(future)
    return groups


# ---- functions that run on the workers


@dataclass(frozen=True)
class Sent:
    """A value for all parts, with its size for Dask."""

    value: Any
    n_bytes: int

    def __sizeof__(self):
        return self.n_bytes


def first(pair):
    return pair[0]


def take(part, where):
    return part[where]


def merge(*pairs):
    total = Sums()
    for pair in pairs:
        if pair is not None:
            total.merge(pair[1])
    return None, total

"""Rows in parts on the workers of a Dask cluster: the same function for each part, and its sums up a tree.

Everything here is futures of `distributed`: what a worker that dies had computed is computed again, results stay on the
workers and spill. Sums are exact (`bitmosaic.solver.sums`), so it does not matter how the tree is built: parts that are
on the same worker are added up there, and what travels between workers does not grow with the number of parts.
All keys have the fit's own name in them, so that a fit that ends early cancels its work and nobody else's.
"""

import pickle
import secrets
import warnings
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np

from bitmosaic.errors import BitmosaicError, ClusterError
from bitmosaic.solver.sums import Sums

BRANCHES = 8  # of the tree
FIRST = 10  # priority of what frees memory
FIT = ContextVar("FIT", default="0" * 8)  # its name, which Dask takes for no part of a step's name
LOST = ("CancelledError", "FutureCancelledError", "FuturesCancelledError", "CommClosedError", "ClosedClientError")


@dataclass(frozen=True)
class Column:
    """A value for every row: an array for each part, on some worker."""

    parts: "Parts"
    futures: list[Any]
    homes: list[str] = field(default_factory=list)  # the worker of each part, where known; see Parts.homes_of
    width: int = 0  # columns, where an array is a matrix

    def __len__(self):
        return self.parts.n_rows

    @property
    def shape(self):
        return (len(self), self.width)


class Parts:
    """How the rows are cut into parts, and the cluster that works on them.

    `numbers` (n,) are those of the rows in the user's data, where these are not all of them.
    """

    def __init__(self, client, bounds, numbers=None):
        self.client, self.bounds = client, np.asarray(bounds)  # (p + 1,) where parts begin and end
        self.n_rows, self.numbers = int(self.bounds[-1]), numbers

    def __len__(self):
        return len(self.bounds) - 1

    def send(self, value):
        """A small value for all workers, as a future that is not lost with the worker that holds it."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph")  # it goes to the scheduler once, which is meant
            return self.client.submit(Sent, value, len(pickle.dumps(value)), key=new_key("sent"))

    def map(self, step, function, const, *columns):
        """``function(const, *rows of the columns)`` of each part, to be computed: a list of futures.

        What is not a column is a list with something small for each part.
        """
        inputs = [column.futures if isinstance(column, Column) else column for column in columns]

        def submit(numbers, **where):
            rows = ([values[number] for number in numbers] for values in inputs)
            return self.client.map(function, [const] * len(numbers), *rows, pure=False, key=named(step), **where)

        return self.at_home(submit, self.homes_of(columns))

    def at_home(self, submit, homes):
        """Futures of all parts by ``submit(numbers, **where)``: those whose rows a worker holds are for that worker.

        Dask would rather give work to whoever is free, and send the rows there. A worker that is gone is no home.
        """
        if not homes:
            return submit(range(len(self)))
        futures: list[Any] = [None] * len(self)
        for home, numbers in by_home(range(len(self)), homes).items():
            where = {"workers": [home], "allow_other_workers": True} if home else {}
            for number, future in zip(numbers, submit(numbers, **where), strict=True):
                futures[number] = future
        return futures

    def kept(self, step, futures, homes=()):
        """From futures of (array, Sums), one for each part: the column of arrays, and the values of the sums."""
        arrays = self.client.map(first, futures, pure=False, key=named(f"{step}-rows"), priority=FIRST)
        total = self.total(step, futures, homes)
        return Column(self, arrays, list(homes) or self.homes(arrays)), total

    def total(self, step, futures, homes=()):
        """The values of the sums of (array or None, Sums), one for each part, up a tree; when all are there."""
        return self.reduced(f"{step}-sums", merge, futures, homes)[1].values()

    def reduced(self, step, merge, futures, homes=()):
        """``merge(*results or None)`` of all parts and of what came of merging some; when all are there.

        The list of futures is emptied: workers must be free to forget what has been merged.
        """
        keys = {future.key: number for number, future in enumerate(futures)}
        if homes:
            groups = list(by_home(futures, homes).values())
            futures.clear()
        else:
            groups = self.merged_as_they_come(step, merge, futures, keys)
        while True:
            branches = [
                (number, group[i : i + BRANCHES])
                for number, group in enumerate(groups)
                for i in range(0, len(group), BRANCHES)
            ]
            wide = zip_longest(*(branch for _, branch in branches))
            merged = self.client.map(merge, *wide, pure=False, key=named(step), priority=FIRST)
            if len(merged) == 1:
                return self.result(merged[0], keys)
            groups = [[] for _ in groups]
            for (number, _), future in zip(branches, merged, strict=True):
                groups[number].append(future)
            if all(len(group) == 1 for group in groups):
                groups = [[group[0] for group in groups]]

    def merged_as_they_come(self, step, merge, futures, keys):
        """Lists of one future for each worker, with what it has made: where parts will be is not known before.

        No more than a few results of a worker wait to be merged.
        """
        from distributed import as_completed

        waiting: dict[str, list[Any]] = {}
        finished = as_completed(futures)
        futures.clear()
        for batch in finished.batches():
            for future, home in zip(batch, self.homes(batch), strict=True):
                if future.status == "error":
                    self.result(future, keys)
                group = waiting.setdefault(home, [])
                group.append(future)
                if len(group) == BRANCHES:
                    where = {"workers": [home], "allow_other_workers": True} if home else {}
                    merged = self.client.submit(merge, *group, key=new_name(step), priority=FIRST, **where)
                    waiting[home] = [merged]
        return list(waiting.values())

    def gathered(self, futures, numbers):
        """The results of some futures, which are those of the parts with these numbers."""
        keys = {future.key: number for future, number in zip(futures, numbers, strict=True)}
        return self.result(futures, keys) if futures else []

    def result(self, wanted, keys):
        """What some futures hold; keys: the number of the part for each key of what was to be computed."""
        try:
            return self.client.gather(wanted)
        except Exception as error:
            if (raised := self.explained(error, wanted, keys)) is error:
                raise
            try:
                raise raised from error
            finally:
                del raised  # or it would hold this frame, which holds futures, until garbage is collected

    def explained(self, error, wanted, keys):
        """An error as a user should see it: with the rows of the part that raised it."""
        if isinstance(error, BitmosaicError):
            return error
        rows = self.blamed_rows(wanted, keys)
        name = type(error).__name__
        if name == "KilledWorker":
            return ClusterError(
                f"A worker must have the memory for a few blocks of the views; several died over {rows}. "
                "Make the chunks of the arrays smaller, or give the workers more memory."
            )
        if name in LOST:
            return lost(error)
        return ClusterError(
            f"Every block of the views must be there when it is needed; {rows} raised {name}: {error}. "
            "Mend that block, or leave its rows out."
        )

    def blamed_rows(self, wanted, keys):
        """In words, the rows of the part whose computation failed."""
        wanted = wanted if isinstance(wanted, list) else [wanted]
        failed = [future.key for future in wanted if future.status == "error"]
        try:
            key = self.client.run_on_scheduler(blamed, failed=failed, keys=set(keys))
        except Exception:  # the scheduler is gone, or does not let clients run anything
            key = None
        if key not in keys:
            return "some rows"
        start, stop = self.bounds[keys[key] : keys[key] + 2]
        return f"the block of rows {self.row_numbers(start):,} to {self.row_numbers(stop - 1):,}"

    def row_numbers(self, positions):
        """In the user's data, of which these may be some rows only."""
        return positions if self.numbers is None else self.numbers[positions]

    def positions_of(self, rows):
        """The reverse, for sorted rows."""
        return rows if self.numbers is None else np.searchsorted(self.numbers, rows)

    def homes_of(self, columns):
        """The worker of each part of the first of these that is a column; looked up again when one is gone."""
        column = next((column for column in columns if isinstance(column, Column)), None)
        if column is None:
            return ()
        if set(column.homes) - set(self.client.nthreads()):
            column.homes[:] = self.homes(column.futures)
        return column.homes

    def homes(self, futures):
        """The worker of each of some futures, "" where it is on none."""
        who_has = self.client.who_has(futures)
        return [next(iter(who_has.get(future.key, ())), "") for future in futures]

    def positions(self, rows):
        """Sorted row numbers as positions within each part: a list of arrays."""
        edges = np.searchsorted(rows, self.bounds)
        return [rows[a:b] - start for (a, b), start in zip(pairwise(edges), self.bounds, strict=False)]

    def take(self, column, rows):
        """The values of some sorted rows of a column."""
        wheres = self.positions(rows)
        numbers = [number for number, where in enumerate(wheres) if len(where)]
        chosen = [column.futures[number] for number in numbers], [wheres[number] for number in numbers]
        futures = self.client.map(take, *chosen, pure=False, key=named("take"))
        return np.concatenate(self.gathered(futures, numbers))


@contextmanager
def whole_fit(client):
    """A context for a fit, on a client or on none: if it ends early, by whatever, nothing of it goes on.

    The loss of the cluster, at whatever moment, becomes an error as a user should see it.
    """
    before = FIT.set(secrets.token_hex(4))
    try:
        yield
    except BaseException as error:
        if client is not None:
            with suppress(Exception):  # of a client that is closed, there is nothing to cancel
                cancel(client, FIT.get())
        if type(error).__name__ in LOST:
            raise lost(error) from error
        raise
    finally:
        FIT.reset(before)


def cancel(client, fit):
    """All work of a fit, the latest first: a scheduler that is told to cancel something, while a task that nobody asked
    for still needs it, breaks the connection."""
    from distributed import Future

    steps: dict[str, list[Any]] = {}
    for key in list(client.futures):
        name = key.rpartition("-")[0] if isinstance(key, str) else next(iter(key), "") if isinstance(key, tuple) else ""
        if isinstance(name, str) and f"-{fit}" in name:  # a user's keys may be anything
            steps.setdefault(name, []).append(Future(key, client))
    for futures in reversed(steps.values()):
        client.cancel(futures, force=True)


def lost(error):
    return ClusterError(
        f"A fit needs its scheduler to the end; the work was cancelled or the connection lost ({error}). "
        "Look at the scheduler's log, and fit again."
    )


def named(step):
    """What the keys of a step begin with; Dask's dashboard shows it up to the fit's name."""
    return f"bitmosaic-{step}-{FIT.get()}"


def new_name(step):
    return f"{named(step)}-{secrets.token_hex(16)}"


def new_key(name):
    """For a value that all parts need. Dask spreads tasks evenly if what they need is a group of its own, and groups
    tasks by their names: a pair's first half is taken whole."""
    return new_name(name), 0


def by_home(futures, homes):
    """Lists of futures (or numbers) by their worker; one list where workers are not known."""
    groups: dict[str, list[Any]] = {}
    for future, home in zip_longest(futures, homes, fillvalue=""):
        groups.setdefault(home, []).append(future)
    return groups


# ---- what workers do


@dataclass(frozen=True)
class Sent:
    """What all parts are told. Its size is for Dask, which does not look into it."""

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


def blamed(dask_scheduler, failed, keys):
    """On the scheduler: the one of `keys` whose task, or one it needs, is to blame for the tasks that failed."""
    for key in failed:
        task = dask_scheduler.tasks.get(key)
        queue = [] if task is None or task.exception_blame is None else [task.exception_blame]
        seen = set(queue)
        while queue:
            task = queue.pop()
            if task.key in keys:
                return task.key
            queue += task.dependents - seen
            seen |= task.dependents
    return None

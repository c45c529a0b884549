"""One fit on the current Dask client. At its end, only the result stays on the cluster."""

import asyncio
import secrets
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from bitmosaic.errors import ClusterError, MissingExtraError

NO_DASK = "A cluster needs Dask, which is not installed: pip install 'bitmosaic[dask]'"
GRAPH_SECONDS = 30  # maximum time for a graph to reach the scheduler
FIT = ContextVar("FIT", default="0" * 8)  # name of the fit; Dask's dashboard hides a suffix of 8 hex digits
RESULT = "result"  # step of the arrays that a fit returns
LOST = ("CancelledError", "FutureCancelledError", "FuturesCancelledError", "CommClosedError", "ClosedClientError")


def current_client():
    """Return the client created last in this process. Raises an error if there is none."""
    try:
        from distributed import get_client

        return get_client()
    except ImportError as error:
        raise MissingExtraError(NO_DASK) from error
    except ValueError:
        raise ClusterError(
            "A fit of Dask arrays runs on the current Dask client; there is none. "
            "Create one first: client = distributed.Client(ADDRESS), or Client() for this machine."
        ) from None


@contextmanager
def fit_on_cluster():
    """Yield the current client for one fit. At the end of the fit, only its result stays on the cluster.

    A fit that fails or is interrupted leaves nothing there. Futures that are still referenced do not matter: a stored
    traceback, `as_completed` and the threads of Dask may hold some. Other work of the client is not touched.
    """
    client = current_client()
    name = secrets.token_hex(4)
    before = FIT.set(name)
    kept = None
    try:
        yield client
        kept = RESULT
    except BaseException as error:
        if type(error).__name__ in LOST:
            raise connection_lost(error) from error
        raise
    finally:
        FIT.reset(before)
        with suppress(Exception):  # a closed client has nothing to release
            release(client, name, kept)


def release(client, fit, kept=None):
    """Release all keys of a fit on the scheduler, except those of the step `kept`.

    The scheduler ignores the release of keys whose graph has not arrived yet, and would compute them afterwards. So it
    waits for these graphs first.
    """
    pending = [
        key for key, state in list(client.futures.items()) if belongs_to_fit(key, fit) and state.status == "pending"
    ]
    client.run_on_scheduler(release_keys, client=client.id, fit=fit, kept=kept, pending=pending)


async def release_keys(dask_scheduler, client, fit, kept, pending):
    """On the scheduler: wait for the graphs of the pending keys, then release the keys of the fit."""
    loop = asyncio.get_running_loop()
    end = loop.time() + GRAPH_SECONDS
    while loop.time() < end and (
        dask_scheduler._active_graph_updates or any(key not in dask_scheduler.tasks for key in pending)
    ):
        await asyncio.sleep(0.01)
    keys = [
        task.key
        for task in dask_scheduler.clients[client].wants_what
        if belongs_to_fit(task.key, fit) and not (kept and belongs_to_fit(task.key, f"{kept}-{fit}"))
    ]
    dask_scheduler.client_releases_keys(keys, client)


def belongs_to_fit(key, fit):
    """Return whether a key belongs to a fit. Keys of the user may have any type."""
    name = key[0] if isinstance(key, tuple) and key else key
    return isinstance(name, str) and f"-{fit}" in name


def connection_lost(error):
    return ClusterError(
        f"The fit lost its scheduler; the work was canceled or the connection was closed ({error}). "
        "Check the scheduler's log, and fit again."
    )


def key_prefix(step):
    """Return the prefix of the keys of a step. Dask's dashboard shows it without the name of the fit."""
    return f"bitmosaic-{step}-{FIT.get()}"


def new_name(step):
    return f"{key_prefix(step)}-{secrets.token_hex(16)}"


def new_key(name):
    """Return a key for a value that all parts need.

    Dask spreads tasks evenly if their common input is a task group of its own. It groups keys that are tuples by their
    first element.
    """
    return new_name(name), 0

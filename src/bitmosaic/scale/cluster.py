"""--scheduler or --workers -> a Dask client that is checked: there are workers, and they have this bitmosaic."""

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from bitmosaic import __version__
from bitmosaic.errors import ClusterError, MissingExtraError, ParameterError
from bitmosaic.threads import available_threads

if TYPE_CHECKING:
    from distributed import Client

NO_DASK = "A cluster needs Dask, which is not installed: pip install 'bitmosaic[dask]'"
CONNECT_SECONDS, WORKER_SECONDS = 15, 30
# A worker that is done a moment earlier would take blocks of codes from the other, in every round.
NO_STEALING = {"distributed.scheduler.work-stealing": False}
SILENT = logging.CRITICAL  # Dask's lines would stand between the progress bars, and what matters is raised
# Ctrl-C reaches every process of a terminal; workers that it hits show tracebacks. The command closes them itself.
DEAF = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"


@contextmanager
def connected(scheduler: str | None = None, workers: int | None = None) -> Iterator["Client | None"]:
    """A client, which is the current one meanwhile: of the cluster at an address, or of `workers` processes here.

    Without either, None: there is no cluster. What was started here ends with the block, however it ends.
    """
    if scheduler is not None and workers is not None:
        raise ParameterError(
            "A cluster is either one that runs at an address or one of this machine; got both a scheduler and a number "
            "of workers. Leave one out."
        )
    if scheduler is None and workers is None:
        yield None
        return
    if workers is not None and workers < 1:
        raise ParameterError(f"The number of workers must be at least 1; got {workers}.")
    try:
        import distributed
    except ImportError as error:
        raise MissingExtraError(NO_DASK) from error
    with ExitStack() as stack:
        stack.enter_context(distributed.utils.silence_logging_cmgr(SILENT))
        if scheduler is None:
            client = stack.enter_context(distributed.Client(stack.enter_context(_local_cluster(workers or 1))))
        else:
            client = stack.enter_context(_client_at(scheduler))
        _check_workers(client)
        yield client


def current_client() -> "Client":
    """The one that was made last in this process, or an error that says how to make one."""
    try:
        from distributed import get_client

        return get_client()
    except ImportError as error:
        raise MissingExtraError(NO_DASK) from error
    except ValueError:
        raise ClusterError(
            "A fit of Dask arrays runs on the current Dask client; there is none. "
            "Make one first: client = distributed.Client(ADDRESS), or Client() for this machine."
        ) from None


def _local_cluster(workers: int):
    import dask
    from distributed import LocalCluster

    try:
        with dask.config.set(NO_STEALING):
            return LocalCluster(
                n_workers=workers,
                threads_per_worker=max(1, available_threads() // workers),
                processes=True,
                dashboard_address="127.0.0.1:0",  # None would still take port 8787, and complain where it is taken
                silence_logs=SILENT,
                preload=[DEAF],
            )
    except (RuntimeError, OSError) as error:
        raise ClusterError(f"{workers} workers could not be started here ({error}). Try with fewer.") from error


def _client_at(scheduler: str):
    from distributed import Client
    from distributed.comm import connect

    async def knock() -> None:
        await (await connect(scheduler, timeout=CONNECT_SECONDS)).close()

    try:  # before there is a client: one that could not connect may block the next when it is thrown away
        with ThreadPoolExecutor(1) as pool:  # this thread may have an event loop
            pool.submit(asyncio.run, knock()).result()
        return Client(scheduler, timeout=CONNECT_SECONDS)
    except Exception as error:  # what is no address makes Dask raise anything, even AssertionError
        raise ClusterError(
            f"A scheduler is given as its address, such as tcp://host:8786; {scheduler!r} cannot be reached "
            f"({error or type(error).__name__}). Is it running, and can this machine see it?"
        ) from error


def _check_workers(client) -> None:
    def version() -> str | None:  # inside, so that it travels whole to a worker that has no bitmosaic
        try:
            import bitmosaic
        except ImportError:
            return None
        return bitmosaic.__version__

    try:
        client.wait_for_workers(1, timeout=WORKER_SECONDS)
    except TimeoutError as error:
        raise ClusterError(
            f"A cluster needs a worker at least; {client.scheduler.address} has none after {WORKER_SECONDS} seconds. "
            "Start some with: dask worker ADDRESS"
        ) from error
    found = client.run(version)
    if None in found.values():
        lacking = [address for address, held in found.items() if held is None]
        raise MissingExtraError(
            f"bitmosaic must be installed on every worker; {len(lacking)} of {len(found)} lack it, such as "
            f"{lacking[0]}. There: pip install 'bitmosaic[dask]=={__version__}'"
        )
    other = [f"{held} at {address}" for address, held in found.items() if held != __version__]
    if other:
        raise MissingExtraError(
            f"All workers must have the bitmosaic of this machine, {__version__}; {len(other)} of {len(found)} have "
            f"another, such as {other[0]}. There: pip install 'bitmosaic[dask]=={__version__}'"
        )

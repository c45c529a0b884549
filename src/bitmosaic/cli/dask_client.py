"""--scheduler or --workers -> a Dask client whose workers have this version of bitmosaic."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from bitmosaic import __version__
from bitmosaic.errors import ClusterError, MissingExtraError, ParameterError
from bitmosaic.estimators.dask.fit import NO_DASK
from bitmosaic.io.threads import available_threads

if TYPE_CHECKING:
    from distributed import Client

CONNECT_SECONDS, WORKER_SECONDS = 15, 30
# Work stealing would move blocks of codes between workers in every iteration.
NO_STEALING = {"distributed.scheduler.work-stealing": False}
SILENT = logging.CRITICAL  # Dask's log lines would break the progress bars
# Ctrl-C reaches every process of a terminal. Workers ignore it; the command closes them.
IGNORE_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"


@contextmanager
def connected(scheduler: str | None = None, workers: int | None = None) -> Iterator["Client | None"]:
    """A client of the scheduler at an address, or of `workers` processes on this machine; None without either.

    It is Dask's current client inside the block. Workers started here end with the block.
    """
    if scheduler is not None and workers is not None:
        raise ParameterError("Give either --scheduler or --workers, not both.")
    if scheduler is None and workers is None:
        yield None
        return
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


def _local_cluster(workers: int):
    import dask
    from distributed import LocalCluster
    from distributed.gc import disable_gc_diagnosis

    try:
        with dask.config.set(NO_STEALING):
            cluster = LocalCluster(
                n_workers=workers,
                threads_per_worker=max(1, available_threads() // workers),
                processes=True,
                dashboard_address="127.0.0.1:0",  # None would take port 8787, and warn if it is in use
                silence_logs=SILENT,
                preload=[IGNORE_CTRL_C],
            )
        disable_gc_diagnosis()  # Python ignores a Ctrl-C that arrives in this callback of its garbage collector
        return cluster
    except (RuntimeError, OSError) as error:
        raise ClusterError(f"Cannot start {workers} workers on this machine ({error}). Try fewer.") from error


def _client_at(scheduler: str):
    from distributed import Client

    try:
        return Client(scheduler, timeout=CONNECT_SECONDS)
    except Exception as error:  # Dask raises many types for a bad address, even AssertionError
        raise ClusterError(
            f"The Dask scheduler {scheduler!r} cannot be reached ({error or type(error).__name__}). "
            "Expected the address of a running scheduler, such as tcp://host:8786."
        ) from error


def _check_workers(client) -> None:
    def version() -> str | None:  # nested, so that it is pickled by value: a worker may lack bitmosaic
        try:
            import bitmosaic
        except ImportError:
            return None
        return bitmosaic.__version__

    try:
        client.wait_for_workers(1, timeout=WORKER_SECONDS)
    except TimeoutError as error:
        raise ClusterError(
            f"The Dask cluster at {client.scheduler.address} has no workers after {WORKER_SECONDS} seconds. "
            "Start some: dask worker ADDRESS"
        ) from error
    found = client.run(version)
    other = [f"{held or 'none'} at {address}" for address, held in found.items() if held != __version__]
    if other:
        raise MissingExtraError(
            f"This machine has bitmosaic {__version__}, but {len(other)} of {len(found)} workers have another version, "
            f"such as {other[0]}. Install it there: pip install 'bitmosaic[dask]=={__version__}'"
        )

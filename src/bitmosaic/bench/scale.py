"""Measure fits on a local Dask cluster: time, memory of each process, traffic between workers.

Rows have planted clusters as in `bench memory`. They are generated in the blocks, again in each pass over the features.
"""

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np

from bitmosaic.bench.memory import WIDTHS, PeakMemory
from bitmosaic.estimators.dask.clustering import ClusterProblem
from bitmosaic.estimators.hsic import HSIC
from bitmosaic.estimators.metrics import clustering_scores

BLOCK_ROWS = 65_536
WARM_ROWS = 30_000
SPREAD = 3.0  # standard deviation of a cluster; centers have standard deviation 1


@dataclass(frozen=True)
class Figures:
    """Measurements of one fit on a Dask cluster."""

    n_rows: int
    n_blocks: int
    seconds: float
    worker_peak: int  # bytes of the worker with the highest peak
    client_peak: int  # bytes above the memory before the fit
    rounds: list[tuple[float, int]]  # per clustering round: seconds, and bytes sent by the workers
    nmi: float

    @property
    def round_seconds(self) -> float:
        """Mean seconds of a round."""
        return sum(seconds for seconds, _ in self.rounds) / len(self.rounds)

    @property
    def round_bytes(self) -> float:
        return sum(count for _, count in self.rounds) / len(self.rounds)


def planted_labels(number, n_rows, n_clusters):
    """True labels of one block."""
    return np.random.default_rng([0, number]).integers(n_clusters, size=n_rows)


def planted_rows(view, n_clusters, cut, block_id):
    """One block of one view."""
    number = block_id[0]
    width = WIDTHS[view]
    centers = np.random.default_rng([1, ord(view)]).standard_normal((n_clusters, width), dtype=np.float32)
    rng = np.random.default_rng([2, ord(view), number])
    rows = rng.standard_normal((cut[number], width), dtype=np.float32)
    rows *= SPREAD
    rows += centers[planted_labels(number, cut[number], n_clusters)]
    return rows


def planted_views(n_rows, n_clusters, block_rows=BLOCK_ROWS):
    """Lazy Dask arrays with planted clusters, and the number of rows of each block."""
    import dask.array as da

    cut = tuple(min(block_rows, n_rows - start) for start in range(0, n_rows, block_rows))
    views = {
        name: da.map_blocks(
            planted_rows,
            view=name,
            n_clusters=n_clusters,
            cut=cut,
            chunks=(cut, (width,)),
            meta=np.empty((0, 0), np.float32),
        )
        for name, width in WIDTHS.items()
    }
    return views, cut


def sent(client):
    """Bytes sent so far by the workers, to each other and to this process, as counted by Dask."""
    return sum(client.run(lambda dask_worker: dask_worker.transfer_outgoing_bytes_total).values())


def measure(client, n_rows, n_clusters, train_size, block_rows=BLOCK_ROWS):
    """Fit rows with planted clusters on the client's Dask cluster."""
    HSIC(n_clusters, random_state=0).fit(planted_views(WARM_ROWS, n_clusters)[0])  # loads the kernels
    views, cut = planted_views(n_rows, n_clusters, block_rows)
    workers = client.run(os.getpid)
    rounds = []
    step = ClusterProblem.step

    def watched(self, *arguments):
        before, start = sent(client), time.perf_counter()
        result = step(self, *arguments)
        rounds.append((time.perf_counter() - start, sent(client) - before))
        return result

    with patch.object(ClusterProblem, "step", watched), PeakMemory() as here, ExitStack() as there:
        peaks = [there.enter_context(PeakMemory(process)) for process in workers.values()]
        start = time.perf_counter()
        model = HSIC(n_clusters, train_size=train_size, random_state=0).fit(views)
        seconds = time.perf_counter() - start
    truth = np.concatenate([planted_labels(number, size, n_clusters) for number, size in enumerate(cut)])
    return Figures(
        n_rows=n_rows,
        n_blocks=len(cut),
        seconds=seconds,
        worker_peak=max(worker.peak for worker in peaks),
        client_peak=here.peak - here.start,
        rounds=rounds,
        nmi=clustering_scores(truth, model.labels_.compute())["nmi"],
    )

"""One method on one set of views, in a process of its own: a line of JSON when ready, then one for each seed."""

import json
import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bitmosaic.bench.baselines import make
from bitmosaic.bench.experiment import DataSet
from bitmosaic.bench.memory import PeakMemory, processor_seconds, resident_bytes
from bitmosaic.bench.selection import Choice
from bitmosaic.errors import BitmosaicError
from bitmosaic.views import Views

WARM_ROWS = 300


def fit_all(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Fit with each seed and tell the time, the memory above the start, and the labels.

    What happens only once in a process (imports, compiled kernels, threads) is over before the clock starts: a few of
    the same rows are clustered first.
    """
    warnings.simplefilter("ignore")
    settings = {} if task["n_bits"] is None else {"n_bits": task["n_bits"]}
    views = DataSet(task["data"], Path(task["path"]), tuple(task["views"]), Choice(**task["choice"])).open()
    views = Views(views.names, views.arrays)
    some = Views(views.names, tuple(array[:WARM_ROWS] for array in views.arrays))
    make(task["method"], min(task["n_clusters"], some.n_rows), random_state=0, **settings).fit_predict(some)
    ready = resident_bytes()  # each fit counts from here: what an earlier one has freed may still be resident
    yield {"ready": True}
    for seed in task["seeds"]:
        method = make(task["method"], task["n_clusters"], random_state=seed, **settings)
        with PeakMemory() as memory:
            start, cpu = time.perf_counter(), processor_seconds()
            labels = method.fit_predict(views)
            seconds, cpu = time.perf_counter() - start, processor_seconds() - cpu
        yield {
            "seed": seed,
            "seconds": seconds,
            "cpu_seconds": cpu,
            "peak_bytes": max(memory.peak - ready, 0),
            "sizes": getattr(method, "sizes_", {}),
            "labels": labels.tolist(),
        }


def end_with_parent() -> None:
    """Wait until nobody holds the other end of our input, and end this process whatever it does."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        for line in fit_all(json.loads(sys.argv[1])):
            print(json.dumps(line), flush=True)
    except MemoryError:
        print(json.dumps({"cut_off": "memory"}), flush=True)
    except Exception as error:
        if not isinstance(error, BitmosaicError):
            traceback.print_exc()
        print(json.dumps({"cut_off": f"failed: {error or type(error).__name__}"}), flush=True)

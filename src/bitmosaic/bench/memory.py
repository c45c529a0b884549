"""Measure the peak memory of a fit on memory-mapped views larger than its limit, in a separate process."""

import json
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

from bitmosaic.errors import BitmosaicError
from bitmosaic.estimators.metrics import clustering_scores
from bitmosaic.views import Views, read_views, write_views

WIDTHS = {"a": 128, "b": 64, "c": 256}


def make_views(folder, n_rows, n_clusters, seed=0):
    """Write rows with planted clusters as a views folder of float32 `.npy` files, block by block."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(n_clusters, size=n_rows)
    folder = Path(folder)
    arrays = []
    for name, width in WIDTHS.items():
        centers = rng.standard_normal((n_clusters, width))
        path = folder / f"raw-{name}.npy"
        array = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(n_rows, width))
        for start in range(0, n_rows, 65_536):
            rows = slice(start, min(start + 65_536, n_rows))
            noise = rng.standard_normal((rows.stop - rows.start, width), dtype=np.float32)
            array[rows] = centers[labels[rows]] + 3 * noise
        array.flush()
        arrays.append(array)
    write_views(folder / "views", Views(tuple(WIDTHS), tuple(arrays), labels=labels))
    for name in WIDTHS:
        (folder / f"raw-{name}.npy").unlink()
    return folder / "views"


def measure(views_folder, n_rows, n_clusters, memory_limit, train_size):
    """Fit the first `n_rows` in a new process and return its measurements."""
    command = [
        sys.executable,
        "-m",
        "bitmosaic.bench.memory",
        str(views_folder),
        str(n_rows),
        str(n_clusters),
        memory_limit,
        train_size,
    ]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures = json.loads(done.stdout)
    if "error" in figures:
        raise BitmosaicError(figures["error"])
    return figures


def model_of(n_clusters, memory_limit, train_size):
    """An HSIC with these settings; `train_size` as typed on the command line."""
    from bitmosaic.estimators.hsic import HSIC

    with suppress(ValueError):  # "auto" stays as it is; HSIC refuses other words
        train_size = int(train_size) if train_size.isdigit() else float(train_size)
    return HSIC(n_clusters, memory_limit=memory_limit, train_size=train_size, random_state=0)


def resident_bytes(process: int | str = "self") -> int:
    """Anonymous resident memory, without pages of mapped files. 0 for an ended process, or without /proc."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


class PeakMemory:
    """The highest anonymous resident memory of a process inside a `with`, sampled every 5 ms."""

    def __init__(self, process="self"):
        self.process = process

    def __enter__(self):
        self.start = self.peak = resident_bytes(self.process)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self):
        while not self._done.wait(0.005):
            self.peak = max(self.peak, resident_bytes(self.process))

    def __exit__(self, *error):
        self._done.set()
        self._thread.join()
        self.peak = max(self.peak, resident_bytes(self.process))


def _fit_and_print(folder, n_rows, n_clusters, memory_limit, train_size):
    everything, some = read_views(folder), slice(int(n_rows))
    views = Views(everything.names, tuple(X[some] for X in everything.arrays))
    model = model_of(int(n_clusters), memory_limit, train_size)
    with PeakMemory() as memory:
        start = time.perf_counter()
        model.fit(views)
        seconds = time.perf_counter() - start
    outputs = model.labels_.nbytes + model.codes_.nbytes
    print(
        json.dumps(
            {
                "rows": views.n_rows,
                "seconds": seconds,
                "start_bytes": memory.start,
                "peak_bytes": memory.peak - memory.start,
                "output_bytes": outputs,
                "input_bytes": 4 * views.n_rows * sum(views.widths),
                "scores": clustering_scores(np.asarray(everything.labels)[some], model.labels_),
            }
        )
    )


if __name__ == "__main__":
    try:
        _fit_and_print(*sys.argv[1:])
    except BitmosaicError as error:
        print(json.dumps({"error": str(error)}))

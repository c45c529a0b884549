"""Fits under a hard memory limit of the operating system: with memory_limit set, the labels stay the same.

The limit is RLIMIT_DATA: the private writable memory of the process, as Linux counts it. memory_limit means the same:
what the fit allocates beside its input and output. RLIMIT_AS would also count the views, which are memory maps larger
than the limit; a control group needs root. The process may have

- what it has before the fit: Python, the libraries and their compiled kernels, the stacks of the threads, and what BLAS
  sets aside for each of them (two libraries, 32 MiB a thread), all of it measured after a fit of 3,000 small rows,
- memory_limit: the smallest value the fit accepts, or that and half of its cache,
- the output: a code and a label for each row,
- of a Parquet file the row groups that were read last.

malloc is set to return freed memory at once (one arena, a map for each large array): otherwise Linux counts free pages
as well.
"""

import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from torture.tally import Tally

THREADS = 2
PLAIN_MALLOC = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
ROW_GROUP = 4096


@dataclass(frozen=True)
class Case:
    what: str
    widths: tuple[int, ...]
    n_rows: int
    n_clusters: int | str = 10
    settings: dict = field(default_factory=dict)
    suffix: str = ".npy"
    cached: float = 0.0  # share of the training rows' similarities that fits into the cache
    kept: bool = False  # a checkpoint after every iteration


FAST = {"preset": "fast"}
CASES = [
    Case("many rows of four columns", (4,), 700_000, 10, FAST),
    Case("three views", (128, 64, 256), 150_000, 20),
    Case("three views, half of them cached", (128, 64, 256), 150_000, 20, cached=0.5),
    Case("2,000 clusters", (64, 64), 200_000, 2000),
    Case("the number of clusters is to be found", (64, 64), 100_000, "auto"),
    Case("a Parquet file", (128, 64), 100_000, 20, FAST, ".parquet"),
]


def tallies(effort):
    tally = Tally("fits under a hard memory limit")
    for case in CASES:
        tally.tried += 1
        try_case(case, tally)
    yield tally


def try_case(case, tally):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "views").mkdir()
        path = write(case, Path(folder) / "views")
        limited, free = run(case, path, limited=True), run(case, path, limited=False)
    for outcome in (limited, free):
        if "error" in outcome:
            tally.crashes.append(f"{case.what}: {outcome['error']}")
            return
    if limited["result"] != free["result"]:
        tally.wrong.append(f"{case.what}: other labels or codes under the limit")
    megabytes = {name: f"{value / 1e6:.0f} MB" for name, value in limited.items() if name != "result"}
    print(f"{case.what}: {megabytes}", file=sys.stderr)


def write(case, folder):
    """Planted clusters in the form of the case; returns the path of the views."""
    rng = np.random.default_rng(0)
    labels = np.arange(case.n_rows) % 20
    centers = [rng.standard_normal((20, width), dtype=np.float32) for width in case.widths]
    step = max(64, 2**22 // max(case.widths))

    def blocks(v):
        for start in range(0, case.n_rows, step):
            rows = labels[start : start + step]
            yield centers[v][rows] + rng.standard_normal((len(rows), case.widths[v]), dtype=np.float32)

    if case.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        views = [np.concatenate(list(blocks(v))) for v in range(len(case.widths))]
        lists = [pa.FixedSizeListArray.from_arrays(X.ravel(), X.shape[1]) for X in views]
        pq.write_table(
            pa.table({f"v{v}": X for v, X in enumerate(lists)}), folder / "x.parquet", row_group_size=ROW_GROUP
        )
        return folder / "x.parquet"
    for v, width in enumerate(case.widths):
        array = np.lib.format.open_memmap(folder / f"v{v}.npy", "w+", np.float32, (case.n_rows, width))
        start = 0
        for block in blocks(v):
            array[start : start + len(block)] = block
            start += len(block)
    return folder


def run(case, path, limited):
    """The output of a separate process: a hash of its labels and codes, or an error."""
    command = [sys.executable, "-m", "torture.limits", str(path), json.dumps(asdict(case)), str(int(limited))]
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | (PLAIN_MALLOC if limited else {})
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        return {"error": f"exit code {done.returncode}: {done.stderr.strip()[-300:]}"}
    return json.loads(done.stdout)


# ---- in the process of the fit


def main(path, case, limited):
    from bitmosaic import HSIC
    from bitmosaic.estimators import checkpoint
    from bitmosaic.estimators.estimate import cache_bytes
    from bitmosaic.solver.train import memory_needs
    from bitmosaic.views import read_views

    warnings.simplefilter("ignore")
    model = HSIC(case.n_clusters, n_threads=THREADS, random_state=0, **case.settings)
    warm_up(case)
    views = read_views(path)
    for _ in range(20 if case.suffix == ".parquet" else 0):  # Arrow starts its own threads one by one
        _ = [array[row] for array in views.arrays for row in (slice(1), slice(views.n_rows - 1, views.n_rows))]
    if not limited:
        return {"result": digest(model.fit(views))}
    needs = memory_needs(views.widths, model.check(views.n_rows), views.n_rows)
    limit = needs.least(THREADS) + int(case.cached * cache_bytes(needs))
    resident = Resident()
    base, output = written_bytes("VmData"), views.n_rows * (model.n_bits // 8 + 4)
    # Compressed and decoded, for each view; a thread may still copy rows of the previous group.
    groups = (THREADS + 2) * ROW_GROUP * 4 * sum(views.widths) if case.suffix == ".parquet" else 0
    resource.setrlimit(resource.RLIMIT_DATA, (base + limit + output + groups,) * 2)
    model.set_params(memory_limit=limit)
    if case.kept:
        checkpoint.EVERY = checkpoint.COST = 0.0
        model.fit(views, checkpoint=path.with_name("checkpoint"))
    else:
        model.fit(views)
    figures = {"limit": limit, "base": base, "input": 4 * views.n_rows * sum(views.widths), "output": output}
    return figures | {"resident": resident.growth(), "result": digest(model)}


def warm_up(case):
    """Load the kernels, start the threads and let BLAS allocate its work space for each."""
    from scipy.linalg.blas import dgemm

    from bitmosaic import HSIC
    from bitmosaic.io.threads import in_order, single_threaded_blas

    rng = np.random.default_rng(0)
    few = case.n_clusters if case.n_clusters == "auto" else min(50, case.n_clusters)
    small = [rng.standard_normal((3000, 8), dtype=np.float32) for _ in case.widths]
    HSIC(few, n_threads=THREADS, random_state=0, **case.settings | {"n_components": 4}).fit(small)
    together, A = threading.Barrier(THREADS), np.ones((512, 512))

    def multiply(_):
        for product in (lambda: A @ A, lambda: dgemm(1.0, A, A)):
            together.wait()
            product()

    with single_threaded_blas():
        for _ in range(3):
            list(in_order(multiply, range(THREADS), THREADS))


class Resident:
    """Peak growth of the anonymous resident memory."""

    def __init__(self):
        self._first = self._most = written_bytes("RssAnon")
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self):
        while not self._done.wait(0.005):
            self._most = max(self._most, written_bytes("RssAnon"))

    def growth(self):
        self._done.set()
        self._thread.join()
        return self._most - self._first


def written_bytes(name):
    """A figure from /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


def digest(model):
    return hashlib.sha256(model.labels_).hexdigest() + hashlib.sha256(model.codes_).hexdigest()


if __name__ == "__main__":
    where, given, limited = sys.argv[1:]
    print(json.dumps(main(Path(where), Case(**json.loads(given)), limited == "1")))

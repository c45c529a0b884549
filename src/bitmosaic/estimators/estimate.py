"""Estimate the time, memory and disk space of a fit from the shapes of its views.

The time is measured on random rows with the same numbers of columns: the solver is trained on two small sets, and one
set is encoded. The rows are in memory maps, because page faults take as long as some of the arithmetic. Training time
is linear in the training rows; encoding and final clustering are linear in all rows. If the training rows are all rows,
there is no separate encoding.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bitmosaic.errors import InvalidDataError
from bitmosaic.hamming.codes import unpack
from bitmosaic.solver.blocks import LocalData
from bitmosaic.solver.clustering import Problem
from bitmosaic.solver.memory import Needs
from bitmosaic.solver.scan import rows_per_block
from bitmosaic.solver.train import Options, final_clusters, memory_needs, train
from bitmosaic.views import Views

ROWS, BYTES = 12_000, 200_000_000  # limits of the larger trial fit
CODES = 100_000  # codes in the timed final clustering, at most
LEAST_SLOPE = 0.5  # lower bound on the cost of one more row, relative to the mean cost: timings are noisy
WARM_ROWS = 300
FILE_HEAD = 8000  # approximate bytes of a model file besides its arrays


@dataclass(frozen=True)
class Estimate:
    """Estimated cost of a fit, if the load of the machine stays the same."""

    n_rows: int
    widths: dict[str, int]  # columns of each view
    n_clusters: int
    n_train: int  # training rows
    n_threads: int  # limited by memory_limit
    learning: float  # seconds
    encoding: float
    clustering: float  # final clustering of all codes
    working_bytes: int  # peak allocation besides input and output
    output_bytes: int  # codes and labels
    views_bytes: int  # on disk, as float32
    model_bytes: int  # on disk, with codes and labels

    @property
    def seconds(self) -> float:
        return self.learning + self.encoding + self.clustering

    @property
    def memory_bytes(self) -> int:
        return self.working_bytes + self.output_bytes

    @property
    def disk_bytes(self) -> int:
        return self.views_bytes + self.model_bytes

    def as_json(self) -> dict[str, Any]:
        totals = {"seconds": self.seconds, "memory_bytes": self.memory_bytes, "disk_bytes": self.disk_bytes}
        return totals | asdict(self)

    def __str__(self) -> str:
        views = ", ".join(f"{name} ({width})" for name, width in self.widths.items())
        threads = f"{self.n_threads} thread{'s' if self.n_threads > 1 else ''}"
        seconds = {"learning": self.learning, "encoding": self.encoding, "clustering": self.clustering}
        memory = {"working": self.working_bytes, "codes and labels": self.output_bytes}
        disk = {"views as float32": self.views_bytes, "model, codes and labels": self.model_bytes}
        lines = (
            ("time", in_time(self.seconds), ", ".join(f"{part} {in_time(s)}" for part, s in seconds.items())),
            ("memory", in_bytes(self.memory_bytes), ", ".join(f"{part} {in_bytes(b)}" for part, b in memory.items())),
            ("disk", in_bytes(self.disk_bytes), ", ".join(f"{part} {in_bytes(b)}" for part, b in disk.items())),
        )
        title = f"{self.n_rows:,} rows of {views} into {self.n_clusters:,} clusters, {threads}"
        return "\n".join([title, *(f"{what:8}{much:>8}   {parts}" for what, much, parts in lines)])


def in_time(seconds: float) -> str:
    """Format as 0.8 s, 12 s, 3.4 min, 11 h: two digits."""
    size, unit = next((s, u) for s, u in ((3600, "h"), (60, "min"), (1, "s")) if seconds >= 2 * s or s == 1)
    return f"{seconds / size:.{0 if seconds >= 10 * size else 1}f} {unit}"


def in_bytes(count: int) -> str:
    """Format as 12 kB, 3.4 MB, 120 GB."""
    size, unit = next((10**p, u) for p, u in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")) if count >= 10**p or p == 3)
    return f"{count / size:.{0 if count >= 10 * size else 1}f} {unit}"


def check_dims(dims: Any) -> dict[str, int]:
    """Return the number of columns of each view by name."""
    listed = list(dims) if isinstance(dims, Iterable) else []
    named = dict(dims) if isinstance(dims, Mapping) else {f"view{v}": width for v, width in enumerate(listed)}
    whole = (isinstance(width, int | np.integer) and not isinstance(width, bool) for width in named.values())
    if not named or not all(whole) or min(named.values()) < 1:
        raise InvalidDataError(f"dims must be the columns of each view, such as [512, 128]; got {dims}.")
    return {name: int(width) for name, width in named.items()}


def estimate(n: int, widths: dict[str, int], o: Options) -> Estimate:
    """Estimate a fit of `n` rows; `widths` are the numbers of columns of the views."""
    needs = memory_needs(widths.values(), o, n)
    n_threads, left = needs.plan(o.memory_limit, o.n_threads)
    cached = min(left, cache_bytes(needs))
    seconds = time_trials(n, needs, replace(o, n_threads=n_threads), cached / cache_bytes(needs))
    output_bytes = n * (o.n_bits // 8 + 4)
    return Estimate(
        n_rows=n,
        widths=dict(widths),
        n_clusters=needs.n_clusters,
        n_train=o.n_train,
        n_threads=n_threads,
        learning=seconds[0],
        encoding=seconds[1],
        clustering=seconds[2],
        working_bytes=max(needs.fixed(n_threads) + cached, needs.last(n_threads)),
        output_bytes=output_bytes,
        views_bytes=4 * n * sum(needs.widths),
        model_bytes=model_bytes(needs) + output_bytes,
    )


def time_trials(n: int, needs: Needs, o: Options, cached: float) -> tuple[float, float, float]:
    """Return seconds for learning, encoding and final clustering of `n` rows; `cached` is the cached share of ψ(X)."""
    rng, o = np.random.default_rng(0), replace(o, n_fits=needs.n_draws)  # smaller trials would have more
    most = max(2 * WARM_ROWS, BYTES // (4 * sum(needs.widths)))
    n_large = min(needs.n_train, max(ROWS, 2 * needs.n_clusters), most)
    n_encoded = min(n, max(ROWS, n_large), most)
    with TemporaryDirectory(prefix="bitmosaic-") as folder:
        X = [random_map(folder, v, (max(n_large, n_encoded), d), rng) for v, d in enumerate(needs.widths)]
        warm = min(n_large, max(WARM_ROWS, needs.n_clusters))
        learn(X, warm, o, cached)  # loads compiled kernels and starts threads
        learning, model = learn(X, n_large, o, cached)
        if n_large < needs.n_train:
            n_small = max(n_large // 2, needs.n_clusters)
            per_row = (learning - learn(X, n_small, o, cached)[0]) / (n_large - n_small)
            learning += max(per_row, LEAST_SLOPE * learning / n_large) * (needs.n_train - n_large)
        if n == needs.n_train:  # learning includes the codes and clusters of all rows
            return learning, 0.0, 0.0
        fresh = [random_map(folder, v, (n_encoded, d), rng) for v, d in enumerate(needs.widths)]
        start = time.perf_counter()
        codes = model.encode(Views(names(fresh), tuple(fresh)), list(range(len(fresh))), n_threads=o.n_threads)
        encoding = (time.perf_counter() - start) * n / n_encoded
    codes = np.tile(codes, (-(-min(n, CODES) // n_encoded), 1))
    start = time.perf_counter()
    problem_with = partial(Problem, codes, n_threads=o.n_threads)
    final_clusters(problem_with, len(codes), unpack(model.centers, np.int8), o, rng)
    return learning, encoding, (time.perf_counter() - start) * n / len(codes)


def random_map(folder, number, shape, rng):
    """Return a memory map of random non-negative numbers."""
    path = Path(folder) / f"{number}-{rng.integers(2**60)}.npy"
    np.save(path, np.abs(rng.standard_normal(shape, dtype=np.float32)))
    return np.load(path, mmap_mode="r")


def learn(X, n_rows, o, cached):
    """Fit the first rows; return the seconds and the model."""
    views = Views(names(X), tuple(x[:n_rows] for x in X))
    needs = memory_needs(views.widths, replace(o, n_train=n_rows), n_rows)
    limit = needs.fixed(o.n_threads) + int(cached * cache_bytes(needs)) + 1
    options = replace(o, n_train=n_rows, memory_limit=limit)
    start = time.perf_counter()
    trained = train(LocalData(views), options, np.random.default_rng(0), lambda message: None)
    return time.perf_counter() - start, trained.model


def names(X):
    return tuple(f"view{v}" for v in range(len(X)))


def cache_bytes(needs: Needs) -> int:
    """Return the bytes of all blocks of ψ(X) of the training rows."""
    step = rows_per_block(needs.widths)
    return -(-needs.n_train // step) * step * 4 * sum(needs.embedded) + needs.fused


def model_bytes(needs: Needs) -> int:
    """Return the bytes of a model file without codes and labels."""
    l, K = needs.n_anchors, needs.n_bits
    total = FILE_HEAD + needs.n_clusters * K // 8 + 8 * K
    for d, columns in zip(needs.widths, needs.embedded, strict=True):
        k = min(d, needs.n_components or d)
        total += 12 * d + 4 * l * k + 4 * columns * (1 + K) + (4 * d * k if k < d else 0)
    return total

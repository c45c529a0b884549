"""Memory available for cached blocks of ψ(X): the limit minus the fixed needs of the fit."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from bitmosaic.errors import ParameterError
from bitmosaic.io.threads import machine_memory
from bitmosaic.solver.embedding import basis_bytes, basis_rows
from bitmosaic.solver.proposals import proposals_bytes
from bitmosaic.solver.scan import rows_per_block
from bitmosaic.solver.start import WHITENED

CLUSTERING = 24  # bytes per row beside code and label: current, previous and best labels and distances
_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}


def parse_memory(limit):
    """ "512MB", "1.5 GiB" or a number of bytes -> bytes. None means a quarter of the memory of the machine."""
    if limit is None:
        return machine_memory() // 4
    if not isinstance(limit, str):
        return int(limit)
    match = re.fullmatch(r"\s*([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([kmgt]?i?)b?\s*", limit.lower())
    if not match or match[2] not in _UNITS:
        raise ParameterError(
            f"memory_limit must be a number of bytes or a string such as '512MB' or '2GiB'; got {limit!r}."
        )
    return int(float(match[1]) * _UNITS[match[2]])


@dataclass(frozen=True)
class Needs:
    """The shapes that determine the memory of a fit."""

    widths: tuple[int, ...]  # columns of each view
    n_components: int | None  # components to which each view is reduced
    n_anchors: int  # of each view
    n_bits: int
    n_clusters: int
    n_start: int  # rows that the start uses
    n_train: int
    n_rows: int = 0  # rows clustered at the end, if more than n_train
    others: int = 0  # bytes for constraints
    proposals: bool = False  # the start; embeddings then have the columns of the views as well
    n_draws: int = 1  # of anchors
    most_values: Callable[[int], tuple[int, ...]] | None = (
        None  # values other than zero in that number of rows of each view
    )

    def fixed(self, n_threads):
        """Peak number of bytes beside the cached blocks while learning: in the start or in a pass over the data."""
        return self._throughout(n_threads) + self._blocks(n_threads) + max(self._start(n_threads), self._loop)

    def last(self, n_threads):
        """Bytes while all rows are encoded and then clustered, after the cache is freed."""
        return self._throughout(n_threads) + self._loop + max(self._blocks(n_threads), CLUSTERING * self.n_rows)

    def least(self, n_threads):
        """The smallest memory limit that allows a fit, in bytes."""
        return max(self.fixed(n_threads), self.last(n_threads))

    def _under_way(self, n_threads):
        """Number of block results in memory at once, see `in_order`."""
        return 1 if n_threads == 1 else n_threads + 2

    @property
    def _columns(self):
        return [min(d, self.n_components or d) for d in self.widths]

    @property
    def _basis(self):
        return sum(d * k for d, k in zip(self.widths, self._columns, strict=True) if k < d)

    @property
    def embedded(self):
        """Number of columns of Z of each view."""
        return [self.n_anchors + (k if self.proposals else 0) for k in self._columns]

    @property
    def fused(self):
        """Bytes of F, the space of all views, for the training rows."""
        return 4 * self.n_train * self.n_bits if self.proposals else 0

    @property
    def _loop(self):
        """Bytes of the Gram matrices that the loop uses, and of what is computed from them."""
        if self.proposals:
            return 8 * self.n_bits**2 * 4
        return 8 * self.n_anchors**2 * (2 * len(self.widths) + 2)

    def _throughout(self, n_threads):
        """Bytes for the model and the codes of the training rows."""
        m, l, widest, under_way = len(self.widths), self.n_anchors, max(self.widths), self._under_way(n_threads)
        raw_anchors = min(l, rows_per_block([widest])) if self._basis else l
        model = (
            4 * (l * sum(self._columns) + self._basis)
            + 12 * raw_anchors * widest * min(n_threads, m)
            + 8 * sum(self.embedded) * self.n_bits * (2 if self.proposals else 4 + under_way)
        )
        codes = self.n_train * (2 * self.n_bits // 8 + 24) + 8 * self.n_clusters * self.n_bits * (6 + under_way)
        return model + codes + self.others

    def _blocks(self, n_threads):
        """Bytes for the blocks being processed."""
        columns = 5 * max(self.widths) + 2 * sum(self.embedded) + 2 * max(self.embedded) + 4 * self.n_bits
        return 4 * rows_per_block(self.widths) * columns * n_threads

    def _start(self, n_threads):
        m, l = len(self.widths), self.n_anchors
        under_way = self._under_way(n_threads)
        joint, own, between = (m * l) ** 2, m * l * l, l * l * m * (m - 1) // 2
        products = 8 * (own + between) + max((8 * own + 4 * between) * under_way, 8 * joint)
        white = m * min(l, WHITENED)
        consensus = 8 * joint + 16 * own + 16 * white * (white + l) + 32 * l * l * n_threads
        proposals = 0
        if self.proposals:
            proposals = proposals_bytes(self.n_start, self._columns, l, self.n_clusters, self.n_draws, n_threads)
        return max(min(n_threads, m) * self._sample, products, consensus, 16 * own + proposals)

    @property
    def _sample(self):
        """Bytes of the rows from which the components of one view are computed, and of what is computed from them."""
        n = basis_rows(self.n_components or 0, self.n_train)
        n_values = self.most_values(n) if self.most_values else [n * d for d in self.widths]
        views = zip(self.widths, self._columns, n_values, strict=True)
        return max((basis_bytes(n, d, k, values) for d, k, values in views if k < d), default=0)

    def plan(self, limit, n_threads):
        """The number of threads that fit under `limit` bytes, and the bytes left for cached blocks of ψ."""
        while n_threads > 1 and self.least(n_threads) > limit:
            n_threads -= 1
        least = self.least(n_threads)
        if least > limit:
            what = f"{len(self.widths)} views with {self.n_anchors} anchors"
            rows_count = self.last(1) > self.fixed(1)
            raise ParameterError(
                f"memory_limit must be at least {-(-least // 10**6)}MB for "
                f"{f'{self.n_rows} rows of ' if rows_count else ''}{what}; got {limit / 10**6:.0f}MB. "
                f"Raise it{'' if rows_count else ' or lower n_anchors'}."
            )
        return n_threads, limit - self.fixed(n_threads)

"""How much of ψ(X) may stay in memory: the limit, less what the fit needs in any case."""

import re
from dataclasses import dataclass

from bitmosaic.embedding import basis_rows
from bitmosaic.errors import ParameterError
from bitmosaic.solver.kmeans import FITS_TO_ALL, SCORES
from bitmosaic.solver.scan import rows_per_block
from bitmosaic.solver.start import DIRECTIONS_PER_CLUSTER, MOST_DIRECTIONS, PAIRS, PLAIN_COLUMNS, WHITENED, plain_sample
from bitmosaic.threads import machine_memory

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
    """ "512MB", "1.5 GiB" or a number of bytes -> bytes. None is a quarter of the machine's memory."""
    if limit is None:
        return machine_memory() // 4
    if not isinstance(limit, str):
        return int(limit)
    match = re.fullmatch(r"\s*([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([kmgt]?i?)b?\s*", limit.lower())
    if not match or match[2] not in _UNITS:
        raise ParameterError(
            f"memory_limit must be a number of bytes or a text such as '512MB' or '2GiB'; got {limit!r}."
        )
    return int(float(match[1]) * _UNITS[match[2]])


@dataclass(frozen=True)
class Needs:
    """The shapes that decide how much memory a fit takes."""

    widths: tuple[int, ...]  # columns of each view
    n_components: int | None  # to which each is reduced
    n_anchors: int  # of each view
    n_bits: int
    n_clusters: int
    n_start: int  # rows that the start looks at
    n_train: int

    def fixed(self, n_threads):
        """Bytes beside the cached blocks, at the moment when most is needed: the start, or a pass over the data."""
        m, l, rows, widest = len(self.widths), self.n_anchors, rows_per_block(self.widths), max(self.widths)
        under_way = 1 if n_threads == 1 else n_threads + 2  # results of blocks, see `in_order`
        columns = [min(d, self.n_components or d) for d in self.widths]
        basis = sum(d * k for d, k in zip(self.widths, columns, strict=True) if k < d)
        sample = 4 * basis_rows(max(columns), self.n_train) * (widest + 4 * max(columns)) if basis else 0
        model = (
            4 * (l * sum(columns) + basis)
            + 12 * l * widest * min(n_threads, m)
            + 8 * l * m * self.n_bits * (4 + under_way)
        )
        codes = self.n_train * (2 * self.n_bits // 8 + 24) + 8 * self.n_clusters * self.n_bits * (6 + under_way)
        block = 4 * rows * (5 * widest + (2 * m + 2) * l + 4 * self.n_bits)
        joint, own, between = (m * l) ** 2, m * l * l, l * l * m * (m - 1) // 2
        products = 8 * (own + between) + max((8 * own + 4 * between) * under_way, 8 * joint)
        white = m * min(l, WHITENED)
        consensus = 8 * joint + 16 * own + 16 * white * (white + l) + 32 * l * l * n_threads
        directions = min(DIRECTIONS_PER_CLUSTER * self.n_clusters, MOST_DIRECTIONS, white)
        plain = 12 * m * PLAIN_COLUMNS * plain_sample(self.n_clusters, self.n_start)
        pairs = min(PAIRS, self.n_start * self.n_clusters)
        centers = 48 * self.n_clusters * max(directions, m * PLAIN_COLUMNS)
        seeding = plain + centers + 12 * (self.n_start * max(directions + FITS_TO_ALL, PLAIN_COLUMNS) + pairs)
        telling = 8 * self.n_clusters * (m * l * (1 + under_way) + rows * n_threads)
        beginning = 8 * joint + 16 * own + max(seeding + 4 * SCORES * n_threads, telling)
        start = max(min(n_threads, m) * sample, products, consensus, beginning)
        loop = 8 * l * l * (2 * m + 2)
        return model + codes + block * n_threads + max(start, loop)

    def plan(self, limit, n_threads):
        """Under `limit` bytes: how many threads there is room for, and how many bytes are left for blocks of ψ."""
        while n_threads > 1 and self.fixed(n_threads) > limit:
            n_threads -= 1
        left = limit - self.fixed(n_threads)
        if left < 0:
            raise ParameterError(
                f"memory_limit must be at least {-(-self.fixed(1) // 10**6)}MB for {len(self.widths)} views with "
                f"{self.n_anchors} anchors; got {limit / 10**6:.0f}MB. Raise it, or lower n_anchors."
            )
        return n_threads, left

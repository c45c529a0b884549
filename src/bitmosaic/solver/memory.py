"""How much of ψ(X) may stay in memory: the limit, less what the fit needs in any case."""

import os
import re
from dataclasses import dataclass

from bitmosaic.errors import ParameterError
from bitmosaic.solver.blocks import rows_per_block

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
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4 if hasattr(os, "sysconf") else 2**31
    if not isinstance(limit, str):
        return int(limit)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", limit.lower())
    if not match or match[2] not in _UNITS:
        raise ParameterError(
            f"memory_limit must be a number of bytes or a text such as '512MB' or '2GiB'; got {limit!r}."
        )
    return int(float(match[1]) * _UNITS[match[2]])


@dataclass(frozen=True)
class Needs:
    """The shapes that decide how much memory a fit takes."""

    widths: tuple[int, ...]  # columns of each view
    n_anchors: int  # of each view
    n_bits: int
    n_start: int  # rows that the start looks at
    n_train: int
    n_threads: int

    def fixed(self):
        """Bytes beside the cached blocks, at the moment when most is needed."""
        m, l, rows = len(self.widths), self.n_anchors, rows_per_block(self.widths)
        model = 4 * l * (sum(self.widths) + m * self.n_bits)
        grams = 8 * l * l * 2 * (m + 1)
        block = 4 * rows * (2 * max(self.widths) + (m + 1) * l + 3 * self.n_bits)
        joint = (m * l) ** 2
        start = 8 * joint * 3 + 4 * joint * 3 * self.n_threads + 4 * self.n_start * l
        passes = 4 * l * l * m * 3 * self.n_threads
        codes = self.n_train * (self.n_bits // 8 + 16)
        return model + codes + block * self.n_threads + max(start, grams + passes)

    def cache(self, limit):
        """Bytes that are left for blocks of ψ under `limit` bytes."""
        left = limit - self.fixed()
        if left < 0:
            raise ParameterError(
                f"memory_limit must be at least {-(-self.fixed() // 10**6)}MB for {len(self.widths)} views with "
                f"{self.n_anchors} anchors; got {limit / 10**6:.0f}MB. Raise it, or lower n_anchors."
            )
        return left

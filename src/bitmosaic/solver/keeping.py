"""What a fit hands to whoever keeps it, so that another process can go on: where the loop is, and codes as they come.

The work before the loop is done again. It is the same to the last bit, and an imprint of it tells whether what was kept
belongs to these data and parameters.
"""

import hashlib
from dataclasses import astuple, dataclass
from itertools import zip_longest

import numpy as np

from bitmosaic.codes import pack, unpack
from bitmosaic.solver.clustering import Clustering

LARGEST_SIMILARITY, LARGEST_WEIGHT = 1e3, 1e12  # by far more than a fit can have, by far less than overflows


class NothingKept:
    """For a fit that begins at the beginning, and leaves nothing behind."""

    wanted = False  # whether codes should come in parts

    def begin(self, imprint, rng):
        """The LoopState to go on from, with `rng` as it was then, or None.

        ``imprint()`` is of all that came before the loop.
        """

    def keep(self, state):
        """Take note of the arrays and facts that ``state()`` gives, if it is time."""

    def read_codes(self, codes):
        """Codes of the first rows that were kept, put into `codes`; returns how many."""
        return 0

    def keep_codes(self, codes):
        """Those of the next rows."""

    def refuse(self, what):
        """An error to raise for something that was kept, and is wrong."""


NOTHING_KEPT = NothingKept()


@dataclass(frozen=True)
class LoopState:
    """Algorithm 1 between two iterations."""

    codes: np.ndarray
    ZtBs: list[np.ndarray]
    clustering: Clustering
    alpha: np.ndarray
    history: list[tuple[int, str, float]]
    n_iter: int
    before: float  # the last objective
    converged: bool

    def as_kept(self, rng):
        """Arrays and plain facts, for a file."""
        c = self.clustering
        arrays = {"codes": self.codes, "labels": c.labels, "centers": pack(c.Q), "S": c.S, "alpha": self.alpha}
        arrays |= {"bit_weights": c.bit_weights} | {f"ZtB{v}": ZtB for v, ZtB in enumerate(self.ZtBs)}
        if c.sizes is not None:
            arrays["sizes"] = c.sizes
        facts = {
            "history": [list(entry) for entry in self.history],
            "n_iter": self.n_iter,
            "before": None if np.isinf(self.before) else self.before,
            "converged": bool(self.converged),
            "clustering": [c.objective, c.n_iter, bool(c.converged)],
            "random": rng.bit_generator.state,
        }
        return arrays, facts

    @classmethod
    def from_kept(cls, arrays, facts, rng):
        """The state, and `rng` as it was."""
        objective, rounds, settled = facts["clustering"]
        Q = unpack(arrays["centers"]).astype(np.int8)
        clustering = Clustering(
            Q, arrays["labels"], arrays["S"], arrays.get("sizes"), arrays["bit_weights"], objective, rounds, settled
        )
        rng.bit_generator.state = facts["random"]
        return cls(
            codes=arrays["codes"],
            ZtBs=[arrays[f"ZtB{v}"] for v in range(sum(name.startswith("ZtB") for name in arrays))],
            clustering=clustering,
            alpha=arrays["alpha"],
            history=[(int(i), step, value) for i, step, value in facts["history"]],
            n_iter=facts["n_iter"],
            before=np.inf if facts["before"] is None else facts["before"],
            converged=facts["converged"],
        )

    def fits(self, n_rows, s, widths, shares):
        """Whether it can be of a fit of so many rows, with views of so many anchors, or was made by hand."""
        return self._arrays_fit(n_rows, s, widths) and self._values_fit(n_rows, s, shares)

    def _arrays_fit(self, n_rows, s, widths):
        c, K = s.n_clusters, s.K
        most = LARGEST_SIMILARITY * n_rows
        expected = [
            (self.codes, np.uint8, (n_rows, K // 8), 255),
            (self.clustering.labels, np.int32, (n_rows,), c - 1),
            (self.clustering.Q, np.int8, (c, K), 1),
            (self.clustering.S, np.int64, (c, K), n_rows),
            (self.clustering.bit_weights, np.float64, (K,), LARGEST_WEIGHT),
            (self.alpha, np.float64, (len(widths),), LARGEST_WEIGHT),
            *([] if self.clustering.sizes is None else [(self.clustering.sizes, np.int64, (c,), n_rows)]),
            *((ZtB, np.float64, (width, K), most) for ZtB, width in zip_longest(self.ZtBs, widths)),
        ]
        return all(
            array is not None
            and (array.dtype, array.shape) == (kind, shape)
            and (-largest <= array.min() and array.max() <= largest)  # false for NaN
            for array, kind, shape, largest in expected
        )

    def _values_fit(self, n_rows, s, shares):
        c = self.clustering
        numbers = [c.objective, *(value for _, _, value in self.history)]
        counts = [self.n_iter, c.n_iter, *(number for number, _, _ in self.history)]
        return (
            c.labels.min() >= 0
            and self.alpha.min() >= 0
            and abs((shares * self.alpha).sum() - 1) < 1e-6
            and c.bit_weights.min() >= 0
            and (c.sizes is None or (c.sizes.min() >= 0 and c.sizes.sum() == n_rows))
            and all(type(value) in (int, float) and abs(value) < 1e38 for value in numbers)
            and (self.before == np.inf or self.before == numbers[-1])
            and all(type(count) is int and count >= 0 for count in counts)
            and all(isinstance(step, str) for _, step, _ in self.history)
            and 0 < self.n_iter <= s.max_iter
        )


def imprint(settings, grams, n_present, start, start_rows, rng):
    """A digest of all that decides how the loop goes on: of the data, through the products of all similarities."""
    digest = hashlib.sha256(repr((astuple(settings), rng.bit_generator.state)).encode())
    for array in (*grams, n_present, *start.projections, start.labels, start.shares, start_rows):
        if array is not None:
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()

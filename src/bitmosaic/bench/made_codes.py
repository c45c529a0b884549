"""A run -> as many codes as asked for: mixtures of its real rows, encoded by its own model.

There is no collection of ten million pictures to measure a search on. So a row of features is moved a random part of
the way towards one of its nearest neighbours, some noise is added, and the model of the run encodes it: the encoder is
real, and so are the correlations between the bits of its codes.
"""

from collections.abc import Callable

import numpy as np

from bitmosaic.neighbor_index import NeighborIndex
from bitmosaic.run import Run
from bitmosaic.threads import available_threads, in_order, row_ranges
from bitmosaic.views import exact_dtype, read_rows

NEAREST = 10  # neighbours, one of which a row is moved towards
NOISE, N_NOISES = 0.5, 4096  # in standard deviations of each column; so many rows of it are drawn, and used again
SAMPLE = 5000  # rows that tell the standard deviations
ROWS_PER_PIECE = 1024


class CodeMaker:
    """Codes made of some rows of a run. The same seed makes the same codes, whatever the threads."""

    def __init__(self, run: Run, rows: np.ndarray, seed: int = 0, n_threads: int | None = None):
        self.run, self.rows, self.seed, self.n_threads = run, rows, seed, available_threads(n_threads)
        codes = run.column("codes")[rows]
        _, near = NeighborIndex(codes, n_threads).kneighbors(codes, min(NEAREST + 1, len(rows)))
        self._near = near  # (m, ≤ 11), each row itself or an equal one among them
        rng = np.random.default_rng([seed, 0])
        sample = rows[np.sort(rng.choice(len(rows), min(SAMPLE, len(rows)), replace=False))]
        self._noises = []
        for array in run.views.arrays:
            spread = np.nanstd(read_rows(array, sample, exact_dtype(array)), axis=0)
            noises = rng.standard_normal((N_NOISES, array.shape[1]), np.float32)
            self._noises.append(noises * (NOISE * spread).astype(np.float32))

    def make(self, n: int, stream: int = 0, progress: Callable[[int, int], None] = lambda done, total: None):
        """So many codes (n, b) uint8, the same ones first whatever their number; another `stream`, other ones."""
        codes = np.empty((n, self.run.column("codes").shape[1]), np.uint8)

        def encode(piece):
            codes[piece] = self.run.model.transform(self._mixtures(piece, stream))
            return piece.stop

        for done in in_order(encode, row_ranges(n, ROWS_PER_PIECE), self.n_threads):
            progress(done, n)
        return codes

    def _mixtures(self, piece: slice, stream: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng([self.seed, 1 + stream, piece.start])
        places, noises = rng.integers(len(self.rows), size=ROWS_PER_PIECE), rng.integers(N_NOISES, size=ROWS_PER_PIECE)
        others = self._near[places, rng.integers(self._near.shape[1], size=ROWS_PER_PIECE)]
        shares, count = rng.random((ROWS_PER_PIECE, 1), np.float32), piece.stop - piece.start
        (places, from_places), (others, from_others) = (  # views are read by sorted rows
            np.unique(rows[:count], return_inverse=True) for rows in (places, others)
        )
        mixed = {}
        for name, array, noise in zip(self.run.views.names, self.run.views.arrays, self._noises, strict=True):
            first = read_rows(array, self.rows[places], exact_dtype(array))[from_places]
            second = read_rows(array, self.rows[others], exact_dtype(array))[from_others]
            second -= first
            second *= shares[:count]
            second += first
            second += noise[noises[:count]]
            mixed[name] = second
        return mixed

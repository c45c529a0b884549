"""What binary baselines share: codes of so many bits; and codes, projections and centroids learned together."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bitmosaic.bench.baselines.base import Baseline
from bitmosaic.errors import ParameterError
from bitmosaic.solver.clustering import Problem
from bitmosaic.solver.loop import Settings, learn
from bitmosaic.solver.start import rotation_start
from bitmosaic.solver.steps import Frobenius
from bitmosaic.threads import available_threads, in_order, row_ranges

BLOCK = 4096  # rows at a time
SEEDINGS, ROUNDS = 10, 10  # of k-means++ at the start, and of binary k-means in each iteration


@dataclass
class BinaryBaseline(Baseline):
    """A baseline that clusters codes of `n_bits` bits. Subclasses write `learn`.

    After a fit: `codes_`, packed (n, n_bits/8) uint8; and `sizes_`, bytes of the codes ("data"), of the packed
    centroids and of the projection matrices.
    """

    n_bits: int = 128

    def cluster(self, views: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
        if self.n_bits < 8 or self.n_bits % 8:
            raise ParameterError(f"n_bits must be a positive multiple of 8; got {self.n_bits}. Take 128, for example.")
        self.codes_, labels, centers, Ps = self.learn(views, rng)
        projection = sum(P.nbytes for P in Ps)
        self.sizes_ = {"data": self.codes_.nbytes, "centroids": centers.nbytes, "projection": projection}
        return labels

    def learn(
        self, views: list[np.ndarray], rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[np.ndarray]]:
        """Packed codes (n, n_bits/8), labels (n,), packed centroids (c, n_bits/8), float32 projections."""
        raise NotImplementedError


@dataclass
class JointBaseline(BinaryBaseline):
    """Codes B, projections P_v of the views, binary centroids C, labels y and view weights α_v take turns to lower

        Σ_v α_v^r (‖B - Z_vP_v‖² + β‖P_v‖² - γ‖Z_vP_v‖²) + λ(‖B - C_y‖² + ρ Σ_j (Σ_k C_jk)²)

    each by its exact minimum (y and C in turn). That is HSIC without shared projections and in the Frobenius norm, so
    its loop is used. Subclasses write `embed`. After a fit: `objective_`, this sum after each iteration.

    The start: signs of the principal components of all views after a random rotation, since without it most bits carry
    noise; and the best of 10 runs of binary k-means from k-means++.
    """

    ridge: float = 1.0  # β
    coupling: float = 0.1  # λ
    variance_reward: float = 0.0  # γ
    balance: float = 0.0  # ρ
    exponent: float = 2.0  # r, which a single view does not feel
    max_iter: int = 20
    tol: float = 1e-3  # relative change of the objective at which to stop

    def learn(self, views, rng):
        if not (self.ridge > 0 and self.coupling > 0 and self.exponent > 1):
            raise ParameterError(
                "ridge and coupling must be above 0 and the exponent above 1; "
                f"got {self.ridge}, {self.coupling} and {self.exponent}."
            )
        blocks = Rows(self.embed(views, rng), available_threads())
        grams = [self.gram(Z) for Z in blocks.embeddings]
        settings = Settings(
            n_clusters=self.n_clusters,
            K=self.n_bits,
            K_S=0,
            ridge=self.ridge,
            variance_reward=self.variance_reward,
            coupling=self.coupling,
            balance=self.balance,
            norm=Frobenius(np.ones(self.n_bits)),
            exponent=self.exponent,
            max_iter=self.max_iter,
            cluster_iter=ROUNDS,
            n_init=SEEDINGS,
            tol=self.tol,
        )
        n_present, rows = np.full(len(grams), blocks.n_rows), np.arange(blocks.n_rows)
        start = rotation_start(grams, self.n_bits, rng)
        learned = learn(blocks, grams, n_present, start, rows, settings, rng, lambda *progress: None)
        self.objective_ = [value for _, step, value in learned.history if step == "α"]  # the last of an iteration
        self.view_weights_ = learned.view_weights
        clusters = learned.clustering
        return learned.codes, clusters.labels, clusters.centers, [P.astype(np.float32) for P in learned.Ps]

    def embed(self, views: list[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
        """Z_v (n, l_v) float32 with centred columns."""
        raise NotImplementedError

    def gram(self, Z: np.ndarray) -> np.ndarray:
        """ZᵀZ (l, l) float64, added up from float32 products: exact enough for a ridge of 1 or more."""
        return sum((Z[rows].T @ Z[rows]).astype(np.float64) for rows in row_ranges(len(Z), BLOCK))


@dataclass(frozen=True)
class Rows:
    """Views in memory, block by block, as the loop of HSIC takes them."""

    embeddings: list[np.ndarray]  # (n, l_v) float32
    n_threads: int

    @property
    def n_rows(self) -> int:
        return len(self.embeddings[0])

    def totals(self) -> list[np.ndarray]:
        """The sum of the rows of each view: float64 (l_v,)."""
        return [Z.sum(0, dtype=np.float64) for Z in self.embeddings]

    def constant(self, row: np.ndarray) -> np.ndarray:
        """A column with the same row throughout."""
        return np.tile(row, (self.n_rows, 1))

    def problem(self, codes: np.ndarray, norm: Frobenius, balance: float) -> Problem:
        """The clustering of codes."""
        return Problem(codes, norm, balance, n_threads=self.n_threads)

    def run(self, work: Callable[..., Any], *columns: np.ndarray) -> tuple[np.ndarray, list[Any]]:
        """``work(Zs, *rows)`` of every block, the rows being those of the columns: a new column, and float64 sums."""

        def one_block(rows: slice) -> Any:
            return work([Z[rows] for Z in self.embeddings], *(column[rows] for column in columns))

        news, parts = zip(*in_order(one_block, row_ranges(self.n_rows, BLOCK), self.n_threads), strict=True)
        return np.concatenate(news), [sum(np.asarray(p, np.float64) for p in part) for part in zip(*parts, strict=True)]

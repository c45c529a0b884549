"""Binary baselines: CKM, ITQ and BMVC; and joint learning of codes, projections and centroids, for CKM and BMVC."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bitmosaic.bench.baselines.base import Baseline, concatenated, integer_seed
from bitmosaic.estimators.binary_kmeans import BinaryKMeans
from bitmosaic.hamming.codes import pack
from bitmosaic.io.threads import available_threads, in_order, row_ranges
from bitmosaic.solver.blocks import own_products
from bitmosaic.solver.clustering import Problem
from bitmosaic.solver.embedding import fit_embedding, normalization, principal_basis, squares
from bitmosaic.solver.loop import Settings, learn
from bitmosaic.solver.start import random_rotation, rotation_start
from bitmosaic.solver.steps import Frobenius

BLOCK = 4096  # rows at a time
SEEDINGS, ROUNDS = 10, 10  # of k-means++ at the start, and of binary k-means in each iteration


@dataclass
class BinaryBaseline(Baseline):
    """A baseline that clusters codes of `n_bits` bits. Subclasses implement `learn`.

    After a fit: `codes_`, packed (n, n_bits/8) uint8; and `sizes_`, bytes of the codes ("data"), of the packed
    centroids and of the projection matrices.
    """

    n_bits: int = 128

    def cluster(self, views: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
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
    """Codes B, projections P_v of the views, binary centroids C, labels y and view weights α_v are updated alternately:

        Σ_v α_v^r (‖B - Z_vP_v‖² + β‖P_v‖² - γ‖Z_vP_v‖²) + λ(‖B - C_y‖² + ρ Σ_j (Σ_k C_jk)²)

    is minimized exactly in each of them (alternating y and C). This is HSIC without shared projections and in the
    Frobenius norm, so the loop of HSIC is used. Subclasses implement `embed`. After a fit: `objective_`, this sum after
    each iteration.

    The start: signs of the principal components of all views after a random rotation, since without it most bits are
    noise; and the best of 10 runs of binary k-means from k-means++.
    """

    ridge: float = 1.0  # β
    coupling: float = 0.1  # λ
    variance_reward: float = 0.0  # γ
    balance: float = 0.0  # ρ
    exponent: float = 2.0  # r, without effect for a single view
    max_iter: int = 20
    tol: float = 1e-3  # relative change of the objective at which to stop

    def learn(self, views, rng):
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
        self.objective_ = [
            value for _, step, value in learned.history if step == "α"
        ]  # α is the last step of an iteration
        self.view_weights_ = learned.view_weights
        clusters = learned.clustering
        return learned.codes, clusters.labels, clusters.centers, [P.astype(np.float32) for P in learned.Ps]

    def embed(self, views: list[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
        """Z_v (n, l_v) float32 with centered columns."""
        raise NotImplementedError

    def gram(self, Z: np.ndarray) -> np.ndarray:
        """ZᵀZ (l, l) float64, summed from float32 products: accurate enough for a ridge of 1 or more."""
        return sum((Z[rows].T @ Z[rows]).astype(np.float64) for rows in row_ranges(len(Z), BLOCK))


@dataclass
class CKM(JointBaseline):
    """CKM: X. Shen, W. Liu, I. Tsang, F. Shen, Q.-S. Sun, "Compressed k-means for large-scale clustering", AAAI, 2017.

    A reconstruction: ‖B - XP‖² + β‖P‖² + λ‖B - C_y‖² of all views side by side.

    Inferred, since only the abstract was available: it states that codes and clusters are learned jointly, and the HSIC
    paper states that CKM combines binary structural SVMs and k-means. The SVMs are least-squares ones here, one per
    bit, which gives the first two terms; β = 1 is the usual weight of an SVM. λ, the start and the stopping rule are
    ours and were not tuned by scores.
    Deviations: columns are standardized; an empty cluster gets the farthest code.
    """

    def embed(self, views, rng):
        return [concatenated(views)]


@dataclass(frozen=True)
class Rows:
    """Views in memory, with the block interface of the loop of HSIC."""

    embeddings: list[np.ndarray]  # (n, l_v) float32
    n_threads: int

    @property
    def n_rows(self) -> int:
        return len(self.embeddings[0])

    def totals(self) -> list[np.ndarray]:
        """The sum of the rows of each view: float64 (l_v,)."""
        return [Z.sum(0, dtype=np.float64) for Z in self.embeddings]

    def constant(self, row: np.ndarray) -> np.ndarray:
        """The same row, repeated for all rows."""
        return np.tile(row, (self.n_rows, 1))

    def problem(self, codes: np.ndarray, norm: Frobenius, balance: float) -> Problem:
        """The clustering of codes."""
        return Problem(codes, norm, balance, n_threads=self.n_threads)

    def run(self, work: Callable[..., Any], *columns: np.ndarray) -> tuple[np.ndarray, list[Any]]:
        """Call ``work(Zs, *rows)`` on every block of rows and columns: a new column, and float64 sums."""

        def one_block(rows: slice) -> Any:
            return work([Z[rows] for Z in self.embeddings], *(column[rows] for column in columns))

        news, parts = zip(*in_order(one_block, row_ranges(self.n_rows, BLOCK), self.n_threads), strict=True)
        return np.concatenate(news), [sum(np.asarray(p, np.float64) for p in part) for part in zip(*parts, strict=True)]


# ---- ITQ: views side by side -> rotated principal components -> packed codes -> binary k-means.


@dataclass
class ITQ(BinaryBaseline):
    """ITQ: Y. Gong, S. Lazebnik, A. Gordo, F. Perronnin, "Iterative quantization: A Procrustean approach to learning
    binary codes for large-scale image retrieval", TPAMI, 2013; its codes are clustered by binary k-means: Y. Gong,
    M. Pawlowski, F. Yang, L. Brandy, L. Bourdev, R. Fergus, "Web scale photo hash clustering on a single machine",
    CVPR, 2015.

    After a fit: `objective_`, the quantization loss ‖B - VR‖² after each rotation.

    Deviations: columns are standardized. Principal components come from a randomized SVD. If there are fewer of them
    than bits, R has that many orthonormal rows and n_bits columns, found by the same steps: codes always have n_bits.
    Binary k-means finds nearest centroids exactly instead of by a multi-index hash table, starts from k-means++, keeps
    the best of 10 runs, and gives an empty cluster the farthest code.
    """

    max_iter: int = 50

    def learn(self, views, rng):
        X = concatenated(views)
        basis = principal_basis(X, self.n_bits, integer_seed(rng), damped=False)  # (d, k)
        R, self.objective_ = best_rotation(X @ basis, self.n_bits, self.max_iter, rng)
        P = basis @ R  # (d, n_bits)
        codes = pack(X @ P)
        model = BinaryKMeans(self.n_clusters, max_iter=300, random_state=integer_seed(rng)).fit(codes)
        return codes, model.labels_, model.cluster_centers_, [P]


def best_rotation(
    V: np.ndarray, n_bits: int, max_iter: int, rng: np.random.Generator
) -> tuple[np.ndarray, list[float]]:
    """R (k, n_bits) with RRᵀ = I and a low ‖B - VR‖² where B = sgn(VR); and this loss after each update of R."""
    R = random_rotation(V.shape[1], n_bits, rng).astype(np.float32)
    constant = len(V) * n_bits + float(squares(V).sum(dtype=np.float64))
    losses = []
    for _ in range(max_iter):
        B = np.copysign(np.float32(1), V @ R)  # (n, n_bits)
        left, s, right = np.linalg.svd(V.T @ B, full_matrices=False)
        R = left @ right
        losses.append(constant - 2 * float(s.sum(dtype=np.float64)))  # tr(RᵀVᵀB) = Σ s
    return R, losses


# ---- BMVC: similarities to anchors of each view -> one common code and its clusters, learned jointly.


PROBES = 4096  # rows whose distances to their nearest anchors determine the kernel width


@dataclass
class BMVC(JointBaseline):
    """BMVC: Z. Zhang, L. Liu, F. Shen, H. T. Shen, L. Shao, "Binary multi-view clustering", TPAMI, 2019.

    The objective of `JointBaseline`. Z_v are the centered similarities exp(-‖x - a‖²/2σ²) of view v to `n_anchors`
    random rows, at most a tenth of all rows (or three per cluster); σ is twice the mean distance of a row to its
    nearest anchor. Parameters are those of the authors' demo, which does not divide γ by the number of rows, with the
    10 iterations that it recommends. After a fit: also `view_weights_`, α (m,).

    Deviations: columns are standardized. With as many anchors as rows, every view would fit any code, so small sets
    have fewer anchors (chosen with labels, in favor of the method). σ is computed from at most 4096 rows, and an anchor
    is not its own nearest anchor. The first codes are rotated principal components of all views (chosen with labels, in
    favor of the method); in the demo, those of one chosen view, not rotated. The first centroids are the best of 10
    runs from k-means++ instead of random codes, and an empty cluster gets the farthest code. C is the exact minimum
    instead of three proximal steps, and inner rounds end when nothing changes.
    """

    ridge: float = 0.003
    coupling: float = 1e-5
    variance_reward: float = 0.01
    balance: float = 0.001
    exponent: float = 5.0
    max_iter: int = 10
    n_anchors: int = 1000

    def embed(self, views, rng):
        n = len(views[0])
        anchors = rng.choice(n, min(self.n_anchors, max(n // 10, 3 * self.n_clusters), n), replace=False)
        probes = rng.choice(n, min(PROBES, n), replace=False)
        return [similarities(X, anchors, probes) for X in views]

    def gram(self, Z):
        """ZᵀZ (l, l) from float64 products: rounding errors of float32 products would be larger than the ridge."""
        return sum(own_products(Z[rows]) for rows in row_ranges(len(Z), BLOCK))


def similarities(X: np.ndarray, anchors: np.ndarray, probes: np.ndarray) -> np.ndarray:
    """exp(-‖x - a‖²/2σ²) of all rows x to the rows `anchors`, minus its mean over x: (n, l) float32."""
    is_anchor = np.full(len(X), -1)
    is_anchor[anchors] = np.arange(len(anchors))
    d = X.shape[1]
    plain = normalization(np.zeros(d), np.ones(d, np.float32))
    embedding = fit_embedding(plain, [X[anchors]], [(X[probes], is_anchor[probes])], kernel_width=1.0)
    Z = np.empty((len(X), len(anchors)), np.float32)
    for rows in row_ranges(len(X), BLOCK):
        Z[rows] = embedding(X[rows])[0]
    Z -= Z.mean(axis=0, dtype=np.float64).astype(np.float32)
    return Z

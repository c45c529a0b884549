"""View -> embedding: each sample is represented by its similarities to a few anchors."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.sparse import csr_array, vstack
from sklearn.utils.extmath import randomized_svd

from bitmosaic.hamming import kernels

LARGEST_COLUMN = 4  # bound on a linear column, in units of the mean length of a row: keeps fixed-point sums exact
FAR = 1e15  # in units of the training data's spread
ROUNDING = 1e-6  # of a squared distance, in units of the squared length of the row
REACH = 0.99  # share of the rows with an anchor within the kernel width
FINEST = 1e-38  # smallest γ whose inverse fits into float32
STRANGE = 7.0  # ‖x - a‖²/γ, a similarity of 0.001
BASIS_ROWS, ROWS_PER_COMPONENT = 1024, 32  # rows for principal components: the larger of the two
WIDE, MOSTLY_ZERO = 16_384, 0.05  # columns from which, and share of other values up to which, zeros are left out
OVERSAMPLES, POWER_ITERATIONS = 16, 2  # of the randomized SVD


@dataclass(frozen=True)
class Embedding:
    """ψ of one view: exp(-‖x - a‖²/γ) for each anchor a, minus its mean over the training data.

    Before that, samples are shifted by `offset` and multiplied by `factor` (of their square roots, or of rows of length
    1, depending on `scaling`), and then multiplied by `basis` if there is one. `anchors` are already transformed. With
    `silence`, a sample that is similar to no anchor becomes a zero row, as if missing. Otherwise all such samples would
    share the same large nonzero row. With `linear`, the transformed columns times `linear` follow the similarities.
    With `sparse`, rows are multiplied by `basis` without their zeros and centered afterwards. It holds for all rows of
    the view, so that the code of a row does not depend on the rows beside it.
    """

    offset: np.ndarray  # (d,) float64
    factor: np.ndarray  # (d,) float32
    basis: np.ndarray | None  # (d, k) float32
    anchors: np.ndarray  # (l, k) float32, k = d without a basis
    gamma: float
    mean: np.ndarray  # (l,) float32, (l + k,) if linear
    scaling: str = "standard"
    silence: bool = False
    linear: float = 0.0  # 0: similarities only
    sparse: bool = False

    @property
    def n_anchors(self):
        return len(self.anchors)

    @property
    def width(self):
        """Number of columns that are compared with anchors."""
        return len(self.offset) if self.basis is None else self.basis.shape[1]

    @property
    def n_columns(self):
        """Number of columns of Z."""
        return self.n_anchors + (self.width if self.linear else 0)

    def normalize(self, X, check=None):
        """Raw rows (n, d) -> centered, scaled, reduced float32 rows (n, k), zero where missing; and which are missing
        (n,).

        Centering is in float64, so large values lose no precision. Values are clipped to ±`FAR`: such a sample is
        similar to no anchor, and its square is still finite. `check` is called if float32 cannot hold a value.
        """
        missing = np.isnan(X[:, 0])
        if self.sparse and self.basis is not None:
            return self._reduced(X, self.basis, missing, check), missing
        rows = np.empty(X.shape, np.float32)
        scaled, is_root = np.ascontiguousarray(scaled_rows(X, self.scaling)), self.scaling == "root"
        plain = kernels.normalize(scaled, self.offset, self.factor, is_root, FAR, rows)
        if check and not plain:
            check(X)
        return rows if self.basis is None else rows @ self.basis, missing

    def _reduced(self, X, basis, missing, check):
        S = nonzero_values(X, missing)
        if check and (missing.any() or not np.abs(S.data).max(initial=0) <= np.finfo(np.float32).max):
            check(X)
        S = self.scaled_sparse(S)
        columns, places = np.unique(S.indices, return_inverse=True)  # the whole basis in float64 would be large
        S = csr_array((S.data, places, S.indptr), shape=(len(X), len(columns)))
        rows = (S @ basis[columns].astype(np.float64) - self._reduced_center).astype(np.float32)
        rows[missing] = 0
        return rows

    def scaled_sparse(self, S):
        """Sparse raw rows (n, d), scaled but not centered."""
        numbers, values = np.repeat(np.arange(S.shape[0]), np.diff(S.indptr)), S.data
        if self.scaling == "unit":
            lengths = np.sqrt(np.bincount(numbers, values**2, minlength=S.shape[0]))
            values = values / np.where(lengths > 0, lengths, 1)[numbers]
        elif self.scaling == "root":
            values = np.copysign(np.sqrt(np.abs(values)), values)
        values = np.clip(values * self.factor[S.indices], -FAR, FAR)
        return csr_array((values, S.indices, S.indptr), shape=S.shape)

    @property
    def center(self):
        """The mean of scaled rows (d,), which centering subtracts."""
        return self.offset * self.factor

    @cached_property
    def _reduced_center(self):
        return self.center @ self.basis

    def __call__(self, X, check=None):
        """Raw rows (n, d) -> Z (n, l), and which rows are missing. Missing rows are zero and do not contribute to any
        sum."""
        rows, missing = self.normalize(X, check)
        Z, l = np.empty((len(rows), self.n_columns), np.float32), self.n_anchors
        np.matmul(rows, self.anchors.T, out=Z[:, :l])
        sizes, width = (squares(rows), squares(self.anchors)), np.float32(1 / self.gamma)
        reach = np.float32(STRANGE * self.gamma if self.silence else np.inf)
        linear, most = np.float32(self.linear), np.float32(LARGEST_COLUMN)
        kernels.similarities(Z, rows, *sizes, width, linear, most, self.mean, missing, reach)
        return Z, missing

    def centered(self, mean):
        return replace(self, mean=np.asarray(mean, np.float32))


def scaled_rows(X, scaling):
    """Raw rows X, of length 1 if `scaling` is "unit" (rows of zeros stay)."""
    if scaling != "unit":
        return X
    with np.errstate(over="ignore", invalid="ignore"):  # the caller checks values
        lengths = np.sqrt(np.einsum("ij,ij->i", X, X, dtype=np.float64))
        lengths = np.where(lengths > 0, lengths, 1)[:, None]
        return np.divide(X, lengths, out=np.empty_like(X), dtype=np.float64, casting="same_kind")


def nonzero_values(X, missing):
    """Rows X (n, d) without their zeros, as a sparse float64 matrix; missing rows are zero."""
    places = np.flatnonzero((X != 0) & ~missing[:, None])  # several times as fast as csr_array(X)
    ends = np.searchsorted(places, X.shape[1] * np.arange(len(X) + 1))
    return csr_array((X.reshape(-1)[places].astype(np.float64), places % X.shape[1], ends), shape=X.shape)


def subtract_mean(Z, mean, missing):
    """Z - mean in place, zero where missing."""
    Z -= mean
    Z[missing] = 0
    return Z


def squares(X):
    """‖x‖² of each row."""
    return np.einsum("ij,ij->i", X, X)


def squared_distances(X, anchors, anchor_squares=None):
    """‖x - a‖² by one matrix product: (n, l) float32, never negative. `anchor_squares` (l,) are ‖a‖², if known."""
    D = X @ anchors.T
    D *= -2
    D += squares(X)[:, None]
    D += squares(anchors) if anchor_squares is None else anchor_squares
    return np.maximum(D, 0, out=D)


def basis_rows(n_components, n_rows):
    """Number of rows, out of `n_rows`, from which principal components are computed."""
    return min(n_rows, max(BASIS_ROWS, ROWS_PER_COMPONENT * n_components))


@dataclass(frozen=True)
class CenteredRows:
    """S - center, for a sparse S. Only products with it are computed, so no dense matrix of this shape exists."""

    S: csr_array  # (n, d) float64
    center: np.ndarray  # (d,) float64

    @property
    def shape(self):
        return self.S.shape

    def sum_of_squares(self):
        S, center = self.S, self.center
        return float(S.data @ S.data - 2 * (S.sum(0) @ center) + S.shape[0] * (center @ center))

    def right_vectors(self, rank, random_state):
        """The largest singular values (k,) and right singular vectors (d, k), by the steps of randomized_svd."""
        n = self.shape[0]
        Q = np.random.default_rng(random_state).standard_normal((n, min(rank + OVERSAMPLES, n)))
        for _ in range(POWER_ITERATIONS + 1):
            B = self._transposed_product(Q)
            Q = np.linalg.qr(self.S @ B - self.center @ B)[0]
        B = self._transposed_product(Q)
        squared, W = np.linalg.eigh(B.T @ B)
        s = np.sqrt(np.maximum(squared[::-1][:rank], 0))
        real = s > 1e-6 * s[0]  # rows may have fewer directions
        return s, B @ (W[:, ::-1][:, :rank] * np.where(real, 1 / np.where(real, s, 1), 0))

    def _transposed_product(self, Q):
        B = self.S.T @ Q
        B -= np.outer(self.center, Q.sum(0))
        return B


def centered_rows(plain, blocks, n, d):
    """Normalized rows from ``blocks()``, pairs of raw rows and their slice: CenteredRows if they are wide and mostly
    zero, else (n, d) float32. None of the rows is missing."""
    S = mostly_zero(blocks(), n, d) if d >= WIDE else None
    if S is not None:
        return CenteredRows(plain.scaled_sparse(S), plain.center)
    X = np.empty((n, d), np.float32)
    for raw, block in blocks():
        X[block] = plain.normalize(raw)[0]
    return X


def mostly_zero(blocks, n, d):
    """The rows of all blocks as one sparse matrix; None if they are not mostly zero."""
    parts, count = [], 0
    for X, _ in blocks:
        parts.append(nonzero_values(X, np.zeros(len(X), bool)))
        count += parts[-1].nnz
        if count > MOSTLY_ZERO * n * d:
            return None
    return vstack(parts, "csr")


def basis_bytes(n, d, k, n_values):
    """Memory for `k` principal components of `n` rows with `n_values` values that are not zero, at most."""
    if d >= WIDE and n_values <= MOSTLY_ZERO * n * d:
        return 40 * n_values + 24 * d * (k + OVERSAMPLES)
    return 4 * n * (d + 4 * k)


def principal_basis(X, n_components, random_state, damped=True):
    """(d, k) float32: principal directions of centered rows X (n, d), an array or CenteredRows; k ≤ n_components.

    If `damped`, the variance λ along each becomes λ / √(λ + λ̄), λ̄ the mean variance of a column: a few directions do
    not dominate, and weak directions are not amplified.
    """
    n, d = X.shape
    is_sparse = isinstance(X, CenteredRows)
    total = X.sum_of_squares() if is_sparse else float(squares(X).sum(dtype=np.float64))
    mean_variance = total / (n * d) if n else 0.0
    if mean_variance <= 0:
        return np.zeros((d, 1), np.float32)
    rank = min(n_components, n, d)
    if is_sparse:
        s, V = X.right_vectors(rank, random_state)
    else:
        _, s, Vt = randomized_svd(
            X, rank, n_oversamples=OVERSAMPLES, n_iter=POWER_ITERATIONS, random_state=random_state
        )
        V = Vt.T
    if not damped:
        return np.ascontiguousarray(V, np.float32)
    variance = s.astype(np.float64) ** 2 / n
    return (V * (variance + mean_variance) ** -0.25).astype(np.float32)


def normalization(offset, factor, scaling="standard"):
    """An embedding without anchors, which can only normalize rows."""
    nothing = np.empty(0, np.float32)
    return Embedding(offset, factor, None, nothing.reshape(0, len(offset)), 1.0, nothing, scaling)


def fit_embedding(plain, anchor_blocks, probe_blocks, kernel_width, reach=None, linear=False):
    """`plain`, which has no anchors yet, with anchors and kernel width from blocks of raw rows. The mean is still zero.

    γ = 2σ², σ = kernel_width · 2 · the mean distance of a probe to its nearest anchor. With `reach`, σ is at least
    kernel_width times that quantile of the distances, so that almost every sample is similar to some anchor, and the
    others become zero rows. Probes come as blocks of raw rows, each with the index of the anchor that is the probe
    itself, or -1: a sample is not its own neighbor. With `linear`, the columns follow the similarities, scaled so that
    probes have a mean squared length of 1.
    """
    anchors = np.concatenate([plain.normalize(rows)[0] for rows in anchor_blocks])
    parts, lengths, count = [np.empty(0)], 0.0, 0
    for rows, is_anchor in probe_blocks:
        X = plain.normalize(rows)[0]
        lengths, count = lengths + float(squares(X).sum(dtype=np.float64)), count + len(X)
        D = squared_distances(X, anchors)
        own = np.flatnonzero(is_anchor >= 0)
        D[own, is_anchor[own]] = np.inf
        closest = D.min(1)
        parts.append(np.sqrt(np.where(closest < ROUNDING * squares(X), 0, closest).astype(np.float64)))
    nearest = np.concatenate(parts)
    nearest = nearest[np.isfinite(nearest)]
    sigma = 2 * kernel_width * nearest.mean() if nearest.size else 0.0
    if reach is not None and nearest.size:
        sigma = max(sigma, kernel_width * np.quantile(nearest, reach))
    gamma = 2 * sigma**2
    if gamma < FINEST:  # every probe equals an anchor within float32 precision
        gamma = 1.0
    fitted = replace(
        plain,
        anchors=anchors,
        gamma=float(gamma),
        silence=reach is not None,
        linear=float(np.sqrt(count / lengths) if lengths > 0 else 1.0) if linear else 0.0,
    )
    return replace(fitted, mean=np.zeros(fitted.n_columns, np.float32))

"""View -> embedding: each sample is represented by its similarities to a few anchors."""

from dataclasses import dataclass, replace

import numpy as np
from sklearn.utils.extmath import randomized_svd

from bitmosaic.hamming import kernels

LARGEST_COLUMN = 4  # bound on a linear column, in units of the mean length of a row: keeps fixed-point sums exact
FAR = 1e15  # in units of the training data's spread
ROUNDING = 1e-6  # of a squared distance, in units of the squared length of the row
FINEST = 1e-38  # smallest γ whose inverse fits into float32
STRANGE = 7.0  # ‖x - a‖²/γ, a similarity of 0.001
BASIS_ROWS, ROWS_PER_COMPONENT = 1024, 32  # rows for principal components: the larger of the two


@dataclass(frozen=True)
class Embedding:
    """ψ of one view: exp(-‖x - a‖²/γ) for each anchor a, minus its mean over the training data.

    Before that, samples are shifted by `offset` and multiplied by `factor` (of their square roots, or of rows of length
    1, depending on `scaling`), and then multiplied by `basis` if there is one. `anchors` are already transformed. With
    `silence`, a sample that is similar to no anchor becomes a zero row, as if missing. Otherwise all such samples would
    share the same large nonzero row. With `linear`, the transformed columns times `linear` follow the similarities.
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
        rows = np.empty(X.shape, np.float32)
        missing = np.isnan(X[:, 0])
        scaled, is_root = np.ascontiguousarray(scaled_rows(X, self.scaling)), self.scaling == "root"
        plain = kernels.normalize(scaled, self.offset, self.factor, is_root, FAR, rows)
        if check and not plain:
            check(X)
        return rows if self.basis is None else rows @ self.basis, missing

    def __call__(self, X, check=None):
        """Raw rows (n, d) -> Z (n, l), and which rows are missing. Missing rows are zero and do not contribute to any
        sum."""
        rows, missing = self.normalize(X, check)
        products = rows @ self.anchors.T
        inverse_width = np.float32(1 / self.gamma)
        reach = np.float32(STRANGE * self.gamma if self.silence else np.inf)
        mean, beyond = self.mean[: self.n_anchors], self.mean[self.n_anchors :]
        kernels.similarities(products, squares(rows), squares(self.anchors), inverse_width, mean, missing, reach)
        if not self.linear:
            return products, missing
        rows *= np.float32(self.linear)
        np.clip(rows, -LARGEST_COLUMN, LARGEST_COLUMN, out=rows)
        unlike_any = missing | ~products.any(1) if self.silence else missing
        return np.hstack([products, subtract_mean(rows, beyond, unlike_any)]), missing

    def centered(self, mean):
        return replace(self, mean=np.asarray(mean, np.float32))


def scaled_rows(X, scaling):
    """Raw rows X, of length 1 if `scaling` is "unit" (rows of zeros stay)."""
    if scaling != "unit":
        return X
    lengths = np.sqrt(np.einsum("ij,ij->i", X, X, dtype=np.float64))
    return (X / np.where(lengths > 0, lengths, 1)[:, None]).astype(X.dtype)


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


def principal_basis(X, n_components, random_state, damped=True):
    """(d, k) float32: principal directions of centered rows X (n, d), k ≤ n_components.

    If `damped`, the variance λ along each becomes λ / √(λ + λ̄), λ̄ the mean variance of a column: a few directions do
    not dominate, and weak directions are not amplified.
    """
    n, d = X.shape
    mean_variance = float(squares(X).sum(dtype=np.float64)) / (n * d) if n else 0.0
    if mean_variance == 0:
        return np.zeros((d, 1), np.float32)
    rank = min(n_components, n, d)
    _, s, Vt = randomized_svd(X, rank, n_oversamples=16, n_iter=2, random_state=random_state)
    if not damped:
        return np.ascontiguousarray(Vt.T)
    variance = s.astype(np.float64) ** 2 / n
    return (Vt.T * (variance + mean_variance) ** -0.25).astype(np.float32)


def normalization(offset, factor, scaling="standard"):
    """An embedding without anchors, which can only normalize rows."""
    nothing = np.empty(0, np.float32)
    return Embedding(offset, factor, None, nothing.reshape(0, len(offset)), 1.0, nothing, scaling)


def fit_embedding(plain, anchor_rows, probe_blocks, kernel_width, reach=None, linear=False):
    """`plain`, which has no anchors yet, with anchors and kernel width from raw rows. The mean is still zero.

    γ = 2σ², σ = kernel_width · 2 · the mean distance of a probe to its nearest anchor. With `reach`, σ is at least
    kernel_width times that quantile of the distances, so that almost every sample is similar to some anchor, and the
    others become zero rows. Probes come as blocks of raw rows, each with the index of the anchor that is the probe
    itself, or -1: a sample is not its own neighbor. With `linear`, the columns follow the similarities, scaled so that
    probes have a mean squared length of 1.
    """
    anchors = plain.normalize(anchor_rows)[0]
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

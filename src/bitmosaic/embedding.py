"""View -> embedding: each sample becomes its similarities to a few anchors."""

from dataclasses import dataclass, replace

import numpy as np

FAR = 1e15  # in units of the training data's spread


@dataclass(frozen=True)
class Embedding:
    """ψ of one view: exp(-‖x - a‖²/γ) for each anchor a, minus its mean over the training data.

    Samples are moved by `offset` and multiplied by `factor` first, after the square root if `root`; `anchors` already
    are.
    """

    offset: np.ndarray  # (d,) float64
    factor: np.ndarray  # (d,) float32
    anchors: np.ndarray  # (l, d) float32
    gamma: float
    mean: np.ndarray  # (l,) float32
    root: bool = False

    @property
    def n_anchors(self):
        return len(self.anchors)

    def normalise(self, X):
        """Raw rows (n, d) -> centred, scaled float32 rows, zero where missing; and which are missing (n,).

        Centred in float64: what is left of large values is as exact as they are.
        """
        missing = np.isnan(X[:, 0])
        rows = np.subtract(signed_root(X) if self.root else X, self.offset, dtype=np.float64)
        rows *= self.factor
        np.clip(rows, -FAR, FAR, out=rows)  # similar to no anchor, and its square is still a number
        rows[missing] = 0
        return rows.astype(np.float32), missing

    def __call__(self, X):
        """Raw rows (n, d) -> Z (n, l), and which rows are missing: they are zero and drop out of every sum."""
        rows, missing = self.normalise(X)
        Z = squared_distances(rows, self.anchors)
        with np.errstate(over="ignore"):  # far from every anchor
            Z *= np.float32(-1 / self.gamma)
        np.exp(Z, out=Z)
        return subtract_mean(Z, self.mean, missing), missing

    def centred(self, mean):
        return replace(self, mean=np.asarray(mean, np.float32))


def subtract_mean(Z, mean, missing):
    """Z - mean in place, zero where missing."""
    Z -= mean
    Z[missing] = 0
    return Z


def signed_root(X):
    """The square root, of negative values with their sign: they come in new samples only."""
    return np.copysign(np.sqrt(np.abs(X)), X)


def squared_distances(X, anchors):
    """‖x - a‖² by one matrix product: (n, l) float32, never negative."""
    D = X @ anchors.T
    D *= -2
    D += np.einsum("ij,ij->i", X, X)[:, None]
    D += np.einsum("ij,ij->i", anchors, anchors)
    return np.maximum(D, 0, out=D)


def fit_embedding(offset, factor, anchor_rows, probe_blocks, kernel_width, reach=None, root=False):
    """Anchors and width of one view, from raw rows; the mean is still zero.

    γ = 2σ², σ = kernel_width · 2 · the mean distance of a probe to its nearest anchor; with `reach`, kernel_width times
    that quantile of the distances where it is larger, so that hardly any sample is similar to no anchor. Probes come as
    blocks of raw rows, each with the index of the anchor that is the probe itself, or -1: a sample is not its own
    neighbour.
    """
    blank = Embedding(offset, factor, np.empty((0, len(offset)), np.float32), 1.0, np.empty(0, np.float32), root)
    anchors = blank.normalise(anchor_rows)[0]
    parts = [np.empty(0)]
    for rows, is_anchor in probe_blocks:
        D = squared_distances(blank.normalise(rows)[0], anchors)
        own = np.flatnonzero(is_anchor >= 0)
        D[own, is_anchor[own]] = np.inf
        parts.append(np.sqrt(D.min(1).astype(np.float64)))
    nearest = np.concatenate(parts)
    nearest = nearest[np.isfinite(nearest)]
    sigma = 2 * kernel_width * nearest.mean() if nearest.size else 0.0
    if reach is not None and nearest.size:
        sigma = max(sigma, kernel_width * np.quantile(nearest, reach))
    gamma = 2 * sigma**2 if sigma > 0 else 1.0
    return replace(blank, anchors=anchors, gamma=float(gamma), mean=np.zeros(len(anchors), np.float32))

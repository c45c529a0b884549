"""Common interface of all baselines: views in, labels out."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from bitmosaic.errors import InvalidDataError, ParameterError
from bitmosaic.views import Views, as_views, read_rows


@dataclass
class Baseline:
    """A clustering method of the literature: `Method(n_clusters, random_state=0).fit_predict(views)`.

    Views are those of `HSIC.fit`, without missing values: a list of (n, d_v) arrays, a dict, one array, or a path.
    Subclasses set the scaling of columns and implement `cluster`. Iterative ones store the objective after each
    iteration in `objective_`. Some store the bytes of data, centroids and projection in `sizes_`.
    """

    n_clusters: int
    random_state: int | None = field(default=None, kw_only=True)
    objective_: list[float] = field(init=False, repr=False, default_factory=list)
    sizes_: dict[str, int] = field(init=False, repr=False, default_factory=dict)

    scaling: ClassVar[Literal["standard", "nonnegative"]] = "standard"

    def fit_predict(self, views: Any) -> np.ndarray:
        """The cluster of each row, (n,) int32."""
        arrays = self._arrays(as_views(views))
        if not 1 <= self.n_clusters <= len(arrays[0]):
            raise ParameterError(
                f"n_clusters must be between 1 and the number of rows; got {self.n_clusters} for {len(arrays[0])} rows."
            )
        return np.asarray(self.cluster(arrays, np.random.default_rng(self.random_state)), np.int32)

    def cluster(self, views: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
        """Scaled float32 views -> labels."""
        raise NotImplementedError

    def _arrays(self, views: Views) -> list[np.ndarray]:
        arrays = []
        for name, rows in zip(views.names, views.arrays, strict=True):
            X = read_rows(rows, slice(0, views.n_rows))
            if not np.isfinite(X).all():
                raise InvalidDataError(
                    f"{type(self).__name__} needs complete views; view {name!r} has missing or infinite values. "
                    "Leave those rows out, or use HSIC."
                )
            arrays.append(SCALINGS[self.scaling](X))
        return arrays


def standardized(X: np.ndarray) -> np.ndarray:
    """Columns with mean 0 and variance 1; constant columns become 0."""
    constant = X.max(axis=0) == X.min(axis=0)  # their computed mean may have a rounding error
    X = X - X.mean(axis=0)
    X[:, constant] = 0
    X /= np.maximum(np.sqrt(np.einsum("ij,ij->j", X, X) / len(X)), np.finfo(np.float32).tiny)
    return X


def nonnegative(X: np.ndarray) -> np.ndarray:
    """Columns between 0 and 1; shifted only if they have negative values."""
    X = X - np.minimum(X.min(axis=0), 0)
    X /= np.maximum(X.max(axis=0), np.finfo(np.float32).tiny)
    return X


SCALINGS = {"standard": standardized, "nonnegative": nonnegative}


def concatenated(views: list[np.ndarray]) -> np.ndarray:
    """All views side by side, the input of methods for one view: (n, Σ d_v)."""
    return views[0] if len(views) == 1 else np.hstack(views)


def integer_seed(rng: np.random.Generator) -> int:
    """An integer seed, for libraries that need one."""
    return int(rng.integers(2**31))


def onto_simplex(Y: np.ndarray) -> np.ndarray:
    """Project rows onto the simplex (nonnegative, sum 1): max(y - θ, 0), θ from the sorted values."""
    descending = np.sort(Y, axis=1)[:, ::-1]
    excess = np.cumsum(descending, axis=1) - 1
    counts = np.count_nonzero(descending * np.arange(1, Y.shape[1] + 1, dtype=Y.dtype) > excess, axis=1)
    theta = excess[np.arange(len(Y)), counts - 1] / counts.astype(Y.dtype)
    return np.maximum(Y - theta[:, None], 0)

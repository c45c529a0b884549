"""The BinaryKMeans estimator: clusters packed codes by majority vote and Hamming distance."""

import warnings
from contextlib import nullcontext
from numbers import Integral, Real

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_feature_names

from bitmosaic.errors import DataTypeError, InvalidDataError, ParameterError
from bitmosaic.estimators.constraints import rules_for
from bitmosaic.estimators.model_file import complete, read_model, write_model
from bitmosaic.estimators.parameters import (
    NotFittedError,
    as_json,
    check_enough,
    check_fitted,
    check_parameters,
    generator,
    is_dask,
)
from bitmosaic.hamming.codes import hamming_distances, nearest_centers, unpack
from bitmosaic.io.threads import available_threads
from bitmosaic.solver.clustering import Majority, Problem, plain_if_equal, refine
from bitmosaic.solver.constrained.clustering import best_seeding, with_final_sizes, with_rules
from bitmosaic.solver.steps import Frobenius
from bitmosaic.views.open import dask_rows


class BinaryKMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):
    """k-means on packed binary codes in Hamming space. Distances are XOR and popcount.

    Codes are rows of uint8 (as from ``np.packbits`` or ``HSIC.transform``) or of uint64: an array in memory, a memory
    map, a data frame, or a Dask array. A Dask array is clustered on the current Dask client. An empty cluster takes the
    code farthest from its center, so no cluster is empty if there are at least n_clusters distinct codes.

    Parameters
    ----------
    n_clusters : int, default=8
    init : "k-means++" or array (n_clusters, width) of packed codes, default="k-means++"
    n_init : int, default=10
        Number of initializations. The one with the lowest inertia is kept.
    max_iter : int, default=100
    bit_weights : array (n_bits,) or None, default=None
        Non-negative cost of a difference in each bit. None is 1 for each.
    balance : float, default=0
        ν, the penalty on centers with unequal numbers of ones and zeros, in units of the number of samples.
    n_threads : int or None, default=None
        None is all cores. The result does not depend on it.
    random_state : int, RandomState or None, default=None

    Attributes
    ----------
    labels_ : (n,) int32
        Cluster of each code. A Dask array if the codes were one.
    cluster_centers_ : (n_clusters, width)
        Packed centers, of the type of the input.
    inertia_ : float
        Sum of the distances of the codes to their centers.
    n_iter_ : int
        Number of iterations.
    n_features_in_ : int
        Width of a packed code.
    """

    _parameter_constraints: dict = {  # noqa: RUF012 (scikit-learn's contract)
        "n_clusters": [Interval(Integral, 1, None, closed="left")],
        "init": [StrOptions({"k-means++"}), "array-like"],
        "n_init": [Interval(Integral, 1, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "bit_weights": ["array-like", None],
        "balance": [Interval(Real, 0, None, closed="left")],
        "n_threads": [Interval(Integral, 1, None, closed="left"), None],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        n_clusters=8,
        *,
        init="k-means++",
        n_init=10,
        max_iter=100,
        bit_weights=None,
        balance=0.0,
        n_threads=None,
        random_state=None,
    ):
        self.n_clusters = n_clusters
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.bit_weights = bit_weights
        self.balance = balance
        self.n_threads = n_threads
        self.random_state = random_state

    def fit(self, X, y=None, sample_weight=None, constraints=None):
        """Cluster packed codes.

        Parameters
        ----------
        X : (n, width) uint8 or uint64
            Packed codes.
        y : ignored
        sample_weight : (n,) float or None
            Weight of each code. None is 1 for each.
        constraints : :class:`bitmosaic.Constraints` or None
            `labels_` meets the constraints exactly. Clusters with fixed members start at the majority of these.

        Returns
        -------
        self
        """
        check_parameters(self)
        X = self._array(X, reset=True)
        check_codes(X)
        n, n_bits, n_clusters = X.shape[0], 8 * X.shape[1] * X.dtype.itemsize, int(self.n_clusters)
        check_enough(n, n_clusters)
        weights = self._checked_weights(n_bits)
        if is_dask(X) and sample_weight is not None:
            raise ParameterError("sample_weight needs codes in memory; got a Dask array. Leave it out.")
        counts = None if sample_weight is None else vector("sample_weight", sample_weight, n)
        total = n if counts is None else counts.sum()
        if total == 0:
            raise InvalidDataError("sample_weight must not be zero for every sample.")
        init = None if isinstance(self.init, str) else self._checked_init(n_bits, X.dtype)
        rules = rules_for(constraints, n, n_clusters, is_dask(X))
        if rules and rules.limits_sizes and counts is not None:
            raise ParameterError("min_size and max_size count rows; remove sample_weight, or these limits.")

        norm, n_threads = Frobenius(weights), available_threads(self.n_threads)
        with clustering_problem(X, norm, self.balance * total, counts, n_threads) as problem:
            problem = with_rules(rules, problem)
            if init is None:
                rng = generator(self.random_state)
                result = best_seeding(problem, n_clusters, self.n_init, self.max_iter, rng)
            else:
                result = refine(problem, init, self.max_iter)
            result = with_final_sizes(problem, result)
            labels = labels_like(X, result.labels)

        self._set_centers(result.centers, weights, X.dtype)
        self._majority = None if counts is not None else Majority(result.centers, result.S, result.sizes)
        self.labels_, self.n_iter_ = labels, result.n_iter
        self.inertia_ = (result.objective - problem.balance_term(result.Q)) / 4
        if (found := int((result.sizes > 0).sum())) < self.n_clusters:
            warnings.warn(
                f"There are only {found} distinct codes for n_clusters={self.n_clusters}; the rest are empty."
                if rules is None
                else f"Under the constraints only {found} of n_clusters={self.n_clusters} clusters are filled.",
                ConvergenceWarning,
                stacklevel=2,
            )
        elif not result.converged:
            warnings.warn(
                f"The clusters still changed after max_iter={self.max_iter} iterations. Raise max_iter.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def partial_fit(self, X, y=None):
        """Assign more codes, then move each center to the majority of all codes ever assigned to it.

        The first call on an unfitted estimator is a `fit`. `labels_` and `inertia_` become those of the new codes,
        assigned to the centers before the update. `y` is ignored.
        """
        if not hasattr(self, "cluster_centers_"):
            return self.fit(X)
        if self._majority is None:
            raise NotFittedError(
                "partial_fit needs a fit that counted its codes; this one used sample weights, or was loaded from a "
                "file of an older version. Fit again without weights."
            )
        codes, n_threads = self._checked_codes(X), available_threads(self.n_threads)
        if is_dask(codes):
            raise DataTypeError("partial_fit takes codes in memory; got a Dask array. Pass it in blocks.")
        weights = plain_if_equal(self._bit_weights)
        labels, distances = nearest_centers(codes, as_bytes(self.cluster_centers_), weights, n_threads)
        majority = self._majority.with_codes(codes, labels, n_threads)
        self._set_centers(majority.centers, self._bit_weights, self._dtype)
        self._majority, self.labels_ = majority, labels
        unit = self._bit_weights[0] if weights is None else 1.0
        self.inertia_ = float(distances.sum(dtype=np.float64) * unit)
        return self

    def predict(self, X):
        """Return the nearest center of each code; ties go to the lowest label."""
        codes = self._checked_codes(X)
        centers, weights = as_bytes(self.cluster_centers_), plain_if_equal(self._bit_weights)
        if is_dask(X):
            from bitmosaic.estimators.dask.data import of_rows

            return of_rows(nearest_of_rows, (centers, weights), codes, None, np.int32)
        return nearest_centers(codes, centers, weights, available_threads(self.n_threads))[0]

    def transform(self, X):
        """Return the distances to all centers: (n, n_clusters), int32, or float32 with bit weights."""
        codes = self._checked_codes(X)
        centers = as_bytes(self.cluster_centers_)
        if is_dask(X):
            from bitmosaic.estimators.dask.data import of_rows

            dtype = np.int32 if (self._bit_weights == 1).all() else np.float32
            return of_rows(distances_of_rows, (centers, self._bit_weights), codes, self.n_clusters, dtype)
        return scaled_distances(codes, centers, self._bit_weights, available_threads(self.n_threads))

    def save(self, path):
        """Write the fitted model as one file without code: safetensors with a JSON manifest."""
        check_fitted(self)
        arrays = {
            "labels": np.asarray(self.labels_),
            "centers": as_bytes(self.cluster_centers_),
            "bit_weights": self._bit_weights,
        }
        if self._majority is not None:
            arrays |= {"bit_sums": self._majority.bit_sums, "counts": self._majority.counts}
        facts = {
            "parameters": as_json(self.get_params()),
            "dtype": self._dtype.name,
            "inertia": float(self.inertia_),
            "n_iter": self.n_iter_,
        }
        write_model(path, "BinaryKMeans", arrays, facts)

    @classmethod
    def load(cls, path):
        """Read a model written by :meth:`save`. Nothing in the file is executed."""
        arrays, facts = read_model(path, "BinaryKMeans")
        with complete(path):
            model = cls(**facts["parameters"])
            model._set_centers(arrays["centers"], arrays["bit_weights"], np.dtype(facts["dtype"]))
            if "bit_sums" in arrays:
                model._majority = Majority(arrays["centers"], arrays["bit_sums"], arrays["counts"])
            model.labels_ = arrays["labels"]
            model.inertia_, model.n_iter_ = float(facts["inertia"]), int(facts["n_iter"])
        return model

    def _set_centers(self, centers, weights, dtype):
        """Set the attributes that `fit`, `partial_fit` and `load` have in common."""
        self._majority = None
        self._bit_weights, self._dtype, self._n_features_out = weights, dtype, self.n_clusters
        self.cluster_centers_ = centers.view(dtype)
        self.n_features_in_ = self.cluster_centers_.shape[1]

    def _array(self, X, reset):
        """Return a data frame as an array, after checking its column names; return other input unchanged."""
        try:
            _check_feature_names(self, X, reset=reset)
        except ValueError as error:
            raise InvalidDataError(str(error)) from None
        is_table = hasattr(X, "columns") and not hasattr(X, "__dask_graph__")
        return np.asarray(X) if is_table else X

    def _checked_codes(self, X):
        check_fitted(self)
        X = self._array(X, reset=False)
        check_codes(X)
        codes = X if is_dask(X) else as_bytes(X)
        n_bits, fitted = 8 * codes.shape[1] * codes.dtype.itemsize, 8 * as_bytes(self.cluster_centers_).shape[1]
        if n_bits != fitted:
            raise InvalidDataError(f"Codes must have {fitted} bits, as at fit; got {n_bits}.")
        return codes

    def _checked_weights(self, n_bits):
        if self.bit_weights is None:
            return np.ones(n_bits)
        weights = vector("bit_weights", self.bit_weights, n_bits)
        if weights.max() < 1e-30:  # distances are float32
            raise ParameterError("bit_weights must not all be zero, or below 1e-30: all distances would be zero.")
        return weights

    def _checked_init(self, n_bits, dtype):
        try:
            init = np.asarray(self.init, dtype)
        except (TypeError, ValueError, OverflowError):
            raise ParameterError(f"init must hold packed codes of {dtype}, the type of the data.") from None
        centers = as_bytes(init)
        if centers.shape != (self.n_clusters, n_bits // 8):
            raise ParameterError(
                f"init must hold n_clusters={self.n_clusters} codes of {n_bits} bits; "
                f"got {len(centers)} of {8 * centers.shape[1]}."
            )
        return unpack(centers, np.int8)


def clustering_problem(X, norm, balance, sample_weight, n_threads):
    """Return the solver's problem for these codes, as a context manager for one fit."""
    if not is_dask(X):
        return nullcontext(Problem(as_bytes(X), norm, balance, sample_weight, n_threads))
    from bitmosaic.estimators.dask.data import cluster_problem

    return cluster_problem(X, as_bytes, norm, balance, n_threads)


def labels_like(X, labels):
    """Return the labels; if the codes are a Dask array, as a Dask array with the same chunks."""
    if not is_dask(X):
        return labels
    from bitmosaic.estimators.dask.data import column_as_dask

    return column_as_dask(labels, np.int32, X.chunks[0])


def nearest_of_rows(codes, const):
    return nearest_centers(as_bytes(codes), *const)[0]


def distances_of_rows(codes, const):
    return scaled_distances(as_bytes(codes), *const)


def scaled_distances(codes, centers, bit_weights, n_threads=1):
    """Return distances (n, c): int32 if all bit weights are 1, otherwise float32."""
    weights = plain_if_equal(bit_weights)
    distances = hamming_distances(codes, centers, weights, n_threads)
    if weights is None and bit_weights[0] != 1:
        return distances.astype(np.float32) * np.float32(bit_weights[0])
    return distances


def as_bytes(X):
    """Return packed codes as rows of uint8, without a copy if the rows are contiguous."""
    check_codes(X)
    return X if X.dtype == np.uint8 else np.ascontiguousarray(X).view(np.uint8)


def check_codes(X):
    """Raise an error unless X is an array, or Dask array, of packed codes."""
    is_array = is_dask(X) or (isinstance(X, np.ndarray) and not isinstance(X, np.ma.MaskedArray))
    if not is_array or getattr(X, "dtype", None) not in (np.uint8, np.uint64):
        raise DataTypeError(
            "Codes must be packed bits in an array of uint8 or uint64; got "
            f"{getattr(X, 'dtype', type(X).__name__)}. Pack ±1 or 0/1 columns with np.packbits(X > 0, axis=1)."
        )
    if is_dask(X):
        dask_rows(X, "")
    if X.ndim != 2 or X.shape[1] == 0:
        raise InvalidDataError(f"Codes must be a 2-D array with one row per sample; got shape {X.shape}.")


def vector(name, values, length):
    """Return `length` non-negative finite numbers as float64, or raise an error."""
    try:
        values = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise InvalidDataError(f"{name} must be numbers; got {type(values).__name__}.") from None
    if values.shape != (length,) or not (values <= 1e30).all() or (values < 0).any():
        raise InvalidDataError(
            f"{name} must be {length} numbers from 0 to 1e30; got shape {values.shape}"
            + (f" with {values.min()} as the lowest." if values.size else ".")
        )
    return values

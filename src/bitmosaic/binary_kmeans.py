"""The BinaryKMeans estimator: clusters packed codes by majority vote and Hamming distance."""

import warnings
from numbers import Integral, Real
from operator import index

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_feature_names

from bitmosaic.codes import hamming_distances, nearest_centers, unpack
from bitmosaic.errors import DataTypeError, InvalidDataError, ParameterError
from bitmosaic.guidance import rules_for
from bitmosaic.model_file import complete, read_model, require, require_arrays, require_labels, write_model
from bitmosaic.parameters import NotFittedError, as_json, check_enough, check_fitted, check_parameters, generator
from bitmosaic.scale.cluster import current_client
from bitmosaic.scale.clustering import ClusterProblem
from bitmosaic.scale.data import code_column, outcome
from bitmosaic.scale.lazy import of_rows
from bitmosaic.scale.parts import whole_fit
from bitmosaic.scale.rows import is_dask
from bitmosaic.solver.clustering import Problem, plain_if_equal, refine
from bitmosaic.solver.constrained import best_seeding, finished, under
from bitmosaic.solver.online import Majority
from bitmosaic.solver.steps import Frobenius
from bitmosaic.threads import available_threads
from bitmosaic.views.door import dask_rows


class BinaryKMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):
    """k-means on packed binary codes, in Hamming space: XOR and popcount instead of float arithmetic.

    Codes are rows of uint8 (as from ``np.packbits`` or ``HSIC.transform``) or of uint64, in memory or memory-mapped, or
    in a data frame; or a Dask array of them, which is clustered on the current Dask client, with labels as another.
    Every cluster is filled as long as there are that many distinct codes: an empty one takes the farthest code.

    Parameters
    ----------
    n_clusters : int, default=8
    init : "k-means++" or array (n_clusters, width) of packed codes, default="k-means++"
    n_init : int, default=10
        Seedings that are tried; the one with the lowest inertia is kept.
    max_iter : int, default=100
    bit_weights : array (n_bits,) or None, default=None
        Cost of a difference in each bit; not negative. None is 1 for each.
    balance : float, default=0
        ν, in units of the number of samples: how much a center should have as many ones as zeros.
    n_threads : int or None, default=None
        None is every core. The result does not depend on it.
    random_state : int, RandomState or None, default=None

    Attributes
    ----------
    labels_ : (n,) int32
    cluster_centers_ : (n_clusters, width), packed, of the type of the input
    inertia_ : float, sum of the distances of the codes to their centers
    n_iter_ : int
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
        """Cluster packed codes; `sample_weight` (n,) says how often each counts. `y` is ignored.

        `constraints` is a :class:`bitmosaic.Constraints`; `labels_` meets it exactly. Clusters with fixed members begin
        at the majority of these.
        """
        check_parameters(self)
        X = self._array(X, reset=True)
        check_codes(X)
        n, n_bits, n_clusters = X.shape[0], 8 * X.shape[1] * X.dtype.itemsize, int(self.n_clusters)
        check_enough(n, n_clusters)
        weights = self._checked_weights(n_bits)
        if is_dask(X) and sample_weight is not None:
            raise ParameterError("sample_weight goes with codes in memory; these are a Dask array. Leave it out.")
        counts = None if sample_weight is None else vector("sample_weight", sample_weight, n)
        total = n if counts is None else counts.sum()
        if total == 0:
            raise InvalidDataError("sample_weight must not be zero for every sample.")
        init = None if isinstance(self.init, str) else self._checked_init(n_bits, X.dtype)
        rules = rules_for(constraints, n, n_clusters, is_dask(X))
        if rules and rules.limits_sizes and counts is not None:
            raise ParameterError("min_size and max_size count rows; leave out sample_weight, or these limits.")
        with whole_fit(current_client() if is_dask(X) else None):
            problem = (ClusterProblem if is_dask(X) else Problem)(
                code_column(X, as_bytes) if is_dask(X) else as_bytes(X),
                Frobenius(weights),
                self.balance * total,
                counts,
                n_threads=available_threads(self.n_threads),
            )
            problem = under(rules, problem)
            if init is None:
                rng = generator(self.random_state)
                result = best_seeding(problem, n_clusters, self.n_init, self.max_iter, rng)
            else:
                result = refine(problem, init, self.max_iter)
            result = finished(problem, result)
            labels = outcome(result.labels, np.int32, X.chunks[0]) if is_dask(X) else result.labels

        self._keep(result.centers, weights, X.dtype)
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
        """Assign more codes, and move each center to the majority of all codes ever assigned to it.

        The first call of an unfitted estimator is a fit. `labels_` become those of these codes, assigned to the centers
        as they were, and `inertia_` is that of these codes before the centers moved. `y` is ignored.
        """
        if not hasattr(self, "cluster_centers_"):
            return self.fit(X)
        if self._majority is None:
            raise NotFittedError(
                "partial_fit goes on from a fit that has counted its codes; this one had sample weights, or is from a "
                "file of an older version. Fit again without weights."
            )
        codes, n_threads = self._checked_codes(X), available_threads(self.n_threads)
        if is_dask(codes):
            raise DataTypeError("partial_fit takes codes in memory; these are a Dask array. Pass them in blocks.")
        weights = plain_if_equal(self._bit_weights)
        labels, distances = nearest_centers(codes, as_bytes(self.cluster_centers_), weights, n_threads)
        majority = self._majority.with_codes(codes, labels, n_threads)
        self._keep(majority.centers, self._bit_weights, self._dtype)
        self._majority, self.labels_ = majority, labels
        unit = self._bit_weights[0] if weights is None else 1.0
        self.inertia_ = float(distances.sum(dtype=np.float64) * unit)
        return self

    def predict(self, X):
        """The nearest center of each code; the lowest label among equals."""
        codes = self._checked_codes(X)
        centers, weights = as_bytes(self.cluster_centers_), plain_if_equal(self._bit_weights)
        if is_dask(X):
            return of_rows(nearest_of_rows, (centers, weights), codes, None, np.int32)
        return nearest_centers(codes, centers, weights, available_threads(self.n_threads))[0]

    def transform(self, X):
        """Distances to every center: (n, n_clusters), int32, or float32 with bit weights."""
        codes = self._checked_codes(X)
        centers = as_bytes(self.cluster_centers_)
        if is_dask(X):
            dtype = np.int32 if (self._bit_weights == 1).all() else np.float32
            return of_rows(distances_of_rows, (centers, self._bit_weights), codes, self.n_clusters, dtype)
        return scaled_distances(codes, centers, self._bit_weights, available_threads(self.n_threads))

    def save(self, path):
        """Write the fitted model as one file that holds no code: safetensors with a JSON manifest."""
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
            check_parameters(model)
            n, (c, n_bytes) = len(arrays["labels"]), arrays["centers"].shape
            expected = {
                "labels": (np.int32, (n,)),
                "centers": (np.uint8, (model.n_clusters, n_bytes)),
                "bit_weights": (np.float64, (8 * n_bytes,)),
            }
            if "bit_sums" in arrays:
                expected |= {"bit_sums": (np.int64, (c, 8 * n_bytes)), "counts": (np.int64, (c,))}
            require_arrays(arrays, expected, path)
            require_labels(arrays["labels"], c, path)
            weights = arrays["bit_weights"]
            require(
                n_bytes > 0 and weights.min() >= 0 and 0 < weights.max() < 1e30, "its bit weights are no weights", path
            )
            dtype = facts["dtype"]
            require(dtype == "uint8" or (dtype == "uint64" and n_bytes % 8 == 0), f"codes of type {dtype!r}", path)
            model._keep(arrays["centers"], weights, np.dtype(dtype))
            if "bit_sums" in arrays:
                model._majority = Majority(arrays["centers"], arrays["bit_sums"], arrays["counts"])
                require(model._majority.is_sound(), "its sums are not those of so many codes", path)
            model.labels_ = arrays["labels"]
            model.inertia_, model.n_iter_ = float(facts["inertia"]), int(facts["n_iter"])
        return model

    def _keep(self, centers, weights, dtype):
        self._majority = None
        self._bit_weights, self._dtype, self._n_features_out = weights, dtype, self.n_clusters
        self.cluster_centers_ = centers.view(dtype)
        self.n_features_in_ = self.cluster_centers_.shape[1]

    def _array(self, X, reset):
        """A data frame of codes as an array, its columns in the order of the fit; anything else as it is."""
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
            raise InvalidDataError(f"Codes must be as long as at fit; that was {fitted} bits, got {n_bits}.")
        return codes

    def _checked_weights(self, n_bits):
        if self.bit_weights is None:
            return np.ones(n_bits)
        weights = vector("bit_weights", self.bit_weights, n_bits)
        if weights.max() < 1e-30:  # distances are float32
            raise ParameterError("bit_weights must not all be zero, or below 1e-30: every code would be the same.")
        return weights

    def _checked_init(self, n_bits, dtype):
        init = self.init
        if not (isinstance(init, np.ndarray) and init.dtype == dtype):
            try:
                init = np.array([[index(value) for value in row] for row in init], dtype)
            except (TypeError, ValueError, OverflowError):
                raise ParameterError(f"init must hold packed codes of {dtype}, as the data do; it does not.") from None
        centers = as_bytes(init)
        if centers.shape != (self.n_clusters, n_bits // 8):
            raise ParameterError(
                f"init must hold n_clusters={self.n_clusters} codes of {n_bits} bits; "
                f"got {len(centers)} of {8 * centers.shape[1]}."
            )
        return unpack(centers, np.int8)


def nearest_of_rows(codes, const):
    return nearest_centers(as_bytes(codes), *const)[0]


def distances_of_rows(codes, const):
    return scaled_distances(as_bytes(codes), *const)


def scaled_distances(codes, centers, bit_weights, n_threads=1):
    """(n, c) int32 where every bit counts 1, otherwise float32."""
    weights = plain_if_equal(bit_weights)
    distances = hamming_distances(codes, centers, weights, n_threads)
    if weights is None and bit_weights[0] != 1:
        return distances.astype(np.float32) * np.float32(bit_weights[0])
    return distances


def as_bytes(X):
    """Packed codes as rows of uint8, without a copy where the rows are contiguous."""
    check_codes(X)
    return X if X.dtype == np.uint8 else np.ascontiguousarray(X).view(np.uint8)


def check_codes(X):
    """An error for what is no array, or Dask array, of packed codes."""
    is_array = is_dask(X) or (isinstance(X, np.ndarray) and not isinstance(X, np.ma.MaskedArray))
    if not is_array or getattr(X, "dtype", None) not in (np.uint8, np.uint64):
        raise DataTypeError(
            "Codes must be packed bits in an array of uint8 or uint64; got "
            f"{getattr(X, 'dtype', type(X).__name__)}. Pack ±1 or 0/1 columns with np.packbits(X > 0, axis=1)."
        )
    if is_dask(X):
        dask_rows(X, "")
    if X.ndim != 2 or X.shape[1] == 0:
        raise InvalidDataError(f"Codes must be a table with a row for each sample; got shape {X.shape}.")


def vector(name, values, length):
    """Non-negative finite numbers, one for each."""
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

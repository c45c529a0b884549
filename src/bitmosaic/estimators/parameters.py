"""Parameter checks, seeds and JSON values shared by the estimators."""

from numbers import Integral

import numpy as np
from sklearn import exceptions
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import InvalidParameterError
from sklearn.utils.validation import check_is_fitted

from bitmosaic.errors import BitmosaicError, DataTypeError, InvalidDataError, ParameterError


class NotFittedError(BitmosaicError, exceptions.NotFittedError):
    """A method that needs a fitted estimator was called before `fit`."""


def check_parameters(estimator):
    """Check every parameter against the estimator's constraints."""
    try:
        estimator._validate_params()
    except InvalidParameterError as error:
        raise ParameterError(str(error)) from None


def check_fitted(estimator):
    try:
        check_is_fitted(estimator)
    except exceptions.NotFittedError as error:
        raise NotFittedError(str(error)) from None


def check_enough(n_samples, n_clusters):
    if n_samples < n_clusters:
        raise InvalidDataError(
            f"There must be at least as many samples as clusters; n_samples={n_samples} should be >= "
            f"n_clusters={n_clusters}. Lower n_clusters."
        )


def generator(random_state):
    """Return a NumPy generator from a scikit-learn random_state."""
    return np.random.default_rng(drawn_seed(random_state))


def drawn_seed(random_state):
    return int(check_random_state(random_state).randint(2**31 - 1))


def as_json(parameters):
    """Return parameters as JSON values. A RandomState becomes None, because its state cannot be read back."""
    plain = {name: plain_value(value) for name, value in parameters.items()}
    if not isinstance(plain.get("random_state"), Integral | None):
        plain["random_state"] = None
    return plain


def plain_value(value):
    """Return NumPy numbers and arrays as Python values; an int8 would overflow in a product."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.item() if isinstance(value, np.generic) else value


def is_dask(array):
    return hasattr(array, "__dask_graph__")


def on_cluster(views):
    """Return whether the views are Dask arrays. Raises an error if only some are."""
    others = [name for name, array in zip(views.names, views.arrays, strict=True) if not is_dask(array)]
    if 0 < len(others) < len(views):
        raise DataTypeError(
            f"Either all views are Dask arrays or none is; got arrays of another kind for {', '.join(others)}. "
            "Turn them into Dask arrays with dask.array.from_array, or compute the others."
        )
    return not others

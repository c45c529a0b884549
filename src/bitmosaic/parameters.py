"""What both estimators do with their parameters: check them, draw from them, write them down."""

from numbers import Integral

import numpy as np
from sklearn import exceptions
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import InvalidParameterError
from sklearn.utils.validation import check_is_fitted

from bitmosaic.errors import BitmosaicError, DataTypeError, InvalidDataError, ParameterError

LARGEST = 2**63


class NotFittedError(BitmosaicError, exceptions.NotFittedError):
    """An estimator is asked for what it has not learned yet."""


def check_parameters(estimator):
    """Every parameter against the estimator's constraints. True and False are numbers to Python, not to a user."""
    for name, value in estimator.get_params().items():
        if isinstance(value, bool) and not {"boolean", "verbose"} & set(
            map(str, estimator._parameter_constraints[name])
        ):
            raise ParameterError(f"{name} must be a number or one of its names; got {value}.")
        if isinstance(value, Integral) and not -LARGEST <= int(value) < LARGEST:
            raise ParameterError(
                f"{name} must be below 2**63, as numbers of the solver are; got a larger one. Lower it."
            )
    try:
        estimator._validate_params()
    except InvalidParameterError as error:
        raise ParameterError(str(error)) from None


def check_progress(progress):
    if progress is not None and not callable(progress):
        raise DataTypeError(
            f"progress must be a function that takes (done, total), or None; got a {type(progress).__name__}."
        )


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
    """One NumPy generator for a whole fit, from scikit-learn's kinds of random_state."""
    return np.random.default_rng(drawn_seed(random_state))


def drawn_seed(random_state):
    return int(check_random_state(random_state).randint(2**31 - 1))


def as_json(parameters):
    """Parameters as plain JSON values. A generator's state cannot be read back: it becomes None."""
    plain = {name: plain_value(value) for name, value in parameters.items()}
    if not isinstance(plain.get("random_state"), Integral | None):
        plain["random_state"] = None
    return plain


def plain_value(value):
    """NumPy's numbers and arrays as Python's; an int8 would overflow where it is multiplied."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.item() if isinstance(value, np.generic) else value

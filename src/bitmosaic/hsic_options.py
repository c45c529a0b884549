"""The parameters of an HSIC, with its preset -> what the solver takes for so many rows."""

from dataclasses import fields
from inspect import signature
from numbers import Integral

from bitmosaic.errors import ParameterError
from bitmosaic.parameters import plain_value
from bitmosaic.solver.memory import parse_memory
from bitmosaic.solver.train import Options
from bitmosaic.threads import available_threads

AUTO_TRAIN_SIZE, AUTO_TRAIN_ROWS_PER_CLUSTER = 20_000, 20
FAST = {"n_anchors": 128, "n_components": 24, "train_size": 3000, "max_iter": 4, "n_init": 3}
MAY_BE_AUTO = ("n_clusters", "coupling", "cluster_iter")  # found by the solver
MAX_ITER, MANY_CLUSTERS, MANY_CLUSTERS_ITER = 8, 100, 4


def fewest_rows(estimator):
    """As many as there are clusters, where their number is given."""
    return 1 if estimator.n_clusters == "auto" else int(estimator.n_clusters)


def effective(estimator):
    """The parameters, with what the preset makes of the defaults."""
    parameters = {name: plain_value(value) for name, value in estimator.get_params().items()}
    if estimator.preset == "fast":
        defaults = signature(type(estimator).__init__).parameters
        parameters |= {name: value for name, value in FAST.items() if parameters[name] == defaults[name].default}
        if estimator.train_size == "auto":
            parameters["train_size"] = max(FAST["train_size"], AUTO_TRAIN_ROWS_PER_CLUSTER * fewest_rows(estimator))
    return parameters


def solver_options(estimator, n):
    """Refuses a train_size that gives too few of `n` rows."""
    parameters = effective(estimator)
    names = {field.name for field in fields(Options)}
    given = {name: value for name, value in parameters.items() if name in names}
    if given["max_iter"] == "auto":
        given["max_iter"] = MANY_CLUSTERS_ITER if fewest_rows(estimator) >= MANY_CLUSTERS else MAX_ITER
    given |= {
        **{name: None if parameters[name] == "auto" else parameters[name] for name in MAY_BE_AUTO},
        "same_anchors": estimator.anchors == "same",
        "n_train": _n_train(estimator, parameters["train_size"], n),
        "memory_limit": parse_memory(parameters["memory_limit"]),
        "n_threads": available_threads(parameters["n_threads"]),
    }
    return Options(**given)


def _n_train(estimator, train_size, n):
    if train_size == "auto":
        n_train = min(n, max(AUTO_TRAIN_SIZE, AUTO_TRAIN_ROWS_PER_CLUSTER * fewest_rows(estimator)))
    elif isinstance(train_size, Integral):
        n_train = min(n, train_size)
    else:
        n_train = max(1, round(train_size * n))
    if n_train < fewest_rows(estimator):
        raise ParameterError(
            f"train_size must give at least n_clusters={estimator.n_clusters} rows; {estimator.train_size!r} of {n} "
            f"gives {n_train}. Raise it."
        )
    return n_train

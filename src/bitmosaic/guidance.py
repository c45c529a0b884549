"""The `constraints` and `init_labels` of a fit -> what the solver takes."""

import hashlib
from dataclasses import dataclass

import numpy as np

from bitmosaic.constraints import Constraints
from bitmosaic.errors import ConstraintError, InvalidDataError, ParameterError
from bitmosaic.npy import array_of
from bitmosaic.solver.rules import Rules


@dataclass(frozen=True)
class Guidance:
    rules: Rules | None = None  # that the labels obey
    known: np.ndarray | None = None  # (n,) int32 labels from which clusters begin, -1 where there is none
    digest: str = ""  # to know both again


def guidance(constraints, init_labels, n_rows, n_clusters, on_cluster):
    """What a fit of so many rows is told beforehand; n_clusters is None where it is to be found."""
    if constraints is None and init_labels is None:
        return Guidance()
    if n_clusters is None:
        raise ParameterError("constraints and init_labels need a number of clusters; got n_clusters='auto'. Name one.")
    rules = rules_for(constraints, n_rows, n_clusters, on_cluster)
    known = None if init_labels is None else checked_labels(init_labels, n_rows, n_clusters)
    if known is not None and on_cluster:
        raise ParameterError("init_labels are for views on this machine; got Dask arrays. Load them, or leave it out.")
    digest = hashlib.sha256()
    if rules is not None:
        digest.update(rules.digest().encode())
    if known is not None:
        digest.update(known.data)
    return Guidance(rules, known, "" if rules is None and known is None else digest.hexdigest())


def rules_for(constraints, n_rows, n_clusters, on_cluster=False):
    """The rules of an estimator's `constraints`, None where nothing is asked for."""
    if constraints is None:
        return None
    if not isinstance(constraints, Constraints):
        raise ConstraintError(
            f"constraints must be a bitmosaic.Constraints; got {type(constraints).__name__}. "
            "Write Constraints(must_link=[(0, 1)]), for instance."
        )
    if on_cluster:
        raise ConstraintError(
            "Constraints are for data on this machine; got Dask arrays. Load them, or leave the constraints out."
        )
    return constraints.checked(n_rows, n_clusters)


def checked_labels(labels, n_rows, n_clusters):
    """(n,) int32 from -1 to n_clusters - 1; None where all are -1."""
    labels = array_of(labels, f"init_labels must be a whole number for each of {n_rows} rows")
    if labels.shape != (n_rows,) or labels.dtype.kind not in "iu":
        raise InvalidDataError(
            f"init_labels must be a whole number for each of {n_rows} rows, -1 where there is none; got {labels.dtype} "
            f"of shape {labels.shape}."
        )
    if labels.min() < -1 or labels.max() >= n_clusters:
        wrong = labels.min() if labels.min() < -1 else labels.max()
        raise InvalidDataError(f"init_labels must be from -1 to n_clusters - 1 = {n_clusters - 1}; got {wrong}.")
    return labels.astype(np.int32) if labels.max() >= 0 else None

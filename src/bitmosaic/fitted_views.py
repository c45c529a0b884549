"""Views at predict -> which of the fitted views they are, or one clear error."""

from collections.abc import Mapping
from os import PathLike

import numpy as np

from bitmosaic.errors import ViewMismatchError
from bitmosaic.views import Views


def names_its_views(X):
    """Whether what a user passed says which view is which."""
    return isinstance(X, Mapping | Views | str | PathLike)


def match(X, views, fitted):
    """The numbers of the fitted views that `views`, made of the user's X, are; `fitted` are their names."""
    if not names_its_views(X):
        if len(views) == len(fitted):
            return list(range(len(fitted)))
        raise ViewMismatchError(
            f"A list of views must have all of {fitted}, in this order; got {len(views)} views. "
            "Pass a dict of name -> array to use some of them."
        )
    unknown = [name for name in views.names if name not in fitted]
    if unknown:
        raise ViewMismatchError(
            f"Views must be among those the model was fitted on, {fitted}; got {unknown}. Rename or drop them."
        )
    return [fitted.index(name) for name in views.names]


def check(views, numbers, fitted, widths, columns):
    """Refuse a view that has other columns than the fitted one; widths and columns are those of the fit."""
    given = views.columns or (None,) * len(views)
    for width, names, v in zip(views.widths, given, numbers, strict=True):
        if width != widths[v]:
            raise ViewMismatchError(
                f"A view must have as many columns as at fit; view {fitted[v]!r} had {widths[v]}, got {width}. "
                "Was it made by another extractor?"
            )
        if names and columns[v] and names != columns[v]:
            raise ViewMismatchError(
                f"The columns of a table must be those of the fit, in order; those of view {fitted[v]!r} are not. "
                "Reorder or rename them."
            )


def in_order(views, numbers):
    """The views as they were ordered at the fit: the order of a dict must not matter to the last bit."""
    order = np.argsort(numbers)
    return Views(tuple(views.names[i] for i in order), tuple(views.arrays[i] for i in order)), sorted(numbers)

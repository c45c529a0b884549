"""HSIC over a stream: its centers follow the images that come, its codes stay as they were learned."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np

from bitmosaic.errors import DataTypeError
from bitmosaic.scale.rows import is_dask
from bitmosaic.solver.online import Majority
from bitmosaic.threads import available_threads


class Online:
    """What HSIC has for it."""

    _model: Any
    _majority: Majority | None
    _encode: Any
    fit: Any
    n_threads: int | None

    def partial_fit(self, X, y=None):
        """Encode more images, assign them, and move each center to the majority of all codes ever assigned to it.

        The first call is a fit, unless there was one: codes are learned then and stay, so let it see many images.
        `labels_` and `codes_` become those of these images, assigned to the centers as they were. `y` is ignored.
        """
        if not hasattr(self, "_model"):
            return self.fit(X)
        codes = self._encode(X)
        if is_dask(codes):
            raise DataTypeError(
                "partial_fit takes views in memory or files; these are Dask arrays. Pass them in blocks."
            )
        labels = self._model.assign(codes, available_threads(self.n_threads))
        self._move(self.majority().with_codes(codes, labels, available_threads(self.n_threads)))
        self.labels_, self.codes_ = labels, codes
        return self

    def majority(self):
        """The centers and the sums of the codes ever assigned to them, from which :meth:`partial_fit` goes on."""
        if self._majority is None:
            codes, labels = np.asarray(self.codes_), np.asarray(self.labels_)
            return Majority.of(self._model.centers, codes, labels, available_threads(self.n_threads))
        return self._majority

    @property
    def view_widths(self):
        """How many columns each view must have."""
        return self._model.widths

    def with_centers(self, centers, bit_sums, counts):
        """A copy with its centers elsewhere, and the sums of the codes that these are the majority of."""
        moved = copy.copy(self)
        moved._move(Majority(centers, bit_sums, counts))
        return moved

    def _move(self, majority):
        self._model, self._majority = replace(self._model, centers=majority.centers), majority
        self.cluster_centers_ = majority.centers

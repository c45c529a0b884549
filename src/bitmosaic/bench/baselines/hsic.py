"""HSIC and its variants from the paper, with the interface of the baselines."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

import bitmosaic.estimators.hsic
from bitmosaic.bench.baselines.base import Baseline


@dataclass(kw_only=True)
class HSIC(Baseline):
    """HSIC: Z. Zhang, L. Liu, J. Qin, F. Zhu, F. Shen, Y. Xu, L. Shao, H. T. Shen, "Highly-economized multi-view binary
    compression for scalable image clustering", ECCV, 2018.

    `bitmosaic.HSIC` with its defaults; docs/math.md lists its deviations. Views are passed unchanged: it scales columns
    itself, reads memory maps in blocks, and accepts rows with missing views.

    After a fit: `codes_`, packed; `objective_`; and `sizes_`, bytes of the codes ("data"), packed centroids, projection
    matrices, and of everything else needed to encode and assign a new image ("encoder": normalization, components,
    anchors, weights).
    """

    n_bits: int = 128
    n_threads: int | None = None
    codes_: np.ndarray = field(init=False, repr=False, compare=False)

    changes: ClassVar[dict[str, Any]] = {}

    def fit_predict(self, views: Any) -> np.ndarray:
        model = self.estimator().set_params(
            n_bits=self.n_bits, n_threads=self.n_threads, random_state=self.random_state
        )
        model.fit(views)
        self.codes_, self.sizes_ = model.codes_, sizes(model)
        # α is the last step of an iteration
        self.objective_ = [float(value) for _, step, value in model.objective_history_ if step == "α"]
        return model.labels_

    def estimator(self) -> bitmosaic.estimators.hsic.HSIC:
        return bitmosaic.estimators.hsic.HSIC(self.n_clusters, **self.changes)


class HSICTS(HSIC):
    """HSIC-TS: two steps. Codes are learned first, then clustered."""

    changes: ClassVar[dict[str, Any]] = {"joint": False}


class HSICF(HSIC):
    """HSIC-F: codes are compared with centroids in the Frobenius norm."""

    changes: ClassVar[dict[str, Any]] = {"norm": "frobenius"}


class HSICU(HSIC):
    """HSIC-U: without the terms for balanced bits of codes and centroids."""

    changes: ClassVar[dict[str, Any]] = {"balance": 0, "variance_reward": 0}


class HSICPaper(HSIC):
    """HSIC with exactly the settings of the paper, instead of our defaults."""

    def estimator(self) -> bitmosaic.estimators.hsic.HSIC:
        return bitmosaic.estimators.hsic.HSIC.paper(self.n_clusters)


def sizes(model: bitmosaic.estimators.hsic.HSIC) -> dict[str, int]:
    """Bytes of a fitted model, by purpose."""
    arrays, _ = model._model.to_arrays()
    centroids = arrays.pop("centers").nbytes
    projection = sum(arrays.pop(name).nbytes for name in list(arrays) if name.endswith(".projection"))
    encoder = sum(array.nbytes for array in arrays.values())
    return {"data": model.codes_.nbytes, "centroids": centroids, "projection": projection, "encoder": encoder}

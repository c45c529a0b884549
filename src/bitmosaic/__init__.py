"""bitmosaic: cluster millions of images on one ordinary machine; every image becomes 16 bytes."""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bitmosaic.estimators import metrics
    from bitmosaic.estimators.binary_kmeans import BinaryKMeans
    from bitmosaic.estimators.constraints import Constraints
    from bitmosaic.estimators.hsic import HSIC
    from bitmosaic.estimators.neighbor_index import NeighborIndex

__version__ = "0.1.0"
__all__ = [
    "HSIC",
    "BinaryKMeans",
    "Constraints",
    "NeighborIndex",
    "__version__",
    "features",
    "metrics",
    "pipeline",
    "views",
]

# Loaded on first use: scikit-learn and Numba take a second, `bitmosaic --help` must not.
_HOME = {
    "HSIC": "bitmosaic.estimators.hsic",
    "BinaryKMeans": "bitmosaic.estimators.binary_kmeans",
    "Constraints": "bitmosaic.estimators.constraints",
    "NeighborIndex": "bitmosaic.estimators.neighbor_index",
}


class _Metrics(ModuleType):
    """`bitmosaic.metrics`, a public name for `bitmosaic.estimators.metrics`, which is loaded on first use."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module("bitmosaic.estimators.metrics"), name)


sys.modules["bitmosaic.metrics"] = _Metrics("bitmosaic.metrics")


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name in ("features", "metrics", "pipeline", "views"):
        return import_module(f"bitmosaic.{name}")
    raise AttributeError(f"module 'bitmosaic' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

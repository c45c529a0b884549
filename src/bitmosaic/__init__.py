"""bitmosaic: cluster millions of images on one ordinary machine; every image becomes 16 bytes."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bitmosaic import curation, features, metrics, pipeline, views
    from bitmosaic.binary_kmeans import BinaryKMeans
    from bitmosaic.constraints import Constraints
    from bitmosaic.hsic import HSIC
    from bitmosaic.neighbor_index import NeighborIndex

__version__ = "0.1.0"
__all__ = [
    "HSIC",
    "BinaryKMeans",
    "Constraints",
    "NeighborIndex",
    "__version__",
    "curation",
    "features",
    "metrics",
    "pipeline",
    "views",
]

# Loaded on first use: scikit-learn and Numba take a second, `bitmosaic --help` must not.
_HOME = {
    "HSIC": "bitmosaic.hsic",
    "BinaryKMeans": "bitmosaic.binary_kmeans",
    "Constraints": "bitmosaic.constraints",
    "NeighborIndex": "bitmosaic.neighbor_index",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name in ("curation", "features", "metrics", "pipeline", "views"):
        return import_module(f"bitmosaic.{name}")
    raise AttributeError(f"module 'bitmosaic' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

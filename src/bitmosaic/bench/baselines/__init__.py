"""The methods that HSIC was compared with in the paper, and two later ones, with one interface.

labels = make("LSC-K", n_clusters=10, random_state=0).fit_predict(views)
"""

from importlib import import_module

from bitmosaic.bench.baselines.base import Baseline
from bitmosaic.errors import ParameterError

SINGLE_VIEW = {
    "k-means": "single_view:KMeans",
    "k-means++": "single_view:KMeansPlusPlus",
    "k-medoids": "single_view:KMedoids",
    "Ak-kmeans": "single_view:ApproximateKernelKMeans",
    "Nyström": "single_view:NystroemSpectral",
    "Nyström-features": "single_view:NystroemFeatures",
    "NMF": "factorization:NMF",
    "LSC-K": "bipartite:LSCK",
}
MULTI_VIEW = {
    "AMGL": "graphs:AMGL",
    "MVKM": "factorization:MVKM",
    "MLAN": "graphs:MLAN",
    "MultiNMF": "factorization:MultiNMF",
    "OMVC": "factorization:OMVC",
    "MVSC": "bipartite:MVSC",
    "LMVSC": "bipartite:LMVSC",
}
BINARY = {
    "ITQ+bk-means": "binary:ITQ",
    "CKM": "binary:CKM",
    "BMVC": "binary:BMVC",
    "HSIC-TS": "hsic:HSICTS",
    "HSIC-F": "hsic:HSICF",
    "HSIC-U": "hsic:HSICU",
    "HSIC": "hsic:HSIC",
    "HSIC.paper": "hsic:HSICPaper",
}
METHODS = SINGLE_VIEW | MULTI_VIEW | BINARY

__all__ = ["BINARY", "METHODS", "MULTI_VIEW", "SINGLE_VIEW", "Baseline", "make", "method_class"]


def method_class(name: str) -> type[Baseline]:
    """The class of a method. Its module is imported on demand."""
    if not isinstance(name, str) or name not in METHODS:
        raise ParameterError(f"Unknown method {name!r}; the methods are {', '.join(METHODS)}.")
    module, _, called = METHODS[name].partition(":")
    return getattr(import_module(f"{__name__}.{module}"), called)


def make(name: str, n_clusters: int, *, random_state: int | None = None, **settings) -> Baseline:
    """Create a method by its name in the paper's tables."""
    return method_class(name)(n_clusters, random_state=random_state, **settings)

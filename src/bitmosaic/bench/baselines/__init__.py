"""The methods that HSIC was compared with in the paper, and two later ones, with one interface.

labels = make("LSC-K", n_clusters=10, random_state=0).fit_predict(views)
"""

from dataclasses import fields
from importlib import import_module

from bitmosaic.bench.baselines.base import Baseline
from bitmosaic.errors import ParameterError

SINGLE_VIEW = {
    "k-means": "kmeans:KMeans",
    "k-means++": "kmeans:KMeansPlusPlus",
    "k-medoids": "kmedoids:KMedoids",
    "Ak-kmeans": "approximate_kernel_kmeans:ApproximateKernelKMeans",
    "Nyström": "nystroem:NystroemSpectral",
    "Nyström-features": "nystroem:NystroemFeatures",
    "NMF": "nmf:NMF",
    "LSC-K": "lsck:LSCK",
}
MULTI_VIEW = {
    "AMGL": "amgl:AMGL",
    "MVKM": "mvkm:MVKM",
    "MLAN": "mlan:MLAN",
    "MultiNMF": "multinmf:MultiNMF",
    "OMVC": "omvc:OMVC",
    "MVSC": "mvsc:MVSC",
    "LMVSC": "lmvsc:LMVSC",
}
BINARY = {
    "ITQ+bk-means": "itq:ITQ",
    "CKM": "binary:CKM",
    "BMVC": "bmvc:BMVC",
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
    chosen = method_class(name)
    known = [field.name for field in fields(chosen) if field.init and field.name not in ("n_clusters", "random_state")]
    if unknown := [setting for setting in settings if setting not in known]:
        raise ParameterError(
            f"Unknown setting {unknown[0]!r} of {name}; its settings are {', '.join(known) or 'none'}."
        )
    return chosen(n_clusters, random_state=random_state, **settings)

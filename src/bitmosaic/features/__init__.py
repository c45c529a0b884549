"""Image batch -> one row of numbers per image: one file per family of features, one registry."""

from bitmosaic.features.registry import Extractor, extract, extractor, extractor_names, register

__all__ = ["Extractor", "extract", "extractor", "extractor_names", "register"]

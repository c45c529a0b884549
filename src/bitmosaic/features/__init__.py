"""Image batch -> one row of numbers per image: one file per family of features, one registry."""

from bitmosaic.features.registry import HAND_MADE, Extractor, extract, extractor, extractor_names, register

__all__ = ["HAND_MADE", "Extractor", "extract", "extractor", "extractor_names", "register"]

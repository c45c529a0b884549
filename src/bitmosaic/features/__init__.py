"""Image features: one module per family, and a registry that maps names to extractors."""

from bitmosaic.features.registry import HAND_MADE, Extractor, extract, extractor, extractor_names, register

__all__ = ["HAND_MADE", "Extractor", "extract", "extractor", "extractor_names", "register"]

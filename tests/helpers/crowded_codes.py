"""Codes similar to learned ones: many are alike."""

import numpy as np


def crowded_codes(n, n_bytes, seed):
    """Codes near three prototypes, within some bits; many are equal."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(256, size=(3, n_bytes), dtype=np.uint8)[rng.integers(3, size=n)]
    flips = rng.random((n, 8 * n_bytes)) < rng.choice([0.0, 0.03, 0.1], size=(n, 1))
    return codes ^ np.packbits(flips, axis=1)

"""Run -> what to throw out, to look at or to label: near-duplicates, outliers, a diverse sample. Nothing is deleted.

On runs: `find_duplicates`, `find_outliers`, `draw_sample`. On arrays: `fingerprint` of a picture, `copy_groups` of
fingerprints, `near_pairs` and `diverse_sample` of codes.
"""

from bitmosaic.copies import copy_groups
from bitmosaic.curation.chosen import Chosen, draw_sample, find_outliers
from bitmosaic.curation.duplicates import Copy, Duplicates, find_duplicates
from bitmosaic.fingerprints import fingerprint
from bitmosaic.near_pairs import near_pairs
from bitmosaic.sampling import coverage, diverse_sample

__all__ = [
    "Chosen",
    "Copy",
    "Duplicates",
    "copy_groups",
    "coverage",
    "diverse_sample",
    "draw_sample",
    "find_duplicates",
    "find_outliers",
    "fingerprint",
    "near_pairs",
]

"""What a worker process is told before its first block."""

import ctypes
import os
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
KEPT, MAPPED = 128 * 2**20, 64 * 2**20


@cache
def settle():
    """Have malloc keep some memory for the next block.

    Dask's nanny has it give everything back at once. The solver's arrays of a megabyte come and go hundreds of times a
    second, and clearing their pages anew each time takes as long as the arithmetic.
    """
    if "MALLOC_TRIM_THRESHOLD_" not in os.environ:
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # not glibc
        return
    mallopt(M_TRIM_THRESHOLD, KEPT)
    mallopt(M_MMAP_THRESHOLD, MAPPED)

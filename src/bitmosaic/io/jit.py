"""Options of all Numba kernels: compiled on first use, cached on disk, without the GIL."""

from numba import njit


def kernel(**options):
    """Numba's njit, cached on disk if Numba finds a writable folder for it."""

    def compiled(function):
        try:
            return njit(cache=True, nogil=True, **options)(function)
        except RuntimeError:
            return njit(nogil=True, **options)(function)

    return compiled

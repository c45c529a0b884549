"""A limit to the size of files, which acts like a full disk."""

import resource
from contextlib import contextmanager


@contextmanager
def largest_file(n_bytes):
    """No file grows beyond this: the system takes the first part of a write, and refuses the next."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

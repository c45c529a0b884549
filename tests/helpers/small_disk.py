"""A limit on the size of files, to simulate a full disk."""

from contextlib import contextmanager

import pytest


@contextmanager
def largest_file(n_bytes):
    """Limit the size of files. The system accepts the first part of a write and refuses the next."""
    resource = pytest.importorskip("resource", reason="needs POSIX limits")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

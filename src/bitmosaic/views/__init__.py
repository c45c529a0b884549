"""Views: named, row-aligned matrices of the same samples, read in chunks from arrays or files."""

from bitmosaic.views.core import Rows, Views, exact_dtype, forget_pages, read_rows
from bitmosaic.views.door import as_views
from bitmosaic.views.folder import read_digests, views_fingerprint
from bitmosaic.views.readers import read_views
from bitmosaic.views.writer import write_views

__all__ = [
    "Rows",
    "Views",
    "as_views",
    "exact_dtype",
    "forget_pages",
    "read_digests",
    "read_rows",
    "read_views",
    "views_fingerprint",
    "write_views",
]

"""Views: named matrices with one row per sample, read in blocks of rows from arrays or files."""

from bitmosaic.views.folder import read_content_hashes, views_signature
from bitmosaic.views.open import as_views, read_views
from bitmosaic.views.views import Rows, SparseRows, Views, exact_dtype, forget_pages, read_rows
from bitmosaic.views.writer import write_views

__all__ = [
    "Rows",
    "SparseRows",
    "Views",
    "as_views",
    "exact_dtype",
    "forget_pages",
    "read_content_hashes",
    "read_rows",
    "read_views",
    "views_signature",
    "write_views",
]

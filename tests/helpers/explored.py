"""A real server over a run folder, and file names with HTML and control characters."""

from contextlib import contextmanager

from bitmosaic.explorer.api import Api
from bitmosaic.explorer.server import served

HOSTILE = '"><script>window.hacked=1<', '"><img src=x onerror=window.hacked=1>.png', "{{title}} ${1} \u202egnp.exe"


@contextmanager
def serving(run, names=()):
    """Serve a run; yields the URL."""
    with served(Api(run), names) as url:
        yield url

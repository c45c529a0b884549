"""A real server over a run folder, and file names that mean harm."""

from contextlib import contextmanager

from bitmosaic.explorer.pages import Pages
from bitmosaic.explorer.server import served

HOSTILE = '"><script>window.hacked=1<', '"><img src=x onerror=window.hacked=1>.png', "{{title}} ${1} \u202egnp.exe"


@contextmanager
def serving(run, names=()):
    """A real server over a run; the address it answers at."""
    with served(Pages(run), names) as url:
        yield url

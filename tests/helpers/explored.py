"""A real server over a run folder, and file names with HTML and control characters."""

import threading
from contextlib import contextmanager

from bitmosaic.explorer.api import Api
from bitmosaic.explorer.server import listen, make_app, server_of

HOSTILE = '"><script>window.hacked=1<', '"><img src=x onerror=window.hacked=1>.png', "{{title}} ${1} \u202egnp.exe"


@contextmanager
def serving(run, names=()):
    """Serve a run on a free port of 127.0.0.1; yields the URL."""
    server = server_of(make_app(Api(run), names))
    with listen("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()

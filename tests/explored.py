"""A real server over a run folder, and file names that mean harm."""

import threading
from contextlib import contextmanager

import uvicorn

from bitmosaic.explorer.pages import Pages
from bitmosaic.explorer.server import listen, make_app

HOSTILE = '"><script>window.hacked=1<', '"><img src=x onerror=window.hacked=1>.png', "{{title}} ${1} \u202egnp.exe"


@contextmanager
def serving(run, names=()):
    """A real server over a run: its pages, and the URL it answers at."""
    pages = Pages(run)
    listener = listen("127.0.0.1", 0)
    config = uvicorn.Config(make_app(pages, names), log_level="warning", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()

"""The explorer: pages over a run folder, for a browser on this machine. Nothing in a URL is a path."""

import errno
import hashlib
import html
import importlib.util
import io
import json
import re
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from bitmosaic.errors import BitmosaicError, BusyFolderError, MissingExtraError, MissingFileError, ParameterError
from bitmosaic.explorer.clusters import Clusters
from bitmosaic.explorer.door import Door
from bitmosaic.explorer.jobs import Job
from bitmosaic.explorer.pages import Pages
from bitmosaic.explorer.patience import PatientProtocol
from bitmosaic.exports.tables import table as table_of
from bitmosaic.run import TABLE_WRITERS

PAGES = {
    "/": "overview",
    "/cluster/{number:int}": "cluster",
    "/picture/{row:int}": "picture",
    "/map": "map",
    "/duplicates": "duplicates",
    "/outliers": "outliers",
}
PAGE_MODULES = {"duplicates": "lists", "outliers": "lists"}  # the others have modules of their own names
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
TABLES = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}
LONGEST_NUMBER = 12  # digits
AT_ONCE, WAITING = 20, 512  # connections that are let in before anybody is asked to make room, and that wait outside
FOREVER, ASK_AGAIN = "private, max-age=31536000, immutable", "no-cache"


class BusyPortError(ParameterError):
    """A port that another program listens on."""


def make_app(pages: Pages, names: tuple[str, ...] = ()) -> Starlette:
    """The application for one run; `names` are host names it may be asked under, besides localhost and addresses."""
    token = secrets.token_urlsafe(32)
    key = hashlib.sha256(repr(pages.run.manifest["arguments"]).encode()).hexdigest()[:12]
    shell = (files("bitmosaic.explorer") / "static" / "shell.html").read_text(encoding="utf-8")
    facts = {"token": token, "key": key, "title": f"{pages.name} · bitmosaic", "name": pages.name}

    def page(kind: str) -> Callable[[Request], Response]:
        module = PAGE_MODULES.get(kind, kind)
        values = {name: html.escape(value) for name, value in (facts | {"page": kind, "module": module}).items()}
        links = (f'<link rel="modulepreload" href="/static/{name}">' for name in _modules(module))
        values["modules"] = "\n  ".join(links)
        text = re.sub(r"{{(\w+)}}", lambda place: values[place[1]], shell)
        return lambda request: Response(text, media_type="text/html", headers={"Cache-Control": "no-store"})

    def part(request: Request, count: int) -> tuple[int, int]:
        return _number(request, "start", 0), _number(request, "count", count)

    answers: dict[str, Callable[[Request], Any]] = {
        "/api/run": lambda r: pages.overview(),
        "/api/clusters": lambda r: pages.all_clusters(),
        "/api/cluster/{number:int}": lambda r: pages.cluster(r.path_params["number"]),
        "/api/cluster/{number:int}/rows": lambda r: pages.cluster_rows(r.path_params["number"], *part(r, 300)),
        "/api/cluster/{number:int}/views": lambda r: pages.cluster_views(r.path_params["number"]),
        "/api/picture/{row:int}": lambda r: pages.picture(r.path_params["row"]),
        "/api/picture/{row:int}/neighbours": lambda r: pages.neighbours(r.path_params["row"], part(r, 24)[1]),
        "/api/search": lambda r: pages.search(r.query_params.get("q", "")),
        "/api/outliers": lambda r: pages.outliers(*part(r, 200)),
        "/api/map": lambda r: _when_ready(pages.places, pages.map),
        "/api/duplicates": lambda r: _when_ready(pages.duplicate_groups, lambda: pages.duplicates(*part(r, 50))),
    }

    async def edit(request: Request) -> Response:
        body = await request.body()
        return await run_in_threadpool(_answer, lambda: pages.edit(*_edit_and_version(body)))

    def table(request: Request) -> Response:
        kind = request.path_params["kind"]
        if kind not in TABLES:
            return JSONResponse({"error": "Tables are exported as csv or parquet."}, 404)
        name = {"Content-Disposition": f'attachment; filename="clusters.{kind}"'}
        return _answer(lambda: Response(_table_bytes(pages.clusters, kind), media_type=TABLES[kind], headers=name))

    async def thumbnail(request: Request) -> Response:
        row, content = request.path_params["row"], None
        if row < len(pages.pictures):
            content = pages.thumbnails.made(row)  # in less time than it takes to wake a thread
            content = content or await run_in_threadpool(pages.thumbnails.get, row)
        return _jpeg(content, row)

    def image(request: Request) -> Response:
        row = request.path_params["row"]
        return _jpeg(pages.thumbnails.large(row) if row < len(pages.pictures) else None, row)

    routes = [Route(path, page(name)) for path, name in PAGES.items()]
    routes += [Route(path, lambda r, answer=answer: _answer(lambda: answer(r))) for path, answer in answers.items()]
    routes += [
        Route("/api/edits", edit, methods=["POST"]),
        Route("/export/clusters.{kind:str}", table),
        Route("/thumb/{row:int}", thumbnail),
        Route("/image/{row:int}", image),
        Route("/static/{name:str}", _static),
    ]
    handlers = {404: _not_found, 405: _not_asked_so}
    return Starlette(
        routes=routes, middleware=[Middleware(Door, token=token, names=names)], exception_handlers=handlers
    )


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # or every answer waits 40 ms
        return listener
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise BusyPortError(f"The explorer needs a free port; {port} is taken. Try --port 0.") from error
        raise ParameterError(
            f"The explorer listens on an address of this machine; {host}:{port} cannot be had ({error.strerror})."
        ) from error


def serve(app: Starlette, listener: socket.socket) -> None:
    """Answer until interrupted."""
    _server(app).run(sockets=[listener])


@contextmanager
def served(pages: Pages, names: tuple[str, ...] = ()) -> Iterator[str]:
    """Answer on a free port of this machine meanwhile; gives the address."""
    server = _server(make_app(pages, names))
    with listen("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def _server(app: Starlette) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        http=PatientProtocol,
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=AT_ONCE,
    )
    return _Server(config)


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As many may wait at the door as like to, although few are let in at once."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(WAITING)


# ---- requests


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name) or str(default)
    if not text.isdecimal() or len(text) > LONGEST_NUMBER:
        raise ParameterError(f"{name} is a whole number of at most {LONGEST_NUMBER} digits; got {text!r:.40}.")
    return int(text)


def _edit_and_version(body: bytes) -> tuple[Any, int]:
    try:
        match json.loads(body):
            case {"edit": dict(edit), "version": version} if type(version) is int:
                return edit, version
    except (ValueError, RecursionError):
        pass
    raise ParameterError("An edit comes as JSON with 'edit' and the 'version' that was seen.")


# ---- responses


def _table_bytes(clusters: Clusters, kind: str) -> bytes:
    file = io.BytesIO()
    TABLE_WRITERS[kind](file, table_of(clusters))
    return file.getvalue()


def _when_ready(job: Job, answer: Callable[[], Any]) -> Any:
    if job.ready():
        return answer()
    stage, done, total = job.stage
    return JSONResponse({"stage": stage, "done": done, "total": total}, 202)


def _answer(work: Callable[[], Any]) -> Response:
    try:
        answer = work()
    except MissingFileError as error:
        return JSONResponse({"error": str(error)}, 404)
    except BusyFolderError as error:  # a stale edit, too
        return JSONResponse({"error": str(error)}, 409)
    except BitmosaicError as error:
        return JSONResponse({"error": str(error)}, 400)
    if isinstance(answer, Response):
        return answer
    return JSONResponse(answer, headers={"Cache-Control": "no-store"})


def _jpeg(content: bytes | None, row: int) -> Response:
    if content is None:
        return JSONResponse({"error": f"There is no picture {row}, or it cannot be read any more."}, 404)
    return Response(content, media_type="image/jpeg", headers={"Cache-Control": FOREVER})


def _static(request: Request) -> Response:
    content, kind, tag = _files().get(request.path_params["name"], (b"", "", ""))
    if not tag:
        return _not_found(request, None)
    headers = {"Cache-Control": ASK_AGAIN, "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=kind, headers=headers)


@cache
def _files() -> dict[str, tuple[bytes, str, str]]:
    """Everything that is served as a file: content, type and tag by name, read once."""
    paths = {file.name: file for file in (files("bitmosaic.explorer") / "static").iterdir()}
    contents = {name: file.read_bytes() for name, file in paths.items() if Path(name).suffix in TYPES}
    contents["plotly.js"] = _plotly().read_bytes()
    tags = {name: f'"{hashlib.sha256(content).hexdigest()[:16]}"' for name, content in contents.items()}
    return {name: (content, TYPES[Path(name).suffix], tags[name]) for name, content in contents.items()}


def _modules(page: str) -> list[str]:
    """Every module that a page imports, so that a browser need not find them one by one."""
    found: list[str] = []
    waiting = ["main.js", f"{page}.js"]
    while waiting:
        name = waiting.pop(0)
        if name not in found:
            found.append(name)
            waiting += re.findall(r'^import .*"\./(\w+\.js)";$', _files()[name][0].decode(), re.MULTILINE)
    return found


def _plotly() -> Path:
    """Plotly's script in the installed package, which itself need not be imported."""
    package = importlib.util.find_spec("plotly")
    if package is None or package.origin is None:
        raise MissingExtraError("the explorer needs plotly: pip install 'bitmosaic[web]'")
    return Path(package.origin).parent / "package_data" / "plotly.min.js"


def _not_found(request: Request, error: Any) -> Response:
    return JSONResponse({"error": "There is nothing here."}, 404)


def _not_asked_so(request: Request, error: Any) -> Response:
    allowed = error.headers["Allow"]
    return JSONResponse({"error": f"This is asked for with {allowed}."}, 405, {"Allow": allowed})

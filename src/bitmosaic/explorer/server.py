"""The explorer's web server for one run folder: pages, routes, request checks and security headers.

Images have numbers in URLs; no URL contains a file path. A page of another site can make the browser send requests to
this machine. A request is refused if its Host header is unknown (DNS rebinding) or if Sec-Fetch-Site names another
site. Edits also need the token of the explorer's pages.
"""

import errno
import hashlib
import html
import importlib.util
import io
import ipaddress
import json
import logging
import re
import secrets
import socket
from collections.abc import Callable, Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bitmosaic.errors import (
    BitmosaicError,
    BusyFolderError,
    BusyPortError,
    MissingExtraError,
    MissingFileError,
    ParameterError,
)
from bitmosaic.explorer.api import Api, Job
from bitmosaic.pipeline.export.formats import table as table_of
from bitmosaic.run.clusters import Clusters
from bitmosaic.run.tables import TABLE_WRITERS

PAGES = {
    "/": "overview",
    "/cluster/{number:int}": "cluster",
    "/image/{row:int}": "image",
    "/map": "map",
    "/duplicates": "duplicates",
    "/outliers": "outliers",
}
PAGE_MODULES = {"duplicates": "lists", "outliers": "lists"}  # other pages: the module has the name of the page
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
TABLES = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}
MAX_DIGITS = 12  # of a number in a query
MAX_CONNECTIONS = 500  # further ones are answered with 503
KEEP_ALIVE, SHUTDOWN = 20, 1  # seconds: idle connections, and running requests when the server stops
MAX_HEAD_BYTES = 16_384  # request line and headers
FOREVER, REVALIDATE = "private, max-age=31536000, immutable", "no-cache"


def make_app(api: Api, names: tuple[str, ...] = ()) -> Starlette:
    """The web application for one run. `names`: accepted host names besides localhost and IP addresses."""
    token = secrets.token_urlsafe(32)
    key = hashlib.sha256(repr(api.run.manifest.arguments).encode()).hexdigest()[:12]
    shell = (files("bitmosaic.explorer") / "static" / "shell.html").read_text(encoding="utf-8")
    facts = {"token": token, "key": key, "title": f"{api.name} · bitmosaic", "name": api.name}

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
        "/api/run": lambda r: api.overview(),
        "/api/clusters": lambda r: api.all_clusters(),
        "/api/cluster/{number:int}": lambda r: api.cluster(r.path_params["number"]),
        "/api/cluster/{number:int}/rows": lambda r: api.cluster_rows(r.path_params["number"], *part(r, 300)),
        "/api/cluster/{number:int}/views": lambda r: api.cluster_views(r.path_params["number"]),
        "/api/image/{row:int}": lambda r: api.image(r.path_params["row"]),
        "/api/image/{row:int}/neighbors": lambda r: api.neighbors(r.path_params["row"], part(r, 24)[1]),
        "/api/search": lambda r: api.search(r.query_params.get("q", "")),
        "/api/outliers": lambda r: api.outliers(*part(r, 200)),
        "/api/map": lambda r: _when_ready(api.map_job, api.map),
        "/api/duplicates": lambda r: _when_ready(api.duplicates_job, lambda: api.duplicates(*part(r, 50))),
    }

    async def edit(request: Request) -> Response:
        body = await request.body()
        return await run_in_threadpool(_answer, lambda: api.edit(*_edit_and_version(body)))

    def table(request: Request) -> Response:
        kind = request.path_params["kind"]
        if kind not in TABLES:
            return JSONResponse({"error": f"Unknown table format {kind!r:.40}. Use csv or parquet."}, 404)
        name = {"Content-Disposition": f'attachment; filename="clusters.{kind}"'}
        return _answer(lambda: Response(_table_bytes(api.clusters, f".{kind}"), media_type=TABLES[kind], headers=name))

    async def thumbnail(request: Request) -> Response:
        row, content = request.path_params["row"], None
        if row < len(api.images):
            content = api.thumbnails.made(row)  # faster than starting a thread
            content = content or await run_in_threadpool(api.thumbnails.get, row)
        return _jpeg(content, row)

    def large_image(request: Request) -> Response:
        row = request.path_params["row"]
        return _jpeg(api.thumbnails.large(row) if row < len(api.images) else None, row)

    routes = [Route(path, page(name)) for path, name in PAGES.items()]
    routes += [Route(path, lambda r, answer=answer: _answer(lambda: answer(r))) for path, answer in answers.items()]
    routes += [
        Route("/api/edits", edit, methods=["POST"]),
        Route("/export/clusters.{kind:str}", table),
        Route("/thumb/{row:int}", thumbnail),
        Route("/large/{row:int}", large_image),
        Route("/static/{name:str}", _static),
    ]
    handlers = {404: _not_found, 405: _wrong_method}
    return Starlette(
        routes=routes, middleware=[Middleware(RequestGuard, token=token, names=names)], exception_handlers=handlers
    )


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Port 0 selects a free port."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # otherwise each response is delayed by 40 ms
        return listener
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise BusyPortError(
                f"Port {port} is used by another program. Choose another one, or --port 0 for a free one."
            ) from error
        reason = str(error.strerror).partition(" (")[0]  # Python appends the address in parentheses
        raise ParameterError(
            f"Cannot listen on {host}:{port} ({reason}). --host must be an address of this machine."
        ) from error


def serve(app: Starlette, listener: socket.socket) -> None:
    """Serve until interrupted."""
    server_of(app).run(sockets=[listener])


def server_of(app: Starlette) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=SHUTDOWN,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
    )
    return uvicorn.Server(config)


# ---- requests


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name) or str(default)
    if not text.isdecimal() or len(text) > MAX_DIGITS:
        raise ParameterError(f"{name} must be a whole number of at most {MAX_DIGITS} digits, got {text!r:.40}.")
    return int(text)


def _edit_and_version(body: bytes) -> tuple[Any, int]:
    try:
        match json.loads(body):
            case {"edit": dict(edit), "version": version} if type(version) is int:
                return edit, version
    except (ValueError, RecursionError):
        pass
    raise ParameterError("An edit must be a JSON object with the keys 'edit' (object) and 'version' (integer).")


# ---- responses


def _table_bytes(clusters: Clusters, suffix: str) -> bytes:
    file = io.BytesIO()
    TABLE_WRITERS[suffix](file, table_of(clusters))
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
    except BusyFolderError as error:  # includes stale edits
        return JSONResponse({"error": str(error)}, 409)
    except BitmosaicError as error:
        return JSONResponse({"error": str(error)}, 400)
    if isinstance(answer, Response):
        return answer
    return JSONResponse(answer, headers={"Cache-Control": "no-store"})


def _jpeg(content: bytes | None, row: int) -> Response:
    if content is None:
        return JSONResponse({"error": f"Image {row} does not exist or cannot be read."}, 404)
    return Response(content, media_type="image/jpeg", headers={"Cache-Control": FOREVER})


def _static(request: Request) -> Response:
    content, kind, tag = _files().get(request.path_params["name"], (b"", "", ""))
    if not tag:
        return _not_found(request, None)
    headers = {"Cache-Control": REVALIDATE, "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=kind, headers=headers)


@cache
def _files() -> dict[str, tuple[bytes, str, str]]:
    """Static files by name: content, media type and ETag. Read once."""
    paths = {file.name: file for file in (files("bitmosaic.explorer") / "static").iterdir()}
    contents = {name: file.read_bytes() for name, file in paths.items() if Path(name).suffix in TYPES}
    contents["plotly.js"] = _plotly().read_bytes()
    tags = {name: f'"{hashlib.sha256(content).hexdigest()[:16]}"' for name, content in contents.items()}
    return {name: (content, TYPES[Path(name).suffix], tags[name]) for name, content in contents.items()}


def _modules(page: str) -> list[str]:
    """Names of all modules that a page imports, for preloading."""
    found: list[str] = []
    waiting = ["main.js", f"{page}.js"]
    while waiting:
        name = waiting.pop(0)
        if name not in found:
            found.append(name)
            waiting += re.findall(r'^import .*"\./(\w+\.js)";$', _files()[name][0].decode(), re.MULTILINE)
    return found


def _plotly() -> Path:
    """Path of Plotly's script in the installed package. Importing plotly would take a second."""
    package = importlib.util.find_spec("plotly")
    if package is None or package.origin is None:
        raise MissingExtraError("The explorer needs plotly: pip install 'bitmosaic[web]'")
    return Path(package.origin).parent / "package_data" / "plotly.min.js"


def _not_found(request: Request, error: Any) -> Response:
    return JSONResponse({"error": "No such page."}, 404)


def _wrong_method(request: Request, error: Any) -> Response:
    allowed = error.headers["Allow"]
    return JSONResponse({"error": f"Wrong method {request.method}. Use {allowed}."}, 405, {"Allow": allowed})


# ---- request checks and security headers

MAX_EDIT_BYTES = 16 * 2**20
MAX_PATH_LENGTH = 100
HOST = re.compile(r"(\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<name>[\w.-]+))(:[0-9]{1,5})?")
OWN_PAGES = ("same-origin", "none")  # Sec-Fetch-Site of our pages, or of an address typed by the user
POLICY = (
    "default-src 'none'; script-src 'self'{eval}; style-src 'self'{inline}; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
STRICT_POLICY = POLICY.format(eval="", inline="")
PLOTLY_POLICY = POLICY.format(eval=" 'unsafe-eval'", inline=" 'unsafe-inline'")  # its WebGL compiles functions
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class RequestGuard:
    """ASGI middleware: refuses unknown hosts and edits without the token, adds security headers."""

    def __init__(self, app: ASGIApp, token: str, names: Iterable[str]):
        self.app, self.token = app, token
        self.names = {"localhost", *(name.lower() for name in names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers["Content-Security-Policy"] = PLOTLY_POLICY if scope["path"] == "/map" else STRICT_POLICY
            await send(message)

        refusal = self._refusal(scope["method"], scope["path"], Headers(scope=scope))
        try:
            await (refusal or self.app)(scope, receive, with_headers)
        except ClientDisconnect:
            return  # the edit was not sent completely, so nothing is edited
        except Exception as error:  # answered here, so that this response has the headers too
            logging.getLogger("uvicorn.error").exception("A request failed.")
            sentence = f"The explorer failed with {type(error).__name__}. See the terminal for details."
            await _refused(500, sentence)(scope, receive, with_headers)

    def _refusal(self, method: str, path: str, headers: Headers) -> JSONResponse | None:
        host = headers.get("host", "")
        if not self._is_ours(host):
            return _refused(
                421, f"Unknown host {host!r:.80}. Use localhost, an IP address or the name given as --host."
            )
        if len(path) > MAX_PATH_LENGTH:
            return _refused(404, "No such page.")
        if headers.get("sec-fetch-site", "none").lower() not in OWN_PAGES and not _opens_a_page(method, headers):
            return _refused(403, "This request came from a page of another site. Open the explorer's own page instead.")
        if method in ("GET", "HEAD"):
            return None
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            return _refused(403, "This edit came from a page of another site. Edit on the explorer's own page instead.")
        if not secrets.compare_digest(headers.get("x-bitmosaic-token", "").encode(), self.token.encode()):
            return _refused(403, "This edit has no valid token: the explorer was restarted. Reload the page.")
        if headers.get("content-type", "").partition(";")[0] != "application/json":
            return _refused(415, "Content-Type of an edit must be application/json.")
        size = headers.get("content-length", "")
        if "transfer-encoding" in headers or not size.isdecimal() or int(size) > MAX_EDIT_BYTES:
            return _refused(413, f"An edit needs a Content-Length of at most {MAX_EDIT_BYTES:,} bytes.")
        return None

    def _is_ours(self, host: str) -> bool:
        """Whether this is an IP address (useless for DNS rebinding) or a known name. A tunnel may change the port."""
        found = HOST.fullmatch(host)
        if found is None:
            return False
        try:
            ipaddress.ip_address(found["six"] or found["name"])
        except ValueError:
            return found["name"] is not None and found["name"].lower() in self.names
        return True


def _opens_a_page(method: str, headers: Headers) -> bool:
    """Whether the user followed a link from another site."""
    return (
        method == "GET" and headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    )


def _refused(status: int, sentence: str) -> JSONResponse:
    return JSONResponse({"error": sentence}, status)

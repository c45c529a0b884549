"""Request checks and security headers of the explorer.

A page of another site can make the browser send requests to this machine. A request is refused if its Host header is
unknown (DNS rebinding) or if Sec-Fetch-Site names another site. Edits also need the token of the explorer's pages.
"""

import ipaddress
import logging
import re
import secrets
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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

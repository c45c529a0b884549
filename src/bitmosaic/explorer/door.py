"""Who may ask the explorer, and what its pages may do: the checks around every request.

A page of another site may make a browser send requests to this machine. It cannot read the answers; it is refused if it
reached the server under a name of its own (Host) or if the browser says that it is another site's (Sec-Fetch-Site), and
it cannot edit, because it does not know the token of our pages.
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

LARGEST_EDIT = 16 * 2**20  # bytes
LONGEST_PATH = 100
HOST = re.compile(r"(\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<name>[\w.-]+))(:[0-9]{1,5})?")
OWN_PAGES = ("same-origin", "none")  # what browsers say of requests by our pages, or by the person at the keyboard
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


class Door:
    """Middleware: refuses requests under foreign names and edits without the token, adds the security headers."""

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
            return  # in the midst of an edit, which was not made
        except Exception as error:  # told here, so that this answer has its headers, too
            logging.getLogger("uvicorn.error").exception("A request could not be answered.")
            sentence = f"The explorer could not answer: {type(error).__name__}. The terminal tells more."
            await _refused(500, sentence)(scope, receive, with_headers)

    def _refusal(self, method: str, path: str, headers: Headers) -> JSONResponse | None:
        host = headers.get("host", "")
        if not self._is_ours(host):
            return _refused(421, f"This server answers as localhost, by number or as its --host, not as {host!r:.80}.")
        if len(path) > LONGEST_PATH:
            return _refused(404, "There is nothing here.")
        if headers.get("sec-fetch-site", "none").lower() not in OWN_PAGES and not _opens_a_page(method, headers):
            return _refused(403, "The explorer answers to its own pages; this was asked by one of another site.")
        if method in ("GET", "HEAD"):
            return None
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            return _refused(403, "Edits come from the explorer's own pages; this one came from another site.")
        if not secrets.compare_digest(headers.get("x-bitmosaic-token", "").encode(), self.token.encode()):
            return _refused(403, "Edits need the token of the page. Load the page again.")
        if headers.get("content-type", "").partition(";")[0] != "application/json":
            return _refused(415, "Edits are sent as application/json.")
        size = headers.get("content-length", "")
        if "transfer-encoding" in headers or not size.isdecimal() or int(size) > LARGEST_EDIT:
            return _refused(413, f"An edit is at most {LARGEST_EDIT:,} bytes, and says how many.")
        return None

    def _is_ours(self, host: str) -> bool:
        """A number, which no foreign site can point elsewhere, or a name of ours. The port may be a tunnel's."""
        found = HOST.fullmatch(host)
        if found is None:
            return False
        try:
            ipaddress.ip_address(found["six"] or found["name"])
        except ValueError:
            return found["name"] is not None and found["name"].lower() in self.names
        return True


def _opens_a_page(method: str, headers: Headers) -> bool:
    """Whether a person has followed a link from elsewhere."""
    return (
        method == "GET" and headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    )


def _refused(status: int, sentence: str) -> JSONResponse:
    return JSONResponse({"error": sentence}, status)

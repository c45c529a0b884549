"""Requests of an attacker as raw bytes, and the check of the answers."""

import json
import re
import socket
from dataclasses import dataclass
from itertools import product

SECRET = "the-secret-beside-the-run"  # the content of a file that no answer may hold
OUTSIDE = (
    "../secret.txt",
    "..%2fsecret.txt",
    "%2e%2e/%2e%2e/secret.txt",
    "..%5csecret.txt",
    "%252e%252e%252fsecret.txt",
    *("/etc/passwd", "%2fetc%2fpasswd", "../" * 12 + "etc/passwd", "..%2f" * 12 + "etc%2fpasswd"),
    *("..%5c" * 12 + "etc%5cpasswd", "file:%2f%2f%2fetc%2fpasswd", "....%2f%2f" * 12 + "etc%2fpasswd"),
)
NONE_OF_THEIRS = (b"Traceback", b'File "', b"site-packages", SECRET.encode(), b"root:x:0:0")
ODD = ("", ".", "..", "%00", "main.js%00", "%ff%fe", "%e2%80%ae", "%0d%0aX:%20y", "{{token}}", "<script>", "a" * 5000)
NUMBERS = ("-1", "007", "1.5", "NaN", "1e3", "+1", "0x10", "%d9%a3", *(str(n) for n in (2**31, 2**63, 2**64, 10**400)))
QUERIES = ("start", "count", "q", "page", "size", "path")
FOREIGN_HOSTS = (
    *("evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example", "127.0.0.1@evil.example"),
    *("[::1]evil", "[::1", "localhost:evil", "localhost:80:80", "local host", "", "127.1", "0x7f000001", "a" * 3000),
)
OTHER_SITES = (
    *("Origin: http://evil.example", "Origin: null", "Origin: http://localhost:1", "Origin: https://127.0.0.1"),
    *("Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site", "Sec-Fetch-Site: CROSS-SITE"),
)
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "get", "G" * 300)
EDIT = {"do": "name", "cluster": 0, "name": "x"}


@dataclass(frozen=True)
class Attack:
    """`refused`: the server must refuse it. `unanswered`: it may also close the connection."""

    raw: bytes
    refused: bool = False
    unanswered: bool = False


@dataclass(frozen=True)
class Target:
    """A server, with everything an attacker could know of it."""

    port: int
    token: str
    routes: tuple  # of the application, so that new ones are included

    def request(self, method, path, *headers, body=None, host=None):
        lines = [f"{method} {path} HTTP/1.1", f"Host: {f'127.0.0.1:{self.port}' if host is None else host}", *headers]
        lines += ["Connection: close"] + ([] if body is None else [f"Content-Length: {len(body)}"])
        return "\r\n".join([*lines, "", ""]).encode() + (body or b"")

    def edit(self, *headers, body=None, token=None, kind="application/json", host=None):
        """A valid edit, except for the given arguments."""
        headers = (f"X-Bitmosaic-Token: {self.token if token is None else token}", f"Content-Type: {kind}", *headers)
        body = json.dumps({"edit": EDIT, "version": 0}).encode() if body is None else body
        return self.request("POST", "/api/edits", *headers, body=body, host=host)

    def ask(self, raw, patience=20):
        """Everything the server sends until it closes the connection."""
        answer = b""
        with socket.create_connection(("127.0.0.1", self.port), timeout=patience) as connection:
            try:
                connection.sendall(raw)
                while piece := connection.recv(1 << 16):
                    answer += piece
            except (ConnectionError, TimeoutError) as error:
                answer += b"" if isinstance(error, ConnectionError) else b"\n(timeout: the connection stays open)"
        return answer


def known_attacks(target):
    """Common attacks on every route."""
    paths = [(method, _filled(route.path, ["0"])) for route in target.routes for method in sorted(route.methods)]
    for (method, path), host in product(paths, FOREIGN_HOSTS):
        yield Attack(target.request(method, path, host=host), refused=True)
    for (_, path), method in product(paths, METHODS[2:]):  # without a token
        yield Attack(target.request(method, path), refused=True)
        yield Attack(target.request(method, path, "Content-Type: application/json", body=b"{}"), refused=True)
    for (method, path), site in product(paths, OTHER_SITES[4:]):
        yield Attack(target.request(method, path, site), refused=True)
    for route, value in product(target.routes, OUTSIDE + ODD + NUMBERS):
        yield Attack(
            target.request("GET", _filled(route.path, [value])), refused=value in OUTSIDE and "{" in route.path
        )
        for name in QUERIES:
            yield Attack(target.request("GET", f"{_filled(route.path, ['0'])}?{name}={value}"))


def edits_of_others(target):
    """Edits as other sites or programs without the token would send them."""
    for site in OTHER_SITES:
        yield Attack(target.edit(site), refused=True)
        yield Attack(target.edit(site, "Referer: http://evil.example/", token=""), refused=True)
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "json"):
        yield Attack(target.edit(kind=kind), refused=True)
    for token in ("", "wrong", target.token[:-1], target.token + "x", "\x80", "0" * 5000):
        yield Attack(target.edit(token=token), refused=True)
    for host in FOREIGN_HOSTS:
        yield Attack(target.edit(host=host), refused=True)
    for depth in (10, *range(900, 1000), 100_000):
        for name in ("edit", "version", "name"):
            nested = b"[" * depth + b"]" * depth
            body = b'{"edit": {"do": "name", "cluster": 0, "name": %s}, "version": 0}' % nested
            if name != "name":
                body = json.dumps({"edit": {}, "version": 0, name: 1}).encode().replace(b"1", nested)
            yield Attack(target.edit(body=body), refused=True)


def fault_of(attack, answer):
    """The fault of an answer, or None."""
    statuses = [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)]
    head, _, body = answer.partition(b"\r\n\r\n")
    if not statuses:
        return None if attack.unanswered and not answer else f"no answer {answer[:80]!r}"
    if max(statuses) >= 500:
        return f"status {max(statuses)}"
    if any(sign in answer for sign in NONE_OF_THEIRS):
        return "an answer that contains private data"
    if b"(timeout: the connection stays open)" in answer:
        return "a connection left open"
    if attack.refused and min(statuses) < 400:
        return f"accepted with status {min(statuses)}"
    if statuses == [200] and b"application/json" in head and body:
        json.loads(body, parse_constant=lambda name: 1 / 0)
    bodyless = attack.raw.startswith(b"HEAD") or len(statuses) > 1
    if statuses[0] >= 400 and not bodyless and not _is_sentence(body):
        return f"status {statuses[0]} without a sentence: {body[:80]!r}"
    return None


def _is_sentence(body):
    if b"Invalid HTTP request received." in body:  # by the layer below
        return True
    text = json.loads(body)["error"]
    return text.endswith(".") and len(text) < 300 and "\n" not in text


def _filled(path, values):
    values = iter(values)
    return re.sub(r"{\w+(:\w+)?}", lambda place: next(values), path)

"""Requests that mean harm, as the bytes that are sent, and what may come back."""

import json
import re
import socket
from dataclasses import dataclass
from itertools import product

from hypothesis import strategies as st

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
    """`refused`: whatever the server thinks of it, it must not do it. `unanswered`: hanging up is an answer, too."""

    raw: bytes
    refused: bool = False
    unanswered: bool = False


@dataclass(frozen=True)
class Target:
    """A server, and what an attacker knows of it at best."""

    port: int
    token: str
    routes: tuple  # of the application itself, so that a new one is attacked as well

    def request(self, method, path, *headers, body=None, host=None):
        lines = [f"{method} {path} HTTP/1.1", f"Host: {f'127.0.0.1:{self.port}' if host is None else host}", *headers]
        lines += ["Connection: close"] + ([] if body is None else [f"Content-Length: {len(body)}"])
        return "\r\n".join([*lines, "", ""]).encode() + (body or b"")

    def edit(self, *headers, body=None, token=None, kind="application/json", host=None):
        """A right edit, but for what is said."""
        headers = (f"X-Bitmosaic-Token: {self.token if token is None else token}", f"Content-Type: {kind}", *headers)
        body = json.dumps({"edit": EDIT, "version": 0}).encode() if body is None else body
        return self.request("POST", "/api/edits", *headers, body=body, host=host)

    def ask(self, raw, patience=20):
        """All that comes back until the server hangs up."""
        answer = b""
        with socket.create_connection(("127.0.0.1", self.port), timeout=patience) as connection:
            try:
                connection.sendall(raw)
                while piece := connection.recv(1 << 16):
                    answer += piece
            except (ConnectionError, TimeoutError) as error:
                answer += b"" if isinstance(error, ConnectionError) else b"\n(the server neither goes on nor hangs up)"
        return answer


def known_attacks(target):
    """What everybody tries, on every route."""
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
    """Edits as other sites, and people without our pages, would send them."""
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


def odd_shapes(target):
    """What is no HTTP, or so odd that two readers may take it for different things."""
    get, host, post = b"GET / HTTP/1.1\r\n", b"Host: localhost\r\n", target.edit()
    close, chunked = b"Connection: close\r\n", b"Transfer-Encoding: chunked\r\n"
    head, _, body = post.partition(b"\r\n\r\n")
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    sized = b"Content-Length: %d" % len(body)
    yield from (
        Attack(raw, refused=True, unanswered=True)
        for raw in (
            *(b"GET /\r\n\r\n", b"GET / HTTP/0.9\r\n\r\n", b"GET / HTTP/x\r\n" + host + b"\r\n", b"\r\n" * 5000),
            *(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), b"\x00" * 20_000, b"A" * 200_000),
            *(get + b"\r\n", get + close + b"\r\n", get + host + host + close + b"\r\n", get + b" " + host + b"\r\n"),
            *(get + host + b"X: " + b"a" * 1_000_000, get + host + b"X: y\r\n" * 100_000 + b"\r\n"),
            *(get + host + b"X y\r\n\r\n", get + host + b"X\x00: y\r\n\r\n", get + host + b"X : y\r\n\r\n"),
            *(b"GET /\xff HTTP/1.1\r\n" + host + b"\r\n", b"GET / / HTTP/1.1\r\n" + host + b"\r\n"),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        )
    )
    yield from (
        Attack(raw, refused=True)
        for raw in (
            head + b"\r\n" + chunked + b"\r\n" + chunks,  # both a length and chunks
            head.replace(sized, b"Transfer-Encoding: chunked") + b"\r\n\r\n" + chunks,
            head.replace(sized, b"Transfer-Encoding: gzip, chunked") + b"\r\n\r\n" + chunks,
            head.replace(sized, b"Transfer-Encoding : chunked") + b"\r\n\r\n" + chunks,
            head.replace(sized, sized + b"\r\nContent-Length: 1") + b"\r\n\r\n" + body,
            head.replace(sized, b"Content-Length: 9") + b"\r\n\r\n" + body,  # the rest is no request
            *(
                head.replace(sized, b"Content-Length: " + n) + b"\r\n\r\n" + body
                for n in (b"-1", b"1e2", b"0x10", b"+5")
            ),
            *(head.replace(sized, b"Content-Length: %d" % n) + b"\r\n\r\n" for n in (2**24 + 1, 2**63, 10**400)),
            b"GET http://evil.example/ HTTP/1.1\r\n" + host + close + b"\r\n",
            b"CONNECT evil.example:80 HTTP/1.1\r\n" + host + close + b"\r\n",
            b"OPTIONS * HTTP/1.1\r\n" + host + close + b"\r\n",
            b"GET / HTTP/1.0\r\n\r\n",
        )
    )
    # Refused at once, and then comes what is no chunk, or chunks without end.
    refused = b"POST /api/edits HTTP/1.1\r\n" + host + chunked + b"\r\n"
    yield Attack(refused + b"5\r\nhello\r\nzzz\r\n" * 50, refused=True, unanswered=True)
    yield Attack(refused + b"ffff\r\n" + b"x" * 3_000_000, refused=True, unanswered=True)
    yield Attack(get + host + b"Upgrade: websocket\r\n" + b"Connection: Upgrade, close\r\n\r\n")
    yield Attack(get + host + b"Expect: 100-continue\r\n" + close + b"\r\n")
    yield Attack(get + host + close + sized + b"\r\n\r\n" + body)
    yield Attack((get + host + b"\r\n") * 50 + get + host + close + b"\r\n")  # pipelined
    yield Attack(get + host + b"\r\n" + b"GARBAGE\r\n\r\n", unanswered=True)


def drawn_attacks(target):
    """A strategy of attacks: any route, any method, rubbish for every parameter, field and header."""
    rubbish = st.binary(max_size=40).map(lambda raw: "".join(f"%{byte:02x}" for byte in raw))
    value = st.one_of(st.sampled_from(OUTSIDE + ODD + NUMBERS), st.integers().map(str), st.integers(0, 400).map(str))
    value |= st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=120) | rubbish
    query = st.lists(st.tuples(st.sampled_from(QUERIES), value), max_size=4)
    header = st.tuples(
        st.sampled_from(["Origin", "Referer", "Range", "If-None-Match", "Cookie", "X-Forwarded-For"]), value
    )

    def ask(route, values, query, method, headers):
        path = _filled(route.path, values) + ("?" + "&".join(map("=".join, query)) if query else "")
        return Attack(target.request(method, path, *map(": ".join, headers)), refused=method not in METHODS[:2])

    values, headers = st.lists(value, min_size=3, max_size=3), st.lists(header, max_size=3)
    methods = st.sampled_from(METHODS[:1] * 12 + METHODS)
    asked = st.builds(ask, st.sampled_from(target.routes), values, query, methods, headers)
    return asked | _json().map(lambda body: Attack(target.edit(body=json.dumps(body).encode())))


def _json():
    """Edits with something else where a number, a list or a name should be."""
    number = st.integers(-2, 400) | st.integers() | st.sampled_from([2**31, 2**63, 10**400, -(10**400)]) | st.floats()
    leaf = st.none() | st.booleans() | number | st.text(max_size=150)
    thing = st.recursive(leaf, lambda t: st.lists(t, max_size=4) | st.dictionaries(st.text(max_size=5), t, max_size=3))
    fields = dict.fromkeys(("cluster", "name", "clusters", "into", "rows", "to"), thing)
    some = st.sampled_from(["name", "merge", "move", "undo", "x"]) | thing
    edit = st.fixed_dictionaries({"do": some}, optional=fields) | thing
    return st.fixed_dictionaries({"edit": edit, "version": st.integers(0, 3) | thing}) | thing


def fault_of(attack, answer):
    """What is wrong with an answer, in words; None if nothing is."""
    statuses = [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)]
    head, _, body = answer.partition(b"\r\n\r\n")
    if not statuses:
        return None if attack.unanswered and not answer else f"no answer {answer[:80]!r}"
    if max(statuses) >= 500:
        return f"status {max(statuses)}"
    if any(sign in answer for sign in NONE_OF_THEIRS):
        return "an answer that tells of what is none of theirs"
    if b"neither goes on nor hangs up" in answer:
        return "a connection left open"
    if attack.refused and min(statuses) < 400:
        return f"let in with {min(statuses)}"
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

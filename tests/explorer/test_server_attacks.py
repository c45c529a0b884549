"""Malicious and malformed requests to the explorer. `torture.served` tries many more."""

import http.client
import json
import re
import socket
import struct
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest
from explored import serving

from bitmosaic.explorer import server
from torture.attacks import Target


@pytest.fixture
def target(url):
    target = Target(urlsplit(url).port, "", ())
    token = re.search(rb'name="token" content="([^"]+)"', target.ask(target.request("GET", "/")))[1].decode()
    return Target(target.port, token, ())


@pytest.fixture
def quiet(caplog):
    """Fail if the server logs an error. Must be requested before the server fixture."""
    yield
    assert [record.getMessage() for record in caplog.get_records("call") if record.levelname == "ERROR"] == []


def told(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


def test_an_edit_with_length_and_chunks_is_refused(served_run, target):
    head, _, body = target.edit().partition(b"\r\n\r\n")
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    status, sentence = told(target.ask(head + b"\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks))
    assert (status, sentence) == (413, "An edit needs a Content-Length of at most 16,777,216 bytes.")
    assert not (served_run.folder / "edits.jsonl").exists()


def test_an_endless_header_is_refused(target):
    answer = target.ask(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 200_000)
    assert answer.startswith(b"HTTP/1.1 400")


def test_connections_above_the_limit_get_503(run, monkeypatch):
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 5)
    with ExitStack() as stack:
        target = Target(urlsplit(stack.enter_context(serving(run))).port, "", ())
        ask = target.request("GET", "/api/run")
        assert target.ask(ask).startswith(b"HTTP/1.1 200")
        idle = [stack.enter_context(socket.create_connection(("127.0.0.1", target.port))) for _ in range(5)]
        assert target.ask(ask).startswith(b"HTTP/1.1 503")
        for connection in idle:
            connection.close()
        answers = (target.ask(ask) for _ in range(1000))  # the server sees the closed connections soon
        assert any(answer.startswith(b"HTTP/1.1 200") for answer in answers)


def test_an_incomplete_edit_changes_nothing(quiet, served_run, target):
    for linger in (0, 1):  # 0: with a reset
        connection = socket.create_connection(("127.0.0.1", target.port))
        connection.sendall(target.edit()[:-5])
        if not linger:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    assert target.ask(target.request("GET", "/api/run")).startswith(b"HTTP/1.1 200")
    assert not (served_run.folder / "edits.jsonl").exists()


@pytest.mark.parametrize("site", ["cross-site"])
def test_other_sites_may_link_but_not_read_or_edit(served_run, target, site):
    says = f"Sec-Fetch-Site: {site}"
    for path in ("/thumb/1", "/api/search?q=disc", "/static/main.js"):
        status, sentence = told(target.ask(target.request("GET", path, says)))
        assert (status, sentence[:44]) == (403, "This request came from a page of another sit")
    assert told(target.ask(target.edit(says)))[0] == 403
    framed = target.request("GET", "/", says, "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe")
    assert told(target.ask(framed))[0] == 403
    followed = target.request("GET", "/", says, "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document")
    assert target.ask(followed).startswith(b"HTTP/1.1 200")
    assert target.ask(target.edit("Sec-Fetch-Site: same-origin")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("number", ["-1", "1.5", str(10**400)])
def test_invalid_start_and_count_are_refused(target, number):
    for path in (f"/api/outliers?start={number}", f"/api/cluster/1/rows?count={number}"):
        status, sentence = told(target.ask(target.request("GET", path)))
        assert status == 400
        assert re.match(r"(start|count) must be a whole number of at most 12 digits, got '.{1,50}\.$", sentence)


def test_a_page_beyond_the_end_is_empty(target):
    answer = target.ask(target.request("GET", f"/api/outliers?start={10**11}&count={10**11}"))
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["rows"] == []


def test_a_wrong_method_gives_405_with_the_allowed_one(target):
    assert told(target.ask(target.request("GET", "/api/edits"))) == (405, "Wrong method GET. Use POST.")
    connection = http.client.HTTPConnection("127.0.0.1", target.port)
    connection.request("GET", "/api/edits")
    assert connection.getresponse().headers["Allow"] == "POST"
    connection.close()

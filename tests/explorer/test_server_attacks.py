"""What attackers have tried on the explorer, and what came of it. `torture.served` tries far more."""

import http.client
import json
import re
import socket
import struct
import time
from urllib.parse import urlsplit

import numpy as np
import pytest

from bitmosaic.edits import Edited
from bitmosaic.errors import InvalidDataError
from torture.attacks import Target


@pytest.fixture
def target(url):
    target = Target(urlsplit(url).port, "", ())
    token = re.search(rb'name="token" content="([^"]+)"', target.ask(target.request("GET", "/")))[1].decode()
    return Target(target.port, token, ())


@pytest.fixture
def quiet(caplog):
    """The server finds nothing to complain of until its end. To be asked for before the server is."""
    yield
    assert [record.getMessage() for record in caplog.get_records("call") if record.levelname == "ERROR"] == []


def told(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


def test_an_edit_with_a_length_and_with_chunks_is_not_read(run, target):
    head, _, body = target.edit().partition(b"\r\n\r\n")
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    status, sentence = told(target.ask(head + b"\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks))
    assert (status, sentence) == (413, "An edit is at most 16,777,216 bytes, and says how many.")
    assert not (run.folder / "edits.jsonl").exists()


def test_rubbish_after_a_request_that_is_answered_ends_the_connection(quiet, target):
    head = b"POST /api/edits HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    rubbish = b"no chunk\r\n"
    for pieces in ((head + rubbish,), (head, rubbish)):  # before the answer, and after it
        with socket.create_connection(("127.0.0.1", target.port), timeout=10) as connection:
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(0.2)
            answer = b""
            while piece := connection.recv(1 << 16):
                answer += piece
        assert answer.count(b"HTTP/1.1 4") == 1


def test_who_leaves_in_the_midst_of_an_edit_has_not_edited(quiet, run, target):
    for linger in (0, 1):  # 0: with a reset
        connection = socket.create_connection(("127.0.0.1", target.port))
        connection.sendall(target.edit()[:-5])
        time.sleep(0.2)
        if not linger:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    assert target.ask(target.request("GET", "/api/run")).startswith(b"HTTP/1.1 200")
    assert not (run.folder / "edits.jsonl").exists()


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_pages_of_other_sites_get_nothing_but_may_link(run, target, site):
    says = f"Sec-Fetch-Site: {site}"
    for path in ("/thumb/1", "/api/search?q=disc", "/static/main.js"):
        status, sentence = told(target.ask(target.request("GET", path, says)))
        assert (status, sentence[:42]) == (403, "The explorer answers to its own pages; thi")
    assert told(target.ask(target.edit(says)))[0] == 403
    framed = target.request("GET", "/", says, "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe")
    assert told(target.ask(framed))[0] == 403
    followed = target.request("GET", "/", says, "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document")
    assert target.ask(followed).startswith(b"HTTP/1.1 200")
    assert target.ask(target.edit("Sec-Fetch-Site: same-origin")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("number", ["-1", "1.5", "NaN", "1e3", "x", str(10**400), "%d9%a3x"])
def test_what_is_no_number_of_a_page_is_refused(target, number):
    for path in (f"/api/outliers?start={number}", f"/api/cluster/1/rows?count={number}"):
        status, sentence = told(target.ask(target.request("GET", path)))
        assert status == 400
        assert re.match(r"(start|count) is a whole number of at most 12 digits; got '.{1,50}\.$", sentence)


def test_a_page_beyond_the_last_is_empty(target):
    answer = target.ask(target.request("GET", f"/api/outliers?start={10**11}&count={10**11}"))
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["rows"] == []


def test_what_is_asked_in_the_wrong_way_is_told_the_right_one(target):
    assert told(target.ask(target.request("GET", "/api/edits"))) == (405, "This is asked for with POST.")
    connection = http.client.HTTPConnection("127.0.0.1", target.port)
    connection.request("GET", "/api/edits")
    assert connection.getresponse().headers["Allow"] == "POST"
    connection.close()


def test_a_version_is_a_number(run, target):
    edit = {"do": "name", "cluster": 0, "name": "x"}
    for version in (False, 0.0, "0", None, float("nan")):
        assert told(target.ask(target.edit(body=json.dumps({"edit": edit, "version": version}).encode())))[0] == 400
    assert not (run.folder / "edits.jsonl").exists()


def test_pipelined_requests_are_answered_in_turn(target):
    asked = b"".join(b"GET /api/picture/%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % row for row in range(20))
    answer = target.ask(asked + target.request("GET", "/api/picture/20"))
    assert [int(row) for row in re.findall(rb'"row":(\d+)', answer)] == list(range(21))


def test_an_edit_of_any_depth_and_length_is_judged_at_once():
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    state = Edited(np.zeros(100_000, np.int32), 1)
    try:
        with pytest.raises(InvalidDataError, match="An edit names a cluster, merges some, moves pictures or is undone"):
            state.check({"do": "name", "name": deep})
    finally:
        while deep:  # its own end would be as deep
            deep = deep.pop()
    begun = time.perf_counter()
    with pytest.raises(InvalidDataError, match="two at least"):
        state.check({"do": "merge", "clusters": [0] * 10**6, "into": 0})
    assert time.perf_counter() - begun < 5

"""Slow clients of the explorer: who is hung up on, who is not, and that others do not notice."""

import socket
import time
from contextlib import ExitStack, suppress
from urllib.parse import urlsplit

import pytest

from bitmosaic.explorer import patience
from bitmosaic.explorer.pages import Pages
from torture.attacks import Target
from torture.crowd import HEAVY, slow_kinds
from torture.served import exploring
from torture.tally import Tally

PATIENCE = 0.5  # seconds
TRICKLED = {kind: how for kind, how in slow_kinds("").items() if how[1] is not None}


@pytest.fixture
def target(monkeypatch, url):
    monkeypatch.setattr(patience, "PATIENCE", PATIENCE)
    return Target(urlsplit(url).port, "", ())


def connect(target):
    return socket.create_connection(("127.0.0.1", target.port), timeout=10)


def answered(target, path="/api/run"):
    return target.ask(target.request("GET", path)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("kind", TRICKLED)
def test_a_client_that_dawdles_is_hung_up_on(target, kind):
    begin, piece = TRICKLED[kind]
    begun = time.perf_counter()
    with connect(target) as connection, suppress(ConnectionError):
        connection.settimeout(0.1)
        connection.sendall(begin)
        while time.perf_counter() - begun < 10:
            try:
                if not connection.recv(1 << 16):
                    break
            except TimeoutError:
                connection.sendall(piece)
    assert PATIENCE <= time.perf_counter() - begun < 5
    assert answered(target)


def test_an_answer_that_is_not_taken_is_given_up(target):
    whole = len(target.ask(HEAVY.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")))
    with connect(target) as connection:
        connection.sendall(HEAVY * 10)
        time.sleep(4 * PATIENCE)
        assert answered(target)
        size = 0
        with suppress(ConnectionError):
            while piece := connection.recv(1 << 20):
                size += len(piece)
    assert size < 9 * whole


def test_an_answer_that_is_taken_slowly_comes_whole(target):
    last = HEAVY.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    whole = len(target.ask(last))
    begun, size = time.perf_counter(), 0
    with connect(target) as connection:
        connection.sendall(HEAVY * 9 + last)
        while piece := connection.recv(1 << 20):
            size += len(piece)
            time.sleep(len(piece) / (10 * whole) * 4 * PATIENCE)
    assert time.perf_counter() - begun > 3 * PATIENCE
    assert size > 9 * whole


def test_an_answer_that_takes_us_long_is_waited_for(target, monkeypatch):
    monkeypatch.setattr(Pages, "overview", lambda self: time.sleep(4 * PATIENCE))
    assert answered(target)


def test_where_too_many_are_connected_the_one_that_did_least_makes_room(target, monkeypatch):
    monkeypatch.setattr(patience, "PATIENCE", 60)
    monkeypatch.setattr(patience, "MOST_CONNECTIONS", 20)
    with ExitStack() as stack:
        crowd = [stack.enter_context(connect(target)) for _ in range(60)]
        for _ in range(5):
            assert answered(target)
        for dropped in crowd[:40]:
            assert dropped.recv(1) == b""
        for kept in crowd[50:]:
            kept.settimeout(0.01)
            with pytest.raises(TimeoutError):
                kept.recv(1)


def test_a_server_that_may_open_few_files_still_answers(run):
    tally = Tally("few files", tried=1)
    few = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))"
    with ExitStack() as stack, exploring(run.folder, tally, few) as (_, port):
        target = Target(port, "", ())
        for _ in range(400):
            stack.enter_context(connect(target))
        begun = time.perf_counter()
        assert answered(target, "/api/clusters")
        assert time.perf_counter() - begun < 5
    assert tally.bad == []


@pytest.mark.parametrize(("files", "most"), [(64, 20), (150, 20), (256, 106), (10_000, 500)])
def test_there_is_room_for_a_page_however_few_files_may_be_open(monkeypatch, files, most):
    monkeypatch.setattr(patience.resource, "getrlimit", lambda _: (files, files))
    assert patience.most_connections() == most

"""Many clients at once, and slow ones: asyncio streams that speak as much HTTP as is needed."""

import asyncio
import json
import random
import re
import socket
import time
from dataclasses import dataclass, field


@dataclass
class Seen:
    """What a crowd has seen."""

    requests: int = 0
    edits: int = 0  # that were made
    seconds: list[float] = field(default_factory=list)  # that each answer took
    bad: list[str] = field(default_factory=list)


async def ask(reader, writer, port, path, edit=None, token=""):
    """Status and body of one answer on a connection that stays open."""
    head = f"{'GET' if edit is None else 'POST'} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
    body = b"" if edit is None else json.dumps(edit).encode()
    if edit is not None:
        head += f"X-Bitmosaic-Token: {token}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    writer.write(head.encode() + b"\r\n" + body)
    await writer.drain()
    answer = await reader.readuntil(b"\r\n\r\n")
    size = int(re.search(rb"content-length: (\d+)", answer)[1])
    return int(answer.split(b" ", 2)[1]), await reader.readexactly(size)


async def crowd(port, n_clients, seconds, paths, expected, token):
    """Clients that all ask for `seconds` whatever comes to mind: things that must be as expected, pages, edits."""
    seen, until = Seen(), time.perf_counter() + seconds

    async def client(number):
        rng = random.Random(number)
        reader = writer = None
        version, stale, refused = 0, True, False
        try:
            while time.perf_counter() < until:
                if reader is None or rng.random() < 0.05:
                    if writer is not None:
                        writer.close()
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                path, edit = "/api/run" if stale else rng.choice(paths), None
                if not stale and (refused or rng.random() < 0.02):
                    name = {"do": "name", "cluster": rng.randrange(3), "name": f"of client {number}"}
                    path, edit = "/api/edits", {"edit": name, "version": version}
                begun = time.perf_counter()
                status, body = await asyncio.wait_for(ask(reader, writer, port, path, edit, token), 60)
                seen.seconds.append(time.perf_counter() - begun)
                seen.requests += 1
                if edit is not None:
                    seen.edits += status == 200
                    refused = status == 409  # so look, and try again
                    if status not in (200, 409):
                        seen.bad.append(f"an edit: status {status}, {body[:100]!r}")
                elif status not in (200, 202) or expected.get(path, body) != body:
                    seen.bad.append(f"{path}: status {status}, {body[:100]!r}")
                stale = status == 409
                if status == 200 and path in ("/api/run", "/api/edits"):
                    version = json.loads(body)["edits"]["version"]
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            seen.bad.append(f"client {number}: {error!r:.100}")
        finally:
            if writer is not None:
                writer.close()

    await asyncio.gather(*(client(number) for number in range(n_clients)))
    return seen


# ---- slow clients

HEAD = b"GET /api/run HTTP/1.1\r\nHost: localhost\r\n"
HEAVY = b"GET /static/plotly.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
N_HEAVY = 10  # megabytes that no buffer of the system takes


def slow_kinds(token):
    """Ways to dawdle: what is sent at once, and what is sent twice a second then; None for who never reads."""
    post = HEAD.replace(b"GET /api/run", b"POST /api/edits") + b"Content-Type: application/json\r\n"
    edit = post + b"X-Bitmosaic-Token: %s\r\nContent-Length: 9999\r\n\r\n{"
    return {
        "says nothing": (b"", b""),
        "begins and stops": (HEAD[:10], b""),
        "trickles a header": (HEAD + b"X: ", b"x"),
        "trickles headers": (HEAD, b"X: y\r\n"),
        "trickles an edit": (edit % token.encode(), b" "),
        "trickles what was refused": (edit % b"wrong", b" "),
        "sends chunks for ever": (post + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        "never reads": (HEAVY * N_HEAVY, None),
    }


async def slow_crowd(port, token, n_each, limit):
    """Clients that dawdle; all must be hung up on within `limit` seconds. Meanwhile an ordinary one asks and asks."""
    kinds = slow_kinds(token)
    seen, over = Seen(), asyncio.Event()

    async def slow(kind, begin, piece):
        seen.requests += 1
        if not await (_never_reads(port, begin, limit) if piece is None else _trickles(port, begin, piece, limit)):
            seen.bad.append(f"a client that {kind} was still there after {limit:.0f} s")

    async def goes_away():
        """Ask for much, leave; half of the time by closing the door hard."""
        while not over.is_set():
            seen.requests += 1
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(HEAVY if seen.requests % 2 else kinds["trickles an edit"][0])
            await asyncio.sleep(0.02)
            if seen.requests % 3:
                writer.transport.abort()
            writer.close()

    async def ordinary():
        while not over.is_set():
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            begun = time.perf_counter()
            status, _ = await ask(reader, writer, port, "/api/clusters")
            seen.seconds.append(time.perf_counter() - begun)
            if status != 200:
                seen.bad.append(f"an ordinary client was told {status}")
            writer.close()
            await asyncio.sleep(0.05)

    others = [asyncio.ensure_future(other()) for other in (ordinary, goes_away)]
    await asyncio.gather(*(slow(kind, *how) for kind, how in kinds.items() for _ in range(n_each)))
    over.set()
    await asyncio.gather(*others)
    return seen


async def _trickles(port, begin, piece, limit):
    """Whether the server hangs up on somebody who sends a piece twice a second."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    until = time.perf_counter() + limit
    try:
        writer.write(begin)
        while time.perf_counter() < until:
            try:
                if not await asyncio.wait_for(reader.read(1 << 16), 0.5):
                    return True
            except TimeoutError:
                writer.write(piece)
        return False
    except ConnectionError:
        return True
    finally:
        writer.close()


async def _never_reads(port, begin, limit):
    """Whether the server, after that time, has given up to send what was asked for."""
    loop = asyncio.get_running_loop()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setblocking(False)
        await loop.sock_sendall(connection, begin)
        await asyncio.sleep(limit)
        size = 0
        try:
            while piece := await asyncio.wait_for(loop.sock_recv(connection, 1 << 20), 1):
                size += len(piece)
        except (ConnectionError, TimeoutError) as error:
            return isinstance(error, ConnectionError)
        return True

"""Many HTTP clients at once, on asyncio streams."""

import asyncio
import json
import random
import re
import time
from dataclasses import dataclass, field


@dataclass
class Seen:
    """The results of many clients."""

    requests: int = 0
    edits: int = 0  # confirmed
    seconds: list[float] = field(default_factory=list)  # per answer
    bad: list[str] = field(default_factory=list)


async def ask(reader, writer, port, path, edit=None, token=""):
    """Send one request on an open connection; return status and body."""
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
    """Send random requests for `seconds`: paths with expected answers, pages and edits."""
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
                    refused = status == 409  # another edit came first: read the version and try again
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


HEAD = b"GET /api/run HTTP/1.1\r\nHost: localhost\r\n"
UNFINISHED = (b"", HEAD[:10], HEAD)  # requests that never end

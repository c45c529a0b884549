"""How long the explorer waits for a client, and for how many: uvicorn itself waits for ever, and for everybody.

A client that dawdles costs a connection, and what of an answer it does not take costs memory. So whoever neither
completes a request nor takes any of its answer is hung up on after a while, and at once where others need the place.
"""

import asyncio
import math

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

PATIENCE = 20.0  # seconds for a whole request to come, or for a client to take a part of its answer
MOST_CONNECTIONS = 500
FEWEST_CONNECTIONS = 20  # a page opens some at once, however few files there may be
OWN_FILES = 150  # that a process needs besides its connections, those included that come at once
LAST_WORDS = 1.0  # seconds for answers under way when the server is stopped


def most_connections() -> int:
    """As many as the system lets us have open files for: 1,024 files are usual on Linux, 256 on a Mac."""
    if resource is None:
        return MOST_CONNECTIONS
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return min(MOST_CONNECTIONS, max(FEWEST_CONNECTIONS, files - OWN_FILES))


class PatientProtocol(H11Protocol):
    """One connection."""

    connections: set["PatientProtocol"]  # type: ignore[assignment]
    _since: float  # when the client was last seen to do its part
    _left: int  # bytes of the answer that it had not taken when last looked at
    _timer: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since, self._left = self.loop.time(), 0
        if len(self.connections) > most_connections():
            slowest = min(self.connections, key=lambda connection: connection._since)
            slowest._since = math.inf  # it is gone when the loop comes round; the next one must not choose it again
            slowest.transport.abort()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        super().on_response_complete()

    def _look(self) -> None:
        """Hang up on a client that is too slow; while an answer is made, it is we who are."""
        left = self.transport.get_write_buffer_size()
        ours = self.cycle is not None and not (self.cycle.more_body or self.cycle.response_complete or left)
        if ours or left < self._left:
            self._since = self.loop.time()
        self._left = left
        if self.loop.time() - self._since > PATIENCE:
            self.transport.abort()
        self._timer = self.loop.call_later(PATIENCE / 10, self._look)

    def send_400_response(self, msg: str) -> None:
        """Said only where nothing was said yet: the body of a request may turn into rubbish while it is answered."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def shutdown(self) -> None:
        super().shutdown()
        self.loop.call_later(LAST_WORDS, self.transport.abort)

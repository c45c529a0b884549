"""Work of some seconds that is done once, in a thread of its own, while pages ask how far it is."""

import threading
from collections.abc import Callable
from typing import Any

from bitmosaic.images import Progress


class Job:
    """`work(progress)` begins when its result is first asked for; what it raises is raised to whoever asks next."""

    def __init__(self, work: Callable[[Progress], Any]):
        self._work = work
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._result: Any = None
        self._error: Exception | None = None
        self.stage: tuple[str, int, int] = ("starting", 0, 0)

    def ready(self) -> bool:
        """Whether the result is there; begins the work if nobody has yet."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()
        if self._thread.is_alive():
            return False
        if self._error is not None:
            error, self._error, self._thread = self._error, None, None  # the next one may try again
            raise error
        return True

    def result(self) -> Any:
        return self._result

    def _run(self) -> None:
        try:
            self._result = self._work(self._tell)
        except Exception as error:
            self._error = error

    def _tell(self, stage: str, done: int, total: int) -> None:
        self.stage = (stage, done, total)

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
        self._begun = self._done = False
        self._result: Any = None
        self._error: Exception | None = None
        self.stage: tuple[str, int, int] = ("starting", 0, 0)

    def ready(self) -> bool:
        """Whether the result is there; begins the work if nobody has yet."""
        with self._lock:
            if self._done:
                return True
            if self._error is not None:
                error, self._error, self._begun = self._error, None, False  # the next one may try again
                raise error
            if not self._begun:
                self._begun = True
                threading.Thread(target=self._run, daemon=True).start()
            return False

    def result(self) -> Any:
        return self._result

    def _run(self) -> None:
        result, error = None, None
        try:
            result = self._work(self._tell)
        except Exception as problem:
            error = problem
        with self._lock:
            self._result, self._error, self._done = result, error, error is None

    def _tell(self, stage: str, done: int, total: int) -> None:
        self.stage = (stage, done, total)

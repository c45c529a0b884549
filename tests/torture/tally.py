"""Counts of what was tried and what failed."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Effort:
    """How much to try: the short form is part of the test suite, the long one is `make torture`."""

    commands: tuple[str, ...]  # that are disturbed
    kills: int  # of each command, at random moments
    writes: int  # of each command, at most, that are killed or fail
    times: int  # repetitions of the other tests
    mutants: int  # damaged copies of each image and archive
    load: float  # seconds of load on the server


COMMANDS = ("cluster", "extract", "fit", "predict", "add", "refit")
SHORT = Effort(("cluster", "add"), kills=1, writes=2, times=1, mutants=3, load=1)
LONG = Effort(COMMANDS, kills=50, writes=60, times=10, mutants=1000, load=60)


@dataclass
class Tally:
    """One line of the table. Failures are collected; the first one does not end the test."""

    what: str  # was tried
    tried: int = 0
    losses: list[str] = field(default_factory=list)  # a finished file is missing, or half a file is read as whole
    wrong: list[str] = field(default_factory=list)  # results that differ from those of an undisturbed run
    crashes: list[str] = field(default_factory=list)  # a traceback, a signal, memory or time above the limit

    def add(self, other: "Tally") -> None:
        self.tried += other.tried
        self.losses += other.losses
        self.wrong += other.wrong
        self.crashes += other.crashes

    @property
    def bad(self) -> list[str]:
        """All failures. A test that tried nothing has failed, unless it says why."""
        untried = ["nothing was tried"] if not self.tried and "not tried" not in self.what else []
        return [*self.losses, *self.wrong, *self.crashes, *untried]

"""How often something was tried, and what came of it."""

import re
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Effort:
    """How much of everything: the short form is part of the test suite, the long one is `make torture`."""

    kills: int  # of each command, at random moments
    seconds: float  # of fuzzing each reader, by each engine, and of attacks on the server
    load: float  # seconds of load on the server
    whole: bool  # every write of a command is made to fail, not some
    only: str = ""  # the part of a kind that is tried; all where there is none

    def wants(self, part):
        """Whether the part that is asked for stands in this name, as whole words."""
        return re.search(rf"(?<!\w){re.escape(self.only)}(?!\w)", part) is not None if self.only else True


SHORT = Effort(kills=2, seconds=1, load=1, whole=False)
LONG = Effort(kills=50, seconds=30, load=60, whole=True)


@dataclass
class Tally:
    """One line of the table. What went wrong is counted and described; nothing stops at the first."""

    what: str  # was tried
    tried: int = 0
    how: str = ""  # what the table says of the run beside its commit
    losses: list[str] = field(default_factory=list)  # something that was there is gone, or a half file passed for whole
    wrong: list[str] = field(default_factory=list)  # results that differ from those of an undisturbed run
    crashes: list[str] = field(default_factory=list)  # a traceback, a signal, memory beyond the limit

    def add(self, other):
        self.tried += other.tried
        for kept, more in ((self.losses, other.losses), (self.wrong, other.wrong), (self.crashes, other.crashes)):
            kept += more

    @property
    def bad(self):
        """What must not be; a line that says nothing of it and was never tried is no proof either."""
        untried = ["it was never tried"] if not self.tried and "not tried" not in self.what else []
        return [*self.losses, *self.wrong, *self.crashes, *untried]

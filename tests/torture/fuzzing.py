"""A process of its own that reads mutants for some seconds: ``python -m torture.fuzzing FOLDER SECONDS SEED READER…``

With 0 seconds it tries so many that the short form takes no longer, and the same ones each time: whether the tests of a
commit pass must not depend on luck or on how busy the machine is. What nobody has found yet, the long form looks for.

It may use so much memory more than after reading every valid file, and so many seconds for one input; beyond that it
dies, and whoever started it counts that. FOLDER/work has what was found (journal.jsonl) and the last input.
"""

import faulthandler
import hashlib
import json
import os
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import numpy as np

from bitmosaic.errors import BitmosaicError
from torture.mutants import mutant, other_arrays
from torture.readers import targets
from torture.shapes import Shape, any_shape, first_shapes, remove
from torture.victims import HERE, Victims, payloads

ALLOWANCE = 2**30  # bytes
SECONDS_EACH = 20
SHAPED = 0.5  # of the time in a folder: something else than a file; such tries take long
SHAPED_TRIES = 0.1  # of the tries, where these are the same each time
FEW = {True: 30, False: 200}  # tries without a time, of a reader of folders and of one of files
LOOK_EVERY = 50  # tries: whether other files are as they were
NO_MEMORY = re.compile(
    "bad_alloc|(unable to|cannot|can't|could not|failed to) allocate|allocation failed|out of memory", re.I
)


def keep(reader: str, last: Path) -> Path:
    """Where an input that was too much for a reader is kept, to look at: a line that says what it is, and its bytes."""
    content = last.read_bytes()
    kept = Path(tempfile.gettempdir()) / "bitmosaic-finds" / f"{reader}-{hashlib.sha256(content).hexdigest()[:8]}"
    kept.parent.mkdir(exist_ok=True)
    kept.write_bytes(content)
    return kept


def last_input(last: Path) -> tuple[str, str, int]:
    """The reader of the last input, what file it was, and the how manieth of this reader."""
    reader, name, tried = json.loads(last.read_bytes().partition(b"\n")[0])
    return reader, name, tried


def note(work: Path, reader: str, **facts) -> None:
    """Write down what a reader did, for whoever has started this process."""
    with open(work / "journal.jsonl", "a") as journal:
        print(json.dumps({"reader": reader} | facts), file=journal)


class Fuzzing:
    """Tries inputs on the targets of one reader, and writes down what they did."""

    def __init__(self, folder: Path, reader: str, victims: Victims, seconds: float):
        self.work, self.victims, self.timed = folder / "work", victims, seconds > 0
        self.seconds, self.shaped_seconds = 0.0, 0.0
        self.first = first_shapes(reader, victims.folder)
        self.targets = [target for target in targets(folder / "seeds") if target.reader == reader]
        self.reader, self.tried, self.seen = reader, 0, set()
        remove(self.work / reader)  # one that died has left its shape there
        for target in self.targets:
            for content in target.contents:
                target.attempt(content, self.work)  # a valid file is read

    def shape(self, rng, number: int) -> Shape | None:
        """As often as there is time for it, something to put where a file of a folder stands."""
        target = self.targets[number]
        often = self.shaped_seconds <= SHAPED * self.seconds if self.timed else rng.random() < SHAPED_TRIES
        if target.home is None or not often:
            return None
        if self.first:
            return self.first.pop(rng.integers(len(self.first)))
        return any_shape(rng, self.reader, target.name, self.victims.folder)

    def attempt(self, number: int, content: bytes | Shape) -> None:
        target = self.targets[number]
        self.tried += 1
        head = json.dumps([self.reader, target.name, self.tried]).encode()
        shaped = isinstance(content, Shape)
        (self.work / "last").write_bytes(head + b"\n" + (str(content).encode() if shaped else content))
        begun = time.monotonic()
        signal.alarm(SECONDS_EACH)  # nobody handles it: it ends the process, whatever that does
        problem = problem_of(lambda: target.attempt(content, self.work))
        signal.alarm(0)
        self._tell(problem, "crash", content if shaped else target.name)
        if shaped or self.tried % LOOK_EVERY == 0:
            self.look(content if shaped else target.name)
        self.seconds += time.monotonic() - begun
        self.shaped_seconds += time.monotonic() - begun if shaped else 0

    def begin(self, rng) -> None:
        """What is never left to chance: each kind of file once, and where a pickle may stand, one that runs code.

        With time, arrays of every kind where one is expected."""
        for number, target in enumerate(self.targets):
            others = other_arrays(target.contents[0]) if self.timed and target.name.endswith(".npy") else ()
            for content in (*payloads(target.name), mutant(rng, target.name, target.contents), *others):
                self.attempt(number, content)
        self.look("a payload")

    def look(self, after) -> None:
        """Whether anything was done to the files of others."""
        for kind, problem in self.victims.harm().items():
            self._tell(problem, kind, after)

    def read_again(self) -> None:
        """Valid files must be read as before, whatever was read since."""
        for target in self.targets:
            for content in target.contents:
                signal.alarm(SECONDS_EACH)
                try:
                    target.attempt(content, self.work)
                except Exception as error:
                    self._tell(f"a valid file is no longer read: {_in_words(error)}", "wrong", target.name)
                signal.alarm(0)

    @property
    def few(self) -> int:
        """How many tries are made where no time is given."""
        return FEW[self.targets[0].home is not None]

    def _tell(self, problem: str | None, kind: str, what) -> None:
        if problem is not None and problem not in self.seen:
            self.seen.add(problem)
            kept = keep(self.reader, self.work / "last")
            note(self.work, self.reader, find=f"{what} {kept}: {problem}", kind=kind)


def problem_of(attempt) -> str | None:
    """What a reader did that it must not do: raise another error than ours, or warn of its own mistakes."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            attempt()
        except Exception as error:
            if (cause := no_memory(error)) is not None:
                return f"asked for more than {ALLOWANCE / 2**30:g} GB of memory: {_in_words(cause)}"
            if not isinstance(error, BitmosaicError):
                return _in_words(error)
    for warning in warned:
        if not issubclass(warning.category, UserWarning | ResourceWarning):
            return f"{warning.category.__name__} at {Path(warning.filename).name}:{warning.lineno}: {warning.message}"
    return None


def no_memory(error: BaseException | None) -> BaseException | None:
    """The error below this one that says that there was no memory: in one sentence or not, too much was asked for."""
    while error is not None:
        if isinstance(error, MemoryError) or (not isinstance(error, BitmosaicError) and NO_MEMORY.search(str(error))):
            return error
        error = error.__cause__ or error.__context__
    return None


def _in_words(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames if "bitmosaic" in frame.filename]
    return f"{type(error).__name__} at {' < '.join(reversed(ours[-3:]))}: {str(error)[:200]}"


def limit_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ALLOWANCE, used + ALLOWANCE))


def tell_where() -> None:
    """Whoever dies, also for want of time, says where."""
    faulthandler.enable()
    faulthandler.register(signal.SIGALRM, chain=True)


def main(folder, seconds, seed, *readers):
    tell_where()
    victims = Victims(Path(folder) / "victims")
    fuzzings = [Fuzzing(Path(folder), reader, victims, float(seconds)) for reader in readers]
    os.chdir(Path(folder) / "victims" / HERE)
    limit_memory()
    for fuzzing in fuzzings:
        fuzzing.begin(np.random.default_rng(int(seed)))
        end, enough = time.monotonic() + float(seconds), fuzzing.tried + fuzzing.few
        while time.monotonic() < end if fuzzing.timed else fuzzing.tried < enough:
            rng = np.random.default_rng([int(seed), fuzzing.tried])  # of this try: none changes those after it
            number = int(rng.integers(len(fuzzing.targets)))
            target = fuzzing.targets[number]
            fuzzing.attempt(number, fuzzing.shape(rng, number) or mutant(rng, target.name, target.contents))
        fuzzing.read_again()
        fuzzing.look("one of the last inputs")
        note(fuzzing.work, fuzzing.reader, tried=fuzzing.tried)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Files that mean harm: every reader gets mutants of valid files, and must read them or refuse them in one sentence.

Where atheris is installed, it chooses what to try by the code that it reaches; the mutants are the same. Both run in
processes of their own, with so much memory and so much time for each input (fuzzing.py).
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from torture.fuzzing import ALLOWANCE, SECONDS_EACH, keep, last_input
from torture.readers import READERS
from torture.seeds import write_seeds
from torture.tally import Tally
from torture.victims import Victims

TESTS = Path(__file__).parents[1]
MOST_DEATHS = 5  # of one reader; more would say nothing new


def _atheris():
    try:
        return f"atheris {version('atheris')}"
    except PackageNotFoundError:
        return None


ATHERIS = _atheris()
GUIDANCE = (
    f"{ATHERIS} is there: files are also fuzzed guided by coverage."
    if ATHERIS
    else "atheris is not there: files are fuzzed without its guidance by coverage (pip install atheris)."
)


def lines(_effort):
    return [_tally(reader).what for reader in READERS]


def tallies(effort):
    with tempfile.TemporaryDirectory(prefix="bitmosaic-hostile-") as folder:
        (Path(folder) / "seeds").mkdir()
        (Path(folder) / "work").mkdir()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The number of clusters is not clear")
            write_seeds(Path(folder) / "seeds")
        Victims(Path(folder) / "victims", Path(folder) / "seeds")
        readers = list(filter(effort.wants, READERS))
        # Together they load bitmosaic once; in the long form a line of the table is there when its reader is done.
        for group in [[reader] for reader in readers] if effort.whole else [readers]:
            found = {reader: _tally(reader) for reader in group}
            for engine in ("fuzzing", "coverage_guided") if ATHERIS else ("fuzzing",):
                _fuzz(Path(folder), engine, effort.seconds if effort.whole else 0, found)
            yield from found.values()


def _tally(reader):
    how = f"with {ATHERIS}" if ATHERIS else "without atheris"
    return Tally(f"mutants of {reader} files, {ALLOWANCE / 2**30:g} GB and {SECONDS_EACH} s each", how=how)


def _fuzz(folder, engine, seconds, found):
    """Run an engine on some readers, and again on those that are left where it dies; with 0 seconds as each time."""
    left, seed, deaths = list(found), int(time.time()) if seconds else 0, 0
    while left and deaths < MOST_DEATHS:
        command = [sys.executable, "-m", f"torture.{engine}", str(folder), str(seconds), str(seed), *left]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=TESTS,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            check=False,
        )
        journal, last = folder / "work" / "journal.jsonl", folder / "work" / "last"
        for note in map(json.loads, journal.read_text().splitlines() if journal.exists() else ()):
            if "find" in note:
                tally = found[note["reader"]]
                {"loss": tally.losses, "wrong": tally.wrong, "crash": tally.crashes}[note["kind"]].append(note["find"])
            else:
                found[note["reader"]].tried += note["tried"]
                left.remove(note["reader"])
        journal.unlink(missing_ok=True)
        if done.returncode:
            deaths, seed = deaths + 1, seed + 1
            reader, name, tried = last_input(last) if last.exists() else (left[0], "", 0)
            kept = keep(reader, last) if last.exists() else "no input"
            found[reader].tried += tried
            found[reader].crashes.append(f"{name} {kept} {_last_words(done)}")
        last.unlink(missing_ok=True)


def _environment():
    """Whole paths to import from, and nothing that would keep processes from importing what lies in their folder."""
    places = [str(TESTS), str(TESTS / "images"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    paths = os.pathsep.join(os.path.abspath(place) for place in places if place)
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONSAFEPATH", None)
    return environment


def _last_words(done):
    how = f"died of {signal.Signals(-done.returncode).name}" if done.returncode < 0 else f"ended with {done.returncode}"
    _, where, calls = done.stderr.rpartition("(most recent call first):")
    said = calls.splitlines()[:12] if where else done.stderr.splitlines()[-12:]
    return f"{how}: {' | '.join(map(str.strip, said))[:800]}"

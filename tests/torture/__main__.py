"""The long form, and its table in docs/reliability.md: ``python -m torture [--seconds N] [kind | kind:part …]``

`make torture` runs all of it, ``make torture KINDS="kills hostile:npz"`` one kind and the readers of .npz files. What
can be tried side by side is, a process and a core each (worker.py); load and limits come last and have all cores. Each
line of the table is written as soon as it is known, with the commit it was tried on; the others stay as they are.
"""

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from torture.hostile import GUIDANCE
from torture.page import HEAD, Page, commit, line, line_in_words
from torture.tally import LONG, Tally

KINDS = ("hostile", "locks", "faults", "kills", "served", "limits")  # what takes longest begins first
ALONE = ("served", "limits")
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"


class Coordinator:
    """Starts what is tried, prints the lines of the table as they come, and keeps what was bad."""

    def __init__(self, page: Page, seconds: float):
        self.page, self.effort, self.version = page, replace(LONG, seconds=seconds), commit()
        self.bad: list[str] = []
        self.total = Tally("all")
        self._one_at_a_time = threading.Lock()

    def run(self, units: list[str]) -> None:
        """Units are kinds, or kind:part, each in a process of its own."""
        cores = queue.SimpleQueue()
        for core in usable_cores():
            cores.put(core)
        with ThreadPoolExecutor(cores.qsize()) as pool:
            list(pool.map(lambda unit: self._on_a_core(unit, cores), [unit for unit in units if not _alone(unit)]))
        for unit in filter(_alone, units):
            self._run(unit, [])

    def _on_a_core(self, unit, cores):
        core = cores.get()
        try:
            self._run(unit, ["--core", str(core)])
        finally:
            cores.put(core)

    def _run(self, unit, where):
        command = [sys.executable, "-m", "torture.worker", *where, "--seconds", str(self.effort.seconds), unit]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as worker:
            for told in map(json.loads, worker.stdout):
                seconds = told.pop("seconds")
                self._note(unit.partition(":")[0], Tally(**told), seconds)
        if worker.returncode:
            with self._one_at_a_time:
                self.bad.append(f"{unit}: the harness itself ended with {worker.returncode}")

    def _note(self, kind, tally, seconds):
        module, row = import_module(f"torture.{kind}"), line(tally, self.version, seconds)
        with self._one_at_a_time:
            print(row, flush=True)
            self.page.write(kind, module.__doc__, row, module.lines(self.effort))
            self.bad += [f"{tally.what}: {what}" for what in tally.bad]
            self.total.add(tally)


def usable_cores() -> list[int]:
    """Those of this process; -1 for any, where the system does not tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [-1]


def _alone(unit):
    return unit.partition(":")[0] in ALONE


def units_of(kinds: list[str]) -> list[str]:
    """Kinds in parts that take minutes, where they have some, so that cores are used evenly."""
    parts = {kind: getattr(import_module(f"torture.{kind}"), "PARTS", ()) for kind in kinds if ":" not in kind}
    return [unit for kind in kinds for unit in [f"{kind}:{part}" for part in parts.get(kind, ())] or [kind]]


def main(arguments):
    parser = argparse.ArgumentParser(prog="torture")
    parser.add_argument("--seconds", type=float, default=LONG.seconds, help="of fuzzing each reader, by each engine")
    parser.add_argument("kinds", nargs="*", default=KINDS, help=f"of {', '.join(KINDS)}; kind:part for a part of one")
    chosen = parser.parse_args(arguments)
    for name in chosen.kinds:
        if name.partition(":")[0] not in KINDS:
            parser.error(f"{name} is none of {', '.join(KINDS)}")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the explorer is stopped by it, in the background as well
    coordinator, start = Coordinator(Page(PAGE), chosen.seconds), time.perf_counter()
    print(GUIDANCE, HEAD, sep="\n\n", flush=True)
    coordinator.run(units_of(list(chosen.kinds)))
    took = f"It took {(time.perf_counter() - start) / 60:.0f} minutes."
    print("", line_in_words(coordinator.total), took, *coordinator.bad[:50], sep="\n")
    return min(len(coordinator.bad), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

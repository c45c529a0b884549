"""One kind, or a part of it, in a process of its own: ``python -m torture.worker [--core N] [--seconds N] kind[:part]``

Prints a tally in JSON a line, with the seconds that it took.
"""

import argparse
import json
import os
import signal
import sys
import time
from dataclasses import asdict, replace
from importlib import import_module

from torture.tally import LONG


def main(arguments):
    parser = argparse.ArgumentParser(prog="torture.worker")
    parser.add_argument("--core", type=int, default=-1)
    parser.add_argument("--seconds", type=float, default=LONG.seconds)
    parser.add_argument("unit")
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as in the foreground of a shell
    if chosen.core >= 0:
        os.sched_setaffinity(0, {chosen.core})
    kind, _, part = chosen.unit.partition(":")
    begun, told = time.perf_counter(), 0
    for tally in import_module(f"torture.{kind}").tallies(replace(LONG, seconds=chosen.seconds, only=part)):
        now = time.perf_counter()
        print(json.dumps(asdict(tally) | {"seconds": now - begun}), flush=True)
        begun, told = now, told + 1
    if not told:
        parser.error(f"{chosen.unit}: there is no such part")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

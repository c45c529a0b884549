"""Run the long form and print its table: ``python -m torture [kind …]``."""

import argparse
import signal
import subprocess
import sys
import time
from importlib import import_module

from torture.tally import LONG, Tally

KINDS = ("kills", "faults", "locks", "bad_images", "load")
HEAD = "| tried | losses | wrong results | crashes | what | minutes |\n|---:|---:|---:|---:|---|---:|"


def row(tally: Tally, seconds: float) -> str:
    counts = (tally.tried, len(tally.losses), len(tally.wrong), len(tally.crashes))
    return "| " + " | ".join([*(f"{count:,}" for count in counts), tally.what, f"{seconds / 60:.1f}"]) + " |"


def commit() -> str:
    done = subprocess.run(("git", "rev-parse", "--short", "HEAD"), capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="torture")
    parser.add_argument("kinds", nargs="*", help=f"some of {', '.join(KINDS)}; all by default")
    kinds = parser.parse_args(arguments).kinds or KINDS
    for kind in kinds:
        if kind not in KINDS:
            parser.error(f"{kind!r} is not one of {', '.join(KINDS)}")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also when run in the background
    print(f"Commit {commit()}.\n\n{HEAD}", flush=True)
    total, bad, first = Tally("all"), [], time.perf_counter()
    for kind in kinds:
        begun = time.perf_counter()
        for tally in import_module(f"torture.{kind}").tallies(LONG):
            print(row(tally, time.perf_counter() - begun), flush=True)
            total.add(tally)
            for problem in tally.bad:
                bad.append(f"{tally.what}: {problem}")
                print(bad[-1], file=sys.stderr, flush=True)
            begun = time.perf_counter()
    print(row(total, time.perf_counter() - first))
    return min(len(bad), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

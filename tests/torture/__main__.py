"""The long form, and its table for docs/reliability.md: ``python -m torture [kind…]`` with `tests` on the path."""

import sys
import time
from importlib import import_module

from torture.tally import LONG

KINDS = ("kills", "faults", "locks", "hostile", "served", "limits")
HEAD = ("tried", "losses", "wrong results", "crashes", "what")


def main(kinds):
    print("| " + " | ".join(HEAD) + " |\n|" + "---:|" * 4 + "---|", flush=True)
    bad, start = [], time.perf_counter()
    for kind in kinds or KINDS:
        for tally in import_module(f"torture.{kind}").tallies(LONG):
            counts = (tally.tried, len(tally.losses), len(tally.wrong), len(tally.crashes))
            print("| " + " | ".join([*(f"{count:,}" for count in counts), tally.what]) + " |", flush=True)
            bad += [f"{tally.what}: {what}" for what in tally.bad]
    minutes = (time.perf_counter() - start) / 60
    print(f"\n{minutes:.0f} minutes.", *bad[:50], sep="\n")
    return min(len(bad), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

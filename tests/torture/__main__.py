"""The long form, and its table in docs/reliability.md: ``python -m torture [--seconds N] [kind | kind:part …]``

`make torture` runs all of it, ``make torture KINDS="kills hostile:npz"`` one kind and the readers of .npz files. Each
line of the table is written as soon as it is known, with the commit it was tried on; the others stay as they are.
"""

import argparse
import signal
import sys
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from torture.hostile import GUIDANCE
from torture.page import HEAD, Page, commit, line
from torture.tally import LONG

KINDS = ("kills", "faults", "locks", "hostile", "served", "limits")
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"


def main(arguments):
    parser = argparse.ArgumentParser(prog="torture")
    parser.add_argument("--seconds", type=float, default=LONG.seconds, help="of fuzzing each reader, and of load")
    parser.add_argument("kinds", nargs="*", default=KINDS, help=f"of {', '.join(KINDS)}; kind:part for a part of one")
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the explorer is stopped by it, in the background as well
    page, bad, start = Page(PAGE), [], time.perf_counter()
    print(GUIDANCE, HEAD, sep="\n\n", flush=True)
    for name in chosen.kinds:
        kind, _, part = name.partition(":")
        if kind not in KINDS:
            parser.error(f"{kind} is none of {', '.join(KINDS)}")
        module, version, lines = import_module(f"torture.{kind}"), commit(), []
        begun = time.perf_counter()
        for tally in module.tallies(replace(LONG, seconds=chosen.seconds, only=part)):
            lines.append(line(tally, version, time.perf_counter() - begun))
            print(lines[-1], flush=True)
            page.write(kind, module.__doc__, lines)
            bad += [f"{tally.what}: {what}" for what in tally.bad]
            begun = time.perf_counter()
        if not lines:
            parser.error(f"{name}: there is no such part")
        if not part:
            page.write(kind, module.__doc__, lines, whole=True)
    print(f"\nIt took {(time.perf_counter() - start) / 60:.0f} minutes.", *bad[:50], sep="\n")
    return min(len(bad), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

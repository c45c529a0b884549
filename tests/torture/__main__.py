"""The long form, and its table in docs/reliability.md: ``python -m torture [kind…]``, as `make torture` calls it."""

import re
import sys
import time
from importlib import import_module
from pathlib import Path

from torture.tally import LONG

KINDS = ("kills", "faults", "locks", "hostile", "served", "limits")
HEAD = ("tried", "losses", "wrong results", "crashes", "what")
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"


def main(kinds):
    lines, bad, start = [], [], time.perf_counter()

    def say(line):
        print(line, flush=True)
        lines.append(line)

    say("| " + " | ".join(HEAD) + " |\n|" + "---:|" * 4 + "---|")
    for kind in kinds or KINDS:
        for tally in import_module(f"torture.{kind}").tallies(LONG):
            counts = (tally.tried, len(tally.losses), len(tally.wrong), len(tally.crashes))
            say("| " + " | ".join([*(f"{count:,}" for count in counts), tally.what]) + " |")
            bad += [f"{tally.what}: {what}" for what in tally.bad]
    say(f"\nIt took {(time.perf_counter() - start) / 60:.0f} minutes.")
    print(*bad[:50], sep="\n")
    if not kinds:
        table = "\n".join(["<!-- torture -->", *lines, "<!-- /torture -->"])
        PAGE.write_text(re.sub(r"<!-- torture -->.*<!-- /torture -->", lambda _: table, PAGE.read_text(), flags=re.S))
    return min(len(bad), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

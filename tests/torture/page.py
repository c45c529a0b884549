"""The tables of docs/reliability.md: a section for each kind, in which each line is known by what it tells."""

import re
import subprocess
from pathlib import Path

from bitmosaic import __version__

HEAD = "| tried | losses | wrong results | crashes | what | run |\n|---:|---:|---:|---:|---|---|"
HERE = Path(__file__).parents[2]


def line(tally, version, seconds):
    counts = (tally.tried, len(tally.losses), len(tally.wrong), len(tally.crashes))
    run = ", ".join(filter(None, [version, f"{seconds / 60:.1f} min", tally.how]))
    return "| " + " | ".join([*(f"{count:,}" for count in counts), tally.what, run]) + " |"


def line_in_words(tally):
    return (
        f"{tally.tried:,} tries: {len(tally.losses)} losses, {len(tally.wrong)} wrong results, "
        f"{len(tally.crashes)} crashes."
    )


def commit():
    """The commit that is tried, with a + where files have changed since."""
    version = _git("rev-parse", "--short", "HEAD")
    changed = _git("status", "--porcelain", "--", "src", "tests")
    return f"{version}{'+' if changed else ''}" if version else __version__


def _git(*command):
    try:
        return subprocess.run(("git", *command), cwd=HERE, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""


class Page:
    """A Markdown file with a section ``<!-- torture:kind -->`` for each kind."""

    def __init__(self, path: Path):
        self.path = path

    def write(self, kind, title, row, lines):
        """Put this row in the place of an older one that tells of the same. Only what `lines` tell of stays."""
        begin, end = f"<!-- torture:{kind} -->", f"<!-- /torture:{kind} -->"
        old = re.search(f"{begin}.*?{end}", text := self.path.read_text(), flags=re.S)
        assert old, f"{self.path} has no section {begin}"
        rows = {_what(row): row for row in (*re.findall(r"^\| [\d,]+ \|.*", old[0], flags=re.M), row)}
        kept = [rows[what] for what in lines if what in rows]
        section = "\n".join([begin, title.partition("\n")[0], "", HEAD, *kept, end])
        self.path.write_text(text[: old.start()] + section + text[old.end() :])


def _what(row):
    return row.split(" | ")[4].partition(" (not tried")[0]

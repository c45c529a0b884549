"""CONTRIBUTING.md is up to date: its files exist, and each function of the walk is in the file named before it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
WALK = re.findall(r"^\d+\. .*$", TEXT, re.MULTILINE)
PATHS = sorted(set(re.findall(r"`([\w./-]+(?:/|\.py|\.md|\.html))`", TEXT)))


@pytest.mark.parametrize("path", PATHS)
def test_every_path_exists(path):
    assert (ROOT / path).exists() or (ROOT / "src/bitmosaic" / path).exists()


@pytest.mark.parametrize("step", WALK)
def test_every_function_of_the_walk_is_in_its_file(step):
    source = ""
    for name in re.findall(r"`([\w./]+)`", step):
        if name.endswith(".py"):
            source = (ROOT / "src/bitmosaic" / name).read_text(encoding="utf-8")
        elif "/" not in name and not name.endswith(".csv"):
            for part in name.split("."):
                assert re.search(rf"^\s*(def|class) {part}\b", source, re.MULTILINE), name


def test_the_walk_has_at_most_15_steps():
    assert 10 <= len(WALK) <= 15


def test_every_name_in_capitals_is_in_the_source():
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    for name in re.findall(r"`([A-Z]{4,}(?:_[A-Z]+)*)`", TEXT):
        assert re.search(rf"^{name}\b", source, re.MULTILINE), name

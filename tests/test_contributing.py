"""CONTRIBUTING.md is up to date: its files exist, and its functions are in the files it names."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
WALK = re.findall(r"^\d+\. .*$", TEXT, re.MULTILINE)
PATHS = sorted(set(re.findall(r"`([\w./-]+(?:/|\.py|\.md|\.html|\.js|\.css))`", TEXT)))
PLACES = sorted(set(re.findall(r"`(\w+)` (?:in|of) `([\w/]+\.py)`", TEXT)))


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


@pytest.mark.parametrize(("name", "path"), PLACES)
def test_every_name_in_a_file_is_there(name, path):
    source = (ROOT / "src/bitmosaic" / path).read_text(encoding="utf-8")
    assert re.search(rf"^\s*(def |class )?{name}\b", source, re.MULTILINE)


def test_the_walk_has_at_most_15_steps():
    assert 10 <= len(WALK) <= 15


def test_every_name_in_capitals_is_in_the_source():
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    for name in re.findall(r"`([A-Z]{4,}(?:_[A-Z]+)*)`", TEXT):
        assert re.search(rf"^{name}\b", source, re.MULTILINE), name


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.stem)
def test_every_source_file_that_a_page_names_exists(page):
    for path in re.findall(r"`([\w/]+/\w+\.py)`", page.read_text(encoding="utf-8")):
        assert (ROOT / path).exists() or (ROOT / "src/bitmosaic" / path).exists(), path

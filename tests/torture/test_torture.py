"""Every kind of harm in its short form."""

import re
from dataclasses import replace
from importlib import import_module

import pytest

from torture import faults
from torture.__main__ import KINDS, PAGE, Coordinator, units_of
from torture.page import Page, line
from torture.tally import LONG, SHORT, Effort, Tally


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_wrong_or_crashed(kind):
    module = import_module(f"torture.{kind}")
    tallies = list(module.tallies(SHORT))
    assert [tally.what.partition(" (not tried")[0] for tally in tallies] == module.lines(SHORT)
    assert [f"{tally.what}: {what}" for tally in tallies for what in tally.bad] == []


def test_what_was_never_tried_is_no_proof():
    assert Tally("kills").bad == ["it was never tried"]
    assert Tally("disks (not tried: there are none)").bad == Tally("kills", tried=1).bad == []


def test_the_parts_of_a_kind_are_all_of_it(monkeypatch):
    """Side by side they try what one process would, and nothing twice."""
    asked = []
    monkeypatch.setattr(Effort, "wants", lambda self, part: asked.append(part))
    assert list(faults.tallies(SHORT)) == []
    monkeypatch.undo()
    parts = [unit.partition(":")[2] for unit in units_of(["faults", "kills:fit"])]
    assert [sum(replace(SHORT, only=part).wants(name) for part in parts[:-1]) for name in asked] == [1] * len(asked)
    assert (len(asked), parts[-1]) == (15, "fit")


def test_a_part_of_a_kind_is_told_by_whole_words():
    wants = [replace(SHORT, only=only).wants for only in ("fit", ".npz", "npz", "")]
    assert [want("fit") for want in wants] == [True, False, False, True]
    assert [want("refit") for want in wants] == [False, False, False, True]
    assert [want("views file .npz") for want in wants] == [False, True, True, True]


def test_a_kind_that_is_tried_again_changes_its_own_lines_of_the_table_alone(tmp_path):
    page = Page(tmp_path / "page.md")
    page.path.write_text("a\n<!-- torture:x -->\n<!-- /torture:x -->\nb\n<!-- torture:y -->\n<!-- /torture:y -->\nc\n")
    one, other = Tally("one", tried=1234), Tally("other", tried=2, crashes=["of it"], how="with care")
    page.write("x", "Kind x.\nMore.", line(other, "abc", 5), ["one", "other"])
    page.write("x", "Kind x.\nMore.", line(one, "abc", 66), ["one", "other"])
    page.write("y", "Kind y.", line(Tally("one (not tried: it rains)"), "abc", 6), ["one"])
    page.write("y", "Kind y.", line(one, "abc", 66), ["one"])
    page.write("x", "Kind x.", line(Tally("other", tried=3), "def", 5), ["one", "other"])
    head = "| tried | losses | wrong results | crashes | what | run |\n|---:|---:|---:|---:|---|---|\n"
    first = "| 1,234 | 0 | 0 | 0 | one | abc, 1.1 min |\n"
    again = "| 3 | 0 | 0 | 0 | other | def, 0.1 min |\n"
    y = f"<!-- torture:y -->\nKind y.\n\n{head}{first}<!-- /torture:y -->\nc\n"
    both = f"a\n<!-- torture:x -->\nKind x.\n\n{head}{first}{again}<!-- /torture:x -->\nb\n{y}"
    assert page.path.read_text() == both
    page.write("x", "Kind x.", line(other, "ghi", 60), ["other"])  # nobody tries the first any more
    assert "| 2 | 0 | 0 | 1 | other | ghi, 1.0 min, with care |\n<!-- /torture:x -->" in page.path.read_text()
    assert first not in page.path.read_text().partition("<!-- torture:y")[0]


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_tells_of_all_that_the_long_form_tries_and_on_which_commit(kind):
    section = PAGE.read_text().partition(f"<!-- torture:{kind} -->\n")[2].partition(f"<!-- /torture:{kind} -->")[0]
    rows = [row.strip("| ").split(" | ") for row in section.splitlines() if row.startswith("| ")][1:]
    assert sorted(row[4] for row in rows) == sorted(import_module(f"torture.{kind}").lines(LONG))
    run = re.compile(r"[0-9a-f]{7}, \d+\.\d min(, .*)?")  # of a commit as it is
    assert [row[4:] for row in rows if not run.fullmatch(row[5])] == []
    assert [row for row in rows if row[1:4] != ["0", "0", "0"]] == []


def test_what_is_tried_side_by_side_comes_into_the_page_and_what_breaks_the_harness_is_bad(tmp_path, capsys):
    page = Page(tmp_path / "page.md")
    page.path.write_text("<!-- torture:hostile -->\n<!-- /torture:hostile -->\n")
    coordinator = Coordinator(page, seconds=0.2)
    coordinator.run(["hostile:.npy", "unheard-of"])
    assert coordinator.bad == ["unheard-of: the harness itself ended with 1"]
    assert coordinator.total.tried > 0
    (row,) = capsys.readouterr().out.splitlines()
    assert "mutants of views file .npy files" in row
    assert page.path.read_text().splitlines()[5:-1] == [row]

"""A small part of `make torture`."""

import sys
from importlib import import_module

import pytest

if sys.platform != "linux":
    pytest.skip("torture needs fork, /proc and resource limits", allow_module_level=True)

from torture import bad_images, faults, kills, locks
from torture.__main__ import KINDS
from torture.commands import prepared
from torture.tally import SHORT, Tally


def failures(tallies):
    return [f"{tally.what}: {problem}" for tally in tallies for problem in tally.bad]


@pytest.fixture(scope="module")
def workshop():
    with prepared(SHORT.commands) as ready:
        yield ready


def test_killed_commands_resume_with_the_same_result(workshop):
    assert failures(kills.tallies(SHORT, workshop)) == []


def test_commands_survive_failing_writes(workshop):
    assert failures(faults.tallies(SHORT, workshop)) == []


def test_a_second_command_in_the_same_folder_is_refused(workshop):
    assert failures(locks.tallies(SHORT, workshop)) == []


def test_bad_images_and_archives_are_skipped_with_their_cause():
    assert failures(bad_images.tallies(SHORT)) == []


def test_a_tally_that_tried_nothing_has_failed_unless_it_says_why():
    assert Tally("kills").bad == ["nothing was tried"]
    assert Tally("disks (not tried: no root)").bad == Tally("kills", tried=1).bad == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_run(kind):
    assert callable(import_module(f"torture.{kind}").tallies)

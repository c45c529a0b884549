"""Every kind of harm in its short form."""

from importlib import import_module

import pytest

from torture.__main__ import KINDS
from torture.tally import SHORT, Tally


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_wrong_or_crashed(kind):
    tallies = list(import_module(f"torture.{kind}").tallies(SHORT))
    assert tallies
    assert [f"{tally.what}: {what}" for tally in tallies for what in tally.bad] == []


def test_what_was_never_tried_is_no_proof():
    assert Tally("kills").bad == ["it was never tried"]
    assert Tally("disks (not tried: there are none)").bad == Tally("kills", tried=1).bad == []

"""Every kind of harm in its short form."""

from importlib import import_module

import pytest

from torture.__main__ import KINDS
from torture.tally import SHORT


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_wrong_or_crashed(kind):
    tallies = list(import_module(f"torture.{kind}").tallies(SHORT))
    assert sum(tally.tried for tally in tallies) > 0
    assert [what for tally in tallies for what in tally.bad] == []

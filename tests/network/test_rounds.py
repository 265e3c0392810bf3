"""Texts outlive changes of networks, one of each kind."""

import pytest

from tests.network.home_router import RouterKind
from tests.network.laboratory import Laboratory
from tests.network.rounds import Change, Round, play

pytestmark = pytest.mark.network


@pytest.mark.lab
@pytest.mark.parametrize("transport", ["light", "full"])
def test_a_text_is_the_same_whatever_moves_in_the_middle_of_it(lab: Laboratory, transport: str) -> None:
    plan = [Round(change, 4, transport, RouterKind.SYMMETRIC, 1.0) for change in Change]
    assert [(found.change, found.error) for found in play(lab, plan)] == [(change, "") for change in Change]

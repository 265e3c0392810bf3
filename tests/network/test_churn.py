"""Texts while nodes come and go."""

import pytest

from tests.network.churn import planned, play
from tests.network.laboratory import Laboratory

pytestmark = pytest.mark.network


@pytest.mark.lab
def test_no_text_is_wrong_or_lost_while_nodes_come_and_go(lab: Laboratory) -> None:
    found = play(lab, planned(seed=0, minutes=1.0), minutes=1.0)
    assert (found.wrong, found.hung, found.errors) == ([], [], [])
    assert found.seconds

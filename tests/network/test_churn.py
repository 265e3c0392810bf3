"""Texts while nodes come and go: a short run, and what a run plans and tells."""

import pytest

from tests.network.churn import COMERS, EVERY_S, ROLES, planned, play, quarters
from tests.network.laboratory import Laboratory

pytestmark = pytest.mark.network


def test_a_plan_lets_nodes_of_all_kinds_come_and_go_everywhere_in_its_time() -> None:
    plan = planned(seed=1, minutes=30.0)
    assert [event.at_s for event in plan[:3]] == [0.0, EVERY_S, 2 * EVERY_S]
    assert plan[-1].at_s < 30 * 60
    assert {event.host for event in plan} == set(COMERS)
    assert {event.role for event in plan} == set(ROLES)
    assert plan == planned(seed=1, minutes=30.0)


def test_what_grows_is_seen_between_the_first_quarter_and_the_last() -> None:
    samples = [(float(second), 100.0 + second, 20) for second in range(8)]
    assert quarters(samples) == {"mib": [100.5, 106.5], "descriptors": [20, 20]}


@pytest.mark.lab
def test_no_text_is_wrong_or_lost_while_nodes_come_and_go(lab: Laboratory) -> None:
    found = play(lab, planned(seed=0, minutes=1.0), minutes=1.0)
    assert (found.wrong, found.hung, found.errors) == ([], [], [])
    assert found.seconds

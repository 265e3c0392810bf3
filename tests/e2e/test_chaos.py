"""Faults of everything, one upon the other: no text is wrong, fails or hangs for who knows two addresses."""

import asyncio
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.chaos import CLIENTS, KNOWN, NODES, VERIFIERS, Deed, Event, may_be, planned, play, scene_in

MINUTES: Final = 2.0


def test_a_seed_repeats_its_plan_and_another_makes_another() -> None:
    plan = planned(seed=1, minutes=30)
    assert plan == planned(seed=1, minutes=30) != planned(seed=2, minutes=30)
    assert {event.victim for event in plan} == {*NODES, *CLIENTS}
    assert {event.deed for event in plan} == set(Deed)
    assert all(0 <= event.at_s < 1800 for event in plan)
    # With its own daemon stopped a client reaches nobody.
    assert not any(event.victim in CLIENTS and event.deed is Deed.STOP_DAEMON for event in plan)


def test_nobody_is_left_without_a_verifier_or_an_address() -> None:
    def kill(victim: str) -> Event:
        return Event(0.0, Deed.KILL, victim, 1.0)

    assert all(may_be(kill(name), NODES) for name in NODES)
    assert not may_be(kill("second"), {"boot", "second", *NODES[3:]})
    # The first two clients know of the bootstrap node and the first verifier alone.
    assert not may_be(kill("boot"), {"boot", "second"})
    assert may_be(kill(CLIENTS[0]), set())
    assert all(len(known) == 2 and VERIFIERS & set(known) for known in KNOWN)


@pytest.mark.network
@pytest.mark.soak
@pytest.mark.timeout(900)
def test_every_text_is_right_whatever_dies_or_stops(tmp_path: Path) -> None:
    with scene_in(tmp_path) as scene:
        found = asyncio.run(play(scene, planned(seed=0, minutes=MINUTES), minutes=MINUTES))
    assert (found.wrong, found.hung, found.errors) == ([], [], [])
    assert found.texts > 0 and found.events

"""Nothing that a verifier announces buys belief: liars that say whatever helps them, in a swarm of honest ones."""

import logging
from collections.abc import Callable
from typing import Any, Final

import pytest

from cosine_lab.emulation.scripted_engine import ScriptedEngine
from tests.swarm.lie_economics import PatientLiar, outcome
from tests.thoroughness import quick_first

TEXTS: Final = 24

LIARS: Final[dict[str, Callable[[], ScriptedEngine]]] = {
    "numerics that nobody else has": lambda: PatientLiar(numerics="scripted/own"),
    "a longer context": lambda: PatientLiar(context_tokens=100_000),
    "a new key after each conviction": PatientLiar,
}


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)


@pytest.mark.parametrize("announced", quick_first(LIARS, quick=2))
def test_who_lies_at_once_gets_one_text_through(announced: str) -> None:
    found = outcome(honest=4, liars=1, texts=TEXTS, make_liar=LIARS[announced], audit=0.05)
    assert found.wrong <= 1 and not found.refused


def test_a_slow_liar_with_a_longer_context_does_not_get_what_others_have_no_room_for() -> None:
    """Honest verifiers have room for half of what is asked for, and write that."""

    def cramped() -> ScriptedEngine:
        return PatientLiar(right_texts=1 << 30, context_tokens=30)

    found = outcome(
        honest=3, liars=1, texts=8, make_liar=LIARS["a longer context"], make_honest=cramped, audit=0.05
    )
    assert not found.wrong and not found.refused


@pytest.mark.parametrize("sides", quick_first([(5, 4), (3, 2), (20, 19)]), ids=str)
def test_no_minority_of_auditors_shields_a_liar_or_convicts_an_honest_one(sides: tuple[int, int]) -> None:
    """Liars find each other right, and accuse all others whenever they are asked to judge."""
    honest, liars = sides
    found = outcome(honest=honest, liars=liars, texts=TEXTS, audit=0.25)
    assert found.wrong <= 2 and not found.refused and not found.honest_convicted


def test_of_two_that_accuse_each_other_neither_is_put_out() -> None:
    found = outcome(honest=1, liars=1, texts=TEXTS, audit=1.0)
    assert not found.honest_convicted


@pytest.mark.parametrize("right_texts", quick_first([5, 20], quick=0))
def test_a_liar_that_waits_gets_through_less_than_it_has_worked_for(right_texts: int) -> None:
    options: dict[str, Any] = {"make_liar": lambda: PatientLiar(right_texts=right_texts), "audit": 0.05}
    found = outcome(honest=4, liars=1, texts=150, **options)
    assert found.wrong <= max(2, found.keys * right_texts / 2)


def test_honest_verifiers_alone_are_never_found_wrong() -> None:
    found = outcome(honest=3, liars=0, texts=TEXTS, audit=1.0)
    assert not found.wrong and not found.refused and not found.honest_convicted

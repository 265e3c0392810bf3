"""Every cell of the table, and the counters that follow from it."""

from itertools import product

import pytest

from cosine_p2p.strategy.cosine import (
    FIRST_BACKOFF_TOKENS,
    TRANSITIONS,
    Drafter,
    DrafterEvent,
    DrafterState,
)
from cosine_p2p.strategy.router import DrafterFacts
from cosine_protocol.errors import LocalProtocolError

FACTS = DrafterFacts(prompt_nll=1.0, token_s=0.002, rtt_s=0.03)
FROM_DRAFTER = (DrafterEvent.STARTED, DrafterEvent.DRAFTED)


@pytest.mark.parametrize(("state", "event"), list(product(DrafterState, DrafterEvent)))
def test_every_state_answers_every_event(state: DrafterState, event: DrafterEvent) -> None:
    drafter = Drafter(FACTS, state)
    if event in TRANSITIONS[state]:
        drafter.on(event)
        assert drafter.state is TRANSITIONS[state][event]
    else:
        assert event not in FROM_DRAFTER
        with pytest.raises(LocalProtocolError):
            drafter.on(event)
        assert drafter.state is state


def test_every_state_is_reached_and_left() -> None:
    reached, pending = {DrafterState.DRAFTING}, [DrafterState.DRAFTING]
    while pending:
        new = set(TRANSITIONS[pending.pop()].values()) - reached
        reached |= new
        pending += new
    assert reached == set(DrafterState) == TRANSITIONS.keys()


def test_a_drafter_on_trial_drafts_once_it_has_drafted_something_new() -> None:
    drafter, seen = Drafter(FACTS), []
    for event in (DrafterEvent.RELEASE, DrafterEvent.RECALL, DrafterEvent.STARTED, DrafterEvent.DRAFTED):
        drafter.on(event)
        drafter.note_committed(has_drafted=False)
        seen.append((drafter.state, drafter.is_active))
    assert seen == [
        (DrafterState.RELEASED, False),
        (DrafterState.RECALLED, False),
        (DrafterState.ON_TRIAL, True),
        (DrafterState.DRAFTING, True),
    ]


def test_backoff_doubles_until_something_new_is_drafted() -> None:
    drafter, lengths = Drafter(FACTS), []
    for _ in range(3):
        drafter.back_off(100)
        lengths.append(drafter.backs_off_until - 100)
        drafter.on(DrafterEvent.END_BACKOFF)
        drafter.on(DrafterEvent.RECALL)
        drafter.start(FACTS)
    assert lengths == [FIRST_BACKOFF_TOKENS, 2 * FIRST_BACKOFF_TOKENS, 4 * FIRST_BACKOFF_TOKENS]
    drafter.note_committed(has_drafted=True)
    drafter.back_off(0)
    assert drafter.backs_off_until == FIRST_BACKOFF_TOKENS


def test_silence_counts_while_it_is_asked_to_draft_and_ends_with_a_draft_or_a_start() -> None:
    drafter = Drafter(FACTS)
    for _ in range(3):
        drafter.note_committed(has_drafted=False)
    assert drafter.silent_tokens == 3
    drafter.on(DrafterEvent.RELEASE)
    drafter.note_committed(has_drafted=False)
    assert drafter.silent_tokens == 3
    drafter.start(FACTS)
    assert drafter.silent_tokens == 0
    drafter.note_committed(has_drafted=False)
    drafter.note_committed(has_drafted=True)
    assert drafter.silent_tokens == 0

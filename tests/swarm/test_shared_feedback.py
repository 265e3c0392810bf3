"""Drafters are told that they may keep a text by those clients alone that let them, and it changes no text."""

from typing import Any, Final

import pytest

from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_p2p.request.results import Generation
from cosine_protocol import messages as m
from cosine_protocol.codec import decode_body
from cosine_protocol.fields import Signed
from cosine_protocol.messages import Mandate
from cosine_protocol.request import Sampling
from cosine_train.learning.streams import StreamRecords, VerifiedStream
from tests.swarm.eavesdropping import OLD_FEATURES, Eavesdroppers
from tests.swarm.reference import assert_freed, draft_engine, plain_stream, target_engine

TOKENS: Final = 30
PROMPT: Final = "MEMO:"


async def generated(
    ears: Eavesdroppers, *, old: int = 0, kept: list[VerifiedStream] | None = None, **options: Any
) -> Generation:
    async with SimulatedSwarm(one_way_s=0.05) as swarm:
        await swarm.verifier(target_engine())
        keep = None if kept is None else kept.append
        await swarm.drafter(draft_engine(0.9), domain="code", observer=keep and StreamRecords(keep))
        for number in range(old):
            await swarm.drafter_with(ears.old_drafter, domain=f"old-{number}")
        client = await swarm.client(**options)
        generation = await client.generate(PROMPT, max_new_tokens=TOKENS)
        await assert_freed(swarm)
        assert generation.token_ids == plain_stream(PROMPT, Sampling(), tokens=TOKENS)
        assert generation.accepted
        return generation


def told(start: m.Start) -> bool | None:
    """A drafter is told so by the mandate where there is one, else by the message."""
    return start.shares_feedback if start.mandate is None else mandate_of(start.mandate).shares_feedback


def mandate_of(signed: Signed[Mandate]) -> Mandate:
    mandate: Mandate = decode_body(Mandate, signed.body)
    return mandate


@pytest.mark.parametrize("coordination", ["client", "verifier"])
@pytest.mark.parametrize("window", [0, 5])
@pytest.mark.parametrize("shares", [None, False, True])
def test_drafters_are_told_so_where_the_client_shares(
    shares: bool | None, window: int, coordination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ears = Eavesdroppers(monkeypatch)
    options: dict[str, Any] = {"coordination": coordination, "prompt_window_tokens": window}
    done = run_virtual(generated(ears, kept=[], share_feedback=shares, **options))
    assert done.coordinator == coordination
    assert ears.starts and all((start.mandate is not None) == (coordination == "verifier") for start in ears.starts)
    assert {told(start) for start in ears.starts} == {True if shares else None}


@pytest.mark.parametrize("coordination", ["client", "verifier"])
@pytest.mark.parametrize("shares", [False, True])
def test_a_drafter_keeps_the_text_with_its_guesses_where_the_client_shares(
    shares: bool, coordination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[VerifiedStream] = []
    options: dict[str, Any] = {"coordination": coordination, "prompt_window_tokens": 3}
    done = run_virtual(generated(Eavesdroppers(monkeypatch), kept=kept, share_feedback=shares, **options))
    assert len(kept) == shares
    for stream in kept:
        assert stream.tokens == done.token_ids
        assert stream.prompt == LetterCodec().encode(PROMPT)[-3:]
        made = [(guess, token) for guess, token in zip(stream.guesses, stream.tokens, strict=True) if guess >= 0]
        assert sum(guess == token for guess, token in made) > 0.7 * TOKENS


def test_a_drafter_that_does_not_learn_gets_the_start_of_old(monkeypatch: pytest.MonkeyPatch) -> None:
    ears = Eavesdroppers(monkeypatch)
    options: dict[str, Any] = {"coordination": "client", "prompt_window_tokens": 0}
    run_virtual(generated(ears, old=1, share_feedback=True, **options))
    assert ears.old_starts and ears.starts
    assert all(start.shares_feedback is None for start in (*ears.old_starts, *ears.starts))


def test_a_verifier_passes_on_the_client_s_word_as_it_was_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[VerifiedStream] = []
    monkeypatch.setattr("cosine_p2p.transport.channel.FEATURES", OLD_FEATURES)
    options: dict[str, Any] = {"coordination": "verifier", "prompt_window_tokens": 0}
    done = run_virtual(generated(Eavesdroppers(monkeypatch), kept=kept, share_feedback=True, **options))
    assert done.coordinator == "verifier"
    assert [stream.tokens for stream in kept] == [done.token_ids]

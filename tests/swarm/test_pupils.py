"""A drafter that only learns from a request gets its text, is asked for nothing, and changes nothing."""

from typing import Any, Final

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_node.drafter.observer import NO_GUESS
from cosine_node.engine.curve import CostCurve
from cosine_p2p.directory import selection
from cosine_p2p.request.results import Generation
from cosine_p2p.session import drafters
from cosine_protocol import messages as m
from cosine_protocol.request import Sampling
from cosine_train.learning.streams import StreamRecords, VerifiedStream
from tests.swarm.eavesdropping import Eavesdroppers
from tests.swarm.reference import assert_freed, draft_engine, plain_stream, target_engine

SLOW: Final = CostCurve(((1, 0.02), (32, 0.03)))
TOKENS: Final = 30
PROMPT: Final = "MEMO:"


async def generated(
    coordination: str, kept: list[VerifiedStream], *, dies: bool = False, **options: Any
) -> Generation:
    async with SimulatedSwarm(one_way_s=0.05) as swarm:
        await swarm.verifier(target_engine())
        # The first two would be asked; who learns is slower, and takes the place of the second of its kind.
        quick = [await swarm.drafter(draft_engine(0.9, number), domain="code") for number in range(2)]
        for number in range(2):
            engine = draft_engine(0.5, 2 + number)
            await swarm.drafter(engine, curve=SLOW, domain="code", observer=StreamRecords(kept.append))
        client = await swarm.client(
            coordination=coordination, **{"share_feedback": True, "max_drafters": 2} | options
        )
        for member in quick if dies else []:
            await member.kill()
        generation = await client.generate(PROMPT, max_new_tokens=TOKENS)
        await assert_freed(swarm)
        assert generation.token_ids == plain_stream(PROMPT, Sampling(), tokens=TOKENS)
        return generation


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in each request, near its domain or not."""
    monkeypatch.setattr(selection, "PUPIL_EVERY", 1)
    monkeypatch.setattr(drafters, "MAX_STRANGENESS_NATS", 1e6)


@pytest.mark.parametrize("coordination", ["client", "verifier"])
def test_it_keeps_the_text_and_drafts_nothing(coordination: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ears, kept = Eavesdroppers(monkeypatch), list[VerifiedStream]()
    done = run_virtual(generated(coordination, kept))
    assert done.coordinator == coordination
    [stream] = kept
    assert stream.tokens == done.token_ids
    assert sum(guess != NO_GUESS for guess in stream.guesses) > TOKENS / 4
    asked = [message for message in ears.told if isinstance(message, m.Start)]
    assigned = [message for message in ears.told if isinstance(message, m.Assign)]
    assert len(asked) == 2 and len(assigned) == 1
    assert len(done.drafters) == 1


@pytest.mark.parametrize("coordination", ["client", "verifier"])
def test_without_feedback_nobody_learns(coordination: str) -> None:
    kept: list[VerifiedStream] = []
    run_virtual(generated(coordination, kept, share_feedback=False))
    assert kept == []


def test_a_verifier_gives_the_coordination_back_where_only_the_one_that_learns_is_left() -> None:
    kept: list[VerifiedStream] = []
    done = run_virtual(generated("verifier", kept, dies=True))
    assert done.coordinator == "client" and any("no drafter follows" in line for line in done.why)
    assert [stream.tokens for stream in kept] == [done.token_ids]
    assert done.drafters == ()

"""Receipts in a whole swarm: drafters get them for their tokens, and no more than that."""

import asyncio
import random
from typing import Any, Final

import pytest

from cosine_node.drafter.service import DrafterService
from cosine_node.simulation.swarm import Member, SimulatedSwarm
from cosine_node.simulation.virtual_loop import run_virtual
from cosine_p2p.generation import Generation
from cosine_protocol.request import Sampling
from tests.swarm.reference import draft_engine, plain_stream, prompt_of, target_engine

TOKENS: Final = 80
PROMPT: Final = prompt_of(random.Random("receipts"))
SETTLE_S: Final = 1.0
"""Longer than the last messages are on their way."""
EXPECTED: Final = plain_stream(PROMPT, Sampling(), tokens=TOKENS)


def earned(drafter: Member) -> int:
    assert isinstance(drafter.service, DrafterService) and drafter.service.receipts is not None
    return drafter.service.receipts.earnings().tokens


def generated(**options: Any) -> tuple[Generation, dict[str, int]]:
    """A generation with two drafters, and what each has earned by it."""

    async def run() -> tuple[Generation, dict[str, int]]:
        async with SimulatedSwarm() as swarm:
            await swarm.verifier(target_engine())
            drafters = [await swarm.drafter(draft_engine(0.8, number), domain=f"{number}") for number in range(2)]
            client = await swarm.client(**options)
            done = await client.generate(PROMPT, max_new_tokens=TOKENS)
            await asyncio.sleep(SETTLE_S)
            return done, {drafter.identity.peer_id: earned(drafter) for drafter in drafters}

    return run_virtual(run())


@pytest.mark.parametrize("coordination", ["client", "verifier"])
def test_each_drafter_gets_one_for_the_tokens_that_its_client_counted(coordination: str) -> None:
    done, tokens = generated(coordination=coordination)
    accepted = {report.peer_id: report.accepted for report in done.drafters if report.accepted}
    assert done.token_ids == EXPECTED
    assert done.coordinator == coordination
    assert accepted and {peer_id: count for peer_id, count in tokens.items() if count} == accepted
    assert done.receipts == len(accepted)


def test_a_client_that_shares_none_sends_none() -> None:
    done, tokens = generated(share_receipts=False)
    assert done.accepted and not done.receipts
    assert set(tokens.values()) == {0}

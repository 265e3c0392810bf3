"""A drafter that joins while a text is written drafts for the next one; of the first the text is the same."""

import asyncio
import random

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_p2p.directory.recent_finds import REUSE_S
from cosine_p2p.request.results import Generation
from cosine_protocol.request import Sampling
from tests.swarm.reference import draft_engine, plain_stream, prompt_of, target_engine

TOKENS = 80
"""Five seconds of passes of 60 ms."""
JOINS_AT_S = 3.0
PROMPT = prompt_of(random.Random("late"))
EXPECTED = plain_stream(PROMPT, Sampling(), tokens=TOKENS)


def texts_of(*, drafters: int, max_drafters: int) -> list[Generation]:
    """Three texts, one right after the other, while a drafter joins in the middle of the first."""

    async def run() -> list[Generation]:
        async with SimulatedSwarm() as swarm:
            await swarm.verifier(target_engine())
            for _ in range(drafters):
                await swarm.drafter(draft_engine(0.8))
            client = await swarm.client(reuse_finds_s=REUSE_S, max_drafters=max_drafters)

            async def join() -> None:
                await asyncio.sleep(JOINS_AT_S)
                await swarm.drafter(draft_engine(0.9))

            joining = asyncio.ensure_future(join())
            found = []
            for _ in range(3):
                found.append(await client.generate(PROMPT, max_new_tokens=TOKENS))
                await asyncio.sleep(0.1)
            await joining
            return found

    return run_virtual(run())


def test_who_joins_while_a_text_is_written_drafts_for_the_next() -> None:
    texts = texts_of(drafters=0, max_drafters=4)
    assert [text.token_ids for text in texts] == [EXPECTED] * 3
    assert [len(text.drafters) for text in texts] == [0, 1, 1]


def test_a_text_that_had_all_the_drafters_it_may_have_looks_for_no_more() -> None:
    texts = texts_of(drafters=1, max_drafters=1)
    assert [text.token_ids for text in texts] == [EXPECTED] * 3
    assert [len(text.drafters) for text in texts] == [1, 1, 1]

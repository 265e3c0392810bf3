"""Tests of the progress and the origins of a generation."""

import random
from collections.abc import Sequence
from contextlib import aclosing

from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_p2p.request.results import Generation, Progress
from tests.scenes import in_virtual_time
from tests.swarm.reference import draft_engine, prompt_of, target_engine

TOKENS = 48
PROMPT = prompt_of(random.Random("run"))


@in_virtual_time
async def generated(stop: Sequence[str] = ()) -> tuple[list[Progress], Generation]:
    """Return the progress at the beginning, at each chunk and at the end, and the result."""
    async with SimulatedSwarm() as swarm:
        await swarm.verifier(target_engine())
        await swarm.drafter(draft_engine(0.9))
        client = await swarm.client()
        generation = await client.start(PROMPT, max_new_tokens=TOKENS, stop=stop)
        seen = [generation.progress()]
        async with aclosing(generation.chunks()) as chunks:
            async for chunk in chunks:
                assert chunk.text == "".join(origin.content for origin in chunk.origins)
                assert chunk.token_ids == tuple(origin.token for origin in chunk.origins)
                seen.append(generation.progress())
        return [*seen, generation.progress()], generation.result()


def test_progress_grows_into_the_result() -> None:
    seen, result = generated()
    first, last = seen[0], seen[-1]
    assert (first.tokens, first.rounds, first.serving, first.drafters) == (0, 0, (), ())
    assert [p.tokens for p in seen] == sorted(p.tokens for p in seen)
    assert all(len(p.serving) == 1 for p in seen[1:-1])
    assert (last.tokens, last.rounds, last.accepted) == (
        result.usage.completion_tokens,
        result.swarm.rounds,
        result.swarm.accepted,
    )
    assert last.drafters == result.swarm.drafters and last.tried == ()


def test_the_origins_of_a_text_add_up_to_it_also_where_a_stop_string_cuts_a_commit() -> None:
    _, whole = generated()
    assert sum(origin.tokens for origin in whole.swarm.origins) == whole.usage.completion_tokens == TOKENS
    assert {origin.name for origin in whole.swarm.origins} >= {"code", "target alone"}
    for start in (8, 13):
        _, cut = generated([whole.text[start : start + 4]])
        assert (
            sum(origin.tokens for origin in cut.swarm.origins)
            == cut.usage.completion_tokens
            < whole.usage.completion_tokens
        )

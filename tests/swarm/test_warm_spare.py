"""A second verifier that is kept warm goes on with a long request at once where the first one dies."""

import asyncio
import random
from dataclasses import dataclass
from typing import Any, Final

import pytest

from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import Member, SimulatedSwarm
from cosine_node.verifier.service import VerifierService
from cosine_p2p.session.warm_spare import EVERY_TOKENS, LEAST_TOKENS

PROMPT_TOKENS: Final = 2000
TOKENS: Final = 200
DIES_AFTER: Final = 150
SETTLE_S: Final = 3.0
"""Longer than a verifier takes for a token that nobody waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failover:
    """A text whose verifier died at `DIES_AFTER` tokens, and the seconds until the next one went on."""

    token_ids: tuple[int, ...]
    resume_s: float
    opened_at_spare: int


def prompt_of(tokens: int) -> str:
    rng = random.Random("warm")
    return LetterCodec().decode([rng.randrange(64) for _ in range(tokens)])


def opened(member: Member) -> int:
    assert isinstance(member.service, VerifierService)
    return member.service.counts.opened


def failed_over(*, prompt_tokens: int = PROMPT_TOKENS, spares_die: int = 0, **options: Any) -> _Failover:
    """With two verifiers beside the first, of which so many die before it does."""

    async def run() -> _Failover:
        async with SimulatedSwarm() as swarm:
            verifiers = [await swarm.verifier(ScriptedEngine(context_tokens=8192)) for _ in range(3)]
            client = await swarm.client(timeout_s=300.0, **options)
            started = await client.start(prompt_of(prompt_tokens), max_new_tokens=TOKENS)
            by_peer_id = {member.identity.peer_id: member for member in verifiers}
            first, *spares = (by_peer_id[peer_id] for peer_id in started.verifiers)
            loop, died_s, resumed_s, tokens = asyncio.get_running_loop(), 0.0, 0.0, 0
            for spare in spares[:spares_die]:
                await spare.kill()
            async for chunk in started.chunks():
                tokens += len(chunk.token_ids)
                if died_s and not resumed_s:
                    resumed_s = loop.time()
                if tokens >= DIES_AFTER and not died_s:
                    await first.kill()
                    died_s = loop.time()
            await asyncio.sleep(SETTLE_S)
            assert all(member.service.requests == 0 for member in spares if not member.is_killed)
            return _Failover(
                token_ids=started.result().token_ids,
                resume_s=resumed_s - died_s,
                opened_at_spare=opened(spares[spares_die]),
            )

    return run_virtual(run())


def test_a_prompt_of_2000_tokens_goes_on_at_once_and_is_fed_again_without() -> None:
    cold, warm = failed_over(), failed_over(warm_spare=True)
    assert cold.token_ids == warm.token_ids and len(cold.token_ids) == TOKENS
    # In virtual time these are the same in every run; docs/generate.md names them.
    assert cold.resume_s == pytest.approx(5.0, abs=0.1)
    assert warm.resume_s == pytest.approx(0.2, abs=0.1)
    # The first warming, those on the way, and the request itself.
    assert cold.opened_at_spare == 1 < warm.opened_at_spare <= 2 + DIES_AFTER // EVERY_TOKENS


def test_where_the_spare_dies_the_next_one_is_kept_warm() -> None:
    found = failed_over(warm_spare=True, spares_die=1)
    assert len(found.token_ids) == TOKENS
    assert found.resume_s < 1.0, found.resume_s


def test_a_short_prompt_is_fed_soon_enough_and_keeps_nobody_warm_before_it_is_long() -> None:
    assert failed_over(prompt_tokens=LEAST_TOKENS - TOKENS - 1, warm_spare=True).opened_at_spare == 1


def test_without_another_verifier_nothing_is_kept_warm() -> None:
    async def run() -> int:
        async with SimulatedSwarm() as swarm:
            await swarm.verifier(ScriptedEngine(context_tokens=8192))
            client = await swarm.client(warm_spare=True)
            return len((await client.generate(prompt_of(300), max_new_tokens=20)).token_ids)

    assert run_virtual(run()) == 20

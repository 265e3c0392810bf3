"""Tests of the standing of verifiers in swarms with liars.

Liars use another model, support each other, accuse honest verifiers and are twice as fast. A convicted liar joins
again with a new key.
"""

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Final

import pytest

from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.simulation.stages import Ring, even_parts
from cosine_lab.simulation.swarm import SimulatedMember, SimulatedSwarm, numbered_identity
from cosine_protocol.errors import GenerationFailed
from cosine_protocol.request import Sampling
from tests.scenes import in_virtual_time
from tests.swarm.reference import VOCAB_TOKENS, audited, plain_stream, prompt_of, slower, target_engine
from tests.thoroughness import quick_first, quick_rows

TEXTS: Final = 12
TOKENS: Final = 40
"""With one transcript within the text, and one at the end."""
FAST: Final = slower(0.5)
LIAR_NUMBERS: Final = 50_000
HONEST_NUMBERS: Final = 60_000
ONE_RANGE: Final = "/ip4/6.7.8.9/tcp/4001"


class LyingVerifier(ScriptedEngine):
    """An engine that uses another model."""

    def __init__(self, *, numerics: str | None = None, context_tokens: int = 4096) -> None:
        super().__init__(vocab_tokens=VOCAB_TOKENS, context_tokens=context_tokens, model_seed=99)
        if numerics is not None:
            self.numerics = numerics


LIARS: Final[dict[str, Callable[[], ScriptedEngine]]] = {
    "numerics that nobody else has": lambda: LyingVerifier(numerics="scripted/own"),
    "a longer context": lambda: LyingVerifier(context_tokens=100_000),
    "a new key after each conviction": LyingVerifier,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The wrong and refused texts of one client, and the convicted."""

    wrong: int
    refused: int
    honest_convicted: int
    liars_convicted: int


@in_virtual_time
async def outcome(
    *,
    honest: int,
    liars: int,
    make_liar: Callable[[], ScriptedEngine] = LyingVerifier,
    in_one_range: bool = False,
    over_one_stage: bool = False,
    seed: int = 0,
    audit: float = 1.0,
) -> Outcome:
    """Return the outcome of consecutive texts of one client.

    With `in_one_range` liars share an address range and honest verifiers have one each. With `over_one_stage` liars
    are heads with the same last stage.
    """
    async with SimulatedSwarm() as swarm:
        addresses = swarm.network.addresses if in_one_range else {}
        ring, right, present = None, set[str](), dict[str, SimulatedMember]()
        if over_one_stage:
            parts = zip(even_parts(2), (target_engine, make_liar), strict=True)
            stages = [await swarm.stage(part, whole, curve=FAST) for part, whole in parts]
            ring = Ring(stages=stages, traversal_s=FAST.seconds(1))
        for number in range(honest):
            identity = numbered_identity(HONEST_NUMBERS + number)
            addresses[identity.peer_id] = f"/ip4/5.6.{number}.1/tcp/4001"
            await swarm.verifier(target_engine(), identity=identity)
            right.add(identity.peer_id)
        keys = count(LIAR_NUMBERS)

        async def add_liar() -> None:
            identity = numbered_identity(next(keys))
            addresses[identity.peer_id] = ONE_RANGE
            engine = make_liar() if ring is None else target_engine()
            present[identity.peer_id] = await (
                swarm.verifier(engine, identity=identity, curve=FAST)
                if ring is None
                else swarm.head(ring, engine, identity=identity)
            )

        for _ in range(liars):
            await add_liar()
        client = await swarm.client(strategy="plain", identity=numbered_identity(40_000 + seed), audit=audit)
        rng, wrong, refused = random.Random(seed), 0, 0
        for number in range(TEXTS):
            prompt = prompt_of(rng)
            try:
                done = await audited(client, prompt, max_new_tokens=TOKENS, seed=number)
            except GenerationFailed:
                refused += 1
                continue
            wrong += done.token_ids != plain_stream(
                prompt, Sampling(seed=number), tokens=done.usage.completion_tokens
            )
            # Convicted liars come again under new keys.
            for peer_id in client.convicted & present.keys():
                await present.pop(peer_id).kill()
                await add_liar()
        lying = len(client.convicted - right)
        return Outcome(wrong, refused, len(client.convicted) - lying, lying)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)


@pytest.mark.parametrize("announced", quick_first(LIARS))
def test_who_lies_at_once_gets_one_text_through(announced: str) -> None:
    found = outcome(honest=4, liars=1, make_liar=LIARS[announced], audit=0.05)
    assert found.wrong <= 1 and not found.refused


@pytest.mark.parametrize("sides", quick_first([(3, 2), (5, 4), (20, 19)], checked=2), ids=str)
def test_no_minority_of_auditors_shields_a_liar_or_convicts_an_honest_one(sides: tuple[int, int]) -> None:
    honest, liars = sides
    found = outcome(honest=honest, liars=liars, audit=0.25)
    assert found.wrong <= 2 and not found.refused and not found.honest_convicted


@pytest.mark.parametrize("seed", quick_first(range(4)))
def test_twelve_liars_in_one_range_are_outvoted_by_four_honest_verifiers(seed: int) -> None:
    found = outcome(honest=4, liars=12, in_one_range=True, seed=seed)
    assert not found.honest_convicted
    assert found.wrong <= found.liars_convicted


@pytest.mark.parametrize(("honest", "seed"), quick_rows([(2, 0), (3, 1), (1, 2), (2, 3)]))
def test_two_heads_over_one_liar_convict_nobody(honest: int, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    found = outcome(honest=honest, liars=2, over_one_stage=True, seed=seed)
    assert not found.honest_convicted
    if honest >= 2:
        assert found.wrong <= found.liars_convicted
    # A head audits while several of its passes are under way.
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]

"""Many keys in one address range, as anybody may have: they are one judge, whatever they say of others."""

import logging
from dataclasses import dataclass
from typing import Any, Final

import pytest

from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import SimulatedSwarm, numbered_identity
from cosine_p2p.trust.audit_rule import AuditState
from tests.swarm.audited_texts import audited_texts
from tests.swarm.lie_economics import FAST, TOKENS
from tests.swarm.reference import VOCAB_TOKENS, target_engine
from tests.thoroughness import quick_first

TEXTS: Final = 12
HONEST: Final = 4
LIARS: Final = 12


@dataclass(frozen=True, slots=True)
class Outcome:
    """Texts that came wrong, honest verifiers and liars that the client holds to be liars; what audits found."""

    wrong: int
    honest_convicted: int
    liars_convicted: int
    states: tuple[AuditState, ...]


def outcome(*, honest_range: str, liar_range: str, seed: int = 0) -> Outcome:
    """Texts for one client who audits all. A range has a place for the number of a verifier, or is ""."""

    async def run() -> Outcome:
        async with SimulatedSwarm() as swarm:

            async def verifier(engine: ScriptedEngine, number: int, range_: str, **options: Any) -> str:
                identity = numbered_identity(number)
                if range_:
                    swarm.network.addresses[identity.peer_id] = f"/ip4/{range_.format(number)}/tcp/4001"
                return (await swarm.verifier(engine, identity=identity, **options)).identity.peer_id

            right = {await verifier(target_engine(), number, honest_range) for number in range(1, 1 + HONEST)}
            liars = set()
            for number in range(100, 100 + LIARS):
                liar = ScriptedEngine(vocab_tokens=VOCAB_TOKENS, model_seed=99)
                liars.add(await verifier(liar, number, liar_range, curve=FAST))
            found = await audited_texts(swarm, texts=TEXTS, tokens=TOKENS, seed=seed)
            convicted = found.convicted
            return Outcome(found.wrong, len(convicted & right), len(convicted & liars), found.states)

    return run_virtual(run())


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)


@pytest.mark.parametrize("seed", quick_first(range(4)))
def test_twelve_liars_in_one_range_are_outvoted_by_four_honest_ones(seed: int) -> None:
    found = outcome(honest_range="5.6.{}.1", liar_range="5.7.8.{}", seed=seed)
    assert not found.honest_convicted
    assert found.wrong <= found.liars_convicted


def test_where_all_are_in_one_range_each_has_a_voice() -> None:
    found = outcome(honest_range="5.7.8.{}", liar_range="5.7.8.{}")
    # Most lie, so that nothing holds: a range that all share tells nobody apart.
    assert found.honest_convicted and not found.liars_convicted

"""One stage that lies under two heads: their word is one, whoever they judge, and their texts do not last."""

import logging
from dataclasses import dataclass
from typing import Final

import pytest

from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.stages import Ring, even_parts
from cosine_lab.simulation.swarm import VERIFY_CURVE, SimulatedSwarm
from cosine_node.engine.curve import CostCurve
from cosine_p2p.session.probation import TRIAL_TOKENS
from cosine_p2p.trust.audit_rule import AuditState
from tests.swarm.audited_texts import audited_texts
from tests.swarm.lie_economics import Shared
from tests.swarm.lie_economics import outcome as economics
from tests.swarm.reference import VOCAB_TOKENS, target_engine
from tests.thoroughness import quick_first

TEXTS: Final = 12
TOKENS: Final = TRIAL_TOKENS + 8
HEADS: Final = 2
FAST: Final = CostCurve(tuple((tokens, 0.25 * seconds) for tokens, seconds in VERIFY_CURVE.points))


def other_model() -> ScriptedEngine:
    return ScriptedEngine(vocab_tokens=VOCAB_TOKENS, model_seed=99)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Texts that came wrong; honest verifiers and heads that the client holds to be liars; what audits found."""

    wrong: int
    honest_convicted: int
    heads_convicted: int
    states: tuple[AuditState, ...]


def outcome(*, honest: int, lies: bool = True, seed: int = 0, texts: int = TEXTS) -> Outcome:
    """Texts for one client who audits all, of honest verifiers and of two heads over the same last stage."""

    async def run() -> Outcome:
        async with SimulatedSwarm() as swarm:
            first, last = even_parts(2)
            stages = [
                await swarm.stage(first, target_engine, curve=FAST),
                await swarm.stage(last, other_model if lies else target_engine, curve=FAST),
            ]
            heads = [
                await swarm.verifier(target_engine(), ring=Ring(stages=stages, traversal_s=0.05))
                for _ in range(HEADS)
            ]
            right = [await swarm.verifier(target_engine()) for _ in range(honest)]
            found = await audited_texts(swarm, texts=texts, tokens=TOKENS, seed=seed)
            convicted = found.convicted
            return Outcome(
                found.wrong,
                sum(member.identity.peer_id in convicted for member in right),
                sum(member.identity.peer_id in convicted for member in heads),
                found.states,
            )

    return run_virtual(run())


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)


@pytest.mark.parametrize("seed", quick_first(range(4)))
@pytest.mark.parametrize("honest", quick_first([2, 3, 1], quick=2))
def test_two_heads_over_one_stage_convict_no_honest_verifier(honest: int, seed: int) -> None:
    found = outcome(honest=honest, seed=seed)
    assert not found.honest_convicted
    if honest >= HEADS:
        # Each head is found at the first text that it writes.
        assert found.wrong <= HEADS


def test_honest_heads_over_the_same_stages_are_judged_by_others() -> None:
    found = outcome(honest=1, lies=False)
    assert (found.wrong, found.honest_convicted, found.heads_convicted) == (0, 0, 0)
    assert set(found.states) == {AuditState.PASSED}


def test_heads_over_the_same_stages_alone_clear_nobody() -> None:
    found = outcome(honest=0, lies=False, texts=3)
    assert set(found.states) == {AuditState.UNANSWERED} and not found.heads_convicted


def test_a_head_audits_with_several_passes_under_way(caplog: pytest.LogCaptureFixture) -> None:
    """Its liars share a stage, and passes follow each other sooner than they come back."""
    found = economics(honest=2, liars=2, texts=6, shared=Shared.STAGE, audit=1.0)
    assert found.wrong <= 1 and not found.honest_convicted
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]

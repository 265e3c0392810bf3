"""Whom a client believes, in swarms of honest verifiers and of liars that announce whatever helps them.

Liars write with another model, find each other right, accuse the honest ones and are twice as fast. One that is
convicted comes again under a new key.
"""

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

import pytest

from cosine_lab.emulation.scripted_engine import Logits, ScriptedEngine, scripted_logits
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.stages import Ring, even_parts
from cosine_lab.simulation.swarm import VERIFY_CURVE, Member, SimulatedSwarm, numbered_identity
from cosine_node.engine.curve import CostCurve
from cosine_p2p.client import AsyncClient
from cosine_p2p.request.results import Generation
from cosine_p2p.trust.audit_rule import AuditState
from cosine_protocol.errors import GenerationFailed
from cosine_protocol.request import Sampling
from tests.swarm.reference import VOCAB_TOKENS, plain_stream, prompt_of, target_engine
from tests.thoroughness import quick_first

TOKENS: Final = 40
"""One transcript on the way, and one at the end."""
TEXTS: Final = 24
FAST: Final = CostCurve(tuple((tokens, 0.5 * seconds) for tokens, seconds in VERIFY_CURVE.points))
LIAR_NUMBERS: Final = 50_000
HONEST_NUMBERS: Final = 60_000
ONE_RANGE: Final = "/ip4/6.7.8.9/tcp/4001"


class PatientLiar(ScriptedEngine):
    """Is right in its first `right_texts`, whoever they are for, and then writes and judges by another model."""

    def __init__(self, *, right_texts: int = 0, numerics: str | None = None, context_tokens: int = 4096) -> None:
        super().__init__(vocab_tokens=VOCAB_TOKENS, context_tokens=context_tokens)
        self._left = right_texts
        if numerics is not None:
            self._numerics = numerics

    def open(self, *, sampling: Sampling, prompt_tokens: int, scope: str | None = None) -> int:
        self._left -= 1
        return super().open(sampling=sampling, prompt_tokens=prompt_tokens, scope=scope)

    def logits_after(self, tail: Any) -> Logits:
        if self._left >= 0:
            return super().logits_after(tail)
        return scripted_logits(model_seed=99, vocab_tokens=VOCAB_TOKENS, tail=tuple(tail)[-3:])


LIARS: Final[dict[str, Callable[[], ScriptedEngine]]] = {
    "numerics that nobody else has": lambda: PatientLiar(numerics="scripted/own"),
    "a longer context": lambda: PatientLiar(context_tokens=100_000),
    "a new key after each conviction": PatientLiar,
}


class Shared(Enum):
    """What some verifiers have in common."""

    NOTHING = auto()
    RANGE = auto()
    """Liars have one address range, honest verifiers a range each."""
    ONE_RANGE = auto()
    """All have one address range."""
    STAGE = auto()
    """Liars are heads over one last stage."""


ADDRESSED: Final = (Shared.RANGE, Shared.ONE_RANGE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one client got: wrong and refused texts, the keys that liars used, and whom it convicted.

    `states` are those of the audits, one for each text.
    """

    wrong: int
    refused: int
    keys: int
    honest_convicted: int
    liars_convicted: int
    states: tuple[AuditState, ...]


@dataclass(slots=True)
class Verifiers:
    """The honest verifiers of a swarm, the liars that are present, and how many keys liars have used."""

    swarm: SimulatedSwarm
    make_liar: Callable[[], ScriptedEngine]
    shared: Shared
    right: set[str] = field(default_factory=set)
    present: dict[str, Member] = field(default_factory=dict)
    keys: int = 0
    ring: Ring | None = None

    async def build_ring(self) -> None:
        """Two stages, of which the last lies."""
        first, last = even_parts(2)
        stages = [
            await self.swarm.stage(first, target_engine, curve=FAST),
            await self.swarm.stage(last, self.make_liar, curve=FAST),
        ]
        self.ring = Ring(stages=stages, traversal_s=FAST.seconds(1))

    async def add_honest(self, engine: ScriptedEngine, number: int) -> None:
        identity = numbered_identity(HONEST_NUMBERS + number)
        if self.shared in ADDRESSED:
            own = f"/ip4/5.6.{number}.1/tcp/4001"
            self.swarm.network.addresses[identity.peer_id] = own if self.shared is Shared.RANGE else ONE_RANGE
        await self.swarm.verifier(engine, identity=identity)
        self.right.add(identity.peer_id)

    async def add_liar(self) -> None:
        self.keys += 1
        identity = numbered_identity(LIAR_NUMBERS + self.keys)
        if self.shared in ADDRESSED:
            self.swarm.network.addresses[identity.peer_id] = ONE_RANGE
        engine = self.make_liar() if self.ring is None else target_engine()
        member = await self.swarm.verifier(engine, identity=identity, curve=FAST, ring=self.ring)
        self.present[identity.peer_id] = member

    async def replace(self, convicted: frozenset[str]) -> None:
        """Let convicted liars come again under new keys."""
        for peer_id in convicted & self.present.keys():
            await self.present.pop(peer_id).kill()
            await self.add_liar()


async def audited(client: AsyncClient, prompt: str, seed: int) -> Generation | None:
    """A text once it has been audited, None if it is refused."""
    try:
        run = await client.start(prompt, max_new_tokens=TOKENS, seed=seed)
        async for _ in run.chunks():
            pass
    except GenerationFailed:
        return None
    await run.audited()
    return run.result()


def outcome(
    *,
    honest: int,
    liars: int,
    texts: int = TEXTS,
    make_liar: Callable[[], ScriptedEngine] = PatientLiar,
    make_honest: Callable[[], ScriptedEngine] = target_engine,
    shared: Shared = Shared.NOTHING,
    seed: int = 0,
    audit: float = 1.0,
) -> Outcome:
    """Let one client ask for texts, one after the other."""

    async def run() -> Outcome:
        async with SimulatedSwarm() as swarm:
            verifiers = Verifiers(swarm, make_liar, shared)
            if shared is Shared.STAGE:
                await verifiers.build_ring()
            for number in range(honest):
                await verifiers.add_honest(make_honest(), number)
            for _ in range(liars):
                await verifiers.add_liar()
            identity = numbered_identity(40_000 + seed)
            client = await swarm.client(strategy="plain", identity=identity, audit=audit)
            rng, wrong, states = random.Random(seed), 0, list[AuditState]()
            for number in range(texts):
                prompt = prompt_of(rng)
                if (done := await audited(client, prompt, number)) is None:
                    continue
                assert done.audit is not None
                states.append(done.audit.state)
                wrong += done.token_ids != plain_stream(prompt, Sampling(seed=number), tokens=done.tokens)
                await verifiers.replace(client.convicted)
            right = len(client.convicted & verifiers.right)
            lying = len(client.convicted) - right
            return Outcome(wrong, texts - len(states), verifiers.keys, right, lying, tuple(states))

    return run_virtual(run())


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)


@pytest.mark.parametrize("announced", quick_first(LIARS, quick=2))
def test_who_lies_at_once_gets_one_text_through(announced: str) -> None:
    found = outcome(honest=4, liars=1, make_liar=LIARS[announced], audit=0.05)
    assert found.wrong <= 1 and not found.refused


def test_a_slow_liar_with_a_longer_context_does_not_get_what_others_have_no_room_for() -> None:
    """Honest verifiers have room for half of what is asked for, and write that."""

    def cramped() -> ScriptedEngine:
        return PatientLiar(right_texts=1 << 30, context_tokens=30)

    liar = LIARS["a longer context"]
    found = outcome(honest=3, liars=1, texts=8, make_liar=liar, make_honest=cramped, audit=0.05)
    assert not found.wrong and not found.refused


@pytest.mark.parametrize("sides", quick_first([(5, 4), (3, 2), (20, 19)]), ids=str)
def test_no_minority_of_auditors_shields_a_liar_or_convicts_an_honest_one(sides: tuple[int, int]) -> None:
    """Liars find each other right, and accuse all others whenever they are asked to judge."""
    honest, liars = sides
    found = outcome(honest=honest, liars=liars, audit=0.25)
    assert found.wrong <= 2 and not found.refused and not found.honest_convicted


def test_of_two_that_accuse_each_other_neither_is_put_out() -> None:
    assert not outcome(honest=1, liars=1).honest_convicted


@pytest.mark.parametrize("right_texts", quick_first([5, 20], quick=0))
def test_a_liar_that_waits_gets_through_less_than_it_has_worked_for(right_texts: int) -> None:
    found = outcome(
        honest=4, liars=1, texts=150, make_liar=lambda: PatientLiar(right_texts=right_texts), audit=0.05
    )
    assert found.wrong <= max(2, found.keys * right_texts / 2)


def test_honest_verifiers_alone_are_never_found_wrong() -> None:
    found = outcome(honest=3, liars=0)
    assert not found.wrong and not found.refused and not found.honest_convicted


@pytest.mark.parametrize("seed", quick_first(range(4)))
def test_twelve_liars_in_one_range_are_outvoted_by_four_honest_verifiers(seed: int) -> None:
    found = outcome(honest=4, liars=12, texts=12, shared=Shared.RANGE, seed=seed)
    assert not found.honest_convicted
    assert found.wrong <= found.liars_convicted


def test_where_all_are_in_one_range_each_has_a_voice() -> None:
    """Most lie, so nothing holds: a range that all share tells nobody apart."""
    found = outcome(honest=4, liars=12, texts=12, shared=Shared.ONE_RANGE)
    assert found.honest_convicted and not found.liars_convicted


@pytest.mark.parametrize("seed", quick_first(range(4)))
@pytest.mark.parametrize("honest", quick_first([2, 3, 1], quick=2))
def test_two_heads_over_one_lying_stage_convict_no_honest_verifier(
    honest: int, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    found = outcome(honest=honest, liars=2, texts=12, shared=Shared.STAGE, seed=seed)
    assert not found.honest_convicted
    if honest >= 2:
        assert found.wrong <= found.liars_convicted
    # A head audits while several of its passes are under way.
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_honest_heads_over_the_same_stages_are_judged_by_others_and_clear_nobody() -> None:
    for honest, state in ((1, AuditState.PASSED), (0, AuditState.UNANSWERED)):
        found = outcome(honest=honest, liars=2, texts=6, make_liar=target_engine, shared=Shared.STAGE)
        assert (found.wrong, found.honest_convicted, found.liars_convicted) == (0, 0, 0)
        assert set(found.states) == {state}
